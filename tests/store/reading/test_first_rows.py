"""The first rows of an order without an index: those of a sort by Python, whatever the order of pages."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa

from elasticscan.store import FirstRows

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
SCHEMA = pa.schema([*(pa.field(name, kind) for name, (kind, _) in VALUES.items()), pa.field("n", pa.int64())])


def place(value: Any) -> tuple[Any, ...]:
    """Spark's order of a value: null, numbers, NaN."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value)
    return (1, value.encode() if isinstance(value, str) else value)


def sort_places(rows: list[dict[str, Any]], order: list[str]) -> list[list[tuple[Any, ...]]]:
    """The rows by their order, as what they are sorted by."""
    terms = [(term.removesuffix(" DESC"), term.endswith(" DESC")) for term in order]
    whole = list(rows)
    for name, descending in reversed(terms):
        whole.sort(key=lambda row, name=name: place(row[name]), reverse=descending)  # type: ignore[misc]
    return [[place(row[name]) for name, _ in terms] for row in whole]


def pages(draw: random.Random) -> list[pa.RecordBatch]:
    few = draw.random() < 0.5
    made = []
    for _ in range(draw.randint(0, 6)):
        count = draw.choice([0, 1, 5, 40])
        arrays = [
            pa.array(
                [
                    None if draw.random() < 0.3 else draw.choice(values[:2] if few else values)
                    for _ in range(count)
                ],
                kind,
            )
            for kind, values in VALUES.values()
        ]
        made.append(pa.RecordBatch.from_arrays([*arrays, pa.array(range(count), pa.int64())], schema=SCHEMA))
    return made


def kept(batches: list[pa.RecordBatch], order: list[str], most: int) -> list[dict[str, Any]]:
    first = FirstRows(order, most, SCHEMA)
    for batch in batches:
        first.add(batch)
    return list(first.rows().to_pylist())


def differs(seeds: range) -> bool:
    for seed in seeds:
        draw = random.Random(seed)
        batches, most = pages(draw), draw.choice([0, 1, 3, 10, 500])
        names = draw.sample(list(VALUES), draw.choice([1, 1, 2, 3]))
        order = [name + draw.choice(["", " DESC"]) for name in names]
        rows = [row for batch in batches for row in batch.to_pylist()]
        found = kept(batches, order, most)
        if sort_places(found, order) != sort_places(rows, order)[:most]:
            return True
        if sort_places(found, order) != [[place(row[name]) for name in names] for row in found]:
            return True  # not in their order
        if any(row not in rows for row in found if row == row and not _has_nan(row)):
            return True
    return False


def _has_nan(row: dict[str, Any]) -> bool:
    return any(isinstance(value, float) and math.isnan(value) for value in row.values())


def test_the_first_rows_are_those_of_a_sort() -> None:
    assert not differs(range(400))
