"""Columns of a table are added, dropped, renamed and widened; only the definition changes, no file.

Each change is one transaction, which gives the table its next definition (`TableColumn`: how files of older
ones are read). Older definitions stay valid where they are in use:

- A scan goes on with the columns that it began with: its key names the definition. It reads no snapshot that
  is newer than the change, so no value in it is beyond its types; copies take dropped columns along for as
  long as such a scan may be there.
- Rows that were staged by it can still be committed: their files know columns by the names that stay.
- A merge or a move looks the table up with the fragments that it copies, so no file of it is of a newer one.

The columns of keys and of indexes stay what they are: order keys, slots and index runs are made of them. The
catalog's layout grows with a change, so every process looks the table up again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, LimitExceeded, SchemaMismatch
from elasticscan.base.formatting import brief
from elasticscan.base.limits import MAX_COLUMNS, MAX_RENAMES
from elasticscan.catalog import Tx, retry_interrupted
from elasticscan.metadata import (
    IndexInfo,
    TableColumn,
    TableDefined,
    TableInfo,
    is_widening,
    new_column,
    no_such_column,
)
from elasticscan.storage import check_definition, stored_schema
from elasticscan.store import arguments
from elasticscan.store.arguments import Names
from elasticscan.store.context import Context, Find
from elasticscan.store.reading.scan import columns_of

Fields: TypeAlias = pa.Schema | Sequence[pa.Field] | Mapping[str, pa.DataType | str]


@retry_interrupted
def add_columns(context: Context, find: Find, fields: Fields) -> TableInfo:
    """Append columns to a table, in one transaction; columns that exist are skipped."""
    asked = _fields(fields)
    with context.catalog.writing() as tx:
        table = find(tx)[0]
        new = [field for field in asked if _is_new(field, table)]
        if not new:
            return table
        columns = table.all_columns
        for field in new:
            columns = (*columns, new_column(columns, field, table.definition + 1))
        return _redefine(tx, table, columns)


@retry_interrupted
def drop_columns(context: Context, find: Find, names: Names) -> TableInfo:
    """Drop columns of a table, all or none."""
    names = arguments.names("names", names)
    with context.catalog.writing() as tx:
        table, indexes = find(tx)
        going = [_check_free(table, indexes, name, "dropped") for name in columns_of(table, names, "names")]
        until, last = table.definition + 1, tx.state.commit
        return _redefine(tx, table, _changed(table, going, until=until, last_commit=last))


@retry_interrupted
def rename_column(context: Context, find: Find, old: str, new: str) -> TableInfo:
    """Give a column another name."""
    old, new = arguments.text("old", old), arguments.text("new", new)
    with context.catalog.writing() as tx:
        table, indexes = find(tx)
        column = _check_free(table, indexes, old, "renamed")
        if old == new:
            return table
        if len(column.names) > MAX_RENAMES:
            raise LimitExceeded(
                f"column {old!r} of table {table.name!r} was renamed {MAX_RENAMES:,} times, and all its "
                "names are kept; add another column instead",
                column=old,
                limit="renames",
                most=MAX_RENAMES,
            )
        names = (*column.names, (table.definition + 1, new))
        return _redefine(tx, table, _changed(table, [column], names=names))


@retry_interrupted
def widen_column(context: Context, find: Find, name: str, kind: Any) -> TableInfo:
    """Give a column a type that holds all values of its own; nothing is done if it has it already."""
    name, kind = arguments.text("name", name), arguments.arrow_type("type", kind)
    with context.catalog.writing() as tx:
        table, indexes = find(tx)
        column = _check_free(table, indexes, name, "widened")
        if column.type == kind:
            return table
        if not is_widening(column.type, kind):
            raise SchemaMismatch(
                f"column {name!r} of table {table.name!r} is {column.type} and cannot become {kind}; "
                "name a wider type of its kind, or a decimal of its scale",
                column=name,
            )
        types = (*column.types, (table.definition + 1, kind))
        return _redefine(tx, table, _changed(table, [column], types=types))


def _redefine(tx: Tx, table: TableInfo, columns: tuple[TableColumn, ...]) -> TableInfo:
    if len(columns) > MAX_COLUMNS:
        raise LimitExceeded(
            f"table {table.name!r} may have {MAX_COLUMNS:,} columns, dropped ones included, not "
            f"{len(columns):,}; copy its rows to a new table",
            limit="columns",
            most=MAX_COLUMNS,
        )
    changed = table.redefined(columns)
    check_definition(changed.schema, [*table.primary_key], [*table.shard_key])
    tx.append(TableDefined(changed, table.definition))
    return changed


def _changed(table: TableInfo, columns: Sequence[TableColumn], **changes: Any) -> tuple[TableColumn, ...]:
    """Return all columns of a table, with changes of some."""
    return tuple(replace(c, **changes) if c in columns else c for c in table.all_columns)


def _check_free(table: TableInfo, indexes: Sequence[IndexInfo], name: str, change: str) -> TableColumn:
    """Return the column of a name; raise unless it exists, and no key and no index is made of it."""
    if name not in table.schema.names:
        raise no_such_column(table.name, name, table.schema.names)
    if name in table.primary_key:
        raise InvalidOption(
            f"column {name!r} of table {table.name!r} is of the primary key and cannot be {change}; copy its "
            "rows to a new table",
            column=name,
        )
    for index in indexes:
        if name in (*index.columns, *index.include):
            raise InvalidOption(
                f"column {name!r} of table {table.name!r} cannot be {change}: index {index.name!r} is made "
                f"of it; drop the index first (Table.drop_index({index.name!r})), and make it again after",
                column=name,
                index=index.name,
            )
    return table.by_name()[name]


def _fields(value: Any) -> list[pa.Field]:
    named = isinstance(value, Mapping)
    given = arguments.types("fields", value) if named else islice(value, MAX_COLUMNS + 1)  # maybe endless
    fields = list(stored_schema(pa.schema(given), []))
    if not fields:
        raise InvalidOption(
            f"fields={brief(value)} must be a pyarrow.Schema, a list of pyarrow.field(name, type) or a "
            "dict of names and types, at least one",
            option="fields",
        )
    return fields


def _is_new(field: pa.Field, table: TableInfo) -> bool:
    """Return True if the table lacks a column; raise if it can neither be added nor skipped."""
    if field.name not in table.schema.names:
        if not field.nullable:
            raise InvalidOption(
                f"column {field.name!r} is null in the rows of table {table.name!r}; declare it nullable",
                option="fields",
                column=field.name,
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
