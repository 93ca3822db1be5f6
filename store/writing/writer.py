"""Writes: staged on the shards' disks, then committed in one catalog transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from elasticscan.base.limits import WRITE_BUFFER_BYTES
from elasticscan.catalog import IdempotencyKey
from elasticscan.metadata import TableInfo
from elasticscan.store.context import Context
from elasticscan.store.rows.keys import conform_keys, tombstones_of
from elasticscan.store.writing.preconditions import KeyCheck
from elasticscan.store.writing.publishing import CommitNumber, CommitRequest, publish
from elasticscan.store.writing.staging import conformed_rows, stage


def has_forerunner(context: Context, table: TableInfo, application: str) -> bool:
    """Return True if an application wrote to a table that was dropped before this one got its name."""
    return context.ask(lambda tx: tx.has_forerunner(table, application))


def table_to_write(context: Context, table_id: int) -> TableInfo | None:
    """Return a table, also one that is reserved for its first write; None when it was dropped."""
    return context.ask(lambda tx: tx.state.info(table_id) or tx.state.reserved.get(table_id))


def write(
    context: Context,
    table: TableInfo,
    data: Any,
    kind: str = "write",
    txn: IdempotencyKey | None = None,
    buffer_bytes: int = WRITE_BUFFER_BYTES,
    check: KeyCheck | None = None,
    user_metadata: Mapping[str, str] | None = None,
) -> CommitNumber:
    """Upsert rows by primary key, or delete by it what `kind` "delete" gives as keys, all or nothing.

    Keys to delete that are not there are no error.
    """
    batches: Iterator[pa.RecordBatch] = conformed_rows(data, table)
    if kind == "delete":
        batches = (tombstones_of(keys, table) for keys in conform_keys(data, table))
    versions = context.seen  # when the table was looked up
    staged = stage(context, table, batches, kind, buffer_bytes, versions)
    return publish(context, table, staged, CommitRequest(kind, txn, check, user_metadata, versions))
