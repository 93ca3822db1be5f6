"""Aggregates of random rows, folded page by page, against Spark itself: types and values."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from elasticscan.base.errors import FilterError
from elasticscan.filters import Aggregate, Fold, folding
from tests.seeds import seeds

pytestmark = pytest.mark.spark

NAN, INFINITE, MOST = math.nan, math.inf, Decimal("9" * 38)
# Floats whose sums are the same in any order; so are those of whole numbers, which Spark averages as floats.
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "b": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 0, 127]),
    "i32": (pa.int32(), [-(2**31), 0, 5, 2**31 - 1]),
    "i64": (pa.int64(), [-(2**44), -7, 0, 2**40]),
    "f32": (pa.float32(), [NAN, -0.0, 0.0, 1.5, -2.25, INFINITE]),
    "f64": (pa.float64(), [NAN, -0.0, 0.0, 1.5, -2.25, -INFINITE]),
    "plain": (pa.float64(), [-0.0, 0.0, 1.5, -2.25, 1024.0]),
    "d5": (pa.decimal128(5, 2), [Decimal("999.99"), Decimal("-0.01"), Decimal("0.00"), Decimal("0.02")]),
    "d20": (pa.decimal128(20, 18), [Decimal("1").scaleb(-18), Decimal("99") + Decimal("1").scaleb(-18)]),
    "d38": (pa.decimal128(38, 10), [Decimal("1").scaleb(-10), Decimal(10**20), Decimal(-(10**20))]),
    "wide": (pa.decimal128(38, 2), [Decimal(10**31), Decimal(-(10**31)), Decimal("0.01")]),
    "s": (pa.string(), ["", "a", "Z", "ü", "\U0001f600", "\uffee"]),
    "y": (pa.binary(), [b"", b"\x00", b"\xff", b"a"]),
    "t": (pa.date32(), [-719162, 0, 20000]),
    "m": (pa.timestamp("us", "UTC"), [-1, 0, 10**15]),
    "z": (pa.timestamp("us"), [-1, 0, 10**15]),
}
NUMBERS = ["i8", "i32", "i64", "f32", "f64", "plain", "d5", "d20", "d38", "wide"]


def some_rows(draw: random.Random, count: int) -> pa.Table:
    return pa.table(
        {
            name: pa.array([None if draw.random() < 0.25 else draw.choice(of) for _ in range(count)], kind)
            for name, (kind, of) in COLUMNS.items()
        }
    )


def folded(rows: pa.Table, values: list[str], by: list[str]) -> pa.Table:
    fold = Fold([Aggregate.parse(text, rows.schema) for text in values], by, rows.schema)
    for batch in rows.to_batches(max_chunksize=7):
        fold.add(batch)
    return fold.result()


@pytest.fixture(scope="module")
def ansi(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(before))


def in_spark(spark: SparkSession, rows: pa.Table, values: list[str], by: list[str]) -> Any:
    schema = StructType([StructField(field.name, from_arrow_type(field.type)) for field in rows.schema])
    text = f"SELECT {', '.join([*by, *values])} FROM {{rows}}"
    frame = spark.createDataFrame(rows, schema)
    return spark.sql(text + (f" GROUP BY {', '.join(by)}" if by else ""), rows=frame)


def comparable(table: pa.Table, groups: int) -> dict[str, dict[str, str]]:
    """Rows by their groups, as texts: NaN is equal to itself, and 0.0 to -0.0."""
    rows: dict[str, dict[str, str]] = {}
    for row in table.to_pylist():
        texts = {name: "0.0" if value == 0 else repr(value) for name, value in row.items()}
        rows[repr([*texts.values()][:groups])] = texts
    assert len(rows) == table.num_rows
    return rows


@pytest.mark.parametrize("seed", seeds(8, short=3))
def test_random_aggregates_are_those_of_spark(
    ansi: SparkSession, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "FOLDED_ROWS", 1)
    monkeypatch.setattr(folding, "LEAST_MERGED_ROWS", 4)
    draw = random.Random(seed)
    rows = some_rows(draw, draw.choice([0, 1, 30, 120]))
    by = draw.choice([[], ["f32"], ["s", "b"], ["d5"], ["y", "t"], ["m"], ["z"], ["f64"]])
    values = [
        f"{name}({column}) AS {name}_{column}" for name in ("min", "max", "count") for column in COLUMNS
    ]
    values += [f"{name}({column}) AS {name}_{column}" for name in ("sum", "avg") for column in NUMBERS]
    values += [f"count(DISTINCT {column}) AS distinct_{column}" for column in draw.sample(list(COLUMNS), 2)]
    values = ["count(*) AS rows", *values]
    expected, result = in_spark(ansi, rows, values, by), folded(rows, values, by)
    assert [from_arrow_type(field.type) for field in result.schema] == [
        field.dataType for field in expected.schema
    ]
    theirs = comparable(expected.toArrow().cast(result.schema), len(by))
    ours = comparable(result, len(by))
    assert ours.keys() == theirs.keys()
    for group, row in theirs.items():
        unlike = {name: (ours[group][name], text) for name, text in row.items() if ours[group][name] != text}
        assert not unlike, group


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (pa.int64(), [2**63 - 1, 1], "sum(x)"),
        (pa.int64(), [-(2**63), -1, None], "sum(x)"),
        (pa.decimal128(38, 0), [MOST, MOST], "sum(x)"),
        (pa.decimal128(38, 0), [MOST], "avg(x)"),
    ],
)
def test_what_overflows_in_spark_overflows_here(
    ansi: SparkSession, kind: pa.DataType, values: list[Any], text: str
) -> None:
    rows = pa.table({"x": pa.array(values, kind)})
    with pytest.raises(ArithmeticException):
        in_spark(ansi, rows, [text], []).collect()
    with pytest.raises(FilterError, match="ARITHMETIC_OVERFLOW"):
        folded(rows, [text], [])
