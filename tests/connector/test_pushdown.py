"""Filters from Spark's plan: taken only where they mean exactly the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from elasticscan.connector import ElasticScanSource
from elasticscan.connector.pushdown import PushdownReader, filter_text
from elasticscan.filters import Predicate
from elasticscan.store import Store

NOON = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
LOCAL = NOON.replace(tzinfo=None)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "b": (pa.bool_(), [True, False, None, True]),
    "i": (pa.int32(), [1, 5, None, -7]),
    "d": (pa.float64(), [1.5, float("nan"), None, -1e-300]),
    "m": (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-0.01"), None, Decimal("0.00")]),
    "s": (pa.large_string(), ["it's", "back\\slash%", None, ""]),
    "x": (pa.binary(), [b"\x00\xff", b"", None, b"'"]),
    "day": (pa.date32(), [date(2026, 1, 31), date(1969, 12, 31), None, date(1, 1, 1)]),
    "at": (pa.timestamp("us", "UTC"), [NOON, datetime(1969, 1, 1, tzinfo=UTC), None, NOON]),
    "local": (pa.timestamp("us"), [LOCAL, LOCAL.replace(year=1), None, LOCAL.replace(year=9999)]),
    "odd`name": (pa.int64(), [1, 2, None, 3]),
    "u": (pa.uint8(), [1, 2, None, 3]),
    "f": (pa.float32(), [1.0, 2.0, None, 3.0]),
    "ns": (pa.timestamp("ns"), [1, 2, None, 3]),
    "z": (pa.struct([("a", pa.int32())]), [{"a": 1}, None, None, None]),
}  # fmt: skip
SCHEMA = pa.schema([pa.field(name, kind) for name, (kind, _) in VALUES.items()])
ROWS = pa.RecordBatch.from_arrays([pa.array(v, k) for k, v in VALUES.values()], schema=SCHEMA)


def kept(found: Filter) -> list[int]:
    """Which rows pass the filter's text."""
    text = filter_text(found, SCHEMA)
    assert text is not None
    mask = Predicate.parse(text, SCHEMA).mask(ROWS).to_pylist()
    return [row for row, passes in enumerate(mask) if passes]


@pytest.mark.parametrize("name", ["b", "i", "m", "s", "x", "day", "at", "local", "odd`name"])
def test_every_value_is_equal_to_itself(name: str) -> None:
    values = VALUES[name][1]
    for value in values:
        if value is not None:
            assert kept(EqualTo((name,), value)) == [i for i, v in enumerate(values) if v == value]


COMPARED: list[tuple[type[Any], Callable[[int, int], bool]]] = [
    (GreaterThan, lambda a, b: a > b),
    (GreaterThanOrEqual, lambda a, b: a >= b),
    (LessThan, lambda a, b: a < b),
    (LessThanOrEqual, lambda a, b: a <= b),
]


@pytest.mark.parametrize(("kind", "meaning"), COMPARED)
def test_comparisons_mean_what_they_say(kind: type[Any], meaning: Callable[[Any, Any], bool]) -> None:
    for name in ("i", "m", "day", "at"):
        values = VALUES[name][1]
        expected = [i for i, v in enumerate(values) if v is not None and meaning(v, values[1])]
        assert kept(kind((name,), values[1])) == expected


def test_not_a_number_is_above_all_numbers() -> None:
    assert kept(GreaterThan(("d",), 1.5)) == [1]
    assert kept(EqualTo(("d",), float("nan"))) == [1]
    assert kept(LessThan(("d",), float("inf"))) == [0, 3]
    assert kept(GreaterThan(("d",), -2e-300)) == [0, 1, 3]


def test_nulls_lists_negations_and_texts() -> None:
    assert kept(IsNull(("i",))) == [2]
    assert kept(IsNotNull(("d",))) == [0, 1, 3]
    assert kept(In(("i",), (1, -7, 9))) == [0, 3]
    assert kept(Not(EqualTo(("i",), 5))) == [0, 3]
    assert kept(Not(In(("i",), (1, 5)))) == [3]
    assert kept(EqualNullSafe(("i",), 5)) == [1]
    assert kept(StringStartsWith(("s",), "it'")) == [0]
    assert kept(StringEndsWith(("s",), "%")) == [1]
    assert kept(StringContains(("s",), "\\")) == [1]


@pytest.mark.parametrize(
    "found",
    [
        EqualTo(("u",), 1),
        EqualTo(("f",), 1.0),
        EqualTo(("ns",), LOCAL),
        EqualTo(("z", "a"), 1),
        IsNotNull(("z",)),
        EqualTo(("nope",), 1),
        EqualTo(("i",), None),
        EqualTo(("i",), {1}),
        EqualTo(("s",), 1.5j),
        In(("i",), (1, None)),
        In(("i",), ()),
        Not(EqualTo(("u",), 1)),
        EqualTo(("i",), "no number"),
    ],
    ids=str,
)
def test_what_could_mean_something_else_is_left_to_spark(found: Filter) -> None:
    assert filter_text(found, SCHEMA) is None


def test_the_reader_returns_what_it_does_not_take_and_reads_by_the_rest(store: Store) -> None:
    source = ElasticScanSource({"store": store.uri, "table": "t", "pushdown": "true", "filter": "id < 20"})
    reader = source.reader(source.schema())
    assert isinstance(reader, PushdownReader)
    filters: list[Filter] = [
        GreaterThan(("id",), 9),
        EqualTo(("nope",), 1),
        StringStartsWith(("name",), "n3"),
    ]
    assert list(reader.pushFilters(filters)) == [filters[1]]
    found = [
        i for part in reader.partitions() for batch in reader.read(part) for i in batch.column(0).to_pylist()
    ]
    assert sorted(found) == [10, 17]
