"""Tables as they come, change and go: entered alone or with their first rows; redefined; dropped.

A table that a write makes is *reserved* first: it has an id, so that files can be staged for it, but it
is not listed. The transaction that commits the first rows enters it. A write that fails, or whose process is
killed, therefore leaves no table behind, and two that make the same table at once share it.

A change of columns is one transaction, which gives the table its next definition (`TableColumn`: how files of
older ones are read), and writes no file. Older definitions stay valid where they are in use:

- A scan goes on with the columns that it began with: its key names the definition. It reads no snapshot that
  is newer than the change, so no value in it is beyond its types; copies take dropped columns along for as
  long as such a scan may be there.
- Rows that were staged by it can still be committed: their files know columns by the names that stay.
- A merge or a move looks the table up with the fragments that it copies, so no file of it is of a newer one.

The columns of keys and of indexes stay what they are: order keys, slots and index runs are made of them. The
catalog's layout grows with a change, so every process looks the table up again.
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
    """Return a checked definition, not entered yet; arguments and errors as of `Store.create_table`."""
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
    """Enter a definition without rows. Raises `AlreadyExists`: there is a table of its name."""
    with context.catalog.writing() as tx:
        return enter(tx, table)


def enter(tx: Tx, table: TableInfo) -> TableInfo:
    """As `enter_table`, in a transaction."""
    tx.append(TableDefined(_to_be_made(tx.state, table), 0, "create"))
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
    """Return a table for a first write, not listed until its rows are committed. Raises `AlreadyExists`."""
    table = define_table(name, schema, primary_key, shard_key, compression)
    with context.catalog.writing() as tx:
        reserved = _to_be_made(tx.state, table)
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
    """Drop a table; its files are garbage from now on."""
    with context.catalog.writing() as tx:
        tx.append(TableDropped(find(tx)[0].id))


def _to_be_made(state: StoreState, info: TableInfo) -> TableInfo:
    """Return a new table with its id, which is that of one that was reserved with the same definition.

    The form of its files is that which was asked for last.
    """
    for table in state.reserved.values():
        same = replace(info, id=table.id)
        if same == replace(table, compression=info.compression):
            return same
    return replace(info, id=state.newest_ids.get("table", 0) + 1)


def table_to_write(context: Context, table_id: int) -> TableInfo | None:
    """Return a table, also one that is reserved for its first write; None when it was dropped."""
    return context.ask(lambda tx: tx.state.info(table_id) or tx.state.reserved.get(table_id))


def has_forerunner(context: Context, table: TableInfo, application: str) -> bool:
    """Return True if an application wrote to a table that was dropped before this one got its name."""
    return context.ask(lambda tx: tx.has_forerunner(table, application))


@retry_interrupted
def add_columns(context: Context, find: Find, fields: Fields) -> TableInfo:
    """Append columns to a table, in one transaction; columns that exist are skipped."""
    named = isinstance(fields, Mapping)
    given = arguments.types("fields", fields) if named else islice(fields, MAX_COLUMNS + 1)  # maybe endless
    asked = stored_schema(pa.schema(given), [])
    if not len(asked):
        raise InvalidOption(
            f"fields={brief(fields)} must be a pyarrow.Schema, a list of fields, or a dict of types",
            option="fields",
        )
    with context.catalog.writing() as tx:
        table = find(tx)[0]
        columns = table.all_columns
        for field in asked:
            if _is_new(field, table):
                columns = (*columns, new_column(columns, field, table.definition + 1))
        return _redefine(tx, table, columns)


def drop_columns(context: Context, find: Find, names: Names) -> TableInfo:
    """Drop columns of a table, all or none."""

    def dropped(_: TableColumn, definition: int, commit: int) -> dict[str, Any]:
        return {"until": definition, "last_commit": commit}

    return _change(context, find, arguments.names("names", names), "dropped", dropped)


def rename_column(context: Context, find: Find, old: str, new: str) -> TableInfo:
    """Give a column another name."""
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
    """Give a column a type that holds all values of its own; nothing is done if it has it already."""
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
    """Change columns, all or none; what changes of each is told by it, the definition and the newest commit.

    Raises:
        NotFound: the table has no such column.
        InvalidOption: a key or an index is made of one.
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
    """Return True if the table lacks a column; raise if it can neither be added nor skipped."""
    if field.name not in table.schema.names:
        if not field.nullable:
            raise InvalidOption(
                f"column {field.name!r} is null in all rows; declare it nullable", option="fields"
            )
        return True
    own = table.schema.field(field.name).type
    if own != field.type:
        raise SchemaMismatch(
            f"table {table.name!r} already has a column {field.name!r}, of type {own} and not {field.type}; "
            f"choose another name, write {own}, or widen the column (Table.widen_column)",
            column=field.name,
        )
    return False
