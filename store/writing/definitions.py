"""Tables as they come, change and go: checked, and entered alone or with their first rows; dropped.

A table that a write makes is *reserved* first: it has an id, so that files can be staged for it, but it
is not listed. The transaction that commits the first rows enters it. A write that fails, or whose process is
killed, therefore leaves no table behind, and two that make the same table at once share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import AlreadyExists, InvalidOption
from elasticscan.base.formatting import a_type
from elasticscan.base.limits import check_name
from elasticscan.catalog import StoreState, retry_interrupted
from elasticscan.metadata import TableDefined, TableDropped, TableInfo
from elasticscan.storage import ROWS_HINT, check_definition, stored_schema
from elasticscan.store import arguments
from elasticscan.store.context import Context, Find


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
def redefine_table(context: Context, find: Find, **changes: Any) -> None:
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
    if any(table.name == info.name for table in state.infos()):
        raise AlreadyExists(
            f"the store already has a table {info.name!r}; drop it or choose another", table=info.name
        )
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
