"""Rows and values given as lists of Python values, converted to Arrow; data that is Arrow already is not.

A list is taken apart row by row, which is fine for what was typed and far too slow for anything else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import SchemaMismatch
from elasticscan.base.formatting import a_type, brief
from elasticscan.base.limits import MAX_NESTING
from elasticscan.metadata import TableInfo
from elasticscan.storage import batches_of, conform

# What pandas calls an index without a name, where it has made Arrow of a frame.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def arrow_rows(rows: Any, table: TableInfo, only: Sequence[str] | None = None) -> Any:
    """Return a list of dicts, or a dict of columns, in the table's types; other data as it is.

    Each dict of a list has all columns of the table and no others; or it has those of `only` and perhaps
    others, which are left out.
    """
    rows = as_reader(rows)
    if isinstance(rows, Mapping):
        return _of_columns(rows, {field.name: field.type for field in table.schema})
    if not isinstance(rows, list):
        return rows
    if not all(isinstance(row, Mapping) for row in rows):
        raise SchemaMismatch(
            f"rows={brief(rows)} must be dicts of values by column, or one Arrow table (pa.concat_tables)"
        )
    names = table.schema.names if only is None else only
    for number, row in enumerate(rows):
        _check_complete(number, row, names, only is None)
    return batch_of({name: [row[name] for row in rows] for name in names}, table)


def as_reader(data: Any) -> Any:
    """Return a reader of a scan, table or dataset, whose errors keep their types; other data as it is."""
    kind = type(data)  # a frame of pandas has its columns as attributes
    if hasattr(kind, "scanner"):  # a dataset, whose module takes half a second to import
        return data.scanner().to_reader()
    return data.to_reader() if hasattr(kind, "to_reader") and not isinstance(data, pa.Table) else data


def _check_complete(number: int, row: Mapping[Any, Any], names: Sequence[str], is_all: bool) -> None:
    """Raise `SchemaMismatch` unless a row has every column: a forgotten one is not meant to be null.

    `names` are all columns of the table, or the columns to write.
    """
    missing = [name for name in names if name not in row]
    unknown = [str(name) for name in row if name not in names] if is_all else []
    if missing or unknown:
        differences = [f"missing: {', '.join(missing)}"] if missing else []
        differences += [f"unknown: {', '.join(unknown)}"] if unknown else []
        raise SchemaMismatch(
            f"row {number} of the list lacks or adds columns ({', '.join(differences)}); "
            "give None for a null, or name the columns: merge(rows, columns=[…])",
            missing=missing,
            unknown=unknown,
        )


def first_rows(data: Any) -> pa.RecordBatchReader | None:
    """Return rows with the columns of a table for them; None for a value that is no data.

    Raises:
        SchemaMismatch: values of a column do not go together, or rows have other columns than the first.
    """
    data = as_reader(data)
    if isinstance(data, Mapping) or (isinstance(data, list) and data and isinstance(data[0], Mapping)):
        data = _inferred(data)
    elif not isinstance(data, pa.RecordBatch) and not hasattr(data, "__arrow_c_stream__"):
        return None
    batches = batches_of(data)
    first = next(batches)
    kept = [name for name in first.schema.names if not _PANDAS_INDEX.fullmatch(name)]
    schema = pa.schema([first.schema.field(name) for name in kept])
    schema = pa.schema([field.with_type(table_type(field.type)) for field in schema])
    return pa.RecordBatchReader.from_batches(
        schema, (conform(batch.select(kept), schema) for batch in chain([first], batches))
    )


def _inferred(data: Any) -> pa.Table:
    """Return a dict of columns, or a list of dicts, in the types that Arrow infers from the values."""
    if isinstance(data, list):
        names = list(data[0])
        if not all(isinstance(row, Mapping) and row.keys() == set(names) for row in data):
            raise SchemaMismatch(
                f"rows={brief(data)} must be dicts that all have the same columns: give None for a null"
            )
        data = {name: [row[name] for row in data] for name in names}
    return _of_columns(data, {})


def _of_columns(columns: Mapping[Any, Any], kinds: Mapping[str, pa.DataType]) -> pa.Table:
    """Return a dict of columns in these types, and in the types that Arrow infers."""
    arrays = {}
    for name, values in columns.items():
        # Arrow would take the letters of a text for values.
        if isinstance(values, str | bytes | bytearray | Mapping | type) or not (
            hasattr(values, "__iter__") or hasattr(values, "__arrow_c_array__")
        ):
            raise SchemaMismatch(
                f"column {name!r} is {brief(values)}, {a_type(values)}; give a list of values, and one row "
                "as a list of a dict",
                column=name,
            )
        if name in kinds and isinstance(values, list | tuple | range):
            arrays[name] = _typed(name, list(values), kinds[name])
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
    """Return the type that a table has for values of a type; text for a column of nulls."""
    t = pa.types
    if t.is_dictionary(kind):
        return table_type(kind.value_type)
    if t.is_null(kind) or t.is_string_view(kind) or t.is_large_string(kind):
        return pa.string()
    if t.is_binary_view(kind) or t.is_large_binary(kind):
        return pa.binary()
    return map_leaves(kind, table_type) if kind.num_fields else kind


def map_leaves(
    kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType], depth: int = 0
) -> pa.DataType:
    """Return a type with its leaves changed, the first one first; large lists and views become lists."""
    t = pa.types

    def changed(part: pa.Field) -> pa.Field:
        assert isinstance(part.name, str), "it is decoded here, which fails where it is not UTF-8"
        return part.with_type(map_leaves(part.type, change, depth + 1))

    if depth > MAX_NESTING:  # the check of the definition raises
        return kind
    if t.is_struct(kind):
        return pa.struct([changed(part) for part in kind])
    if t.is_map(kind):
        return pa.map_(changed(kind.key_field), changed(kind.item_field))
    if t.is_fixed_size_list(kind):
        return pa.list_(changed(kind.value_field), kind.list_size)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_list_view(kind) or t.is_large_list_view(kind):
        return pa.list_(changed(kind.value_field))
    return change(kind)


def arrow_constant(value: Any, field: pa.Field) -> pa.Scalar:
    """Return a Python value as one of a column. Raises `SchemaMismatch` if the type would change it."""
    array = _exactly([value], field.type)
    if array is None:
        raise SchemaMismatch(
            f"column {field.name!r} is of type {field.type}, which does not hold {brief(value)} as it is; "
            "convert it first",
            column=field.name,
        )
    return array[0]


def batch_of(columns: Mapping[str, Sequence[Any]], table: TableInfo) -> pa.RecordBatch:
    """Return columns of the table, in its types."""
    arrays = [_typed(name, values, table.schema.field(name).type) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _typed(name: str, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the values of a column in its type. Raises `SchemaMismatch` if the type would change one."""
    array = _exactly(values, kind)
    if array is None:
        number = next((n for n, value in enumerate(values) if _exactly([value], kind) is None), 0)
        raise SchemaMismatch(
            f"column {name!r} is of type {kind}, which does not hold {brief(values[number])} of row "
            f"{number} as it is; convert it, or give None for a null",
            column=name,
        )
    return array


def _exactly(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Return the values in a type; None where it would change one, as 3.5 to 3."""
    try:
        array = pa.array(values, kind)
        same = _is_plain(values, kind) or all(map(_is_same, values, array.to_pylist(), [kind] * len(values)))
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return None
    return array if same else None


def _is_plain(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Return whether Arrow takes values unchanged or not at all: whole numbers, and texts."""
    given = {*map(type, values)}
    if pa.types.is_integer(kind):
        return given == {int}
    return given == {str} and (pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_same(value: Any, held: Any, kind: pa.DataType) -> bool:
    """Return whether Arrow kept a value: it cuts and drops without an error, as 2.9 to 2."""
    if held is None:
        return True
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if pa.types.is_struct(kind):
        if not isinstance(value, Mapping) or value.keys() != held.keys():
            return False
        return all(_is_same(value[part.name], held[part.name], part.type) for part in kind)
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return all(
            _is_same(key, held_key, kind.key_type) and _is_same(item, held_item, kind.item_type)
            for (key, item), (held_key, held_item) in zip(pairs, held, strict=True)
        )
    if kind.num_fields:
        if isinstance(value, str | bytes | Mapping):  # a text is a sequence too
            return False
        return all(_is_same(part, other, kind.value_type) for part, other in zip(value, held, strict=True))
    if pa.types.is_floating(kind):  # a narrower one rounds
        return not isinstance(value, bool) and (math.isfinite(held) or not math.isfinite(value))
    return bool(value == held)
