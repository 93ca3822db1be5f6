"""The first rows of an order without an index: those of a sort by Python, whatever the order of pages."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from elasticscan.store import FirstRows
from elasticscan.store.reading import ordering
from tests.storage.indexed import ordered

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [-(2**31), -1, 0, 1, 2**31 - 1]),
    "u": (pa.uint64(), [0, 7, 2**64 - 1]),
    "f": (pa.float64(), [math.nan, -math.inf, -0.0, 0.0, 1.5, math.inf]),
    "g": (pa.float32(), [math.nan, -0.0, 0.0, -2.5]),
    "s": (pa.string(), ["", "a", "Z", "ü", "\U0001f600", "\uffee"]),
    "y": (pa.binary(), [b"", b"\x00", b"\xff", b"a"]),
    "b": (pa.bool_(), [True, False]),
    "d": (pa.date32(), [-719162, 0, 20000]),
    "m": (pa.timestamp("us", "UTC"), [-1, 0, 10**15]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])


def pages(draw: random.Random) -> list[pa.RecordBatch]:
    few, made = draw.random() < 0.5, []
    for _ in range(draw.randint(0, 6)):
        count = draw.choice([0, 1, 5, 40])
        columns = [
            pa.array(draw.choices([None, *(values[:2] if few else values)], k=count), kind)
            for kind, values in VALUES.values()
        ]
        made.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    return made


def test_the_first_rows_are_those_of_a_sort() -> None:
    for seed in range(400):
        draw = random.Random(seed)
        batches, most = pages(draw), draw.choice([0, 1, 3, 10, 500])
        names = draw.sample(list(VALUES), draw.choice([1, 1, 2, 3]))
        order = [name + draw.choice(["", " DESC"]) for name in names]
        first = FirstRows(order, most, SCHEMA)
        for batch in batches:
            first.add(batch)
        found = first.rows().to_pylist()
        rows = [row for batch in batches for row in batch.to_pylist()]
        for term in reversed(order):
            name, _, down = term.partition(" ")
            rows.sort(key=lambda row, name=name: ordered(row[name]), reverse=bool(down))  # type: ignore[misc]
        assert [[ordered(row[n]) for n in names] for row in found] == [
            [ordered(row[n]) for n in names] for row in rows[:most]
        ], seed
        whole = [[ordered(value) for value in row.values()] for row in rows]
        assert all([ordered(value) for value in row.values()] in whole for row in found), seed


# Planted faults


def zeros_differ(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ordering, "ordered_floats", lambda values: values)


def nulls_never_enter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ordering, "pc", SimpleNamespace(**vars(pc) | {"fill_null": lambda values, _: values}))


def equal_rows_never_enter(patch: pytest.MonkeyPatch) -> None:
    less = {"greater_equal": pc.greater, "less_equal": pc.less}
    patch.setattr(ordering, "pc", SimpleNamespace(**vars(pc) | less))


@pytest.mark.parametrize("plant", [zeros_differ, nulls_never_enter, equal_rows_never_enter])
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test_the_first_rows_are_those_of_a_sort()
