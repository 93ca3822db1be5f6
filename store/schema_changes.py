"""Tables gain columns: the one way in which a definition changes.

A new column comes after all others and may be null, so that nothing that was written has to be touched: a
fragment without the column reads as nulls (`storage.FragmentReader`), in every snapshot. A table never
loses a column, and none is renamed or gets another type. What somebody holds of a definition is therefore
a beginning of the one that there is now, and rows staged with it can still be committed.

The catalog's layout grows with a new column, so every process looks the table up again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import AlreadyExists, InvalidOption, SchemaMismatch
from elasticscan.base.showing import brief
from elasticscan.metadata import TableInfo
from elasticscan.storage import check_definition, check_works, stored_schema
from elasticscan.store.context import Context, Find


def add_columns(context: Context, find: Find, fields: Any) -> TableInfo:
    """Append columns to a table, in one transaction; those that it has already are skipped."""
    new_fields = _fields(fields)
    with context.catalog.reading() as tx:
        table, new = _check_fields(find(tx)[0], new_fields)
    if new:
        # Outside the write lock; a row with all new columns, whichever of them others add meanwhile.
        keys = [table.schema.field(key) for key in table.primary_key]
        check_works(replace(table, schema=pa.schema([*keys, *new])), context.hashing)
    with context.catalog.writing() as tx:
        table, new = _check_fields(find(tx)[0], new_fields)
        return tx.add_columns(table.id, new) if new else table


def _check_fields(table: TableInfo, fields: list[pa.Field]) -> tuple[TableInfo, list[pa.Field]]:
    """The table, and the columns that it lacks, as they are stored."""
    new = [field for field in fields if _is_new(field, table)]
    if not new:
        return table, []
    whole = pa.schema([*table.schema, *new])
    check_definition(whole, list(table.primary_key), list(table.shard_key))
    return table, list(stored_schema(pa.schema(new), []))


def _fields(value: Any) -> list[pa.Field]:
    fields = list(value) if isinstance(value, pa.Schema | Sequence) and not isinstance(value, str) else []
    if not fields or not all(isinstance(field, pa.Field) for field in fields):
        raise InvalidOption(
            f"fields={brief(value)} must be a pyarrow.Schema or a list of pyarrow.field(name, type), at "
            "least one",
            option="fields",
        )
    return fields


def _is_new(field: pa.Field, table: TableInfo) -> bool:
    """True if the table lacks a column; raises unless it can be added, or is there just so."""
    same = next((column for column in table.schema if column.name.lower() == field.name.lower()), None)
    if same is None:
        if not field.nullable:
            raise InvalidOption(
                f"column {field.name!r} is declared not null, but the rows that table {table.name!r} has "
                "already are null in it; declare it nullable (pyarrow.field(name, type)), then fill it",
                option="fields",
                column=field.name,
            )
        return True
    if same.name != field.name:
        raise AlreadyExists(
            f"table {table.name!r} already has a column {same.name!r}, which differs from {field.name!r} in "
            "case alone, and Spark does not tell these apart; choose another name",
            table=table.name,
            column=field.name,
        )
    if same.type != field.type:
        raise SchemaMismatch(
            f"table {table.name!r} already has a column {field.name!r}, of type {same.type} and not "
            f"{field.type}; types of columns never change: choose another name, or write {same.type}",
            column=field.name,
        )
    return False
