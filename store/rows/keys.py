"""Primary keys: lists of Python values, batches in a table's types, and tombstones, which delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.base.formatting import brief
from elasticscan.metadata import TableInfo
from elasticscan.storage import DELETED
from elasticscan.store.rows.conversion import as_reader, table_of

_LISTS = (list, range, set, frozenset)
_BATCH_KEYS = 1 << 16  # of a range


def arrow_keys(keys: Any, table: TableInfo, hint: str = "") -> Any:
    """Return a list of keys (values, tuples or dicts) as a table of the key columns; Arrow as it is.

    `hint` ends the error for data that is no keys.
    """
    names = table.primary_key
    keys = as_reader(keys)
    if len(names) == 1:
        keys = _listed(keys)
        if isinstance(keys, range):  # all of them may be more than memory holds
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
    return table_of(dict(zip(names, _columns(list(keys), names), strict=True)), table)


def _listed(keys: Any) -> Any:
    """Return the values of a tuple, array or series of any library as a list; other data as it is."""
    if isinstance(keys, tuple):
        return list(keys)
    if isinstance(keys, pa.ChunkedArray):
        return keys.to_pylist()
    kind = type(keys)  # a frame of pandas has its columns as attributes
    listed = getattr(kind, "tolist", None) or getattr(kind, "to_list", None)
    return keys if listed is None else listed(keys)


def _columns(keys: Sequence[Any], names: Sequence[str]) -> list[list[Any]]:
    """Return the values of each key column."""
    if keys and isinstance(keys[0], Mapping):
        if all(isinstance(key, Mapping) and key.keys() == set(names) for key in keys):
            return [[key[name] for key in keys] for name in names]
    elif len(names) == 1 and not any(isinstance(key, tuple | list) for key in keys):
        return [list(keys)]
    elif all(isinstance(key, tuple | list) and len(key) == len(names) for key in keys):
        return [[key[place] for key in keys] for place in range(len(names))]
    raise SchemaMismatch(
        f"keys={brief(keys)} must be a list of keys, each with the columns {', '.join(names)}, as a tuple in "
        "this order or as a dict"
    )


def tombstones_of(keys: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    """Return rows that delete keys: the key, nulls for all values, and a mark."""
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
    """Return rows of a table, unmarked, before tombstones of other keys."""
    assert tombstones.schema.names[-1] == DELETED, "the mark is their last column"
    marked = [*rows.columns, pa.repeat(False, rows.num_rows)]
    return pa.concat_batches([pa.RecordBatch.from_arrays(marked, schema=tombstones.schema), tombstones])
