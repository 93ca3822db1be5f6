"""Conversion of Arrow batches to the types that Spark expects, and back.

Spark refuses a batch whose schema differs from the expected one. So each column is cast to exactly the Arrow
type that Spark expects: texts and binaries in their plain form, unsigned integers in the next wider type,
timestamps in microseconds (UTC, or without a zone). Columns of that type pass through unchanged.

Spark has no nanoseconds: they are cut off on the way to it. Every other value stays the same, or the read or
write fails: a date may be out of range for Spark's microseconds, a value out of range for the table's type.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.errors import PySparkException, PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    TimeType,
)

from elasticscan.base.errors import SchemaMismatch
from elasticscan.base.limits import MAX_DECIMAL_DIGITS
from elasticscan.metadata import TableInfo
from elasticscan.storage import check_keys_filled, conform

# Types that Spark lacks, and the type of Spark that has all their values.
_SPARK_TYPES: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
}


def mismatch(column: str, why: str) -> SchemaMismatch:
    """Return the error for a column that cannot be read or written."""
    return SchemaMismatch(f"column {column!r} {why}", column=column)


def spark_type(name: str, kind: pa.DataType) -> DataType:
    """Return the Spark type of a column. Raises `SchemaMismatch` with the column's name."""
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return ArrayType(spark_type(f"{name}.element", kind.value_type), kind.value_field.nullable)
    if pt.is_map(kind):
        values = spark_type(f"{name}.value", kind.item_type)
        return MapType(spark_type(f"{name}.key", kind.key_type), values, kind.item_field.nullable)
    if pt.is_struct(kind) and kind.num_fields:
        return StructType([_spark_field(f"{name}.{field.name}", field) for field in kind])
    too_wide = pt.is_decimal(kind) and not 0 <= kind.scale <= kind.precision <= MAX_DECIMAL_DIGITS
    try:
        if not (too_wide or pt.is_nested(kind) or pt.is_dictionary(kind)):
            return from_arrow_type(_SPARK_TYPES.get(kind, kind))
    except PySparkTypeError:
        pass
    raise mismatch(name, f"has the Arrow type {kind}, unknown to Spark; leave it out by the option 'columns'")


def _spark_field(path: str, field: pa.Field) -> StructField:
    return StructField(field.name, spark_type(path, field.type), field.nullable)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the columns of a table with Spark's types and with their nullability."""
    return StructType([_spark_field(field.name, field) for field in schema])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the batches that Spark sends and expects.

    Raises `SchemaMismatch` if no table can store a column's type and return it unchanged.
    """
    fields = []
    for field in schema:
        try:
            (column,) = to_arrow_schema(StructType([field]), timezone="UTC")
            same = _same(spark_type(field.name, column.type), field.dataType)
        except (PySparkException, SchemaMismatch, ValueError, TypeError):  # Arrow raises the last two
            same = False
        if not same:
            why = "which a table cannot hold; cast it (CHAR and VARCHAR to STRING) or drop it first"
            raise mismatch(field.name, f"is {field.dataType.simpleString()}, {why}")
        fields.append(pa.field(column.name, column.type, column.nullable))
    return pa.schema(fields)


def _same(left: DataType, right: DataType) -> bool:
    """Return True if two types are equal but for nullability and the precision of times."""
    if isinstance(left, TimeType):
        return isinstance(right, TimeType)
    return _nullable(left) == _nullable(right)


def _nullable(kind: DataType) -> DataType:
    """Return the type with nulls allowed at each level, as in a schema that a user writes as text."""
    return ArrayType(kind).toNullable().elementType


def match_columns(asked: StructType, offered: StructType) -> tuple[str, ...]:
    """Return the names of the offered columns that a user's schema asks for.

    The schema may name any subset, in any order and any case. Types must be the offered ones. A column
    without nulls may be declared nullable, and so may the elements and fields within a column.

    Raises:
        SchemaMismatch: a column is unknown, is named twice, or has another type.
    """
    by_name = {field.name.lower(): field for field in offered}
    matched = []
    for field in asked:
        column = by_name.get(field.name.lower())
        if column is None:
            raise mismatch(field.name, f"of the schema is unknown; there are {', '.join(offered.names)}")
        is_nested = isinstance(column.dataType, ArrayType | MapType | StructType)
        allowed = (column.dataType, _nullable(column.dataType))
        fits = field.dataType in allowed if is_nested else _same(field.dataType, column.dataType)
        if not fits or field.nullable < column.nullable:
            why = f"is {_ddl(column)}, not {_ddl(field)} as in the schema; cast it in the query instead"
            raise mismatch(field.name, why)
        matched.append(column.name)
    if len(set(matched)) < len(matched) or not matched:
        raise SchemaMismatch("the schema must name at least one column, and each once")
    return tuple(matched)


def _ddl(field: StructField) -> str:
    return f"{field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"


class ToSpark:
    """Converter of a scan's batches to Spark's schema.

    Args:
        stored: schema of the scan's batches; it may have more columns than `columns`.
        columns: the columns of `stored` to return, in the order of `target`.
        target: Spark's schema; the attribute of this name is its Arrow schema.
    """

    def __init__(self, stored: pa.Schema, columns: Sequence[str], target: StructType) -> None:
        offered = spark_schema(pa.schema([stored.field(name) for name in columns]))
        for field, column in zip(target, offered, strict=True):
            if not _same(field.dataType, column.dataType) or field.nullable < column.nullable:
                now, planned = column.dataType.simpleString(), field.dataType.simpleString()
                why = f"is {now} now, but was {planned} when this was planned; load the DataFrame again"
                raise mismatch(column.name, why)
        self.target = to_arrow_schema(target, timezone="UTC")
        self._untouched = stored.equals(self.target)
        self._columns = list(zip(columns, self.target, strict=True))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._untouched:
            return batch
        columns = [self._cast(batch.column(name), field) for name, field in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.target)

    @staticmethod
    def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
        if column.type == field.type:
            return column
        try:
            return pc.cast(column, options=pc.CastOptions(field.type, allow_time_truncate=True))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            why = f"holds a value that Spark's type cannot: {error}; leave it out by the option 'columns'"
            raise mismatch(field.name, why) from error


def spell(names: Sequence[str], columns: pa.Schema) -> list[str]:
    """Return column names as a schema spells them. Unknown names stay as they are."""
    by_name = {name.lower(): name for name in columns.names}
    return [by_name.get(name.lower(), name) for name in names]


def from_spark(
    batch: pa.RecordBatch, schema: pa.Schema, fill: bool = False, table: TableInfo | None = None
) -> pa.RecordBatch:
    """Return a batch that Spark sent in a table's schema. No value changes.

    Args:
        batch: the rows, whose columns have the table's names.
        schema: the columns of the table, or a part of them.
        fill: whether to fill nullable columns that the batch lacks with nulls.
        table: the table, if each row must have a key.

    Raises:
        SchemaMismatch: columns are missing or unknown, or a value does not fit its column, or a column
            of the key has nulls.
    """
    fields = {field.name: field for field in schema}
    names, columns = list(batch.schema.names), batch.columns
    for at, name in enumerate(names):
        columns[at] = _narrow(columns[at], fields[name]) if name in fields else columns[at]
    lacking = fields.keys() - set(names) if fill else ()
    for field in (fields[name] for name in lacking if fields[name].nullable):
        names.append(field.name)
        columns.append(pa.nulls(batch.num_rows, field.type))
    named = pa.RecordBatch.from_arrays(columns, names)
    if table is not None:  # `conform` would report such nulls as those of any other column
        check_keys_filled(named, table)
    return conform(named, schema)


def _narrow(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return the column in the table's type if Spark has one type for both; else return it unchanged."""
    if column.type == field.type or not _same(
        spark_type(field.name, column.type), spark_type(field.name, field.type)
    ):
        return column
    try:
        narrowed = pc.cast(column, field.type)
        if "halffloat" in str(field.type) and not _is_exact(narrowed, column):
            raise pa.ArrowInvalid("it would be rounded")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        why = f"has a value that the table's type {field.type} cannot hold: {error}"
        raise mismatch(field.name, why) from error
    return narrowed


def _is_exact(narrowed: pa.Array, column: pa.Array) -> bool:
    """Return True if a cast to half floats kept all numbers: Arrow rounds silently. False for nested ones."""
    if not pt.is_float16(narrowed.type):
        return False
    same = pc.or_(pc.equal(narrowed.cast(column.type), column), pc.is_nan(column))
    return pc.all(same).as_py() is not False
