"""Preconditions of a write on its keys: they are unchanged since they were read, or do not exist.

The write's keys are compared with all later commits: with most of them without a lock, after the rows are
staged, and with the rest in the transaction that commits. So if two programs read a row, change it and write
it, one of them always gets an error and has to read again.

Moves and merges make no difference: keys are compared with all fragments of the table at all shards, and
copied versions keep their commit numbers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import AlreadyExists, ElasticScanError, NotFound, RowsChanged
from elasticscan.base.formatting import brief
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.catalog import IdempotencyKey, Tx, retry_interrupted
from elasticscan.metadata import Bounds, StagedFragment, TableInfo
from elasticscan.storage import PageSource, View, python_rows, shared_keys, staged_source
from elasticscan.store.context import Context
from elasticscan.store.context.leases import end_lease, is_kept, take_lease
from elasticscan.store.context.lookups import KnownTable, check_kept

MOST_KEYS_NAMED = 3


class KeyCheck:
    """The check of one write's keys, which remembers the commits that it has compared.

    Args:
        context, table: the written table.
        since: the commit after which no other write may have written or deleted the keys; None if the keys
            may not exist.
    """

    def __init__(self, context: Context, table: TableInfo, since: int | None) -> None:
        self._context, self._table, self._since = context, table, since
        self._checked_to = since  # the newest commit that was compared

    def compare(self, tx: Tx, staged: Sequence[StagedFragment]) -> None:
        """Compare the keys with all commits in a transaction that were not compared before.

        Raises `RowsChanged` or `AlreadyExists`; `SnapshotExpired` if the changes are no longer kept.
        """
        begin, newest = self._checked_to, tx.state.commit
        if tx.state.info(self._table.id) is None or (begin is not None and begin >= newest):
            return
        known = self._known_table(tx)
        floor = known.floor(newest)
        if self._since is None:
            kept = -1 if begin is None or begin < known.table.oldest_snapshot else begin
            ranges = [(Bounds(max(kept + 1, floor), newest, since=newest), True)]
        else:
            assert begin is not None, "it begins at a commit"
            check_kept(known.table, begin)
            ranges = [(Bounds(begin + 1, newest, since=begin), False)]
            if floor > begin:  # an overwrite has replaced all rows: those of `begin` have changed
                ranges.append((Bounds(known.floor(begin), begin, since=begin), True))
        written = staged_source(self._table, staged, self._context.disk_of)
        stored = PageSource(known.table, View(known.fragments), self._context.readers.opener(known.table))
        for bounds, living in ranges:
            keys = shared_keys(written, stored, bounds, living) if staged else None
            if keys is not None:
                raise self._conflict(keys, newest)
        self._checked_to = newest

    def _known_table(self, tx: Tx) -> KnownTable:
        return self._context.table_in(tx, self._table.id, tx.state.commit)

    def _conflict(self, keys: pa.RecordBatch, newest: int) -> ElasticScanError:
        rows = python_rows(keys.slice(0, MOST_KEYS_NAMED))
        named: list[Any] = [row if len(row) > 1 else next(iter(row.values())) for row in rows]
        columns, name = ", ".join(keys.schema.names), self._table.name
        listed = f"{columns} = {', '.join(brief(key) for key in named)}"
        shown = {"table": name, "keys": rows, "newest": newest}
        if self._since is None:
            return AlreadyExists(f"table {name!r} has rows with {listed}; leave them out, or upsert", **shown)
        return RowsChanged(
            f"rows of table {name!r} were changed after commit {self._since}, such as {listed}; read again",
            since=self._since,
            **shown,
        )


@contextmanager
def unchanged(
    context: Context,
    table: TableInfo,
    since: int | None,
    txn: IdempotencyKey | None = None,
    is_insert: bool = False,
) -> Iterator[KeyCheck | None]:
    """Yield the check of a write's keys: no other write has written or deleted them after `since`.

    If `since` is None, yields the check that the keys do not exist for an insert, and None for other writes.
    While the block runs, the changes after `since` stay readable, by a lease if retention is short.

    Raises `NotFound` if `since` is no commit yet, `SnapshotExpired` if its changes are no longer kept.
    """
    if since is None:
        yield KeyCheck(context, table, None) if is_insert else None
        return
    context.check_newest()
    lease = _hold(context, table, since, txn, secrets.token_hex(8))
    try:
        yield KeyCheck(context, table, since)
    finally:
        end_lease(context, lease)


@retry_interrupted
def _hold(context: Context, table: TableInfo, since: int, txn: IdempotencyKey | None, lease: str) -> str:
    """Keep the changes after a commit readable; return the lease's name, or "" if none is needed."""
    tx = context.catalog.newest()
    if txn is not None and tx.commit_of_txn(table.id, txn) is not None:
        return ""
    current, newest = tx.state.info(table.id), tx.state.commit
    if since > newest:
        raise NotFound(
            f"there is no commit {since} yet, the newest is {newest}; name the snapshot of the rows",
            table=table.name,
            snapshot=since,
            kind="snapshot",
        )
    if current is None:
        return ""
    check_kept(current, since)
    held = max(since, current.created_commit)
    if is_kept(context, tx, current, held):
        return ""
    with context.catalog.leasing() as tx:
        take_lease(tx, lease, current, held, "write", LEASE_SECONDS)  # raises if a merge removed it since
    return lease
