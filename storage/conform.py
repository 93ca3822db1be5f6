"""Bringing the rows that users hand in to a table's schema and limits, or saying exactly what does not fit.

Limits are looked at for whole batches before anything of them is staged. A page may end at any row, and its
continuation key then holds the row's keys. So a row whose keys are longer than a continuation key takes is
refused when it is written, not when a scan ends there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticscan.base.errors import InvalidKey, LimitExceeded, SchemaMismatch
from elasticscan.base.formatting import a_type
from elasticscan.base.key_encoding import encoded_lengths
from elasticscan.base.limits import BATCH_ROWS, MAX_KEY_BYTES, MAX_ROW_BYTES
from elasticscan.metadata import TableInfo

ROWS_HINT = (
    "hand in a pyarrow Table, RecordBatch or RecordBatchReader, a frame of Polars, pandas or DuckDB, a dict "
    "of columns, or a list of dicts"
)


def batches_of(data: Any) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of Arrow tables, batches, readers or streams; at least one.

    Raises:
        SchemaMismatch: it is something else, or a batch has less than its number of rows needs.
    """
    for batch in _batches(data):
        try:
            batch.validate()  # before anybody counts its nulls
        except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
            raise SchemaMismatch(f"the rows are no sound Arrow data: {error}") from error
        yield batch


def _batches(data: Any) -> Iterator[pa.RecordBatch]:
    reader, batch = _reader(data), None
    for batch in reader:
        yield batch
    if batch is None:  # rows that are not there have columns all the same, which may be wrong
        yield pa.RecordBatch.from_arrays(
            [pa.nulls(0, kind) for kind in reader.schema.types], schema=reader.schema
        )


def _reader(data: Any) -> pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, pa.Table):
        return data.to_reader(max_chunksize=16 * BATCH_ROWS)
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")  # not imported for others
    if polars is not None and isinstance(data, polars.DataFrame):
        _check_no_objects(data.schema, polars.Object)
    try:
        if pandas is not None and isinstance(data, pandas.DataFrame):
            return _of_pandas(data).to_reader(max_chunksize=16 * BATCH_ROWS)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, ValueError, TypeError) as error:  # also of what other libraries make of it
        raise SchemaMismatch(f"{a_type(data)} is no stream of rows: {error}") from error
    raise SchemaMismatch(f"cannot write {a_type(data)}: {ROWS_HINT}")


def _check_no_objects(schema: Mapping[str, Any], kind: Any) -> None:
    """Refuse columns of Python objects, whose addresses Polars exports as if they were values."""
    for name, column in schema.items():
        if column == kind:
            raise SchemaMismatch(
                f"column {name!r} is of Polars' type Object, which has no values in Arrow; cast it first",
                column=name,
            )


def _of_pandas(frame: Any) -> pa.Table:
    """Return a pandas frame: the levels of its index are columns where they have names of their own.

    pandas itself would leave out a range with a name, and make a column of any other index without one,
    such as that of rows that were filtered.
    """
    levels = enumerate(frame.index.names)
    nameless = [level for level, name in levels if name is None or name in frame.columns]
    is_kept = len(nameless) < frame.index.nlevels
    if is_kept and nameless:
        frame = frame.reset_index(level=nameless, drop=True)
    return pa.Table.from_pandas(frame, preserve_index=is_kept)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly the table's columns, in its order and types.

    Columns may come in any order. A type may differ where every value stays the same: narrower
    integers and floats, large or view or dictionary forms of strings and binaries, finer nulls.

    Raises:
        SchemaMismatch: a column is missing, unknown, repeated, of another type, or has nulls
            where the table allows none.
    """
    names = batch.schema.names
    missing = [name for name in schema.names if name not in names]
    unknown = [name for name in names if name not in schema.names]
    if missing or unknown or len(names) != len(schema):
        parts = (("missing", missing), ("unknown", unknown))
        differences = [f"{what}: {', '.join(some)}" for what, some in parts if some]
        needed, hint = [name for name in missing if not schema.field(name).nullable], ""
        if needed:  # neither nulls nor a merge would do
            hint = f"; every row needs a value of {', '.join(needed)}, which cannot be null"
        elif missing:
            hint = "; give a column of nulls, or name the columns to write: merge(rows, columns=[…])"
        raise SchemaMismatch(
            f"the rows do not have the table's columns ({'; '.join(differences) or 'one is repeated'}); "
            f"the table has {', '.join(schema.names)}{hint}",
            missing=missing,
            unknown=unknown,
        )
    columns = [_conform_column(batch.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conform_column(column: pa.Array, field: pa.Field) -> pa.Array:
    _check_sound(column, field)
    if column.type != field.type:
        if not _widens(column.type, field.type):
            raise SchemaMismatch(
                f"column {field.name!r} is {column.type} but the table has {field.type}; cast it first",
                column=field.name,
            )
        try:
            column = _cast(column, field.type)
        except (pa.ArrowInvalid, pa.ArrowIndexError, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatch(
                f"column {field.name!r} cannot be cast from {column.type} to {field.type}: {error}",
                column=field.name,
            ) from error
    if not field.nullable and column.null_count:
        raise SchemaMismatch(
            f"column {field.name!r} has {column.null_count} nulls but the table allows none; "
            "fill or drop them",
            column=field.name,
        )
    if _has_required_parts(field.type) and _lacks_required_part(column):
        raise SchemaMismatch(
            f"column {field.name!r} has nulls inside its values where {field.type} allows none; "
            "fill or drop them",
            column=field.name,
        )
    return column


def check_keys_filled(rows: pa.RecordBatch, table: TableInfo) -> None:
    """Raise `InvalidKey` when a column of the primary key has nulls."""
    for name in table.primary_key:
        nulls = rows.column(name).null_count if rows.schema.names.count(name) == 1 else 0
        if nulls:
            raise InvalidKey(
                f"primary key column {name!r} is null in {nulls} rows; fill or drop them", column=name
            )


def check_key_bytes(rows: pa.RecordBatch, primary_key: Sequence[str]) -> None:
    """Raise `InvalidKey` when a primary key is longer than `MAX_KEY_BYTES`, encoded."""
    columns = [rows.column(name) for name in primary_key]
    if rows.num_rows and not _surely_short(columns):
        _check_length(encoded_lengths(columns), columns, primary_key, "primary key")


def check_index_key_bytes(rows: pa.RecordBatch, index: str, names: Sequence[str]) -> None:
    """Raise `InvalidKey` when an index key is longer than `MAX_KEY_BYTES`, encoded."""
    columns = [rows.column(name) for name in names]
    if rows.num_rows and not _surely_short(columns):
        _check_length(encoded_lengths(columns) + len(columns), columns, names, f"key of index {index!r}")


def check_row_bytes(rows: pa.RecordBatch) -> None:
    """Raise `LimitExceeded` when a row takes more than `MAX_ROW_BYTES`."""
    if rows.nbytes <= MAX_ROW_BYTES:
        return
    if rows.num_rows == 1:
        largest = max(rows.schema.names, key=lambda name: rows.column(name).nbytes)
        raise LimitExceeded(
            f"a row takes {rows.nbytes:,} bytes, most of them in column {largest!r}, and may take "
            f"{MAX_ROW_BYTES:,}; keep such values in files, and their names in the table",
            column=largest,
            limit="bytes of a row",
            most=MAX_ROW_BYTES,
            found=rows.nbytes,
        )
    half = rows.num_rows // 2
    check_row_bytes(rows.slice(0, half))
    check_row_bytes(rows.slice(half))


def _surely_short(columns: Sequence[pa.Array]) -> bool:
    """Return whether no key can be too long, seen from the bytes of all together; a zero byte takes two."""
    return bool(sum(2 * column.nbytes + 24 for column in columns) <= MAX_KEY_BYTES)


def _check_length(
    lengths: NDArray[np.int64], columns: Sequence[pa.Array], names: Sequence[str], kind: str
) -> None:
    row = int(np.argmax(lengths))
    if lengths[row] <= MAX_KEY_BYTES:
        return
    column = max(zip(columns, names, strict=True), key=lambda pair: pair[0].slice(row, 1).nbytes)[1]
    raise InvalidKey(
        f"a {kind} takes {lengths[row]:,} bytes, most of them in column {column!r}, and may take "
        f"{MAX_KEY_BYTES:,}; use a digest of the value as key",
        column=column,
        length=int(lengths[row]),
        most=MAX_KEY_BYTES,
    )


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):  # Arrow has no cast for one of views, as of Polars' categories
        return pc.cast(column.dictionary, kind).take(column.indices)
    return pc.cast(column, kind)


def _check_sound(column: pa.Array, field: pa.Field) -> None:
    """Kernels trust offsets and indices: a wrong one would end the process.

    Values in a fragment must be sound: readers take unsound ones for damage.
    """
    try:
        column.validate(full=True)
        if pa.types.is_dictionary(column.type):
            column.dictionary.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
        raise SchemaMismatch(
            f"column {field.name!r} holds values that are no {column.type}: {error}; text that is not UTF-8 "
            "belongs into a binary column",
            column=field.name,
        ) from error


def _parts(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(index) for index in range(kind.num_fields)]


def _has_required_parts(kind: pa.DataType) -> bool:
    return any(not part.nullable or _has_required_parts(part.type) for part in _parts(kind))


def _lacks_required_part(column: pa.Array) -> bool:
    """Return whether a nested value has a null where its type allows none; Arrow itself never looks."""
    kind = column.type
    if pa.types.is_map(kind):  # a list of pairs; Arrow's own cast to it refuses some values
        kind, buffers = pa.list_(kind.field(0)), column.buffers()[:2]
        column = pa.Array.from_buffers(
            kind, len(column), buffers, offset=column.offset, children=[column.values]
        )
    if pa.types.is_struct(kind):
        present = column.is_valid() if column.null_count else None
        children = [column.field(index) for index in range(kind.num_fields)]
        if present is not None:
            children = [child.filter(present) for child in children]
    elif kind.num_fields:
        children = [column.flatten()]
    else:
        return False
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return any(
        (not part.nullable and child.null_count) or _lacks_required_part(child)
        for part, child in zip(fields, children, strict=True)
    )


def _widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of `source` is a value of `target`."""
    t = pa.types
    if t.is_dictionary(source):
        source = source.value_type
        if source == target:
            return True
    if t.is_null(source):
        return True
    for is_kind in (t.is_integer, t.is_floating):
        if is_kind(source) and is_kind(target):
            same_sign = not t.is_integer(source) or t.is_signed_integer(source) == t.is_signed_integer(target)
            return bool(source.bit_width <= target.bit_width) and same_sign
    texts = (t.is_string, t.is_large_string, t.is_string_view)
    blobs = (t.is_binary, t.is_large_binary, t.is_binary_view, t.is_fixed_size_binary)
    for family in (texts, blobs):
        if any(kind(source) for kind in family) and any(kind(target) for kind in family):
            return True
    if t.is_timestamp(source) and t.is_timestamp(target):
        units = ("s", "ms", "us", "ns")
        same_kind = (source.tz is None) == (target.tz is None)
        return same_kind and units.index(source.unit) <= units.index(target.unit)
    if t.is_decimal(source) and t.is_decimal(target):
        whole_digits = target.precision - target.scale
        return bool(source.scale <= target.scale and source.precision - source.scale <= whole_digits)
    return _nested_widens(source, target)


def _nested_widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Nested types: the same shape, each part widening."""
    t = pa.types
    lists = (t.is_list, t.is_large_list, t.is_fixed_size_list)
    same_shape = (
        (any(k(source) for k in lists) and any(k(target) for k in lists))
        or (t.is_struct(source) and t.is_struct(target))
        or (t.is_map(source) and t.is_map(target))
    )
    if not same_shape or source.num_fields != target.num_fields:
        return False
    pairs = [(source.field(i), target.field(i)) for i in range(source.num_fields)]
    named = not t.is_struct(source) or all(a.name == b.name for a, b in pairs)
    return named and all(a.type == b.type or _widens(a.type, b.type) for a, b in pairs)
