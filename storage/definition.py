"""Definitions of tables: what may be a column and a key, within which limits, and that it works.

Nothing is entered into a catalog that could not be read back, written to, moved, compacted or dropped
later. So a definition passes three gates: limits on what it is made of, looked at without recursion and
before anything else touches it; the rules for names, types and keys; and a trial, in which a row goes
through memory as it will go through the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, LimitExceeded, SchemaMismatch
from elasticscan.base.limits import (
    MAX_COLUMN_NAME_BYTES,
    MAX_COLUMNS,
    MAX_FIELDS,
    MAX_FIXED_BYTES,
    MAX_KEY_BYTES,
    MAX_KEY_COLUMNS,
    MAX_NAMES_BYTES,
    MAX_NESTING,
    MAX_SCHEMA_BYTES,
)
from elasticscan.base.order_keys import check_key_type
from elasticscan.base.suggestions import suggest
from elasticscan.metadata import (
    CHANGE_COLUMNS,
    QUERY_PREFIX,
    SHARD_COLUMN,
    Bounds,
    Origin,
    StagedFragment,
    TableInfo,
)
from elasticscan.storage.conform import conform
from elasticscan.storage.copying import Destination, Keep, copy_slots
from elasticscan.storage.disk import MemoryDisk
from elasticscan.storage.fragment import DELETED, SYSTEM_COLUMNS, fragment_schema
from elasticscan.storage.ingest import Hashing, Ingest, staged_source
from elasticscan.topology import Placement, SlotSet, initial_placement

RESERVED = frozenset((*SYSTEM_COLUMNS, *CHANGE_COLUMNS, SHARD_COLUMN))

# The errors that Arrow raises for operations that it cannot do, and their subclasses.
_FAILURES = (pa.ArrowException, ValueError, TypeError, KeyError, NotImplementedError, OverflowError)

_t = pa.types
_UNSUPPORTED = (
    _t.is_union,
    _t.is_dictionary,
    _t.is_run_end_encoded,
    _t.is_string_view,  # Arrow cannot reorder columns of views
    _t.is_binary_view,
    lambda kind: isinstance(kind, pa.BaseExtensionType),
)


def check_definition(schema: pa.Schema, primary_key: list[str], shard_key: list[str]) -> None:
    """Raise unless a table can be defined so.

    Raises:
        LimitExceeded: it is too large, or nested too deep.
        SchemaMismatch, InvalidOption: a name, a type or a key is not allowed.
    """
    if len(schema) == 0:
        raise SchemaMismatch("a table needs at least one column")
    _check_limits(schema)
    _check_names(schema)
    _check_key(schema, primary_key, shard_key)


# ---------------------------------------------------------------------------------------- limits


def _check_limits(schema: pa.Schema) -> None:
    _check_most("columns", len(schema), MAX_COLUMNS, "keep rare ones together in a map or a struct")
    fields = names = fixed = 0
    for column in schema:
        names += len(column.name.encode())
        for path, field, depth in _walk(column):
            fields += 1
            if depth > MAX_NESTING:
                raise LimitExceeded(
                    f"column {column.name!r} is nested more than {MAX_NESTING} levels deep; flatten it, or "
                    "keep the value as JSON text",
                    column=column.name,
                    limit="nesting",
                    most=MAX_NESTING,
                )
            _check_most(
                "fields", fields, MAX_FIELDS, "parts of nested types count too; use a map, or JSON text"
            )
            _check_name(path, field.name, required=depth == 0)
            _check_type(path, field.type)
        fixed += _fixed_bytes(column.type)
        _check_most(
            "bytes of fixed size in a row", fixed, MAX_FIXED_BYTES, "use lists and binaries of any size"
        )
    _check_most("bytes of column names", names, MAX_NAMES_BYTES, "shorten the names")
    _check_most(
        "bytes of schema", _bare(schema).serialize().size, MAX_SCHEMA_BYTES, "use fewer or shorter names"
    )


def _check_most(things: str, count: int, most: int, hint: str) -> None:
    if count > most:
        raise LimitExceeded(
            f"a table may have {most:,} {things} at most, not {count:,}; {hint}",
            limit=things,
            most=most,
            found=count,
        )


def _walk(column: pa.Field) -> Iterator[tuple[str, pa.Field, int]]:
    """(path, field, depth) of a column and of the parts of its type: no recursion, no deeper than allowed."""
    waiting = [(column.name, column, 0)]
    while waiting:
        path, field, depth = waiting.pop()
        yield path, field, depth
        if depth <= MAX_NESTING:
            kind = field.type
            parts = [kind.field(index) for index in range(kind.num_fields)]
            waiting += [(f"{path}.{part.name}", part, depth + 1) for part in reversed(parts)]


def _check_name(path: str, name: str, required: bool) -> None:
    if len(name.encode()) > MAX_COLUMN_NAME_BYTES:
        shown = path if len(path) <= 80 else f"{path[:77]}..."
        raise LimitExceeded(
            f"the name of column {shown!r} has {len(name.encode()):,} bytes and may have "
            f"{MAX_COLUMN_NAME_BYTES}; shorten it",
            column=shown,
            limit="bytes of a name",
            most=MAX_COLUMN_NAME_BYTES,
        )
    if (required and not name.strip()) or any(character < " " or character == "\x7f" for character in name):
        raise SchemaMismatch(
            f"column name {name!r} is empty or has control characters, which neither Spark nor a shell "
            "can name; rename it",
            column=name,
        )


def _fixed_bytes(kind: pa.DataType) -> int:
    """Return the bytes that one value takes even when it is null."""
    if _t.is_fixed_size_list(kind):
        return int(kind.list_size) * max(_fixed_bytes(kind.value_type), 1)
    if _t.is_struct(kind):
        return sum(_fixed_bytes(kind.field(index).type) for index in range(kind.num_fields))
    return int(kind.byte_width) if _t.is_fixed_size_binary(kind) else 8


# ----------------------------------------------------------------------------- names, types, keys


def _check_names(schema: pa.Schema) -> None:
    lowered: dict[str, str] = {}
    for field in schema:
        if field.name.lower() in RESERVED or field.name.lower().startswith(QUERY_PREFIX):
            raise SchemaMismatch(
                f"column name {field.name!r} is taken by the store, like {', '.join(sorted(RESERVED))} and "
                f"{QUERY_PREFIX}…; rename the column",
                column=field.name,
            )
        if field.name.lower() in lowered:
            raise SchemaMismatch(
                f"columns {lowered[field.name.lower()]!r} and {field.name!r} differ at most in case, which "
                "Spark does not tell apart; rename one",
                column=field.name,
            )
        lowered[field.name.lower()] = field.name


def _check_type(path: str, kind: pa.DataType) -> None:
    if any(is_such(kind) for is_such in _UNSUPPORTED):
        raise SchemaMismatch(
            f"column {path!r} has type {str(kind)[:200]}, which a table cannot hold; "
            "cast it to a plain type first",
            column=path,
        )


def _check_key(schema: pa.Schema, primary_key: list[str], shard_key: list[str]) -> None:
    if not primary_key or len(set(primary_key)) < len(primary_key):
        raise InvalidOption(
            f"primary_key {primary_key} must name at least one column, and each once", option="primary_key"
        )
    for name in primary_key:
        if name not in schema.names:
            hint = suggest(name, schema.names) or f"; it has {', '.join(schema.names)}"
            raise SchemaMismatch(f"primary key column {name!r} is not in the schema{hint}", column=name)
        check_key_type(name, schema.field(name).type)
    _check_most("columns in its primary key", len(primary_key), MAX_KEY_COLUMNS, "use fewer")
    fixed = sum(_fixed_bytes(schema.field(name).type) for name in primary_key)
    _check_most("bytes in its primary key", fixed, MAX_KEY_BYTES, "use a digest of the value as key")
    if not shard_key or primary_key[: len(shard_key)] != shard_key:
        raise InvalidOption(
            f"shard_key {shard_key} must be a prefix of primary_key {primary_key}", option="shard_key"
        )


def stored_schema(schema: pa.Schema, primary_key: list[str]) -> pa.Schema:
    """Return the schema as a table keeps it: without metadata, key columns not null, maps as in Arrow."""
    bare = [field.with_nullable(field.nullable and field.name not in primary_key) for field in _bare(schema)]
    return pa.ipc.read_schema(pa.py_buffer(pa.schema(bare).serialize().to_pybytes()))


def _bare(schema: pa.Schema) -> pa.Schema:
    """Return the field without metadata, also in its type's parts: every file would carry it unread."""
    return pa.schema([_bare_field(field) for field in schema])


def _bare_field(field: pa.Field) -> pa.Field:
    kind = field.type
    parts = [_bare_field(kind.field(index)) for index in range(kind.num_fields)]
    return pa.field(field.name, _rebuilt(kind, parts) if parts else kind, field.nullable)


def _rebuilt(kind: pa.DataType, parts: list[pa.Field]) -> pa.DataType:
    if _t.is_struct(kind):
        return pa.struct(parts)
    if _t.is_map(kind):
        entries = parts[0].type
        return pa.map_(entries.field(0), entries.field(1), keys_sorted=kind.keys_sorted)
    if _t.is_fixed_size_list(kind):
        return pa.list_(parts[0], kind.list_size)
    makers: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Field], pa.DataType]]] = [
        (_t.is_large_list, pa.large_list),
        (_t.is_list_view, pa.list_view),
        (_t.is_large_list_view, pa.large_list_view),
    ]
    return next((make for is_such, make in makers if is_such(kind)), pa.list_)(parts[0])


# ----------------------------------------------------------------------------------------- trial


def check_works(table: TableInfo, hashing: Hashing) -> None:
    """Raise `SchemaMismatch` unless rows of a table, as it is stored, go in, out and from file to file.

    The definition is read back from its own bytes. Then a row with a value in each column is written, copied
    as moves and compactions copy, deleted, and copied together with its tombstone; all in memory.
    """
    try:
        again = pa.ipc.read_schema(pa.py_buffer(table.schema.serialize().to_pybytes()))
        if not again.equals(table.schema, check_metadata=True):
            raise pa.ArrowInvalid("the definition changes when it is read back")
        row = conform(sample_row(table.schema), table.schema)
        trial = _Trial(table, hashing)
        if trial.copies(trial.stage(row)) != 1:
            raise pa.ArrowInvalid("a row that was written is not read")
        trial.copies(trial.stage(_deletion(row, table)))
    except _FAILURES as error:
        raise SchemaMismatch(
            f"table {table.name!r} cannot have these columns: a row of them does not come back as it was "
            f"written ({error}); change their types",
            table=table.name,
        ) from error


def _deletion(row: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    schema = fragment_schema(table.schema, versioned=False, tombstones=True)
    columns = [
        row.column(f.name) if f.name in table.primary_key else pa.nulls(1, f.type) for f in table.schema
    ]
    fields = [schema.field(name) for name in (*table.schema.names, DELETED)]
    return pa.RecordBatch.from_arrays([*columns, pa.array([True])], schema=pa.schema(fields))


class _Trial:
    """A shard in memory."""

    def __init__(self, table: TableInfo, hashing: Hashing) -> None:
        self._table, self._hashing, self._disk = table, hashing, MemoryDisk()
        self._placement: Placement = initial_placement(hashing.slots, 1, [1])
        nothing, epochs = "0" * 32, self._placement.epochs
        self._origin = Origin(nothing, hashing.slots, hashing.hash, "write", nothing, 0, 0.0, epochs)

    def stage(self, rows: pa.RecordBatch) -> list[StagedFragment]:
        ingest = Ingest(self._table, self._hashing, self._placement, lambda _: self._disk, self._origin)
        ingest.add(rows)
        return ingest.finish()

    def copies(self, staged: list[StagedFragment]) -> int:
        """Copy the staged rows, as a move does; returns their number."""
        source = staged_source(self._table, staged, lambda _: self._disk)
        slots = SlotSet.span(0, self._hashing.slots)
        copies = copy_slots(source, slots, Bounds(0, 1), Keep(), Destination(self._disk, 1, self._origin))
        return sum(copied.staged.rows for copied in copies)


def sample_row(schema: pa.Schema) -> pa.RecordBatch:
    """One row with a value in every column, down to the leaves: zero, empty text, one element."""
    columns = [pa.array([_sample(field.type)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sample(kind: pa.DataType) -> Any:
    if _t.is_map(kind):
        return [(_sample(kind.key_type), _sample(kind.item_type))]
    if _t.is_struct(kind):
        return tuple(_sample(kind.field(index).type) for index in range(kind.num_fields))
    if kind.num_fields:
        return [_sample(kind.value_type)] * (kind.list_size if _t.is_fixed_size_list(kind) else 1)
    if _t.is_null(kind):
        return None
    if _t.is_boolean(kind):
        return False
    if _t.is_string(kind) or _t.is_large_string(kind):
        return ""
    if _t.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    if _t.is_binary(kind) or _t.is_large_binary(kind):
        return b""
    return (0, 0, 0) if _t.is_interval(kind) else 0
