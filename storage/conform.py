"""Conversion of users' rows to the columns, types and limits of a table, with exact errors.

Limits are checked for whole batches before they are staged. A page may end at any row, and its continuation
key then contains the keys of this row. So a row whose keys do not fit into a continuation key is refused when
it is written, not when a scan stops at it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.errors import LimitExceeded, SchemaMismatch
from elasticscan.base.formatting import a_type
from elasticscan.base.key_encoding import encoded_lengths
from elasticscan.base.limits import BATCH_ROWS, MAX_KEY_BYTES, MAX_ROW_BYTES
from elasticscan.metadata import TableInfo, is_widening
from elasticscan.storage.definition import children
from elasticscan.storage.lookup import joined

_t = pa.types

ROWS_HINT = (
    "hand in a pyarrow Table, RecordBatch or RecordBatchReader, a frame of Polars, pandas or DuckDB, a dict "
    "of columns, or a list of dicts"
)


def batches_of(data: Any) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of Arrow tables, batches, readers, streams or frames, at least one."""
    reader, batch = _reader(data), None
    for batch in reader:
        try:
            batch.validate()  # before its nulls are counted
        except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
            raise SchemaMismatch(f"the rows are not valid Arrow data: {error}") from error
        yield batch
    if batch is None:  # an empty batch, so that its columns are checked
        arrays = [pa.nulls(0, kind) for kind in reader.schema.types]
        yield pa.RecordBatch.from_arrays(arrays, schema=reader.schema)


def _reader(data: Any) -> pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, pa.Table):
        return data.to_reader(max_chunksize=16 * BATCH_ROWS)
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")  # without importing them
    if polars is not None and isinstance(data, polars.DataFrame) and polars.Object in data.schema.values():
        # Polars exports the addresses of Python objects as if they were values.
        raise SchemaMismatch("a column is of Polars' type Object, which Arrow does not have; cast it first")
    try:
        if pandas is not None and isinstance(data, pandas.DataFrame):
            # Levels of its index with new names become columns.
            names = [name for name in data.index.names if name is not None and name not in data.columns]
            data = data.reset_index(level=names) if names else data
            return pa.Table.from_pandas(data, preserve_index=False).to_reader(max_chunksize=16 * BATCH_ROWS)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, ValueError, TypeError) as error:  # also from other libraries' conversions
        raise SchemaMismatch(f"{a_type(data)} is not a stream of rows: {error}") from error
    raise SchemaMismatch(f"cannot write {a_type(data)}: {ROWS_HINT}")


def conformed(
    batches: Iterable[pa.RecordBatch],
    table: TableInfo,
    columns: Sequence[str] | None = None,
    is_any: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield rows as `conform` returns them, in all columns of a table or in `columns`.

    With `is_any`, other columns of the rows are dropped. Raises `SchemaMismatch` if a key column has a null.
    """
    schema = table.schema if columns is None else pa.schema([table.schema.field(name) for name in columns])
    for batch in batches:
        check_keys_filled(batch, table)
        places = [at for at, name in enumerate(batch.schema.names) if not is_any or name in schema.names]
        yield conform(batch.select(places), schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly the columns, order and types of the schema; raises `SchemaMismatch`.

    Columns of the batch may have any order. Their types may differ if every value stays the same: narrower
    integers and floats; large, view or dictionary forms of strings and binaries; nulls.
    """
    check_columns("the rows have", batch.schema.names, schema.names)
    columns = [_conform_column(batch.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_columns(what: str, names: Sequence[str], wanted: Sequence[str], is_any: bool = False) -> None:
    """Raise `SchemaMismatch` unless `names` are the wanted ones, in any order; `is_any` allows more."""
    missing = [name for name in wanted if name not in names]
    unknown = [] if is_any else [str(name) for name in names if name not in wanted]
    if missing or unknown or (len(names) != len(wanted) and not is_any):
        parts = (("missing", missing), ("unknown", unknown))
        differences = "; ".join(f"{kind}: {', '.join(columns)}" for kind, columns in parts if columns)
        hint = "; give every column, None for nulls, or merge(rows, columns=[…])" if missing else ""
        raise SchemaMismatch(
            f"{what} other columns than {', '.join(wanted)} ({differences or 'one is repeated'}){hint}",
            missing=missing,
            unknown=unknown,
        )


def _conform_column(column: pa.Array, field: pa.Field) -> pa.Array:
    _check_sound(column, field)
    if column.type != field.type:
        if not _widens(column.type, field.type):
            raise SchemaMismatch(
                f"column {field.name!r} is {column.type} but the table has {field.type}; cast it first",
                column=field.name,
            )
        try:
            if _t.is_dictionary(column.type):  # Arrow cannot cast dictionaries of views: Polars' categories
                column = pc.cast(column.dictionary, field.type).take(column.indices)
            else:
                column = pc.cast(column, field.type)
        except (pa.ArrowInvalid, pa.ArrowIndexError, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatch(
                f"column {field.name!r} cannot be cast from {column.type} to {field.type}: {error}",
                column=field.name,
            ) from error
    if _lacks_value(column, field):
        where = f"its type {field.type}" if field.nullable else "the table"
        raise SchemaMismatch(
            f"column {field.name!r} has nulls where {where} allows none; fill or drop them", column=field.name
        )
    return column


def _lacks_value(column: pa.Array, field: pa.Field) -> bool:
    """Return whether a value, or a part of it, is null though its field forbids it; Arrow does not check."""
    if not field.nullable and column.null_count:
        return True
    kind = column.type
    if _t.is_map(kind):  # as a list of pairs; Arrow's own cast to it refuses some values
        kind, buffers = pa.list_(kind.field(0)), column.buffers()[:2]
        column = pa.Array.from_buffers(
            kind, len(column), buffers, offset=column.offset, children=[column.values]
        )
    if _t.is_struct(kind):
        parts = [column.field(at) for at in range(kind.num_fields)]
        if column.null_count:
            parts = [part.filter(column.is_valid()) for part in parts]
    else:
        parts = [column.flatten()] if kind.num_fields else []
    return any(map(_lacks_value, parts, children(kind)))


def check_keys_filled(rows: pa.RecordBatch, table: TableInfo) -> None:
    """Raise `SchemaMismatch` if a column of the primary key has nulls."""
    for name in table.primary_key:
        nulls = rows.column(name).null_count if rows.schema.names.count(name) == 1 else 0
        if nulls:
            raise SchemaMismatch(
                f"primary key column {name!r} is null in {nulls} rows; fill or drop them", column=name
            )


def check_key_bytes(
    rows: pa.RecordBatch, names: Sequence[str], kind: str = "primary key", null_bytes: int = 0
) -> None:
    """Raise `LimitExceeded` if an encoded key, plus `null_bytes`, is longer than `MAX_KEY_BYTES`."""
    columns = [rows.column(name) for name in names]
    # A quick upper bound for the longest key: all columns together, with two bytes for each zero byte.
    if not rows.num_rows or sum(2 * column.nbytes + 24 for column in columns) <= MAX_KEY_BYTES:
        return
    lengths = encoded_lengths(columns) + null_bytes
    row = int(np.argmax(lengths))
    if lengths[row] > MAX_KEY_BYTES:
        column = max(zip(columns, names, strict=True), key=lambda pair: pair[0].slice(row, 1).nbytes)[1]
        raise LimitExceeded(
            f"a {kind} takes {lengths[row]:,} bytes, most of them in column {column!r}, and may take "
            f"{MAX_KEY_BYTES:,}; use a digest of the value as key",
            column=column,
            length=int(lengths[row]),
            most=MAX_KEY_BYTES,
        )


def check_row_bytes(rows: pa.RecordBatch) -> None:
    """Raise `LimitExceeded` if a row takes more than `MAX_ROW_BYTES`."""
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


def parts_of(
    batches: Iterable[pa.RecordBatch], most_bytes: int, most_rows: int = sys.maxsize
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in parts of about `most_bytes`, with at most `most_rows` rows.

    Raises `LimitExceeded` like `check_row_bytes`.
    """
    held, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        check_row_bytes(batch)
        step = max(1, batch.num_rows * most_bytes // max(batch.nbytes, 1))
        begin = 0
        while begin < batch.num_rows:
            part = batch.slice(begin, min(step, most_rows - rows))
            held.append(part)
            begin, rows, size = begin + part.num_rows, rows + part.num_rows, size + part.nbytes
            if rows == most_rows or size >= most_bytes:
                whole, held, rows, size = joined(held), [], 0, 0
                yield whole
    if held:
        yield joined(held)


def _check_sound(column: pa.Array, field: pa.Field) -> None:
    """Raise `SchemaMismatch` if values are not valid: a wrong offset or index would crash an Arrow kernel.

    In a fragment, invalid values would look like damage to readers.
    """
    try:
        column.validate(full=True)
        if _t.is_dictionary(column.type):
            column.dictionary.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
        raise SchemaMismatch(
            f"column {field.name!r} has values that are not valid for {column.type}: {error}; write text "
            "that is not UTF-8 to a binary column",
            column=field.name,
        ) from error


# Groups of types that can hold the same values, in different forms.
_ALIKE = (
    (_t.is_string, _t.is_large_string, _t.is_string_view),
    (_t.is_binary, _t.is_large_binary, _t.is_binary_view, _t.is_fixed_size_binary),
    (_t.is_list, _t.is_large_list, _t.is_fixed_size_list),
    (_t.is_struct,),
    (_t.is_map,),
)


def _widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of `source` is a value of `target`."""
    if _t.is_dictionary(source):
        source = source.value_type
    if source == target or _t.is_null(source):
        return True
    if _t.is_timestamp(source) and _t.is_timestamp(target):
        units = ("s", "ms", "us", "ns")
        same_kind = (source.tz is None) == (target.tz is None)
        return same_kind and units.index(source.unit) <= units.index(target.unit)
    if _t.is_decimal(source) and _t.is_decimal(target):
        whole_digits = target.precision - target.scale
        return bool(source.scale <= target.scale and source.precision - source.scale <= whole_digits)
    if not any(
        any(kind(source) for kind in kinds) and any(kind(target) for kind in kinds) for kinds in _ALIKE
    ):
        return is_widening(source, target)
    return source.num_fields == target.num_fields and all(
        _widens(part.type, other.type) and (part.name == other.name or not _t.is_struct(source))
        for part, other in zip(children(source), children(target), strict=True)
    )
