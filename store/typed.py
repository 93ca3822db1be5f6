"""Rows and keys as people type them, as lists of Python values; data comes as Arrow and passes by here.

A list is taken apart row by row, which is fine for what was typed and far too slow for anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.base.showing import brief
from elasticscan.metadata import TableInfo
from elasticscan.store.scan import Scan

_LISTS = (list, range, set, frozenset)


def arrow_rows(rows: Any, table: TableInfo) -> Any:
    """A list of dicts as a record batch of the table's types; anything else as it is."""
    if isinstance(rows, Scan):
        return rows.to_reader()  # whose errors stay what they are; a C stream would make text of them
    if not isinstance(rows, list):
        return rows
    if not all(isinstance(row, Mapping) for row in rows):
        raise SchemaMismatch(
            f"rows={brief(rows)} must be dicts, each of a column's name to its value: "
            f"[{{{table.primary_key[0]!r}: …}}]; or hand in a pyarrow Table"
        )
    names = list(dict.fromkeys(name for row in rows for name in row)) or table.schema.names
    return _batch({str(name): [row.get(name) for row in rows] for name in names}, table)


def arrow_keys(keys: Any, table: TableInfo) -> Any:
    """A list of keys (values, tuples or dicts) as a record batch of the key columns; Arrow as it is."""
    names = table.primary_key
    if isinstance(keys, Scan):
        return keys.to_reader()
    if isinstance(keys, pa.Array) and len(names) == 1 and not pa.types.is_struct(keys.type):
        keys = keys.to_pylist()
    if not isinstance(keys, _LISTS):
        if hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__"):
            return keys
        key = "7" if len(names) == 1 else f"({', '.join('7' for _ in names)})"
        raise InvalidOption(
            f"keys={brief(keys)} must be rows of {', '.join(names)}, as a pyarrow Table or a list: "
            f"delete([{key}]). To delete by a condition, hand in a scan of the keys: "
            f"delete(table.scan({list(names)!r}, 'a > 1'))",
            option="keys",
        )
    return _batch(dict(zip(names, _columns(list(keys), names), strict=True)), table)


def _columns(keys: Sequence[Any], names: Sequence[str]) -> list[list[Any]]:
    """The values of each key column."""
    if keys and isinstance(keys[0], Mapping):
        if all(isinstance(key, Mapping) and key.keys() == set(names) for key in keys):
            return [[key[name] for key in keys] for name in names]
    elif len(names) == 1 and not any(isinstance(key, tuple | list) for key in keys):
        return [list(keys)]
    elif all(isinstance(key, tuple | list) and len(key) == len(names) for key in keys):
        return [[key[place] for key in keys] for place in range(len(names))]
    raise SchemaMismatch(
        f"keys={brief(keys)} must each have the columns {', '.join(names)}, as a tuple in this "
        "order or as a dict"
    )


def _batch(columns: Mapping[str, Collection[Any]], table: TableInfo) -> pa.RecordBatch:
    """Columns in the table's types; the taker of the batch refuses columns that the table lacks."""
    arrays = []
    for name, values in columns.items():
        kind = table.schema.field(name).type if name in table.schema.names else pa.null()
        try:
            arrays.append(pa.nulls(len(values)) if kind == pa.null() else _exactly(values, kind))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise SchemaMismatch(
                f"column {name!r} is of type {kind}, which does not hold what was given: {error}", column=name
            ) from error
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _exactly(values: Collection[Any], kind: pa.DataType) -> pa.Array:
    """The values in a type; raises where it would change one, as 3.5 to 3 or a moment to its day."""
    array = pa.array(values, kind)
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        for value, held in zip(values, array.to_pylist(), strict=True):
            if value != held:
                raise ValueError(f"{value!r} would become {held!r}")
    return array
