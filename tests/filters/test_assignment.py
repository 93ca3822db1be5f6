"""New values of columns: nothing becomes another value in silence. `test_like_spark.py` has all others."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import FilterError, NotFound
from elasticscan.filters import Assignment

NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
ROW: dict[str, tuple[pa.DataType, Any]] = {
    "big": (pa.int64(), 5),
    "tiny": (pa.int8(), 100),
    "unsigned": (pa.uint32(), 7),
    "double": (pa.float64(), 1.5),
    "single": (pa.float32(), 0.5),
    "money": (pa.decimal128(10, 2), Decimal("1.25")),
    "name": (pa.string(), "a"),
    "long_name": (pa.large_string(), "b"),
    "day": (pa.date32(), NOON.date()),
    "at": (pa.timestamp("ms", "UTC"), NOON),
    "nanos": (pa.timestamp("ns"), 1_000_000_001),
    "flag": (pa.bool_(), True),
    "two_bytes": (pa.binary(2), b"ab"),
    "list": (pa.list_(pa.int32()), [1]),
    "word": (pa.dictionary(pa.int32(), pa.string()), "q"),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in ROW.items()])
ROWS = pa.record_batch(
    [pa.array([value, None if name == "big" else value], kind) for name, (kind, value) in ROW.items()],
    schema=SCHEMA,
)


def assigned(column: str, text: str) -> pa.Array:
    return Assignment.parse(text, SCHEMA.field(column), SCHEMA).values(ROWS)


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("big", "double * 2", [3, 3]),
        ("unsigned", "unsigned", [7, 7]),
        ("unsigned", "big - 5", [0, None]),
        ("single", "double", [1.5, 1.5]),
        ("money", "0.125", [Decimal("0.13")] * 2),
        ("long_name", "upper(word)", ["Q", "Q"]),
        ("day", "'2024-02-29'", [datetime.date(2024, 2, 29)] * 2),
        ("two_bytes", "X'6162'", [b"ab", b"ab"]),
        ("list", "list", [[1], [1]]),
    ],
)
def test_values_are_those_of_the_expression_in_the_columns_type(
    column: str, text: str, expected: list[Any]
) -> None:
    values = assigned(column, text)
    assert values.type == SCHEMA.field(column).type
    assert values.to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "text", "why"),
    [
        ("big", "big * 9223372036854775807", "overflow"),
        ("big", "double", "1.50* was truncated"),
        ("big", "money", "would cause data loss"),
        ("big", "double * 1e300", "was truncated|out of bounds"),
        ("big", "big DIV 0", "by zero"),
        ("big", "big  DIV (big - big)", r"in big = big  DIV \(big - big\)"),  # as it was written
        ("double", "1/0", "in double = 1/0"),
        ("tiny", "big * 100", "500 not in range"),
        ("unsigned", "big - 6", "-1 not in range"),
        ("unsigned", "unsigned + 1", "not supported"),
        ("money", "double / 0e0 - double / 0e0", "fails|zero|malformed"),
        ("money", "money * 100000000", "precision 10"),
        ("name", "big", "CAST it"),
        ("day", "name", "CAST it"),
        ("day", "'2024-02-30'", "does not convert to DATE"),
        ("at", "nanos", "CAST it"),
        ("flag", "1", "give a value of that type"),
        ("two_bytes", "X'61'", "widths must match"),
        ("list", "big", "give a value of that type"),
        ("big", "sum(big)", "do not support .SUM"),
        ("big", "big +", "cannot read"),
    ],
)
def test_what_would_be_another_value_is_refused(column: str, text: str, why: str) -> None:
    with pytest.raises(FilterError, match=why):
        assigned(column, text)


def test_an_unknown_column_is_named_and_a_column_of_nanoseconds_copied() -> None:
    with pytest.raises(NotFound, match="bigg"):
        assigned("big", "bigg + 1")
    assert assigned("nanos", "nanos").equals(ROWS.column("nanos"))
