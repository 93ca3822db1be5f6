"""Conversion of rows and keys from Python values to Arrow. Arrow data is returned unchanged.

Lists of dicts are converted row by row, which is fast enough for rows that people type, and too slow for
large data. Keys are also converted to tombstones, the rows that delete them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, count, takewhile
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.base.formatting import a_type, brief
from elasticscan.metadata import TableInfo
from elasticscan.storage import DELETED, batches_of, check_columns, conform, map_leaves


def arrow_rows(rows: Any, table: TableInfo, only: Sequence[str] | None = None) -> Any:
    """Return a list of dicts or a dict of columns as Arrow, in the table's types; other data unchanged.

    With `only`, just these columns of a list of dicts are returned, and its dicts may have others.
    """
    rows = as_reader(rows)
    if isinstance(rows, list):
        rows = _columns_of(rows, only or table.schema.names, only is not None)
    return table_of(rows, table) if isinstance(rows, Mapping) else rows


def as_reader(data: Any) -> Any:
    """Return a reader of a scan, table or dataset, whose errors keep their types; other data unchanged."""
    kind = type(data)  # not the value: columns of a pandas frame are its attributes
    if hasattr(kind, "scanner"):  # a dataset; no `isinstance`, as importing its module takes half a second
        return data.scanner().to_reader()
    return data.to_reader() if hasattr(kind, "to_reader") and not isinstance(data, pa.Table) else data


def first_rows(data: Any) -> pa.RecordBatchReader | None:
    """Return rows in the types that a new table has for them; None if the value is not data."""
    data = as_reader(data)
    if isinstance(data, list) and data and isinstance(data[0], Mapping):
        data = _columns_of(data, list(data[0]))
    if isinstance(data, Mapping):
        data = table_of(data)
    elif not isinstance(data, pa.RecordBatch) and not hasattr(data, "__arrow_c_stream__"):
        return None
    batches = batches_of(data)
    first = next(batches)
    schema = pa.schema([each.with_type(map_leaves(each.type, table_type)) for each in first.schema])
    rows = (conform(batch, schema) for batch in chain([first], batches))
    return pa.RecordBatchReader.from_batches(schema, rows)


def _columns_of(rows: Sequence[Any], names: Sequence[str], is_any: bool = False) -> dict[str, list[Any]]:
    """Return dicts as columns. Refuses a dict without one of the names; a null has to be None."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaMismatch(
                f"rows={brief(rows)} must be dicts of values by column, or one Arrow table (pa.concat_tables)"
            )
        check_columns(f"row {number} of the list has", [*row], names, is_any)
    return {name: [row[name] for row in rows] for name in names}


def table_of(columns: Mapping[Any, Any], table: TableInfo | None = None) -> pa.Table:
    """Return a dict of columns as Arrow: lists in the table's types, other values in inferred types."""
    arrays = {}
    for name, values in columns.items():
        # Arrow would convert a text to an array of its letters.
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
            raise SchemaMismatch(
                f"column {name!r} is {brief(values)}, {a_type(values)}; give a list of values, and one row "
                "as a list of a dict",
                column=name,
            )
        if table is not None and name in table.schema.names and isinstance(values, list | tuple | range):
            arrays[name] = typed(values, table.schema.field(name))
            continue
        try:
            arrays[name] = pa.array(values)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise SchemaMismatch(
                f"the values of column {name!r} do not go together: {error}", column=name
            ) from None
    try:
        return pa.table(arrays)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise SchemaMismatch(f"the columns do not go together: {error}") from None


def table_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in a new table for a type without children: plain text and binary; text for nulls."""
    t = pa.types
    if t.is_dictionary(kind):
        return map_leaves(kind.value_type, table_type)
    if t.is_null(kind) or t.is_string_view(kind) or t.is_large_string(kind):
        return pa.string()
    return pa.binary() if t.is_binary_view(kind) or t.is_large_binary(kind) else kind


def typed(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return Python values in the type of a column. Raises `SchemaMismatch` if a value would change."""
    kind = field.type
    try:
        array = pa.array(values, kind)
        kept = array.to_pylist()
        if kind.num_fields or pa.types.is_floating(kind) or kept != [*values]:  # True equals 1.0
            for value, stored in zip(values, kept, strict=True):
                if not _is_same(value, stored):
                    raise ValueError(f"it cannot store {brief(value)} exactly")
    except (pa.ArrowException, ArithmeticError, AttributeError, ValueError, TypeError) as error:
        raise SchemaMismatch(
            f"column {field.name!r} is of type {kind}: {error}; convert the value, or give None for a null",
            column=field.name,
        ) from None
    return array


def _is_same(value: Any, stored: Any) -> bool:
    """Return whether Arrow stored a value exactly: some conversions lose data silently, such as 2.9 to 2."""
    if stored is None:
        return True
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(stored, dict):
        return value.keys() == stored.keys() and all(_is_same(value[name], stored[name]) for name in stored)
    if isinstance(stored, list | tuple):  # a map has pairs; a text would pass as a sequence
        parts = value.items() if isinstance(value, Mapping) else value
        return not isinstance(value, str | bytes) and all(map(_is_same, parts, stored))
    if isinstance(stored, float):  # rounding to a narrower float is allowed
        return not isinstance(value, bool) and (math.isfinite(stored) or not math.isfinite(value))
    return bool(value == stored)


_LISTS = (list, range, set, frozenset)
_BATCH_KEYS = 1 << 16  # keys of a range in a batch


def arrow_keys(keys: Any, table: TableInfo, hint: str = "") -> Any:
    """Return a list of keys (values, tuples or dicts) as a table of the key columns; Arrow data unchanged.

    `hint` is appended to the error for other data.
    """
    names = table.primary_key
    keys = as_reader(keys)
    if len(names) == 1:
        keys = _listed(keys)
        if isinstance(keys, range):  # it may be larger than memory
            parts = takewhile(bool, (keys[at : at + _BATCH_KEYS] for at in count(0, _BATCH_KEYS)))
            batches = (table_of({names[0]: part}, table).to_batches()[0] for part in parts)
            schema = pa.schema([(names[0], table.schema.field(names[0]).type)])
            return pa.RecordBatchReader.from_batches(schema, batches)
    if not isinstance(keys, _LISTS):
        if hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__"):
            return keys
        key = names[0] if len(names) == 1 else f"({', '.join(names)})"
        raise InvalidOption(
            f"keys={brief(keys)} must be rows of {', '.join(names)}, as a pyarrow Table or a list: "
            f"[{key}, ...]{hint}",
            option="keys",
        )
    return table_of(_key_columns(list(keys), names), table)


def _listed(keys: Any) -> Any:
    """Return the values of a tuple, or of an array or series of any library, as a list; others unchanged."""
    if isinstance(keys, tuple):
        return list(keys)
    if isinstance(keys, pa.ChunkedArray):
        return keys.to_pylist()
    kind = type(keys)  # not the value: columns of a pandas frame are its attributes
    to_list = getattr(kind, "tolist", None) or getattr(kind, "to_list", None)
    return keys if to_list is None else to_list(keys)


def _key_columns(keys: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each key column."""
    if keys and isinstance(keys[0], Mapping):
        return _columns_of(keys, names)
    if len(names) == 1 and not any(isinstance(key, tuple | list) for key in keys):
        return {names[0]: list(keys)}
    rows = [key if isinstance(key, tuple | list) else (key,) for key in keys]
    if any(len(row) != len(names) for row in rows):
        raise SchemaMismatch(
            f"keys={brief(keys)} must be a list of keys, each with the columns {', '.join(names)}, as a "
            "tuple in this order or as a dict"
        )
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def tombstones_of(keys: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    """Return the rows that delete keys: the key, null in all other columns, and the mark `DELETED`."""
    columns = [
        keys.column(field.name) if field.name in table.primary_key else pa.nulls(len(keys), field.type)
        for field in table.schema
    ]
    fields = [field.with_nullable(True) for field in table.schema]
    marks = pa.repeat(True, len(keys))
    return pa.RecordBatch.from_arrays(
        [*columns, marks], schema=pa.schema([*fields, pa.field(DELETED, pa.bool_())])
    )


def with_tombstones(rows: pa.RecordBatch, tombstones: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows, followed by tombstones of other keys, as one batch."""
    assert tombstones.schema.names[-1] == DELETED, "the mark is the last column of tombstones"
    marked = [*rows.columns, pa.repeat(False, rows.num_rows)]
    return pa.concat_batches([pa.RecordBatch.from_arrays(marked, schema=tombstones.schema), tombstones])
