"""Random filters, new values and aggregates of random rows are those of Spark."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from elasticscan.base.errors import FilterError
from elasticscan.filters import Aggregate, Assignment, Fold, folding
from elasticscan.filters.predicate import Predicate
from tests.connector.sql_queries import SUMMED, VALUES
from tests.filters.generator import SCHEMA, Filters, random_rows
from tests.seeds import seeds

pytestmark = pytest.mark.spark

# Spark has no nanoseconds; others have a type there that compares in the same way.
LEFT_OUT = ("ns", "seen")
OTHERS = {
    "large": pa.string(), "fix": pa.binary(), "u": pa.int32(), "named": pa.string(),
    "ms": pa.timestamp("us", "UTC"), "sec": pa.timestamp("us"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ansi(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    # What one condition guards would be computed for another one without.
    session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    return session


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    schema = StructType([StructField(field.name, from_arrow_type(field.type)) for field in rows.schema])
    return spark.createDataFrame(rows, schema)


def in_spark(frame: DataFrame, texts: list[str]) -> pa.Table | None:
    """What Spark makes of these texts; None if it refuses one of them, or fails on a row."""
    try:
        return frame.selectExpr("at", *(f"{text} AS e{at}" for at, text in enumerate(texts))).toArrow()
    except PySparkException:
        return None


def check(spark: SparkSession, rows: pa.RecordBatch, drawn: list[tuple[Any, str]], enough: int) -> None:
    """Compare values with what Spark has for their texts. Where these failed (None), Spark must fail, too."""
    table = pa.Table.from_batches([rows.select([name for name in SCHEMA.names if name not in LEFT_OUT])])
    for name, kind in OTHERS.items():
        table = table.set_column(table.schema.names.index(name), name, table[name].cast(kind))
    frame = frame_of(spark, table.append_column("at", pa.array(range(rows.num_rows)))).cache()
    texts = [text for values, text in drawn if values is not None]
    assert len(texts) > enough, "few of what was drawn can be evaluated"
    found = in_spark(frame, texts)
    if found is None:
        pytest.fail(f"Spark fails where we do not: {[text for text in texts if not in_spark(frame, [text])]}")
    found = found.sort_by("at")
    ours = [values for values, _ in drawn if values is not None]
    theirs = [found[f"e{at}"].cast(values.type).to_pylist() for at, values in enumerate(ours)]
    wrong = [
        text
        for values, expected, text in zip(ours, theirs, texts, strict=True)
        if repr(values.to_pylist()) != repr(expected)
    ]
    assert not wrong
    # Of what no decimal is, as NaN, Spark makes null; here it is an error.
    failed = [text for values, text in drawn if values is None and not re.search(r"\([df] AS DECIMAL", text)]
    spurious = [text for text in failed if in_spark(frame, [text]) is not None]
    assert not spurious, "an error must not hide rows"


def drawn_filter(draw: Filters, rows: pa.RecordBatch) -> tuple[Any, str] | None:
    """A condition, with its value for each row; None in their place if that fails."""
    text = draw.condition(draw.chance.randint(1, 3))
    try:
        predicate = Predicate.parse(text, SCHEMA)
    except FilterError:
        return None
    try:
        return predicate.mask(rows), f"CAST(({text}) AS BOOLEAN)"
    except FilterError:
        return None, f"CAST(({text}) AS BOOLEAN)"


def drawn_value(draw: Filters, rows: pa.RecordBatch) -> tuple[Any, str] | None:
    """The new value of a column; where it is not refused, it is what a CAST gives."""
    column, text = draw.chance.choice(
        [
            *((name, draw.number(2)) for name in ("i8", "i", "l", "d", "m", "wide", "m", "m")),
            ("s", draw.text(2)),
            ("flag", draw.condition(1)),
            ("us", draw.time()),
        ]
    )
    field = SCHEMA.field(column)
    kind = {"wide": "DECIMAL(38, 10)"}.get(column) or from_arrow_type(field.type).simpleString()
    try:
        values = Assignment.parse(text, field, SCHEMA).values(rows)
    except FilterError:
        return None
    assert values.type == field.type
    return values, f"CAST(({text}) AS {kind})"


@pytest.mark.parametrize("seed", seeds(5, short=1))
@pytest.mark.parametrize("drawn", [drawn_filter, drawn_value])
def test_random_filters_and_values_are_those_of_spark(
    ansi: SparkSession, drawn: Callable[[Filters, pa.RecordBatch], tuple[Any, str] | None], seed: int
) -> None:
    chance = random.Random(seed)
    rows, draw = random_rows(chance, 60), Filters(chance, deep=0.6, left_out=LEFT_OUT)
    made = [one for _ in range(80) if (one := drawn(draw, rows))]
    check(ansi, rows, made, enough=25)


def folded(rows: pa.Table, values: list[str], by: list[str]) -> pa.Table:
    fold = Fold([Aggregate.parse(text, rows.schema) for text in values], by, rows.schema)
    for batch in rows.to_batches(max_chunksize=7):
        fold.add(batch)
    return fold.result()


def folded_in_spark(spark: SparkSession, rows: pa.Table, values: list[str], by: list[str]) -> DataFrame:
    text = f"SELECT {', '.join([*by, *values])} FROM {{rows}}"
    return spark.sql(text + (f" GROUP BY {', '.join(by)}" if by else ""), rows=frame_of(spark, rows))


def comparable(table: pa.Table, groups: int) -> dict[str, dict[str, str]]:
    """Rows by their groups, as texts: NaN is equal to itself, and 0.0 to -0.0."""
    rows: dict[str, dict[str, str]] = {}
    for row in table.to_pylist():
        texts = {name: "0.0" if value == 0 else repr(value) for name, value in row.items()}
        rows[repr([*texts.values()][:groups])] = texts
    assert len(rows) == table.num_rows
    return rows


@pytest.mark.parametrize("seed", seeds(8, short=2))
def test_random_aggregates_are_those_of_spark(
    ansi: SparkSession, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "FOLDED_ROWS", 1)
    monkeypatch.setattr(folding, "LEAST_MERGED_ROWS", 4)
    draw = random.Random(seed)
    count = draw.choice([0, 1, 30, 120])
    columns = {name: of for name, of in VALUES.items() if name not in ("u32", "n")}
    columns["x64"] = (pa.float64(), [math.nan, -math.nan, -0.0, 0.0, 1.5, -math.inf])
    rows = pa.table(
        {
            name: pa.array([None if draw.random() < 0.25 else draw.choice(of) for _ in range(count)], kind)
            for name, (kind, of) in columns.items()
        }
    )
    by = draw.choice([[], ["f32"], ["s", "b"], ["d5"], ["y", "t"], ["m"], ["z"], ["x64"]])
    values = ["count(*) AS rows"]
    values += [f"{name}({each}) AS {name}_{each}" for name in ("min", "max", "count") for each in columns]
    values += [
        f"{name}({each}) AS {name}_{each}" for name in ("sum", "avg") for each in SUMMED if each != "u32"
    ]
    values += [f"count(DISTINCT {each}) AS distinct_{each}" for each in draw.sample(list(columns), 2)]
    expected, result = folded_in_spark(ansi, rows, values, by), folded(rows, values, by)
    kinds = [from_arrow_type(field.type) for field in result.schema]
    assert kinds == [field.dataType for field in expected.schema]
    theirs, ours = expected.toArrow().cast(result.schema), result
    assert comparable(ours, len(by)) == comparable(theirs, len(by))


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (pa.int64(), [2**63 - 1, 1], "sum(x)"),
        (pa.int64(), [-(2**63), -1, None], "sum(x)"),
        (pa.decimal128(38, 0), [Decimal("9" * 38)] * 2, "sum(x)"),
        (pa.decimal128(38, 0), [Decimal("9" * 38)], "avg(x)"),
    ],
)
def test_what_overflows_in_spark_overflows_here(
    ansi: SparkSession, kind: pa.DataType, values: list[Any], text: str
) -> None:
    rows = pa.table({"x": pa.array(values, kind)})
    with pytest.raises(ArithmeticException):
        folded_in_spark(ansi, rows, [text], []).collect()
    with pytest.raises(FilterError, match="ARITHMETIC_OVERFLOW"):
        folded(rows, [text], [])
