"""Changes as Spark reads them: cut into few tasks, each reading commits in its slots. And the batch read.

    spark.read.format("elasticscan").option("readChangeFeed", "true").option("startingVersion", 7)

A task gets commits and slots, not places: it finds out itself where the slots live, page by page,
like any scan. What it is told is signed, because tasks only get plain values that anybody could
have made.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from elasticscan.base.errors import (
    ChangesExpired,
    ContinuationKeyError,
    ContinuationKeyExpired,
    InvalidOption,
    SnapshotNotFound,
    TableChanged,
)
from elasticscan.base.limits import DEFAULT_PAGE_BYTES
from elasticscan.catalog import Commit, Tx
from elasticscan.connector.conversion import ToSpark, match_columns
from elasticscan.connector.open_stores import opened
from elasticscan.connector.options import EARLIEST, ChangeOptions, Options
from elasticscan.connector.reading import offered_schema
from elasticscan.connector.splits import cut
from elasticscan.connector.streams.offsets import InChanges, Macs, Segment, canonical, segments
from elasticscan.filters import Predicate
from elasticscan.metadata import TableInfo
from elasticscan.store import ChangeScan, Context, Store, hold_changes
from elasticscan.topology import Placement, SlotSet

ROWS_PER_TASK = 250_000
MANY_TASKS = 8  # beyond, tasks grow first, fourfold: each costs Spark as much as reading 300,000 rows
COMMITS_AT_ONCE = 10_000
_WHOLE = float(1 << 40)  # the size of all rows of a batch, when only shares of it matter

_log = logging.getLogger(__name__)


class ChangePartition(InputPartition):
    """Changes for one task. Plain values only.

    Attributes:
        store_id: the store that it was planned for.
        content: what to read, as JSON.
        mac: proof that we wrote `content`.
        shards: where the slots were at planning, for people.
    """

    def __init__(self, store_id: str, content: str, mac: str, shards: str) -> None:
        super().__init__(f"change scan at {shards}")
        self.store_id, self.content, self.mac, self.shards = store_id, content, mac, shards

    def __repr__(self) -> str:
        return f"ChangePartition(at {self.shards}, {self.content})"


def is_change(commit: Commit, options: ChangeOptions) -> bool:
    """Whether a commit may have something to tell with these options."""
    if commit.kind == "delete":
        return options.feed and not options.skip_change_commits
    if commit.kind in ("overwrite", "merge"):
        return not options.skip_change_commits
    return commit.kind == "write"


def _must_pass(commit: Commit, options: ChangeOptions) -> bool:
    """Whether unwanted rows of a commit would come along when those before and after it are read at once."""
    tells = commit.kind in ("overwrite", "merge") or (commit.kind == "delete" and options.feed)
    return tells and not is_change(commit, options)


def told_rows(commit: Commit, options: ChangeOptions) -> int:
    """About how many rows a commit is told in, at most: an update is two in a change feed.

    What an overwrite deletes is not known from the commit and not counted.
    """
    doubled = options.feed and commit.kind in ("write", "merge")
    return commit.rows * (1 + doubled) if is_change(commit, options) else 0


def commits_between(tx: Tx, table: int, after: int, upto: int) -> list[Commit]:
    """A table's commits in (after, upto], oldest first."""
    found: list[Commit] = []
    while after < upto:
        some = tx.commits_after(table, after, COMMITS_AT_ONCE)
        found += [commit for commit in some if commit.number <= upto]
        if len(some) < COMMITS_AT_ONCE:
            break
        after = some[-1].number
    return found


def kept(table: TableInfo, commits: Sequence[Commit], options: ChangeOptions) -> list[Commit]:
    """Those of the wanted commits whose changes are still there.

    Raises:
        ChangesExpired: some are not, and that is not allowed.
    """
    oldest = table.oldest_snapshot
    lost = [commit.number for commit in commits if commit.number <= oldest]
    if lost and options.fail_on_data_loss:
        raise ChangesExpired(
            f"changes of table {table.name!r} that are to be read next are no longer kept: those of commits "
            f"{lost[0]} to {oldest} are gone. Begin with 'startingVersion' = '{oldest + 1}' (a stream: with "
            "a new checkpoint, there or from a snapshot), or go on without them with 'failOnDataLoss' = "
            "'false'; Table.set_retention keeps changes for longer, for a stream also the option "
            "'streamName'",
            table=table.name,
            after=lost[0] - 1,
            oldest=oldest,
        )
    if lost:
        _log.warning(
            "changes of table %r of commits %d to %d are no longer kept and left out",
            table.name,
            lost[0],
            oldest,
        )
    return [commit for commit in commits if commit.number > oldest]


def plan_changes(
    store: Store, table: TableInfo, first: InChanges, last: InChanges, options: Options
) -> list[ChangePartition]:
    """Tasks that together read all changes between two positions once."""
    context, slots = store.context, store.context.info.slots
    with context.catalog.reading() as tx:
        now = tx.placement()
        table = tx.table_by_id(table.id) or table
        commits = commits_between(tx, table.id, first.commit, last.commit + bool(last.slot))
        names = {shard.id: shard.name for shard in tx.shards()}
    wanted = kept(table, [c for c in commits if is_change(c, options.changes)], options.changes)
    numbers = {commit.number for commit in wanted}
    # Deletes have no new rows: where nothing else is told, reading across them does no harm.
    passed = [c.number for c in commits if _must_pass(c, options.changes)]
    parts = segments(sorted(numbers), passed, first, last, slots)
    rows = sum(told_rows(commit, options.changes) for commit in wanted)
    if not parts:
        return []
    found, macs, until = [], _macs(context), context.sealer.expiry()
    for shards, here in _tasks(now, parts, rows, options):
        content = canonical(
            {
                "table": table.id,
                "slots": str(here),
                "feed": options.changes.feed,
                "segments": [[part.after, part.upto, part.start, part.end] for part in parts],
                "until": until,
            }
        )
        where = ", ".join(names.get(shard, str(shard)) for shard in shards)
        found.append(ChangePartition(context.info.store_id, content, macs.of(content), where))
    return found


def _tasks(
    now: Placement, parts: Sequence[Segment], rows: float, options: Options
) -> Iterator[tuple[tuple[int, ...], SlotSet]]:
    """Shards and slots of each task. Rows are taken to be spread evenly: hashing sees to that."""
    wanted = SlotSet.of((part.start, part.end) for part in parts)
    weights = np.zeros(now.slot_count)
    for start, end in wanted:
        weights[start:end] = _WHOLE / len(wanted)
    for part in cut(now, now, weights, *task_limits(_WHOLE, rows, options)):
        if here := part.slots & wanted:
            yield part.shards, here


def task_limits(size: float, rows: float, options: Options) -> tuple[int, int]:
    """(most size of a task, most tasks) for rows of some size: few, but not fewer than asked for."""
    least = options.changes.min_partitions or 1
    wanted = min(math.ceil(rows / ROWS_PER_TASK), max(MANY_TASKS, math.ceil(rows / (4 * ROWS_PER_TASK))))
    most = max(least, wanted)
    if options.partitions is not None:
        most = min(most, options.partitions)
    return max(math.ceil(size / max(least, most)), 1), most


def _macs(context: Context) -> Macs:
    with context.catalog.reading() as tx:
        return Macs(tx.seal_keys(), "change partition")


class ChangeReading:
    """Reads change partitions, as Spark's schema wants their rows. Holds plain values only."""

    def __init__(self, options: Options, columns: Sequence[str], schema: StructType) -> None:
        self._options, self._columns, self._schema = options, tuple(columns), schema

    def __call__(self, partition: ChangePartition) -> Iterator[pa.RecordBatch]:
        """The partition's rows; every time the same ones, as long as the changes are kept."""
        store = opened(self._options.store, str(partition.store_id))
        content = _content(store.context, partition)
        with store.context.catalog.reading() as tx:
            table = tx.table_by_id(content["table"])
        if table is None:
            raise TableChanged(
                f"table {self._options.table!r} was dropped, or dropped and made again, since a read of its "
                "changes was planned; start again",
                table=content["table"],
            )
        text = self._options.filter
        predicate = None if text is None else Predicate.parse(text, table.schema)
        columns = [name for name in self._columns if name in table.schema.names] or [table.primary_key[0]]
        slots = SlotSet.parse(content["slots"])
        convert = None
        for after, upto, start, end in content["segments"]:
            here = slots & SlotSet.span(start, end)
            if not here:  # of a commit that was cut, this task may have nothing
                continue
            scan = ChangeScan(
                store.context,
                table,
                columns,
                (after, upto),
                here,
                content["feed"],
                predicate,
                (self._options.batch_rows, DEFAULT_PAGE_BYTES),
            )
            convert = convert or ToSpark(scan.schema, self._columns, self._schema)
            for batch in scan:
                if batch.num_rows:
                    yield convert(batch)


def _content(context: Context, partition: ChangePartition) -> dict[str, Any]:
    """Partitions travel through Spark: only what we have signed is read."""
    text, mac = partition.content, partition.mac
    if isinstance(text, str) and isinstance(mac, str) and _macs(context).verify(text, mac):
        found: dict[str, Any] = json.loads(text)
        if context.clock.now() < found["until"]:
            return found
        raise ContinuationKeyExpired(
            f"{partition!r} was planned too long ago; load the DataFrame again", expired_at=found["until"]
        )
    raise ContinuationKeyError(
        f"{partition!r} was not planned by this store, or was altered since; load the DataFrame again"
    )


class ChangeFeedReader(DataSourceReader):
    """A batch read of the changes that a range of commits did. Planned once, like any batch read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        table = opened(options.store).table(options.table).definition
        columns = match_columns(schema, offered_schema(table, options))
        self._reading = ChangeReading(options, columns, schema)

    def partitions(self) -> Sequence[InputPartition]:
        store = opened(self._options.store)
        if self._options.changes.end is None:
            store.context.check_newest()
        with store.context.catalog.reading() as tx:
            table = tx.table(self._options.table)
            first, last = _chosen(tx, table, self._options.changes)
        hold_changes(store.context, table, first)
        planned = plan_changes(store, table, InChanges(first), InChanges(last), self._options)
        return planned or [nothing()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ChangePartition):
            yield from self._reading(partition)
        else:
            check_nothing(partition)


def nothing() -> InputPartition:
    """A partition without rows: Spark reads something even where there is nothing."""
    return InputPartition(None)


def check_nothing(partition: Any) -> None:
    """Raises `ContinuationKeyError` for anything but a partition without rows."""
    if getattr(partition, "value", partition) is not None:
        raise ContinuationKeyError(f"{partition!r} is no partition of an elasticscan read; load it again")


def _chosen(tx: Tx, table: TableInfo, options: ChangeOptions) -> tuple[int, int]:
    """The range (after, upto] of commits that the options name."""
    newest = tx.versions()[1]
    for name, number in (("startingVersion", options.start), ("endingVersion", options.end)):
        if isinstance(number, int) and number > newest:
            raise SnapshotNotFound(
                f"option {name!r}={number} names a commit that there is not yet, the newest is {newest}",
                table=table.name,
                snapshot=number,
            )
    after = commit_before_start(tx, table, options)
    upto = newest if options.end is None else options.end
    if options.end_time is not None:
        upto = tx.commit_before(options.end_time)
    if after >= upto and not (options.end is None and options.end_time is None):
        raise InvalidOption(
            f"the change feed would begin with commit {after + 1} and end with {upto}; let it end later",
            option="endingVersion" if options.end_time is None else "endingTimestamp",
        )
    return after, max(after, upto)


def commit_before_start(tx: Tx, table: TableInfo, options: ChangeOptions) -> int:
    """The last commit that is not wanted."""
    if options.start_time is not None:
        return tx.commit_before(math.nextafter(options.start_time, -math.inf))
    if options.start == EARLIEST:
        return table.oldest_snapshot
    assert isinstance(options.start, int), "checked before"
    return max(options.start - 1, 0)
