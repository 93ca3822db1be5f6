"""Streams that follow tables: what is seen of them by their leases, and what planning one has to know.

A stream with a name keeps a lease on the commit that it has reached, so that the changes after it
stay readable. `streams_in` knows these leases alone: a stream without a name leaves no trace in the
catalog, and one that stopped is listed until its lease ends.

A stream writes down where it stands about once a minute while it runs, and when it ends by itself. So
the `commit` that `streams_in` reports may be a minute behind what the stream has delivered; while it still
reads its first snapshot it is that snapshot, and `behind_rows` leaves out the snapshot's unread rows.

Planning takes one look at the catalog for each micro-batch (`CommitReads.look`): everything in a
`StreamState` was true at the same moment, and nothing else is asked.
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
    """The facts of a stream's table, from one look at the catalog.

    Attributes:
        table: what the stream reads.
        newest: the newest commit of the store.
        commits: the table's commits after where the stream stands, as many as were asked for.
        fragments: the table's, if they were asked for.
        placement: where slots are now.
        base: the newest topology of the history. Slots that have left their shard of it are read by virtual
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
        """Return the facts that planning a micro-batch needs, in one transaction.

        Args:
            after: the commit that the stream has reached; None if it needs no commits.
            upto, most: the last commit that it needs, and how many, the oldest, suffice.
            fragments: whether they are needed.

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
        """Return (commits, rows, seconds) of a stream behind its table that has reached a commit."""
        return self.context.ask(lambda tx: _lag(tx, live_table(tx, table_id), after))

    def scan_snapshot(self, state: StreamState, at: int, slots: SlotSet, read: ReadRequest) -> Scan:
        """Return a scan of some slots of a stream's first snapshot, limited to those the filter can match.

        Raises `SnapshotExpired`, or `TableChanged` if the table was dropped.
        """
        context, base = self.context, state.base
        named = f"{context.known.store_id}/{state.table.id}/{at}"
        # All micro-batches of a snapshot share a lease, since none knows which is the last.
        lease = hashlib.sha256(named.encode()).hexdigest()[:16]
        slots &= slots_of_filter(context, state.table, read.filter)
        key = first_key(state.table, at, base, slots, read, lease)
        return Scan(context, keep_lease(context, key), base, key, ends_lease=False)

    def hold_snapshot(self, state: StreamState, at: int) -> None:
        """Keep a snapshot readable until its next micro-batch, by the lease that all of these share."""
        everything = SlotSet.span(0, self.context.known.slots)
        self.scan_snapshot(state, at, everything, ReadRequest(None))

    def commit_at(self, timestamp: float) -> int:
        """Return the newest commit made by a time that a user gave, once no shard knows newer ones.

        Raises `NotFound` if the time is still to come.
        """
        self.context.check_newest()
        return self.context.ask(lambda tx: tx.commit_at(timestamp))

    def newest_commit_at(self, timestamp: float) -> int:
        """Return the newest commit made at or before a time, in seconds since 1970; 0 when there is none."""
        return self.context.ask(lambda tx: tx.newest_commit_at(timestamp))

    def floor(self, table_id: int, snapshot: int, seen_from: int) -> int:
        """Return a table's newest overwrite; `seen_from`: the newest commit whose overwrites count."""
        return self.context.table_state(table_id, snapshot).floor(seen_from)

    def count_rows(self, table: TableInfo, bounds: Bounds, filter: str | None) -> Counts:  # noqa: A002
        """Count rows by slot, in the slots that a filter leaves. Counted once for a snapshot or a commit."""
        context = self.context

        def count() -> Counts:
            counts, slots = np.zeros(context.known.slots, np.int64), slots_of_filter(context, table, filter)
            for fragment in context.table_state(table.id, bounds.snapshot).fragments:
                if bounds.touch(fragment):
                    reader = context.readers.opener(table)(fragment, ())
                    here = slot_counts(reader, fragment, bounds, len(counts))
                    for start, end in fragment.slots & slots:
                        counts[start:end] += here[start:end]
            return counts

        key = ("rows by slot", table.id, table.definition, bounds, filter)
        counts: Counts = context.derived.get(key, count)
        return counts


def _lag(tx: Tx, table: TableInfo, after: int) -> tuple[int, int, float]:
    commits, rows, oldest = tx.lag(table.id, max(after, table.created_commit))
    return commits, rows, 0.0 if oldest is None else round(max(tx.now - oldest, 0.0), 3)


def streams_in(tx: Tx) -> list[dict[str, Any]]:
    """Return every named stream whose lease runs, by table and name, as plain values.

    `commit` is the newest that it surely delivered; `behind_…` are the commits and rows of the table after
    that, and the age of the oldest of them. `expires_at` is in seconds since 1970.
    """
    tables = {table.name: table for table in tx.state.infos()}
    streams = []
    for lease in leases_in(tx):
        table, name = tables.get(lease["table"]), stream_of(lease["purpose"])
        # Before the table of this name was made: the lease is of one that was dropped.
        if table is None or name is None or lease["snapshot"] < table.created_commit:
            continue
        behind = zip(("commits", "rows", "seconds"), _lag(tx, table, lease["snapshot"]), strict=True)
        streams.append(
            {"name": name, "table": table.name, "commit": lease["snapshot"]}
            | {f"behind_{unit}": value for unit, value in behind}
            | {"expires_at": lease["expires_at"]}
        )
    return sorted(streams, key=lambda stream: (stream["table"], stream["name"]))
