"""Streams that follow tables: the list of named streams, and the reads for the planning of micro-batches.

A named stream has a lease on the commit that it has reached, so that the changes after it stay readable.
`streams_in` lists streams by these leases. So a stream without a name is not listed, and a stream that
stopped is listed until its lease expires.

A stream renews its lease about once a minute while it runs, and when it ends normally. So the `commit` that
`streams_in` reports may be a minute older than the last one delivered. While the stream reads its first
snapshot, `commit` is that snapshot, and `behind_rows` does not include the snapshot's unread rows.

The planning of a micro-batch reads the catalog once (`CommitReads.look`): everything in a `StreamState` is
from the same state, and nothing else is read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from elasticscan.base.limits import MAX_NUMBER
from elasticscan.catalog import Commit, Tx, newest_topology, retry_interrupted
from elasticscan.metadata import Bounds, Fragment, TableInfo
from elasticscan.protocol import ReadRequest
from elasticscan.storage import slot_counts
from elasticscan.store.context import Context
from elasticscan.store.context.leases import hold_for_stream, keep_lease, leases_in, stream_of
from elasticscan.store.context.lookups import live_table
from elasticscan.store.reading.access_paths import slots_of_filter
from elasticscan.store.reading.scan import Scan, first_key, scan_changes
from elasticscan.topology import Placement, SlotSet, Topology

Counts = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream's table in one state of the catalog.

    Attributes:
        table: the table that the stream reads.
        newest: the newest commit of the store.
        commits: the table's commits after the stream's position, as many as were requested.
        fragments: the table's fragments, if they were requested.
        placement: the newest placement.
        base: the newest topology of the history. Slots that have left their shard in it are read by virtual
            scans, all others by base-shard scans.
    """

    table: TableInfo
    newest: int
    commits: tuple[Commit, ...]
    fragments: tuple[Fragment, ...]
    placement: Placement
    base: Topology


class CommitReads:
    """Reads of what commits changed, for streams and change feeds."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.scan, self.hold = partial(scan_changes, context), partial(hold_for_stream, context)

    @retry_interrupted
    def look(
        self,
        table_id: int,
        after: int | None = None,
        upto: int = MAX_NUMBER,
        most: int = MAX_NUMBER,
        fragments: bool = False,
    ) -> StreamState:
        """Return the state that the planning of a micro-batch needs.

        Args:
            after: the commit that the stream has reached; None to return no commits.
            upto, most: return commits up to `upto`, and only the oldest `most` of them.
            fragments: whether to return the fragments.

        Raises `TableChanged` if the table was dropped.
        """
        tx = self.context.catalog.newest()
        table = live_table(tx, table_id)
        return StreamState(
            table=table,
            newest=tx.state.commit,
            commits=() if after is None else tx.commits(table.id, after, upto, most),
            fragments=self.context.table_in(tx, table.id, tx.state.commit).fragments if fragments else (),
            placement=tx.state.placement,
            base=newest_topology(tx),
        )

    def lag(self, table_id: int, after: int) -> tuple[int, int, float]:
        """Return by how many (commits, rows, seconds) a stream at a commit is behind its table."""
        return self.context.ask(lambda tx: _lag(tx, live_table(tx, table_id), after))

    def scan_snapshot(self, state: StreamState, at: int, slots: SlotSet, read: ReadRequest) -> Scan:
        """Return a scan of some slots of a stream's first snapshot, limited to those the filter can match.

        Raises `SnapshotExpired`, or `TableChanged` if the table was dropped.
        """
        context, base = self.context, state.base
        named = f"{context.known.store_id}/{state.table.id}/{at}"
        # All micro-batches of a snapshot share a lease, because no task knows which one is the last.
        lease = hashlib.sha256(named.encode()).hexdigest()[:16]
        slots &= slots_of_filter(context, state.table, read.filter)
        key = first_key(state.table, at, base, slots, read, lease)
        return Scan(context, keep_lease(context, key), base, key, ends_lease=False)

    def hold_snapshot(self, state: StreamState, at: int) -> None:
        """Renew the shared lease of a stream's first snapshot, until its next micro-batch."""
        everything = SlotSet.span(0, self.context.known.slots)
        self.scan_snapshot(state, at, everything, ReadRequest(None))

    def commit_at(self, timestamp: float) -> int:
        """Return the newest commit at a time that a user gave, after checking that no shard has seen newer.

        Raises `NotFound` if the time is in the future.
        """
        self.context.check_newest()
        return self.context.ask(lambda tx: tx.commit_at(timestamp))

    def newest_commit_at(self, timestamp: float) -> int:
        """Return the newest commit at or before a time, in seconds since 1970; 0 if there is none."""
        return self.context.ask(lambda tx: tx.newest_commit_at(timestamp))

    def floor(self, table_id: int, snapshot: int, seen_from: int) -> int:
        """Return a table's newest overwrite up to the commit `seen_from`, in the state of a snapshot."""
        return self.context.table_state(table_id, snapshot).floor(seen_from)

    def count_rows(self, table: TableInfo, bounds: Bounds, filter: str | None) -> Counts:  # noqa: A002
        """Count rows by slot, in the slots that can match a filter; cached for each range of commits."""
        context = self.context

        def count() -> Counts:
            counts, slots = np.zeros(context.known.slots, np.int64), slots_of_filter(context, table, filter)
            for fragment in context.table_state(table.id, bounds.snapshot).fragments:
                if bounds.touch(fragment):
                    reader = context.readers.opener(table)(fragment, ())
                    in_fragment = slot_counts(reader, fragment, bounds, len(counts))
                    for start, end in fragment.slots & slots:
                        counts[start:end] += in_fragment[start:end]
            return counts

        key = ("rows by slot", table.id, table.definition, bounds, filter)
        counts: Counts = context.derived.get(key, count)
        return counts


def _lag(tx: Tx, table: TableInfo, after: int) -> tuple[int, int, float]:
    commits, rows, oldest = tx.lag(table.id, max(after, table.created_commit))
    return commits, rows, 0.0 if oldest is None else round(max(tx.now - oldest, 0.0), 3)


def streams_in(tx: Tx) -> list[dict[str, Any]]:
    """Return every named stream whose lease has not expired, sorted by table and name, as plain values.

    `commit` is the newest commit that was certainly delivered; `behind_…` are the number of later commits and
    their rows, and the age of the oldest of them. `expires_at` is in seconds since 1970.
    """
    tables = {table.name: table for table in tx.state.infos()}
    streams = []
    for lease in leases_in(tx):
        table, name = tables.get(lease["table"]), stream_of(lease["purpose"])
        # A lease from before the table was made is of a dropped table with the same name.
        if table is None or name is None or lease["snapshot"] < table.created_commit:
            continue
        behind = zip(("commits", "rows", "seconds"), _lag(tx, table, lease["snapshot"]), strict=True)
        streams.append(
            {"name": name, "table": table.name, "commit": lease["snapshot"]}
            | {f"behind_{unit}": value for unit, value in behind}
            | {"expires_at": lease["expires_at"]}
        )
    return sorted(streams, key=lambda stream: (stream["table"], stream["name"]))
