"""Arrow columns to the types that Spark takes, and back; whole batches at a time.

Spark compares the first batch of a task with its schema and takes nothing but an equal one, so
each column is brought to exactly the Arrow type that Spark expects: texts and binaries in their
plain form, unsigned integers in the next wider type, timestamps in microseconds (UTC, or without
a zone). Columns that have that type already pass through untouched.

Nanoseconds are cut off on the way to Spark, which has none. Everything else keeps its value or
fails: a date that Spark's microseconds cannot hold on the way out, a value that the table's type
cannot hold on the way in.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from elasticscan.base.errors import SchemaMismatch, UnsupportedType
from elasticscan.base.limits import MAX_DECIMAL_DIGITS
from elasticscan.storage import conform

_PLAIN: dict[pa.DataType, DataType] = {
    pa.null(): NullType(),
    pa.bool_(): BooleanType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.uint8(): ShortType(),
    pa.uint16(): IntegerType(),
    pa.uint32(): LongType(),
    pa.uint64(): DecimalType(20, 0),
    pa.float16(): FloatType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.large_string(): StringType(),
    pa.string_view(): StringType(),
    pa.binary(): BinaryType(),
    pa.large_binary(): BinaryType(),
    pa.binary_view(): BinaryType(),
    pa.date32(): DateType(),
    pa.date64(): DateType(),
    pa.time32("s"): TimeType(),
    pa.time32("ms"): TimeType(),
    pa.time64("us"): TimeType(),
    pa.time64("ns"): TimeType(),
    **{pa.duration(unit): DayTimeIntervalType() for unit in ("s", "ms", "us", "ns")},
}


def spark_type(name: str, kind: pa.DataType) -> DataType:
    """The Spark type of a column. Raises `UnsupportedType`, naming the column."""
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain
    if pt.is_timestamp(kind):
        return TimestampNTZType() if kind.tz is None else TimestampType()
    if pt.is_fixed_size_binary(kind):
        return BinaryType()
    if pt.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= MAX_DECIMAL_DIGITS:
        return DecimalType(kind.precision, kind.scale)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return ArrayType(spark_type(f"{name}.element", kind.value_type), kind.value_field.nullable)
    if pt.is_map(kind):
        values = spark_type(f"{name}.value", kind.item_type)
        return MapType(spark_type(f"{name}.key", kind.key_type), values, kind.item_field.nullable)
    if pt.is_struct(kind) and kind.num_fields:
        return StructType([_spark_field(f"{name}.{field.name}", field) for field in kind])
    raise UnsupportedType(
        f"column {name!r} has the Arrow type {kind}, for which Spark has none; leave it out with the option "
        "'columns'",
        column=name,
    )


def _spark_field(path: str, field: pa.Field) -> StructField:
    return StructField(field.name, spark_type(path, field.type), field.nullable)


def spark_schema(schema: pa.Schema) -> StructType:
    """A table's columns as Spark sees them, nullability included."""
    return StructType([_spark_field(field.name, field) for field in schema])


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark hands over rows and expects them.

    Raises:
        UnsupportedType: a column of a type that no table can hold and give back.
    """
    fields = []
    for field in schema:
        try:
            (column,) = to_arrow_schema(StructType([field]), timezone="UTC")
            same = _same(spark_type(field.name, column.type), field.dataType)
        except (PySparkException, UnsupportedType):
            same = False
        if not same:
            raise UnsupportedType(
                f"column {field.name!r} is {field.dataType.simpleString()}, which a table cannot hold; "
                "cast it or drop it first",
                column=field.name,
            )
        fields.append(pa.field(column.name, column.type, column.nullable))
    return pa.schema(fields)


def _same(left: DataType, right: DataType) -> bool:
    """True if two types are equal but for what may be null inside them."""
    match left, right:
        case ArrayType(), ArrayType():
            return _same(left.elementType, right.elementType)
        case MapType(), MapType():
            return _same(left.keyType, right.keyType) and _same(left.valueType, right.valueType)
        case StructType(), StructType():
            return left.names == right.names and all(
                _same(a.dataType, b.dataType) for a, b in zip(left, right, strict=True)
            )
        case TimeType(), TimeType():
            return True
    return left == right


def _may_hold(target: DataType, source: DataType) -> bool:
    """True if nulls are allowed inside `target` wherever they are in `source`."""
    match target, source:
        case ArrayType(), ArrayType():
            return target.containsNull >= source.containsNull and _may_hold(
                target.elementType, source.elementType
            )
        case MapType(), MapType():
            return (
                target.valueContainsNull >= source.valueContainsNull
                and _may_hold(target.keyType, source.keyType)
                and _may_hold(target.valueType, source.valueType)
            )
        case StructType(), StructType():
            return all(
                a.nullable >= b.nullable and _may_hold(a.dataType, b.dataType)
                for a, b in zip(target, source, strict=True)
            )
    return True


def match_columns(asked: StructType, offered: StructType) -> tuple[str, ...]:
    """The offered column that each column of a schema means which a user gave.

    Any subset in any order; names in any case, as in Spark's SQL. Types must be the offered ones;
    more may be nullable than is.

    Raises:
        SchemaMismatch: naming the column that does not fit.
    """
    by_name = {field.name.lower(): field for field in offered}
    matched = []
    for field in asked:
        column = by_name.get(field.name.lower())
        if column is None:
            raise SchemaMismatch(
                f"the schema names a column {field.name!r}, but there are {', '.join(offered.names)}",
                column=field.name,
            )
        if not _same(field.dataType, column.dataType):
            raise SchemaMismatch(
                f"the schema says {field.dataType.simpleString()} for column {field.name!r}, but it is "
                f"{column.dataType.simpleString()}; read it so and cast it in the query",
                column=field.name,
            )
        if field.nullable < column.nullable or not _may_hold(field.dataType, column.dataType):
            raise SchemaMismatch(
                f"the schema says NOT NULL for column {field.name!r}, where the table allows nulls; leave "
                "that out",
                column=field.name,
            )
        matched.append(column.name)
    if len(set(matched)) < len(matched) or not matched:
        raise SchemaMismatch("the schema must name at least one column, and each once")
    return tuple(matched)


class ToSpark:
    """Turns a scan's batches into what Spark expects.

    Args:
        stored: schema of the batches; they may have more columns than `columns`.
        columns: the columns of `stored` to hand over, in the order of `target`.
        target: Spark's schema.
    """

    def __init__(self, stored: pa.Schema, columns: Sequence[str], target: StructType) -> None:
        offered = spark_schema(pa.schema([stored.field(name) for name in columns]))
        for field, column in zip(target, offered, strict=True):
            if not _same(field.dataType, column.dataType) or field.nullable < column.nullable:
                raise SchemaMismatch(
                    f"column {column.name!r} is {column.dataType.simpleString()} now, but was "
                    f"{field.dataType.simpleString()} when this was planned; load the DataFrame again",
                    column=column.name,
                )
        self._target = to_arrow_schema(target, timezone="UTC")
        self._untouched = stored.equals(self._target)
        self._columns = list(zip(columns, self._target, strict=True))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._untouched:
            return batch
        columns = [self._cast(batch.column(name), field) for name, field in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._target)

    @staticmethod
    def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
        if column.type == field.type:
            return column
        try:
            return pc.cast(column, options=pc.CastOptions(field.type, allow_time_truncate=True))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnsupportedType(
                f"column {field.name!r} holds a value that Spark's type cannot: {error}; leave the "
                "column out with the option 'columns'",
                column=field.name,
            ) from error


class FromSpark:
    """Turns batches from Spark into a table's schema; every value is kept, or an error says why not.

    Args:
        schema: the table's.
        fill: whether nullable columns that the batches lack are null, instead of missing.

    Raises on a call:
        SchemaMismatch: columns are missing or unknown, or a value does not fit its column.
    """

    def __init__(self, schema: pa.Schema, fill: bool = False) -> None:
        self._schema, self._fill = schema, fill
        self._by_name = {field.name.lower(): field for field in schema}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return conform(self.named(batch), self._schema)

    def named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch's columns under the table's names; columns and nulls are still to be checked."""
        columns, fields = [], []
        for source, column in zip(batch.schema, batch.columns, strict=True):
            field = self._by_name.get(source.name.lower())
            columns.append(column if field is None else self._narrow(column, field))
            fields.append(pa.field(field.name if field else source.name, columns[-1].type))
        if self._fill:
            present = {field.name for field in fields}
            lacking = [absent for absent in self._schema if absent.nullable and absent.name not in present]
            columns += [pa.nulls(batch.num_rows, field.type) for field in lacking]
            fields += lacking
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _narrow(self, column: pa.Array, field: pa.Field) -> pa.Array:
        """The column in the table's type, if that is one which Spark sees as the column's type."""
        if column.type == field.type:
            return column
        if _same(spark_type(field.name, column.type), spark_type(field.name, field.type)):
            try:
                narrowed = pc.cast(column, field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaMismatch(
                    f"column {field.name!r} has a value that the table's type {field.type} cannot "
                    f"hold: {error}",
                    column=field.name,
                ) from error
            _check_halves(column, narrowed, field.name)
            column = narrowed
        if _holds_not_null(field.type):
            _check_inner_nulls(field.name, column, field.type)
        return column


def _check_halves(column: pa.Array, narrowed: pa.Array, name: str) -> None:
    """Raise if a half float cannot hold a number exactly; Arrow rounds it silently."""
    if pt.is_float16(narrowed.type):
        back = narrowed.cast(column.type)
        preserved = pc.or_(pc.equal(back, column), pc.and_(pc.is_nan(back), pc.is_nan(column)))
        if pc.all(preserved).as_py() is not False:
            return
    elif "halffloat" not in str(narrowed.type):
        return
    raise SchemaMismatch(
        f"column {name!r} is {narrowed.type} in the table, which cannot hold what Spark gives "
        "without rounding",
        column=name,
    )


def _holds_not_null(kind: pa.DataType) -> bool:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return any(not field.nullable or _holds_not_null(field.type) for field in fields)


def _check_inner_nulls(name: str, column: pa.Array, kind: pa.DataType) -> None:
    """Raise for nulls where the type allows none: Arrow's cast does not look inside of lists."""
    present = column.drop_null()
    parts: list[tuple[pa.Array, pa.Field]]
    if pt.is_struct(kind):
        parts = [(present.field(i), kind.field(i)) for i in range(kind.num_fields)]
    elif pt.is_map(kind):
        parts = [(present.keys, kind.key_field), (present.items, kind.item_field)]
    elif kind.num_fields == 1:
        parts = [(present.flatten(), kind.value_field)]
    else:
        return
    for part, field in parts:
        if part.null_count and not field.nullable:
            raise SchemaMismatch(
                f"column {name!r} has nulls in {field.name!r}, where the table allows none; fill or "
                "drop them",
                column=name,
            )
        if _holds_not_null(field.type):
            _check_inner_nulls(f"{name}.{field.name}", part, field.type)
