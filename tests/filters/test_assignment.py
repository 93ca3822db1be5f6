"""New values of columns: what the expressions mean, and that nothing becomes another value in silence."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import FilterError, NotFound
from elasticscan.filters import Assignment

SCHEMA = pa.schema(
    {
        "big": pa.int64(),
        "tiny": pa.int8(),
        "unsigned": pa.uint32(),
        "double": pa.float64(),
        "single": pa.float32(),
        "money": pa.decimal128(10, 2),
        "name": pa.string(),
        "long_name": pa.large_string(),
        "day": pa.date32(),
        "at": pa.timestamp("ms", "UTC"),
        "nanos": pa.timestamp("ns"),
        "flag": pa.bool_(),
        "two_bytes": pa.binary(2),
        "list": pa.list_(pa.int32()),
        "word": pa.dictionary(pa.int32(), pa.string()),
    }
)
NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
ROW = {
    "big": 5,
    "tiny": 100,
    "unsigned": 7,
    "double": 1.5,
    "single": 0.5,
    "money": Decimal("1.25"),
    "name": "a",
    "long_name": "b",
    "day": datetime.date(2024, 1, 1),
    "at": NOON,
    "nanos": 1_000_000_001,
    "flag": True,
    "two_bytes": b"ab",
    "list": [1],
    "word": "q",
}
ROWS = pa.RecordBatch.from_pylist([ROW, ROW | {"big": None}], schema=SCHEMA)


def assigned(column: str, text: str) -> pa.Array:
    return Assignment.parse(text, SCHEMA.field(column), SCHEMA).values(ROWS)


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("big", "big + 1", [6, None]),
        ("big", "NULL", [None, None]),
        ("big", "double * 2", [3, 3]),
        ("big", "CAST(double AS INT)", [1, 1]),
        ("big", "CASE WHEN big > 3 THEN -big ELSE 0 END", [-5, 0]),
        ("tiny", "tiny + 27", [127, 127]),
        ("tiny", "big", [5, None]),
        ("unsigned", "unsigned", [7, 7]),
        ("unsigned", "big - 5", [0, None]),
        ("double", "0.5", [0.5, 0.5]),
        ("double", "money + big", [6.25, None]),
        ("single", "double", [1.5, 1.5]),
        ("money", "money * 2", [Decimal("2.50")] * 2),
        ("money", "big", [Decimal("5.00"), None]),
        ("money", "double", [Decimal("1.50")] * 2),
        ("money", "double / 7", [Decimal("0.21")] * 2),
        ("money", "0.125", [Decimal("0.13")] * 2),
        ("money", "-0.125", [Decimal("-0.13")] * 2),
        ("money", "money * 1.1", [Decimal("1.38")] * 2),
        ("money", "CAST(CAST(money AS DOUBLE) / 3 AS DECIMAL(10, 2))", [Decimal("0.42")] * 2),
        ("name", "name || long_name", ["ab", "ab"]),
        ("name", "CAST(big AS STRING)", ["5", None]),
        ("long_name", "upper(word)", ["Q", "Q"]),
        ("word", "name", ["a", "a"]),
        ("day", "'2024-02-29'", [datetime.date(2024, 2, 29)] * 2),
        ("at", "day", [NOON.replace(hour=0)] * 2),
        ("flag", "big > 3", [True, None]),
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


def test_a_column_is_copied_as_it_is_with_its_nanoseconds() -> None:
    assert assigned("nanos", "nanos").equals(ROWS.column("nanos"))


@pytest.mark.parametrize(
    ("column", "text", "why"),
    [
        ("big", "big * 9223372036854775807", "overflow"),
        ("big", "double", "1.50* was truncated"),
        ("big", "money", "would cause data loss"),
        ("big", "double * 1e300", "was truncated|out of bounds"),
        ("big", "big DIV 0", "by zero"),
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
        ("big", "sum(big)", "do not support sum"),
        ("big", "big +", "cannot read"),
    ],
)
def test_what_would_be_another_value_is_refused(column: str, text: str, why: str) -> None:
    with pytest.raises(FilterError, match=why):
        assigned(column, text)


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(NotFound, match="bigg"):
        assigned("big", "bigg + 1")


@pytest.mark.parametrize("text", ["1/0", "big  DIV (big - big)", "big * 9223372036854775807"])
def test_an_error_shows_a_new_value_as_it_was_written(text: str) -> None:
    with pytest.raises(FilterError) as refused:
        assigned("big" if "big" in text else "double", text)
    assert text in refused.value.message
    assert "1.0 / 0.0" not in refused.value.message
