"""Arrow to Spark and back: exact types, every value kept or an error that says why not."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from elasticscan.base.errors import SchemaMismatch
from elasticscan.connector.conversion import (
    ToSpark,
    arrow_schema,
    from_spark,
    match_columns,
    spark_schema,
)

ZONED = datetime(2026, 1, 31, 12, 30, 15, tzinfo=UTC)
MOMENT = ZONED.replace(tzinfo=None)
SPAN = timedelta(days=-2, seconds=5)

# An Arrow type, a value of it, and what Spark calls the type.
CARRIED: list[tuple[pa.DataType, Any, str]] = [
    (pa.null(), None, "void"),
    (pa.bool_(), True, "boolean"),
    (pa.int8(), -7, "tinyint"),
    (pa.int16(), -700, "smallint"),
    (pa.int32(), -70_000, "int"),
    (pa.int64(), -(1 << 40), "bigint"),
    (pa.uint8(), 255, "smallint"),
    (pa.uint16(), 65_535, "int"),
    (pa.uint32(), (1 << 32) - 1, "bigint"),
    (pa.uint64(), (1 << 64) - 1, "decimal(20,0)"),
    (pa.float16(), 1.5, "float"),
    (pa.float32(), 0.5, "float"),
    (pa.float64(), 0.1, "double"),
    (pa.decimal32(7, 2), Decimal("12345.67"), "decimal(7,2)"),
    (pa.decimal64(15, 4), Decimal("12345678901.2345"), "decimal(15,4)"),
    (pa.decimal128(38, 10), Decimal("-1.5"), "decimal(38,10)"),
    (pa.decimal256(30, 3), Decimal("9.125"), "decimal(30,3)"),
    (pa.string(), "grün", "string"),
    (pa.large_string(), "grün", "string"),
    (pa.string_view(), "a text that is too long to lie within the view", "string"),
    (pa.binary(), b"\x00\xff", "binary"),
    (pa.large_binary(), b"\x00\xff", "binary"),
    (pa.binary_view(), b"bytes that are too many to lie within the view", "binary"),
    (pa.binary(3), b"abc", "binary"),
    (pa.date32(), date(1969, 12, 31), "date"),
    (pa.date64(), date(2026, 1, 31), "date"),
    (pa.time32("s"), time(23, 59, 59), "time(6)"),
    (pa.time32("ms"), time(23, 59, 59, 999_000), "time(6)"),
    (pa.time64("us"), time(23, 59, 59, 999_999), "time(6)"),
    (pa.time64("ns"), time(23, 59, 59, 999_999), "time(6)"),
    *[(pa.timestamp(unit), MOMENT, "timestamp_ntz") for unit in ("s", "ms", "us", "ns")],
    *[(pa.timestamp(unit, "UTC"), ZONED, "timestamp") for unit in ("s", "ms", "us", "ns")],
    (pa.timestamp("us", "Europe/Berlin"), ZONED, "timestamp"),
    *[(pa.duration(unit), SPAN, "interval day to second") for unit in ("s", "us", "ns")],
    (pa.list_(pa.int32()), [1, None, 3], "array<int>"),
    (pa.list_(pa.field("item", pa.int64(), nullable=False)), [1, 2], "array<bigint>"),
    (pa.large_list(pa.large_string()), ["a", None], "array<string>"),
    (pa.list_(pa.uint8(), 2), [1, 2], "array<smallint>"),
    (pa.list_(pa.list_(pa.timestamp("s"))), [[MOMENT], [], None], "array<array<timestamp_ntz>>"),
    (pa.map_(pa.large_string(), pa.date64()), [("k", date(2026, 1, 1)), ("l", None)], "map<string,date>"),
    (
        pa.struct([pa.field("a", pa.uint32(), nullable=False), pa.field("b", pa.list_(pa.large_string()))]),
        {"a": 1, "b": ["x", None]},
        "struct<a:bigint,b:array<string>>",
    ),
    (
        pa.map_(pa.int32(), pa.struct([pa.field("t", pa.timestamp("ns"))])),
        [(1, {"t": MOMENT}), (2, None)],
        "map<int,struct<t:timestamp_ntz>>",
    ),
]  # fmt: skip


def batch_of(kind: pa.DataType, *values: Any, nullable: bool = True) -> pa.RecordBatch:
    plain = pa.float32() if kind == pa.float16() else kind
    return pa.record_batch(
        [pa.array(values, plain).cast(kind)], schema=pa.schema([pa.field("c", kind, nullable=nullable)])
    )


def there(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as Spark gets it."""
    wanted = spark_schema(batch.schema)
    return ToSpark(batch.schema, batch.schema.names, wanted)(batch)


@pytest.mark.parametrize(
    ("kind", "value", "name"), CARRIED, ids=lambda p: str(p) if isinstance(p, pa.DataType) else ""
)
def test_every_type_reaches_spark_as_it_is_expected_and_comes_back(
    kind: pa.DataType, value: Any, name: str
) -> None:
    batch = batch_of(kind, value, None, value)
    schema = spark_schema(batch.schema)
    assert schema[0].dataType.simpleString() == name
    sent = there(batch)
    sent.validate(full=True)
    assert sent.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert sent.column(0).to_pylist() == batch.column(0).to_pylist()
    returned = from_spark(sent, batch.schema)
    returned.validate(full=True)
    assert returned.equals(batch)


def test_nullability_is_exact() -> None:
    item = pa.list_(pa.field("item", pa.int32(), nullable=False))
    inner = pa.struct([pa.field("d", pa.string(), nullable=False)])
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", item), ("c", inner)])
    a, b, c = spark_schema(schema)
    assert (a.nullable, b.nullable, c.nullable) == (False, True, True)
    assert (b.dataType.containsNull, c.dataType["d"].nullable) == (False, False)


UNKNOWN = [
    pa.decimal256(40, 0),
    pa.decimal128(10, -2),
    pa.month_day_nano_interval(),
    pa.list_view(pa.int32()),
    pa.struct([]),
    pa.dictionary(pa.int32(), pa.string()),
    pa.list_(pa.struct([pa.field("deep", pa.month_day_nano_interval())])),
]


def test_what_one_side_cannot_hold_is_an_error_that_names_the_column() -> None:
    for kind in UNKNOWN:
        with pytest.raises(SchemaMismatch, match=r"'c.*'.*leave it out"):
            spark_schema(pa.schema([pa.field("c", kind)]))
    for of_spark in (VariantType(), YearMonthIntervalType(), ArrayType(VariantType())):
        with pytest.raises(SchemaMismatch, match="column 'c'"):
            arrow_schema(StructType([StructField("c", of_spark)]))
    with pytest.raises(SchemaMismatch, match="column 'c' holds a value"):
        there(batch_of(pa.timestamp("s"), 1 << 60))
    planned = StructType([StructField("c", LongType())])  # the table changed since
    with pytest.raises(SchemaMismatch, match="load the DataFrame again"):
        ToSpark(pa.schema([pa.field("c", pa.string())]), ["c"], planned)


def test_nanoseconds_are_cut_off_on_the_way_to_spark() -> None:
    kind = pa.struct([pa.field("t", pa.timestamp("ns"))])
    batch = pa.record_batch([pa.array([{"t": 1_999}], kind)], names=["c"])
    assert there(batch).column(0)[0]["t"].value == 1


# What Spark may hand in


@pytest.mark.parametrize(
    ("kind", "value", "table", "is_held"),
    [
        (pa.timestamp("us"), 1_500, pa.timestamp("ms"), False),
        (pa.timestamp("us", "Etc/UTC"), 1, pa.timestamp("s", "UTC"), False),
        (pa.int16(), 256, pa.uint8(), False),
        (pa.int64(), -1, pa.uint32(), False),
        (pa.decimal128(20, 0), Decimal(1 << 65), pa.uint64(), False),
        (pa.float32(), 0.1, pa.float16(), False),
        (pa.float32(), 1e30, pa.float16(), False),
        (pa.binary(), b"abcd", pa.binary(3), False),
        (pa.list_(pa.int32()), [1, 2, 3], pa.list_(pa.int32(), 2), False),
        (pa.list_(pa.float32()), [1.0], pa.list_(pa.float16()), False),
        (pa.time64("ns"), 1_500, pa.time64("us"), False),
        # All that a table itself takes and refuses is in tests/storage/test_conform.py.
        (pa.int64(), 1, pa.int32(), False),
        (pa.int32(), 7, pa.int64(), True),
        (pa.timestamp("us", "Etc/UTC"), ZONED, pa.timestamp("ns", "UTC"), True),
        (pa.float32(), float("nan"), pa.float16(), True),
    ],
    ids=str,
)
def test_a_value_that_the_table_cannot_hold_is_refused_and_narrower_ones_widen(
    kind: pa.DataType, value: Any, table: pa.DataType, is_held: bool
) -> None:
    schema, given = pa.schema([pa.field("c", table)]), pa.record_batch([pa.array([value], kind)], names=["c"])
    if is_held:
        found = from_spark(given, schema)
        assert found.schema == schema
        assert str(found.column(0)[0].as_py()) == str(given.column(0).cast(table)[0].as_py())
        return
    with pytest.raises(SchemaMismatch, match="'c'"):
        from_spark(given, schema)


@pytest.mark.parametrize("columns", [{"id": [1], "x": [1]}, {"id": [1], "ID": [1]}, {"x": [1]}, {}])
def test_missing_and_unknown_columns_are_refused(columns: dict[str, list[int]]) -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    with pytest.raises(SchemaMismatch, match="other columns than id"):
        from_spark(pa.record_batch(columns), schema)


# Schemas that users give

TAGS = pa.list_(pa.field("item", pa.string(), nullable=False))
OFFERED = spark_schema(
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("tags", TAGS)])
)


def fields(*given: tuple[str, DataType, bool]) -> StructType:
    return StructType([StructField(*each) for each in given])


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (fields(("id", IntegerType(), True)), "is bigint NOT NULL, not int as in the schema"),
        (fields(("idd", LongType(), True)), "column 'idd' of the schema is unknown"),
        (fields(("name", StringType(), False)), "column 'name' is string, not string NOT NULL as in"),
        (fields(("tags", ArrayType(LongType()), True)), "array<bigint>"),
        (fields(("id", LongType(), True), ("ID", LongType(), True)), "each once"),
        (StructType([]), "at least one column"),
    ],
)
def test_a_schema_of_other_types_or_names_is_refused_and_any_subset_in_any_case_matched(
    wanted: StructType, why: str
) -> None:
    with pytest.raises(SchemaMismatch, match=why):
        match_columns(wanted, OFFERED)
    subset = fields(("TAGS", ArrayType(StringType(), True), True), ("id", LongType(), False))
    assert match_columns(subset, OFFERED) == ("tags", "id")
