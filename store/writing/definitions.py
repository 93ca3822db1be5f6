"""Definitions of tables: creation, alone or with the first rows; changes of columns; drop.

A table that a write creates is *reserved* first: it has an id, so that files can be staged for it, but it is
not listed. The transaction that commits the first rows creates it. So a write that fails, or whose process is
killed, leaves no table, and two writes that create the same table at the same time share it.

A change of columns is one transaction, which gives the table a new definition and writes no file
(`TableColumn` says how files of older definitions are read). Work that began with an older definition
continues:

- A scan keeps its columns: its key names the definition. Its snapshot is older than the change, so all values
  fit its types. Merges and moves copy dropped columns for as long as such a scan may exist.
- Rows that were staged before the change can be committed: files name columns by names that never change.
- A merge or a move reads the definition together with the fragments to copy, so none of these files has a
  newer definition.

The columns of keys and indexes cannot be changed: order keys, slots and index runs depend on them. A change
increases the catalog's layout, so every process reads the table's definition again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, LimitExceeded, SchemaMismatch
from elasticscan.base.formatting import a_type, brief
from elasticscan.base.limits import MAX_COLUMNS, MAX_RENAMES, check_name
from elasticscan.catalog import StoreState, Tx, retry_interrupted
from elasticscan.metadata import (
    TableColumn,
    TableDefined,
    TableDropped,
    TableInfo,
    is_widening,
    new_column,
)
from elasticscan.storage import ROWS_HINT, check_definition, stored_schema
from elasticscan.store import arguments
from elasticscan.store.arguments import Names
from elasticscan.store.context import Context, Find
from elasticscan.store.reading.scan import columns_of

Fields: TypeAlias = pa.Schema | Sequence[pa.Field] | Mapping[str, pa.DataType | str]


def define_table(
    name: Any, schema: Any, primary_key: Any, shard_key: Any = None, compression: Any = None
) -> TableInfo:
    """Return a checked definition without changing the store, see `Store.create_table`."""
    check_name("table", name)
    form = arguments.file_form("compression", compression)
    if not isinstance(schema, pa.Schema):
        raise InvalidOption(
            f"schema is {a_type(schema)} and must be a pyarrow.Schema, or rows: {ROWS_HINT}",
            option="schema",
        )
    keys = arguments.names("primary_key", primary_key)
    shard_keys = keys if shard_key is None else arguments.names("shard_key", shard_key)
    check_definition(schema, keys, shard_keys)
    stored = stored_schema(schema, keys)
    return TableInfo(0, name, stored, tuple(keys), tuple(shard_keys), form, 0, 0)


@retry_interrupted
def enter_table(context: Context, table: TableInfo) -> TableInfo:
    """Create a table without rows. Raises `AlreadyExists` if the name is taken."""
    with context.catalog.writing() as tx:
        return enter(tx, table)


def enter(tx: Tx, table: TableInfo) -> TableInfo:
    """Create a table without rows, in a transaction that has begun."""
    tx.append(TableDefined(_with_id(tx.state, table), 0, "create"))
    return tx.state.table_named(table.name)


@retry_interrupted
def reserve_table(
    context: Context,
    name: str,
    schema: pa.Schema,
    primary_key: Sequence[str],
    shard_key: Sequence[str] | None = None,
    compression: str | None = None,
) -> TableInfo:
    """Reserve a table for a first write; its commit creates it. Raises `AlreadyExists`."""
    table = define_table(name, schema, primary_key, shard_key, compression)
    with context.catalog.writing() as tx:
        reserved = _with_id(tx.state, table)
        if tx.state.reserved.get(reserved.id) != reserved:
            tx.append(TableDefined(reserved, 0, reserved=True))
        return reserved


@retry_interrupted
def redefine(context: Context, find: Find, **changes: Any) -> None:
    """Change attributes of a table's definition."""
    with context.catalog.writing() as tx:
        table = find(tx)[0]
        tx.append(TableDefined(replace(table, **changes), table.definition))


@retry_interrupted
def drop_table(context: Context, find: Find) -> None:
    """Drop a table; garbage collection deletes its files later."""
    with context.catalog.writing() as tx:
        tx.append(TableDropped(find(tx)[0].id))


def _with_id(state: StoreState, info: TableInfo) -> TableInfo:
    """Return a new table with its id: that of a reserved table with the same definition, or a new one.

    The definitions may differ in compression: the newest request counts.
    """
    for table in state.reserved.values():
        same = replace(info, id=table.id)
        if same == replace(table, compression=info.compression):
            return same
    return replace(info, id=state.newest_ids.get("table", 0) + 1)


def table_to_write(context: Context, table_id: int) -> TableInfo | None:
    """Return a table, also a reserved one; None if it was dropped."""
    return context.ask(lambda tx: tx.state.info(table_id) or tx.state.reserved.get(table_id))


def has_forerunner(context: Context, table: TableInfo, application: str) -> bool:
    """Return True if an application wrote to a dropped table of the same name."""
    return context.ask(lambda tx: tx.has_forerunner(table, application))


@retry_interrupted
def add_columns(context: Context, find: Find, fields: Fields) -> TableInfo:
    """Add columns to a table, in one transaction; columns that exist are skipped."""
    named = isinstance(fields, Mapping)
    kinds = arguments.types("fields", fields) if named else islice(fields, MAX_COLUMNS + 1)  # maybe endless
    schema = stored_schema(pa.schema(kinds), [])
    if not len(schema):
        raise InvalidOption(
            f"fields={brief(fields)} must be a pyarrow.Schema, a list of fields, or a dict of types",
            option="fields",
        )
    with context.catalog.writing() as tx:
        table = find(tx)[0]
        columns = table.all_columns
        for field in schema:
            if _is_new(field, table):
                columns = (*columns, new_column(columns, field, table.definition + 1))
        return _redefine(tx, table, columns)


def drop_columns(context: Context, find: Find, names: Names) -> TableInfo:
    """Drop columns of a table, in one transaction."""

    def dropped(_: TableColumn, definition: int, commit: int) -> dict[str, Any]:
        return {"until": definition, "last_commit": commit}

    return _change(context, find, arguments.names("names", names), "dropped", dropped)


def rename_column(context: Context, find: Find, old: str, new: str) -> TableInfo:
    """Rename a column."""
    old, new = arguments.text("old", old), arguments.text("new", new)

    def renamed(column: TableColumn, definition: int, _: int) -> dict[str, Any]:
        if len(column.names) > MAX_RENAMES:
            raise LimitExceeded(
                f"column {old!r} was renamed {MAX_RENAMES:,} times, the most; add another column instead",
                column=old,
                limit="renames",
                most=MAX_RENAMES,
            )
        return {"names": (*column.names, (definition, new))} if old != new else {}

    return _change(context, find, [old], "renamed", renamed)


def widen_column(context: Context, find: Find, name: str, kind: Any) -> TableInfo:
    """Change a column's type to a wider one; do nothing if it has the type already."""
    name, kind = arguments.text("name", name), arguments.arrow_type("type", kind)

    def widened(column: TableColumn, definition: int, _: int) -> dict[str, Any]:
        if column.type == kind:
            return {}
        if not is_widening(column.type, kind):
            raise SchemaMismatch(
                f"column {name!r} is {column.type}; name a wider type of its kind and scale, not {kind}",
                column=name,
            )
        return {"types": (*column.types, (definition, kind))}

    return _change(context, find, [name], "widened", widened)


@retry_interrupted
def _change(
    context: Context,
    find: Find,
    names: Sequence[str],
    change: str,
    attributes: Callable[[TableColumn, int, int], dict[str, Any]],
) -> TableInfo:
    """Change columns, all or none, by `attributes` of (column, new definition, newest commit).

    Raises:
        NotFound: the table has no such column.
        InvalidOption: a column is part of a key or an index.
    """
    with context.catalog.writing() as tx:
        table, indexes = find(tx)
        columns = {column.stored: column for column in table.all_columns}
        for name in columns_of(table, names, "names"):
            for index in indexes:
                if name in (*index.columns, *index.include):
                    raise InvalidOption(
                        f"column {name!r} of index {index.name!r} cannot be {change}; drop the index first",
                        column=name,
                        index=index.name,
                    )
            if name in table.primary_key:
                raise InvalidOption(
                    f"column {name!r} of the primary key cannot be {change}; copy the rows to a new table",
                    column=name,
                )
            column = table.by_name()[name]
            changes = attributes(column, table.definition + 1, tx.state.commit)
            columns[column.stored] = replace(column, **changes)
        return _redefine(tx, table, tuple(columns.values()))


def _redefine(tx: Tx, table: TableInfo, columns: tuple[TableColumn, ...]) -> TableInfo:
    if columns == table.all_columns:
        return table
    if len(columns) > MAX_COLUMNS:
        raise LimitExceeded(
            f"a table may have {MAX_COLUMNS:,} columns, dropped ones included; copy the rows to a new one",
            limit="columns",
            most=MAX_COLUMNS,
        )
    changed = table.redefined(columns)
    check_definition(changed.schema, [*table.primary_key], [*table.shard_key])
    tx.append(TableDefined(changed, table.definition))
    return changed


def _is_new(field: pa.Field, table: TableInfo) -> bool:
    """Return True if the table lacks a column; raise if the column can neither be added nor skipped."""
    if field.name not in table.schema.names:
        if not field.nullable:
            raise InvalidOption(
                f"column {field.name!r} is null in existing rows; declare it nullable", option="fields"
            )
        return True
    kind = table.schema.field(field.name).type
    if kind != field.type:
        raise SchemaMismatch(
            f"table {table.name!r} already has a column {field.name!r}, of type {kind} and not {field.type}; "
            f"choose another name, write {kind}, or widen the column (Table.widen_column)",
            column=field.name,
        )
    return False
