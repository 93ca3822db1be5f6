"""Leases: entries of the catalog that keep a snapshot, or changes, readable until a time.

| purpose | held by | keeps | for |
|---|---|---|---|
| `scan` | a scan; all readers of a stream's snapshot share one | its snapshot | an hour; pages renew it |
| `changes` | a scan of changes | the changes after a commit | an hour; pages renew it |
| `write` | a write that checks its keys | the changes after a commit | an hour |
| `stream:NAME` | a stream with a name | the changes after a commit | a week; renewed each minute |

A lease costs a write to the catalog. So there is none if the retention period alone keeps the snapshot for
twice the length of a lease. A read-only store writes none either: a scan of it ends with an error if its
snapshot expires.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from elasticscan.base.errors import OperatorNeeded, TryAgain
from elasticscan.base.limits import LEASE_SECONDS, STREAM_LEASE_SECONDS
from elasticscan.catalog import Lease, Tx, retry_interrupted
from elasticscan.metadata import TableInfo
from elasticscan.protocol import ContinuationKey
from elasticscan.store.context.lookups import check_kept, live_table
from elasticscan.store.context.shared import Context

# Pages renew a lease when half of its time is over. A task renews it when it begins, unless more than this
# share of the time is left.
FRESH_LEASE = 0.75

_SCAN, _CHANGES, _STREAM = "scan", "changes", "stream:"


@dataclass(frozen=True, slots=True)
class Hold:
    """A snapshot of a table that a lease keeps readable."""

    table: int
    snapshot: int
    purpose: str


def holds_in(tx: Tx) -> list[Lease[Hold]]:
    """Return the leases that have not expired. Raises `StoreDamaged` if any lease is damaged."""
    return [lease for lease in tx.leases(Hold) if tx.is_valid(lease)]


def leases_in(tx: Tx) -> list[dict[str, Any]]:
    """Return the leases that have not expired, as plain values."""
    names = {number: table.name for number, table in tx.state.dropped.items()}
    names |= {table.id: table.name for table in tx.state.infos()}
    return [
        {
            "id": lease.name,
            "table": names[lease.value.table],
            "snapshot": lease.value.snapshot,
            "purpose": lease.value.purpose,
            "expires_at": lease.until / 1e6,
        }
        for lease in holds_in(tx)
        if lease.value.table in names  # a lease may be of a table newer than this state
    ]


def take_lease(tx: Tx, lease: str, table: TableInfo, snapshot: int, purpose: str, seconds: float) -> None:
    """Keep a snapshot readable for `seconds` from now. A lease that expired can be taken again."""
    tx.state.check_snapshot(live_table(tx, table.id), snapshot)  # a compaction may have dropped it meanwhile
    tx.put_lease(lease, Hold(table.id, snapshot, purpose), seconds)


def lease_end(tx: Tx, lease: str) -> float:
    """Return the time at which a lease expires or expired; 0 if there is none."""
    entry = tx.lease(Hold, lease)
    return 0.0 if entry is None else entry.until / 1e6


def kept_seconds(tx: Tx, snapshot: int, retention_seconds: float) -> float:
    """Return for how many seconds from now the retention period alone keeps a snapshot readable."""
    next_commit = tx.commits(after=snapshot, most=1) if snapshot < tx.state.commit else ()
    return retention_seconds - sum(tx.times.stamp - commit.created_at for commit in next_commit)


def is_kept(context: Context, tx: Tx, table: TableInfo, snapshot: int) -> bool:
    """Return whether retention keeps a snapshot for two lease periods; its reader checks again in one."""
    return kept_seconds(tx, snapshot, context.retention_of(table)) >= 2 * LEASE_SECONDS


# Scans


@retry_interrupted
def lease_snapshot(context: Context, lease: str, table: TableInfo, snapshot: int) -> bool:
    """Write the lease of a scan; return False if the catalog is read-only. Raises `SnapshotExpired`."""
    if context.catalog.read_only is not None:
        return False
    with context.catalog.leasing() as tx:
        take_lease(tx, lease, table, snapshot, _SCAN, LEASE_SECONDS)
    return True


@retry_interrupted
def keep_lease(context: Context, key: ContinuationKey) -> TableInfo:
    """Renew a scan's lease, even if it expired, and return the table with the scan's definition.

    Raises `TableChanged` if the table was dropped, `SnapshotExpired` if the snapshot or the changes are gone.
    """
    tx = context.catalog.newest()
    table = _readable_table(tx, key)
    # A scan without a lease belongs to a stream, which has a lease. A task that begins soon after it was
    # planned need not renew.
    if (
        not key.lease
        or not key.cursors
        or context.catalog.read_only is not None
        or is_kept(context, tx, table, _held_commit(table, key))
        or lease_end(tx, key.lease) - tx.times.stamp > FRESH_LEASE * LEASE_SECONDS
    ):
        return table.at(key.definition)
    with context.catalog.leasing() as tx:
        table = _readable_table(tx, key)
        purpose = _SCAN if key.segments is None else _CHANGES
        take_lease(tx, key.lease, table, _held_commit(table, key), purpose, LEASE_SECONDS)
    return table.at(key.definition)


def end_lease(context: Context, lease: str) -> None:
    """Remove a scan's lease, if there is one and the catalog can be written.

    If that fails the lease expires later. An error here would report a committed write as failed.
    """
    if context.catalog.read_only is not None or not lease:
        return
    with suppress(TryAgain, OperatorNeeded):
        if context.ask(lambda tx: tx.lease(Hold, lease)):
            with context.catalog.leasing() as tx:
                tx.remove_lease(Hold, lease)


def _readable_table(tx: Tx, key: ContinuationKey) -> TableInfo:
    table = live_table(tx, key.table)
    # The lease is no proof: it may have expired, and a compaction may have dropped the snapshot since.
    if key.segments is None:
        tx.state.check_snapshot(table, key.snapshot)
    elif key.segments:
        check_kept(table, key.segments[0].after)
    return table


def _held_commit(table: TableInfo, key: ContinuationKey) -> int:
    """Return the commit that the scan's lease keeps: its snapshot, or the one before its changes."""
    return max(key.segments[0].after, table.oldest_snapshot) if key.segments else key.snapshot


# Streams


@retry_interrupted
def hold_for_stream(context: Context, table_id: int, name: str, commit: int) -> None:
    """Keep the changes after a commit for a named stream; changes up to it are no longer kept for it."""
    lease = hashlib.sha256(f"{context.known.store_id}/{table_id}/{name}".encode()).hexdigest()[:32]
    with context.catalog.leasing() as tx:
        table = tx.state.info(table_id)
        if table is not None:
            # A lease on changes that are gone is impossible: the reader of the stream raises the error.
            at = min(max(commit, table.oldest_snapshot), tx.state.commit)
            take_lease(tx, lease, table, at, f"{_STREAM}{name}", STREAM_LEASE_SECONDS)


def stream_of(purpose: str) -> str | None:
    """Return the name of the stream that has a lease; None for other leases."""
    return purpose.removeprefix(_STREAM) if purpose.startswith(_STREAM) else None
