"""Checks of a table's definition: the allowed columns, types and keys, and their limits.

A catalog contains only tables that can be read, written, moved, compacted and dropped later. The tests
prove this for rows of every allowed type.
"""

from __future__ import annotations

import re
from collections.abc import Callable

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
# Not supported: extension types, dictionaries, unions and run-end encoded columns; views, because Arrow
# cannot reorder those of texts and binaries; nulls, because casts of nested types make too few of them.
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
    # Arrow neither prints nor parses decimals of larger scales.
    lambda kind: _t.is_decimal(kind) and abs(kind.scale) <= kind.precision,
    _t.is_struct,
    _t.is_map,
    _t.is_list,
    _t.is_large_list,
    _t.is_fixed_size_list,
)


def check_definition(schema: pa.Schema, primary_key: list[str], shard_key: list[str]) -> None:
    """Raise `LimitExceeded`, `SchemaMismatch` or `InvalidOption` if a table cannot have this definition."""
    if len(schema) == 0:
        raise SchemaMismatch("a table needs at least one column")
    _check_most("columns", len(schema), MAX_COLUMNS, "keep rare ones together in a map or a struct")
    for column in schema:
        _check_column(column)
    fixed, size = sum(_fixed_bytes(each.type) for each in schema), stored_schema(schema, []).serialize().size
    _check_most("bytes of fixed size in a row", fixed, MAX_FIXED_BYTES, "use lists and binaries of any size")
    _check_most("bytes of schema", size, MAX_SCHEMA_BYTES, "use fewer or shorter names")
    _check_names(schema)
    _check_key(schema, primary_key, shard_key)


def _check_most(things: str, count: int, most: int, hint: str) -> None:
    if count > most:
        raise LimitExceeded(
            f"a table may have {most:,} {things} at most, not {count:,}; {hint}",
            limit=things,
            most=most,
            found=count,
        )


def _check_column(column: pa.Field) -> None:
    """Check the names and types of a column and its nested fields, without recursion."""
    waiting = [(column.name, column, 0)]
    while waiting:
        path, field, depth = waiting.pop()
        levels = f"levels of nesting in column {column.name!r}"
        _check_most(levels, depth, MAX_NESTING, "keep it as JSON text")
        things = f"bytes in the name of column {path[:80]!r}"
        _check_most(things, len(field.name.encode()), MAX_COLUMN_NAME_BYTES, "shorten it")
        if (not depth and not field.name.strip()) or re.search("[\x00-\x1f\x7f]", field.name):
            raise SchemaMismatch(
                f"column name {field.name!r} is empty or has control characters; rename it",
                column=field.name,
            )
        if not any(is_such(field.type) for is_such in _SUPPORTED):
            raise SchemaMismatch(
                f"column {path!r} has type {str(field.type)[:200]}, which a table cannot hold; cast it",
                column=path,
            )
        waiting += [(f"{path}.{part.name}", part, depth + 1) for part in children(field.type)]


def children(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type; an empty list for other types."""
    return [kind.field(index) for index in range(kind.num_fields)]


def _fixed_bytes(kind: pa.DataType) -> int:
    """Return the bytes that a value takes even if it is null."""
    if _t.is_fixed_size_list(kind):
        return int(kind.list_size) * max(_fixed_bytes(kind.value_type), 1)
    if _t.is_struct(kind):
        return sum(_fixed_bytes(part.type) for part in children(kind))
    return int(kind.byte_width) if _t.is_fixed_size_binary(kind) else 8


def _check_names(schema: pa.Schema) -> None:
    lowered: dict[str, str] = {}
    for field in schema:
        if field.name.lower() in RESERVED or field.name.lower().startswith(QUERY_PREFIX):
            raise SchemaMismatch(
                f"column name {field.name!r} is reserved, like {', '.join(sorted(RESERVED))} and "
                f"{QUERY_PREFIX}…; rename the column",
                column=field.name,
            )
        if field.name.lower() in lowered:
            raise SchemaMismatch(
                f"column {field.name!r} and another differ at most in case; rename one",
                column=field.name,
            )
        lowered[field.name.lower()] = field.name


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
    """Return the schema of a table: key columns are not nullable, and no field has metadata."""
    return pa.schema(
        pa.field(
            each.name, map_leaves(each.type, keep_large=True), each.nullable and each.name not in primary_key
        )
        for each in schema
    )


def map_leaves(
    kind: pa.DataType,
    change: Callable[[pa.DataType], pa.DataType] = lambda leaf: leaf,
    depth: int = 0,
    keep_large: bool = False,
) -> pa.DataType:
    """Return a type with `change` applied to its leaves, in order.

    Its fields have no metadata. List views become lists, and so do large lists, unless `keep_large`.
    """
    if depth > MAX_NESTING:  # `check_definition` raises
        return kind
    parts = [
        pa.field(part.name, map_leaves(part.type, change, depth + 1, keep_large), part.nullable)
        for part in children(kind)
    ]
    if _t.is_struct(kind):
        return pa.struct(parts)
    if _t.is_map(kind):
        key, item = parts[0].type
        return pa.map_(key.type, pa.field("value", item.type, item.nullable), kind.keys_sorted)
    if _t.is_fixed_size_list(kind):
        return pa.list_(parts[0], kind.list_size)
    if keep_large and _t.is_large_list(kind):
        return pa.large_list(parts[0])
    lists = (_t.is_list, _t.is_large_list, _t.is_list_view, _t.is_large_list_view)
    return pa.list_(parts[0]) if any(is_such(kind) for is_such in lists) else change(kind)
