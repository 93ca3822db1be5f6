"""Leases: promises, each with an end, that something stays readable until then.

| purpose | held by | keeps | for |
|---|---|---|---|
| `scan` | a scan; all readers of a stream's snapshot share one | its snapshot | an hour; pages renew it |
| `changes` | a scan of changes | the changes after a commit | an hour; pages renew it |
| `write` | a write that checks its keys | the changes after a commit | an hour |
| `stream:NAME` | a stream with a name | the changes after a commit | a week; renewed each minute |

A lease costs a write to the catalog, so none is taken where the retention period alone keeps what is
read for twice as long, nor in a store that is open for reading alone: there a read goes on for as long as
what it reads is there.
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

# Pages renew a lease when half of it is over. A task that begins renews it as well, unless more than this
# share of it is left.
FRESH_LEASE = 0.75

_SCAN, _CHANGES, _STREAM = "scan", "changes", "stream:"


@dataclass(frozen=True, slots=True)
class Hold:
    """A snapshot of a table that a lease keeps readable."""

    table: int
    snapshot: int
    purpose: str


def holds_in(tx: Tx) -> list[Lease[Hold]]:
    """Return the leases that last. Raises `StoreDamaged` where any lease is damaged."""
    return [lease for lease in tx.leases(Hold) if tx.is_valid(lease)]


def leases_in(tx: Tx) -> list[dict[str, Any]]:
    """Return the leases that last, as plain values."""
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
        if lease.value.table in names  # it is newer than what this transaction sees
    ]


def take_lease(tx: Tx, lease: str, table: TableInfo, snapshot: int, purpose: str, seconds: float) -> None:
    """Promise that a snapshot stays readable until `now + seconds`; takes one that ended again."""
    tx.state.check_snapshot(live_table(tx, table.id), snapshot)  # the caller's is from before a compaction
    tx.put_lease(lease, Hold(table.id, snapshot, purpose), seconds)


def lease_end(tx: Tx, lease: str) -> float:
    """Return the time at which a lease ends or ended; 0 when there is none."""
    held = tx.lease(Hold, lease)
    return 0.0 if held is None else held.until / 1e6


def kept_seconds(tx: Tx, snapshot: int, retention_seconds: float) -> float:
    """For how much longer the retention period alone keeps a snapshot readable."""
    found = tx.commits(after=snapshot, most=1) if snapshot < tx.state.commit else ()
    return retention_seconds - sum(tx.times.stamp - overtaken.created_at for overtaken in found)


def is_kept(context: Context, tx: Tx, table: TableInfo, snapshot: int) -> bool:
    """Return whether retention keeps a snapshot for twice the time until its reader checks again."""
    return kept_seconds(tx, snapshot, context.retention_of(table)) >= 2 * LEASE_SECONDS


# Scans


@retry_interrupted
def lease_snapshot(context: Context, lease: str, table: TableInfo, snapshot: int) -> bool:
    """Keep a snapshot readable for a scan; false where no lease can be written. Raises as `take_lease`."""
    if context.catalog.read_only is not None:
        return False
    with context.catalog.leasing() as tx:
        take_lease(tx, lease, table, snapshot, _SCAN, LEASE_SECONDS)
    return True


@retry_interrupted
def keep_lease(context: Context, key: ContinuationKey) -> TableInfo:
    """Renew a scan's lease, also one that ended, and return the table as the scan began with it.

    Raises:
        TableChanged: the table was dropped.
        SnapshotExpired: the lease had run out, and what it kept is gone.
    """
    tx = context.catalog.newest()
    table = _readable_table(tx, key)
    # A scan without a lease is a part of a stream, which holds what it reads. A task that begins soon after
    # it was planned has nothing to write.
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
    """Release a scan's snapshot, if it was leased and the catalog is writable.

    Else the lease runs out by itself: an error would say of a write that was committed that it was not.
    """
    if context.catalog.read_only is not None or not lease:
        return
    with suppress(TryAgain, OperatorNeeded):
        if context.ask(lambda tx: tx.lease(Hold, lease)):
            with context.catalog.leasing() as tx:
                tx.remove_lease(Hold, lease)


def _readable_table(tx: Tx, key: ContinuationKey) -> TableInfo:
    table = live_table(tx, key.table)
    # A lease may still stand in the catalog although its time was up when a compaction looked.
    if key.segments is None:
        tx.state.check_snapshot(table, key.snapshot)
    elif key.segments:
        check_kept(table, key.segments[0].after)
    return table


def _held_commit(table: TableInfo, key: ContinuationKey) -> int:
    """Return the commit that has to stay: of a snapshot, or the one after which changes are read."""
    return max(key.segments[0].after, table.oldest_snapshot) if key.segments else key.snapshot


# Streams


@retry_interrupted
def hold_for_stream(context: Context, table_id: int, name: str, commit: int) -> None:
    """Keep the changes after a commit for a stream with a name, and nothing before them any longer."""
    lease = hashlib.sha256(f"{context.known.store_id}/{table_id}/{name}".encode()).hexdigest()[:32]
    with context.catalog.leasing() as tx:
        table = tx.state.info(table_id)
        if table is not None:
            # Beyond what is kept there is nothing to hold: the reader raises the error.
            at = min(max(commit, table.oldest_snapshot), tx.state.commit)
            take_lease(tx, lease, table, at, f"{_STREAM}{name}", STREAM_LEASE_SECONDS)


def stream_of(purpose: str) -> str | None:
    """Return the name of the stream that a lease is of; None for any other lease."""
    return purpose.removeprefix(_STREAM) if purpose.startswith(_STREAM) else None
