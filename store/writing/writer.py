"""Writes: staged on the shards' disks, then committed in one catalog transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticscan.base.limits import WRITE_BUFFER_BYTES
from elasticscan.catalog import IdempotencyKey, retry_interrupted
from elasticscan.metadata import TableInfo
from elasticscan.store.context import Context
from elasticscan.store.rows.keys import conform_keys, tombstones_of
from elasticscan.store.writing.preconditions import Precondition
from elasticscan.store.writing.publishing import CommitNumber, CommitRequest, publish_own
from elasticscan.store.writing.staging import conformed_rows, stage


@retry_interrupted
def has_forerunner(context: Context, table: TableInfo, application: str) -> bool:
    """Return True if an application wrote to a table that was dropped before this one got its name."""
    with context.catalog.reading() as tx:
        return tx.has_forerunner(table, application)


@retry_interrupted
def table_to_write(context: Context, table_id: int) -> TableInfo | None:
    """Return a table, also one that is reserved for its first write; None when it was dropped."""
    with context.catalog.reading() as tx:
        return tx.table_by_id(table_id) or tx.reserved_table(table_id)


def write(
    context: Context,
    table: TableInfo,
    data: Any,
    kind: str = "write",
    txn: IdempotencyKey | None = None,
    buffer_bytes: int = WRITE_BUFFER_BYTES,
    check: Precondition | None = None,
    user_metadata: Mapping[str, str] | None = None,
) -> CommitNumber:
    """Upsert rows by primary key, all or nothing."""
    versions = context.seen  # by whoever looked the table up
    staged = stage(context, table, conformed_rows(data, table), kind, buffer_bytes, versions)
    return publish_own(context, table, staged, CommitRequest(kind, txn, check, user_metadata, versions))


def delete(
    context: Context,
    table: TableInfo,
    keys: Any,
    txn: IdempotencyKey | None = None,
    check: Precondition | None = None,
    user_metadata: Mapping[str, str] | None = None,
) -> CommitNumber:
    """Delete by primary key, all or nothing; keys that are not there are no error."""
    tombstones = (tombstones_of(batch, table) for batch in conform_keys(keys, table))
    versions = context.seen  # by whoever looked the table up
    staged = stage(context, table, tombstones, "delete", versions=versions)
    return publish_own(context, table, staged, CommitRequest("delete", txn, check, user_metadata, versions))
