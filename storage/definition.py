"""Definitions of tables: what may be a column and a key, and within which limits.

Nothing is entered into a catalog that could not be read back, written to, moved, compacted or dropped
later. So a definition passes two gates: limits on what it is made of, looked at without recursion and
before anything else touches it; and the rules for names, types and keys. The tests prove that rows of every
type that passes go in, out and from file to file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, LimitExceeded, SchemaMismatch
from elasticscan.base.key_encoding import check_key_type
from elasticscan.base.limits import (
    MAX_COLUMN_NAME_BYTES,
    MAX_COLUMNS,
    MAX_FIXED_BYTES,
    MAX_KEY_BYTES,
    MAX_KEY_COLUMNS,
    MAX_NESTING,
    MAX_SCHEMA_BYTES,
)
from elasticscan.base.suggestions import suggest
from elasticscan.metadata import CHANGE_COLUMNS, QUERY_PREFIX, SHARD_COLUMN
from elasticscan.storage.fragment import SYSTEM_COLUMNS

RESERVED = frozenset((*SYSTEM_COLUMNS, *CHANGE_COLUMNS, SHARD_COLUMN))

_t = pa.types
# Left out: extension types, dictionaries, unions and run-end encoded columns; views: Arrow cannot reorder
# those of texts and binaries; and nulls: as a part of a type that is cast, Arrow makes too few of them.
_SUPPORTED = (
    _t.is_boolean,
    _t.is_integer,
    _t.is_floating,
    _t.is_temporal,
    _t.is_string,
    _t.is_large_string,
    _t.is_binary,
    _t.is_large_binary,
    _t.is_fixed_size_binary,
    # Arrow prints and parses no decimals of larger scales.
    lambda kind: _t.is_decimal(kind) and abs(kind.scale) <= kind.precision,
    _t.is_struct,
    _t.is_map,
    _t.is_list,
    _t.is_large_list,
    _t.is_fixed_size_list,
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
    fixed = 0
    for column in schema:
        for path, field, depth in _walk(column):
            _check_most(
                f"levels of nesting in column {column.name!r}", depth, MAX_NESTING, "keep it as JSON text"
            )
            _check_name(path, field.name, required=depth == 0)
            _check_type(path, field.type)
        fixed += _fixed_bytes(column.type)
        _check_most(
            "bytes of fixed size in a row", fixed, MAX_FIXED_BYTES, "use lists and binaries of any size"
        )
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
    things = f"bytes in the name of column {path[:80]!r}"
    _check_most(things, len(name.encode()), MAX_COLUMN_NAME_BYTES, "shorten it")
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
    if not any(is_such(kind) for is_such in _SUPPORTED):
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
    return pa.large_list(parts[0]) if _t.is_large_list(kind) else pa.list_(parts[0])
