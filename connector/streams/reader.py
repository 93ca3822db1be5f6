"""Structured Streaming: a snapshot in bounded micro-batches, then every commit after it.

    spark.readStream.format("elasticscan").load("/data/my.store/flights")

A process next to the driver plans each micro-batch: its end, and its tasks, which read like the tasks of a
batch. The only state of a stream is its offsets (`offsets`) in Spark's checkpoint. A stream continues from
them, and a repeated micro-batch has the same rows, wherever tablets are. The attributes of the reader only
save work; tasks get a copy of it.

Spark 4.3 asks for the newest offset dozens of times a second while nothing happens. Then the reader only
reads the catalog's version. Spark does not report the end of a stream and does not confirm the last
micro-batch, so nothing depends on `commit` and `stop`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from elasticscan.base.errors import ContinuationKeyError, StartAgain, TableChanged, TryAgain
from elasticscan.base.limits import MAX_NUMBER
from elasticscan.connector.conversion import match_columns
from elasticscan.connector.options import EARLIEST, LATEST, STREAM, Options, check_use
from elasticscan.connector.partitions import read_partition
from elasticscan.connector.reading import offered_schema
from elasticscan.connector.store_cache import open_store
from elasticscan.connector.streams.changes import (
    change_rows,
    check_known,
    check_readable,
    commit_before_start,
    is_change,
    plan_micro_batch,
)
from elasticscan.connector.streams.offsets import (
    Counts,
    InChanges,
    InSnapshot,
    Offset,
    OffsetFormat,
    Position,
    between,
    cut_slots,
)
from elasticscan.metadata import Bounds, Fragment, TableInfo
from elasticscan.store import Commit, Store, StreamState

_FEWEST_COMMITS, _MOST_COMMITS = 64, 8_192  # bounds of the commits read to plan a bounded micro-batch
RENEW_SECONDS = 60  # how often a named stream renews its lease
MOVED_SECONDS = 5  # the same if the stream has advanced, which `status` shows

_log = logging.getLogger(__name__)


class ElasticScanStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream: plans micro-batches in the driver, reads them in tasks."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check Spark's schema: all offered columns, or the user's choice of them."""
        self._options = options
        store = open_store(options.store)
        table = store.table(options.table).definition
        self._columns = match_columns(schema, offered_schema(table, options))
        self._schema = schema
        self._store_id, self._table_id = store.backend.identity, table.id
        self._definition = table.definition  # the stream keeps the columns of this version
        self._done = 0  # commits up to this one are no longer needed
        self._leased = 0, -math.inf  # the commit of the lease, and the time of its renewal
        self._initial: dict[str, Any] | None = None
        self._target: int | None = None  # the last commit of a stream with trigger availableNow
        self._position: Position | None = None  # the end of the newest batch
        # The last request that found nothing new: (versions of the catalog, limit, start).
        self._unchanged: tuple[tuple[int, int], ReadLimit, dict[str, Any]] | None = None

    # Offsets

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset of a new stream. Spark calls this again when it repeats the first batch."""
        if self._initial is None:
            store = self._open()
            store.backend.newest()
            position = self._first_position(store, self._look(store))
            self._initial = _format(store).write(Offset(self._table_id, position, position))
        return dict(self._initial)

    def _first_position(self, store: Store, state: StreamState) -> Position:
        options, table, newest = self._options, state.table, self._newest(state)
        check_known("startingVersion", options.start, newest + 1)
        if options.start_time is not None or isinstance(options.start, int):
            return InChanges(min(commit_before_start(store, table, options), newest))
        if options.start == LATEST:
            return InChanges(newest)
        return InSnapshot(table.oldest_snapshot if options.start == EARLIEST else newest)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        return ReadAllAvailable() if options.max_bytes is None else ReadMaxBytes(options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the last commit of this run; the next run reads later ones."""
        self._target = self._open().backend.newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the batch that begins at `start`, or `start` if there is nothing new."""
        store = self._open()
        store.backend.newest()
        request = (store.backend.versions(), limit, start)
        if request == self._unchanged:
            self._renew_lease(store, self._done)
            return start
        offset = self._read_offset(store, start)
        self._renew_lease(store, offset.position.commit)  # batches up to `start` are complete
        # Spark passes the default limit of this reader, or asks for all rows.
        budget = most_bytes = None
        if not isinstance(limit, ReadAllAvailable):
            budget, most_bytes = self._options.max_rows, self._options.max_bytes
        is_bounded = budget is not None or most_bytes is not None
        most = max(_FEWEST_COMMITS, min(budget or _MOST_COMMITS, _MOST_COMMITS))  # nearly all have a row
        state = self._look(
            store,
            after=offset.position.commit if offset.position.in_changes else None,
            most=most if is_bounded else MAX_NUMBER,
            fragments=most_bytes is not None,  # for the average size of a row
        )
        if most_bytes is not None:
            budget = min(budget or MAX_NUMBER, _rows_of(most_bytes, state.fragments))
        _check_reached(offset.position, state.table, self._newest(state))
        following = self._next_in_changes if offset.position.in_changes else self._next_in_snapshot
        position = following(store, state, offset.position, budget)
        self._position = position
        if position == offset.position:
            self._unchanged = request
            # With availableNow this is Spark's last call, so the lease must be current now.
            self._renew_lease(store, self._done, force=self._target is not None)
            return start
        return _format(store).write(
            Offset(offset.table, position, offset.since if offset.is_initial else None)
        )

    def _next_in_snapshot(
        self, store: Store, state: StreamState, start: Position, budget: int | None
    ) -> Position:
        table, at, slots = state.table, start.commit, store.backend.slot_count
        store.backend.changes.hold_snapshot(state, at)
        end = slots
        if budget is not None:
            floor = store.backend.changes.floor(table.id, at, seen_from=at)
            bounds = Bounds(floor, at, since=at)
            counts = store.backend.changes.count_rows(table, bounds, self._options.filter)
            end = cut_slots(counts, start.slot, budget)
        return InChanges(at) if end >= slots else InSnapshot(at, end)

    def _next_in_changes(
        self, store: Store, state: StreamState, start: Position, budget: int | None
    ) -> Position:
        """Return the end of the next batch: whole commits, or a part of a commit larger than the budget."""
        table, options, newest = state.table, self._options, self._newest(state)
        # Commits that made the table have no changes.
        commits = [c for c in state.commits if c.number <= newest and c.kind != "create"]
        check_readable(table, [commit for commit in commits if is_change(commit, options)], options)
        position, rows_left = start, budget
        for commit in commits:
            if rows_left is not None:
                slot = start.slot if commit.number == start.commit + 1 else 0
                rows = self._most_rows(store, table, commit, slot)
                if rows > rows_left:
                    if position == start:  # the first commit alone exceeds the budget
                        counts = self._rows_by_slot(store, table, commit)
                        end = cut_slots(counts, slot, rows_left)
                        whole = end >= len(counts)
                        position = InChanges(commit.number) if whole else InChanges(commit.number - 1, end)
                    break
                rows_left -= rows
            position = InChanges(commit.number)
        return position

    def _most_rows(self, store: Store, table: TableInfo, commit: Commit, slot: int) -> int:
        """Return an upper bound for the rows of a commit's changes in the slots from `slot` on."""
        options = self._options
        if not is_change(commit, options) or commit.number <= table.oldest_snapshot:
            return 0
        if not slot and not (options.feed and commit.kind == "overwrite"):
            return change_rows(commit, options)
        return int(self._rows_by_slot(store, table, commit)[slot:].sum())

    def _rows_by_slot(self, store: Store, table: TableInfo, commit: Commit) -> Counts:
        number, feed, changes = commit.number, self._options.feed, store.backend.changes
        floor = number
        if feed and commit.kind == "overwrite":  # its changes include the rows that it deletes
            floor = changes.floor(table.id, number, seen_from=number - 1)
        counts = changes.count_rows(table, Bounds(floor, number, since=number - 1), self._options.filter)
        return counts * 2 if feed and commit.kind in ("write", "merge") else counts

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the stream is behind the table. Spark shows it in the query's progress."""
        if self._position is None:
            return None
        commits, rows, seconds = self._open().backend.changes.lag(self._table_id, self._position.commit)
        return {"behindCommits": commits, "behindRows": rows, "behindSeconds": seconds}

    # Batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch between two offsets."""
        store = self._open()
        start_at, end_at = between(self._read_offset(store, start), self._read_offset(store, end))
        self._renew_lease(store, start_at.commit)
        self._position = end_at
        if start_at.in_changes:
            state = self._look(store, after=start_at.commit, upto=end_at.commit + bool(end_at.slot))
        else:
            state = self._look(store, fragments=True)
        _check_reached(end_at, state.table, state.newest)
        if start_at == end_at:
            return []
        return list(plan_micro_batch(store, state, start_at, end_at, self._columns, self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, each once, the same at every call."""
        yield from read_partition(partition, self._options, self._columns, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Release the changes up to `end`, which Spark does not request again."""
        store = self._open()
        self._renew_lease(store, self._read_offset(store, end).position.commit)

    def stop(self) -> None:
        """Do nothing: the lease stays, so that the stream can be restarted later."""

    def _renew_lease(self, store: Store, commit: int, force: bool = False) -> None:
        """Keep the changes after a commit for a named stream, while it runs and for a week after.

        Does nothing if the lease was renewed a short time ago, unless `force` is set. The lease only
        advances, some seconds behind the stream and never ahead of it, so no change is released that the
        stream needs.
        """
        self._done = max(self._done, commit)
        name, now, (leased, since) = self._options.stream_name, store.context.clock.now(), self._leased
        pause = RENEW_SECONDS if leased == self._done else MOVED_SECONDS
        is_fresh = since <= now < since + pause  # False if the clock was set back
        if name is None or (is_fresh and not force):
            return
        self._leased = self._done, now
        try:
            store.backend.changes.hold(self._table_id, name, self._done)
        except (TryAgain, StartAgain) as error:  # the lease has a week left for the next attempt
            _log.warning("the lease of stream %r could not be renewed: %s", name, error)

    # The store

    def _open(self) -> Store:
        check_use(self._options, STREAM)  # not in the constructor, whose errors Spark loses
        return open_store(self._options.store, self._store_id)

    def _read_offset(self, store: Store, sent: Any) -> Offset:
        offset = _format(store).read(sent)
        if offset.table != self._table_id:
            name = self._options.table
            raise TableChanged(
                f"the offset is of another table than {name!r}, perhaps a dropped one; use a new checkpoint",
                table=name,
            )
        return offset

    def _look(self, store: Store, **needs: Any) -> StreamState:
        """Read all facts for planning a micro-batch from one state of the catalog."""
        state = store.backend.changes.look(self._table_id, **needs)
        return replace(state, table=state.table.at(self._definition))

    def _newest(self, state: StreamState) -> int:
        return state.newest if self._target is None else min(self._target, state.newest)


def _rows_of(size: int, fragments: Sequence[Fragment]) -> int:
    """Return the estimated number of rows in a number of bytes, at least 1."""
    row_bytes = sum(f.bytes for f in fragments) / max(sum(f.rows for f in fragments), 1)
    return max(int(size / max(row_bytes, 1e-9)), 1)


def _format(store: Store) -> OffsetFormat:
    """Return the store's format. It is not an attribute: readers are sent to tasks, without secrets."""
    return OffsetFormat(store.backend.identity, store.context.sealer.offsets)


def _check_reached(position: Position, table: TableInfo, newest: int) -> None:
    """Raise if the stream is ahead of the store, as after the restore of an older copy."""
    if position.commit > newest:
        raise ContinuationKeyError(
            f"the stream has read table {table.name!r} up to commit {position.commit}, and the newest "
            f"is {newest}; use a new checkpoint",
            table=table.name,
        )
