"""Primary keys: lists of Python values, batches in a table's types, and tombstones, which delete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.base.formatting import brief
from elasticscan.metadata import TableInfo
from elasticscan.storage import DELETED, batches_of, check_keys_filled, conform
from elasticscan.store.rows.conversion import as_reader, batch_of

_LISTS = (list, range, set, frozenset)
_BATCH_KEYS = 1 << 16  # of a range


def arrow_keys(keys: Any, table: TableInfo, hint: str = "") -> Any:
    """Return a list of keys (values, tuples or dicts) as a batch of the key columns; Arrow as it is.

    `hint` ends the error for data that is no keys.
    """
    names = table.primary_key
    keys = as_reader(keys)
    if len(names) == 1:
        keys = _listed(keys)
        if isinstance(keys, range):
            return _of_range(keys, table)
    if not isinstance(keys, _LISTS):
        if hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__"):
            return keys
        key = names[0] if len(names) == 1 else f"({', '.join(names)})"
        raise InvalidOption(
            f"keys={brief(keys)} must be rows of {', '.join(names)}, as a pyarrow Table or a list: "
            f"[{key}, ...]{hint}",
            option="keys",
        )
    return batch_of(dict(zip(names, _columns(list(keys), names), strict=True)), table)


def _of_range(keys: range, table: TableInfo) -> pa.RecordBatchReader:
    """Return a reader of a range of keys, in batches: all of them may be more than memory holds."""
    (name,) = table.primary_key

    def batches() -> Iterator[pa.RecordBatch]:
        rest = keys
        while rest:
            yield batch_of({name: list(rest[:_BATCH_KEYS])}, table)
            rest = rest[_BATCH_KEYS:]

    schema = pa.schema([(name, table.schema.field(name).type)])
    return pa.RecordBatchReader.from_batches(schema, batches())


def _listed(keys: Any) -> Any:
    """Return the values of a tuple, array or series of any library as a list; other data as it is."""
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return keys if pa.types.is_struct(keys.type) else keys.to_pylist()
    if isinstance(keys, tuple):
        return list(keys)
    if hasattr(keys, "dtype"):  # of NumPy, pandas and Polars; frames have none
        listed = getattr(keys, "tolist", None) or getattr(keys, "to_list", None)
        return keys if listed is None else listed()
    return keys


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


def conform_keys(keys: Any, table: TableInfo) -> Iterator[pa.RecordBatch]:
    """Yield batches of primary keys in the table's types, at least one.

    Raises:
        SchemaMismatch, InvalidKey: they have other columns or types, or a null.
    """
    key_schema = pa.schema([table.schema.field(name) for name in table.primary_key])
    for batch in batches_of(keys):
        names = list(table.primary_key)
        if sorted(batch.schema.names) != sorted(names):
            raise SchemaMismatch(
                f"keys have the columns of the primary key, {', '.join(names)}, and no others, but "
                f"these have {', '.join(batch.schema.names)}; select them, as in "
                f"scan({names!r})",
                missing=[name for name in names if name not in batch.schema.names],
                unknown=[name for name in batch.schema.names if name not in names],
            )
        check_keys_filled(batch, table)
        yield conform(batch, key_schema)


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
