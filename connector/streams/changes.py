"""Tasks of a micro-batch: parts of the first snapshot, or of the changes of commits.

A batch read of changes is divided in the same way:

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
MANY_TASKS = 8  # more tasks have four times the rows: each costs Spark as much as reading 300,000 rows
_SHARE = 1024.0  # the size of each slot if sizes are unknown

_log = logging.getLogger(__name__)


def _has_rows(commit: Commit, options: Options) -> bool:
    return commit.kind in ("write", "merge", "overwrite") or (commit.kind == "delete" and options.feed)


def is_change(commit: Commit, options: Options) -> bool:
    """Return True if the options may return changes of a commit.

    With `skipChangeCommits`, commits 5 (write), 6 (merge) and 7 (write) are read as the segments (4, 5]
    and (6, 7]. One segment (4, 7] would also return the rows of the merge.
    """
    return _has_rows(commit, options) and (commit.kind == "write" or not options.skip_change_commits)


def change_rows(commit: Commit, options: Options) -> int:
    """Return an upper bound for the rows of a commit's changes: an update is two rows in a change feed.

    It does not include the rows that an overwrite deletes: the commit does not have their number.
    """
    doubled = options.feed and commit.kind in ("write", "merge")
    return commit.rows * (1 + doubled) if is_change(commit, options) else 0


def check_readable(table: TableInfo, commits: Sequence[Commit], options: Options) -> list[Commit]:
    """Return the commits whose changes are kept; raise if others expired and `failOnDataLoss` is set."""
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
    """Plan tasks that together read each row between two positions once; a filter may exclude slots.

    Args:
        state: the catalog, with the fragments (for a snapshot) or the commits between the positions.
        columns: the columns of Spark's schema.
        lease: the lease of a batch read of changes. A stream has its own.

    Raises:
        SnapshotExpired: the snapshot or the changes are no longer kept.
    """
    table, slot_count = state.table, state.placement.slot_count
    # At least one column, even if the schema has only columns of the change feed.
    columns = [name for name in columns if name in table.schema.names] or [table.primary_key[0]]
    read_request = ReadRequest(columns, options.filter, options.batch_rows, feed=options.feed)
    if first.in_changes:
        # Without a change feed deletes have no rows, so a segment may include them.
        commits = [c for c in state.commits if _has_rows(c, options)]
        upto = last.commit + bool(last.slot)
        read = [c for c in commits if c.number <= upto and is_change(c, options)]
        read = check_readable(table, read, options)
        kept = {c.number for c in read}
        parts = segments([(c.number, c.number in kept) for c in commits], first, last, slot_count)
        newest = parts[-1].upto if parts else table.oldest_snapshot
        scan = store.backend.changes.scan(table, state.base, tuple(parts), newest, read_request, lease)
        # Hashing distributes the rows evenly over the slots.
        rows = sum(change_rows(commit, options) for commit in read) * len(scan.slots) / slot_count
        weights = np.full(slot_count, _SHARE)
    else:
        slots = SlotSet.span(first.slot, slot_count if last.in_changes else last.slot)
        scan = store.backend.changes.scan_snapshot(state, first.commit, slots, read_request)
        shares = ((f.rows * len(f.slots & scan.slots), f) for f in state.fragments)
        rows = sum(share / max(f.slots_written, len(f.slots), 1) for share, f in shares)
        weights = slot_bytes(state.fragments, slot_count)
    size, most = task_limits(size_of(scan.slots, weights), rows, options)
    tasks = cut(
        state.placement, state.base.placement, weights, min(size, options.split_bytes), most, scan.slots
    )
    # Without any partition of a batch read Spark would make one that the reader does not know.
    return partitions_of(store.backend, scan, tasks or ([NOTHING] if lease else []))


def task_limits(size: float, rows: float, options: Options) -> tuple[int, int]:
    """Return (largest size of a task, most tasks): few tasks, but at least `minPartitions`."""
    least = options.min_partitions or 1
    # The rows are estimated: slightly more than a task's rows do not begin another task.
    by_rows = math.ceil(rows / ROWS_PER_TASK - SLACK)
    by_rows = min(by_rows, max(MANY_TASKS, math.ceil(rows / (4 * ROWS_PER_TASK))))
    most = max(least, by_rows)
    if options.partitions is not None:
        most = min(most, options.partitions)
    return max(math.ceil(size / max(least, most)), 1), most


def plan_batch_read(options: Options, columns: Sequence[str], definition: int) -> list[ScanPartition]:
    """Plan a batch read of the changes of a range of commits, with the columns of a table version."""
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
    """Return the last commit of the options; `after` is the commit before the first one.

    Raises for a commit or time in the future: the next read would begin after it, so commits made until then
    would never be read.
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
    """Raise `NotFound` if an option names a commit after `newest`."""
    if isinstance(number, int) and number > newest:
        raise NotFound(
            f"option {name!r}={number} names a commit that does not exist yet; name one up to {newest}",
            snapshot=number,
            kind="snapshot",
        )


def commit_before_start(store: Store, table: TableInfo, options: Options) -> int:
    """Return the commit before the first one of the options. Raises for a time in the future."""
    if options.start_time is not None:
        store.backend.changes.commit_at(options.start_time)  # refuses a time in the future
        return store.backend.changes.newest_commit_at(math.nextafter(options.start_time, -math.inf))
    if options.start == EARLIEST:
        return table.oldest_snapshot
    assert isinstance(options.start, int), "checked before"
    return max(options.start - 1, 0)
