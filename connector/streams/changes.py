"""Micro-batches cut into few tasks: parts of the first snapshot, or commits in some slots.

A batch read of changes is cut in the same way:

    spark.read.format("elasticscan").option("readChangeFeed", "true").option("startingVersion", 7)
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from elasticscan.base.errors import InvalidOption, NotFound, SnapshotExpired
from elasticscan.connector.options import EARLIEST, Options
from elasticscan.connector.partitions import ScanPartition, partitions_of
from elasticscan.connector.splits import NOTHING, cut, size_of
from elasticscan.connector.store_cache import open_store
from elasticscan.connector.streams.offsets import InChanges, Position, segments
from elasticscan.metadata import TableInfo
from elasticscan.protocol import ReadRequest
from elasticscan.store import Commit, Store, StreamState, slot_bytes
from elasticscan.topology import SlotSet

ROWS_PER_TASK = 250_000
SLACK = 0.1  # of a task
MANY_TASKS = 8  # beyond, tasks grow first, fourfold: each costs Spark as much as reading 300,000 rows
_SHARE = 1024.0  # the size of a slot, where only shares of all slots matter

_log = logging.getLogger(__name__)


def _has_rows(commit: Commit, options: Options) -> bool:
    return commit.kind in ("write", "merge", "overwrite") or (commit.kind == "delete" and options.feed)


def is_change(commit: Commit, options: Options) -> bool:
    """Return True if a commit may have changes to return with these options.

    With `skipChangeCommits`, commits 5 (write), 6 (merge) and 7 (write) are read as the segments (4, 5]
    and (6, 7]: one segment (4, 7] would return the rows of the merge, too.
    """
    return _has_rows(commit, options) and (commit.kind == "write" or not options.skip_change_commits)


def change_rows(commit: Commit, options: Options) -> int:
    """Return an upper bound for the rows of a commit's changes: an update is two in a change feed.

    The rows that an overwrite deletes are not known from the commit, and not counted.
    """
    doubled = options.feed and commit.kind in ("write", "merge")
    return commit.rows * (1 + doubled) if is_change(commit, options) else 0


def _readable(table: TableInfo, commits: Sequence[Commit], options: Options) -> list[Commit]:
    """Return the commits whose changes are still kept.

    Raises:
        SnapshotExpired: some expired, and `failOnDataLoss` is set.
    """
    oldest = table.oldest_snapshot
    lost = [commit.number for commit in commits if commit.number <= oldest]
    if lost and options.fail_on_data_loss:
        raise SnapshotExpired(
            f"changes of table {table.name!r} in commits {lost[0]} to {oldest} expired; use a "
            "new checkpoint, or lose them by 'failOnDataLoss' = 'false'",
            table=table.name,
            after=lost[0] - 1,
            oldest=oldest,
            kind="changes",
        )
    if lost:
        text = "changes of table %r of commits %d to %d are no longer kept and left out"
        _log.warning(text, table.name, lost[0], oldest)
    return [commit for commit in commits if commit.number > oldest]


def plan_micro_batch(
    store: Store,
    state: StreamState,
    first: Position,
    last: Position,
    columns: Sequence[str],
    options: Options,
    lease: str = "",
) -> list[ScanPartition]:
    """Plan tasks that together read once all between two positions; a filter may leave slots out.

    Args:
        state: a view of the catalog with the fragments, or the commits between the positions at least.
        columns: what Spark expects.
        lease: of a batch read of changes; none for a stream, which holds what it reads itself.

    Raises:
        SnapshotExpired: the snapshot or the changes are no longer kept.
    """
    table, slot_count = state.table, state.placement.slot_count
    # At least one column, even if only a feed's own are wanted.
    columns = [name for name in columns if name in table.schema.names] or [table.primary_key[0]]
    asked = ReadRequest(columns, options.filter, options.batch_rows, feed=options.feed)
    if first.in_changes:
        # Deletes have no new rows: without a change feed, reading across them does no harm.
        commits = [c for c in state.commits if _has_rows(c, options)]
        upto = last.commit + bool(last.slot)
        read = _readable(table, [c for c in commits if c.number <= upto and is_change(c, options)], options)
        kept = {c.number for c in read}
        parts = segments([(c.number, c.number in kept) for c in commits], first, last, slot_count)
        scan = store.backend.changes.scan(
            table,
            state.base,
            tuple(parts),
            parts[-1].upto if parts else table.oldest_snapshot,
            asked,
            lease,
        )
        # Rows are taken to be spread evenly: hashing sees to that.
        rows = sum(change_rows(commit, options) for commit in read) * len(scan.slots) / slot_count
        weights = np.full(slot_count, _SHARE)
    else:
        slots = SlotSet.span(first.slot, slot_count if last.in_changes else last.slot)
        scan = store.backend.changes.scan_snapshot(state, first.commit, slots, asked)
        shares = ((f.rows * len(f.slots & scan.slots), f) for f in state.fragments)
        rows = sum(share / max(f.slots_written, len(f.slots), 1) for share, f in shares)
        weights = slot_bytes(state.fragments, slot_count)
    size, most = task_limits(size_of(scan.slots, weights), rows, options)
    tasks = cut(
        state.placement, state.base.placement, weights, min(size, options.split_bytes), most, scan.slots
    )
    # Where a batch read gets no partition, Spark makes one of its own.
    return partitions_of(store.backend, scan, tasks or ([NOTHING] if lease else []))


def task_limits(size: float, rows: float, options: Options) -> tuple[int, int]:
    """(most size of a task, most tasks) for rows of some size: few, but not fewer than asked for."""
    least = options.min_partitions or 1
    # Rows are an estimate: where they are asked for by the task, a few too many would begin another one.
    by_rows = math.ceil(rows / ROWS_PER_TASK - SLACK)
    by_rows = min(by_rows, max(MANY_TASKS, math.ceil(rows / (4 * ROWS_PER_TASK))))
    most = max(least, by_rows)
    if options.partitions is not None:
        most = min(most, options.partitions)
    return max(math.ceil(size / max(least, most)), 1), most


def plan_batch_read(options: Options, columns: Sequence[str], definition: int) -> list[ScanPartition]:
    """Plan a batch read of the changes that a range of commits did, with the columns of a definition."""
    store = open_store(options.store)
    if options.end is None:
        store.backend.newest()
    table = store.table(options.table).definition
    start = commit_before_start(store, table, options)
    state = store.backend.changes.look(table.id, after=start)
    state = replace(state, table=state.table.at(definition))
    first, last = InChanges(start), InChanges(_end(store, state, options, start))
    return plan_micro_batch(store, state, first, last, columns, options, secrets.token_hex(8))


def _end(store: Store, state: StreamState, options: Options, after: int) -> int:
    """Return the last commit that the options name; `after` is the one before the first.

    A commit or time that is still to come is refused: the next read would begin behind it, and what is
    committed until then would never be read.
    """
    check_known("startingVersion", options.start, state.newest)
    check_known("endingVersion", options.end, state.newest)
    upto = state.newest if options.end is None else options.end
    if options.end_time is not None:
        upto = store.backend.changes.commit_at(options.end_time)
    if after >= upto and not (options.end is None and options.end_time is None):
        raise InvalidOption(
            f"the change feed would begin with commit {after + 1} and end with {upto}; let it end later",
            option="endingVersion" if options.end_time is None else "endingTimestamp",
        )
    return max(after, upto)


def check_known(name: str, number: int | str | None, newest: int) -> None:
    """Raise `NotFound` if an option names a commit after the newest that it may name."""
    if isinstance(number, int) and number > newest:
        raise NotFound(
            f"option {name!r}={number} names a commit that there is not yet; name one up to {newest}",
            snapshot=number,
            kind="snapshot",
        )


def commit_before_start(store: Store, table: TableInfo, options: Options) -> int:
    """Return the last commit before the first one that the options choose.

    Raises:
        NotFound: they ask for those of a time that is still to come.
    """
    if options.start_time is not None:
        store.backend.changes.commit_at(options.start_time)  # else a slip of a year would be an empty feed
        return store.backend.changes.newest_commit_at(math.nextafter(options.start_time, -math.inf))
    if options.start == EARLIEST:
        return table.oldest_snapshot
    assert isinstance(options.start, int), "checked before"
    return max(options.start - 1, 0)
