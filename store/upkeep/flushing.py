"""Flushes: rows that lie in the log are copied to files at the shards where their slots live.

One record puts the files in the place of the rows. A tablet that a mover has begun to copy stays as it is:
the mover copies commit by commit, and would miss rows that come to files after it has looked at them. So does
a tablet that was moved since the files were written, or whose shard cannot be written to. These rows stay in
the log until the next flush, and everybody reads them there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from elasticscan.base.errors import OperatorNeeded
from elasticscan.base.limits import FLUSH_BYTES, FLUSH_COMMITS, FLUSH_SECONDS
from elasticscan.catalog import Tx, retry_interrupted
from elasticscan.metadata import Bounds, StagedFragment, TableInfo, floor_at
from elasticscan.storage import Apart, Copied, Destination, Keep, PageSource, View, copy_slots, discard
from elasticscan.store.context import Context
from elasticscan.store.context.memory import TableMemory
from elasticscan.store.upkeep.compaction import being_copied
from elasticscan.store.writing.indexing import with_runs
from elasticscan.topology import SlotSet

FLUSH = "flush"

# Called in the transaction that enters the files, with these.
OnFlushed = Callable[[Tx, Collection[StagedFragment]], None]


@dataclass(frozen=True, slots=True)
class _FlushPlan:
    """Rows to flush, as one transaction sees them.

    Attributes:
        bounds, keep: which of their versions are needed.
        slots: those that are copied, by shard.
    """

    table: TableInfo
    memory: TableMemory
    bounds: Bounds
    keep: Keep
    slots: dict[int, SlotSet]


def has_much(tx: Tx, table_id: int) -> bool:
    """Return whether a table has so many rows in the log, or commits with rows there, that a flush is due."""
    return len(tx.memory(table_id)) >= FLUSH_COMMITS or tx.memory_bytes(table_id)[0] >= FLUSH_BYTES


def has_old(tx: Tx, table_id: int) -> bool:
    """Return whether a table has rows in the log that have been there for long."""
    commits = tx.memory(table_id)
    return bool(commits) and tx.times.stamp - tx.made_at(commits[0].number) >= FLUSH_SECONDS


@retry_interrupted
def flush(context: Context, table_id: int, on_flushed: OnFlushed = lambda _tx, _staged: None) -> bool:
    """Copy a table's rows from the log to files, as far as that is possible; returns whether any were.

    Raises:
        DiskFull, ShardUnavailable: no shard can be written to. Nothing has changed.
    """
    with context.catalog.reading() as tx:
        plan = _plan(context, tx, table_id)
    if plan is None:
        return False
    copies: dict[int, list[Copied]] = {}
    try:
        with context.noticing_collection():
            _copy(context, plan, copies)
            context.checkpoint("rows flushed")
            with context.catalog.writing() as tx:
                entered = _enter(context, tx, plan, copies)
                on_flushed(tx, entered)
                names = {staged.path for staged in entered}
                # The record refers to these, or may do so.
                copies = {
                    shard: [copied for copied in here if copied.staged.path not in names]
                    for shard, here in copies.items()
                }
    finally:
        discard([copied.staged for here in copies.values() for copied in here], context.disk_of)
    context.note_newest_afar(plan.slots)
    return bool(entered)


def _plan(context: Context, tx: Tx, table_id: int) -> _FlushPlan | None:
    table, commits = tx.table_by_id(table_id), tx.memory(table_id)
    slots = SlotSet.union(commit.slots for commit in commits) - being_copied(tx) if commits else None
    if table is None or not slots:
        return None
    overwrites, horizon = tx.overwrites(table_id), table.oldest_snapshot
    newest = tx.versions()[1]
    return _FlushPlan(
        table.with_dropped(horizon),
        context.memories.of(tx, table),
        Bounds(floor_at(overwrites, horizon), newest, since=horizon),
        Keep(horizon, apart=Apart(floor_at(overwrites, newest))),
        tx.placement().split_by_shard(slots),
    )


def _copy(context: Context, plan: _FlushPlan, copies: dict[int, list[Copied]]) -> None:
    """Stage the rows of each shard that can be written to."""
    source = PageSource(plan.table, View(plan.memory.fragments), context.readers.opener(plan.table))
    problem: OperatorNeeded | None = None
    for shard, slots in plan.slots.items():
        try:
            to = Destination(context.writable_disk(shard), shard, context.origin(FLUSH))
            copies[shard] = copy_slots(source, slots, plan.bounds, plan.keep, to)
            copies[shard] = _indexed(context, plan, copies[shard])
        except OperatorNeeded as error:
            problem = error
    if problem is not None and not copies:
        raise problem


def _indexed(context: Context, plan: _FlushPlan, copies: list[Copied]) -> list[Copied]:
    """Return the copies with runs of all indexes."""
    staged = [copied.staged for copied in copies]
    whole = with_runs(context, plan.table, context.indexes(plan.table.id), staged)
    return [replace(copied, staged=made) for copied, made in zip(copies, whole, strict=True)]


def _enter(
    context: Context, tx: Tx, plan: _FlushPlan, copies: dict[int, list[Copied]]
) -> list[StagedFragment]:
    """Put the files in the place of the rows; returns those entered, none where others came first."""
    left = {commit.number: commit for commit in tx.memory(plan.table.id)}
    if any(left.get(commit.number) != commit for commit in plan.memory.commits):
        return []
    placement, copying = tx.placement(), being_copied(tx)
    entered, flushed = list[tuple[StagedFragment, int, int]](), list[SlotSet]()
    for shard, here in copies.items():
        slots = (plan.slots[shard] & placement.at(shard)) - copying
        flushed.append(slots)
        for copied in _indexed(context, plan, here) if slots else ():
            entered.append((copied.staged.serving(slots), copied.min_commit, copied.max_commit))
    slots = SlotSet.union(flushed)
    if not slots:
        return []
    context.check_not_collected(tx, (staged for staged, *_ in entered))
    numbers = [commit.number for commit in plan.memory.commits if not commit.slots.isdisjoint(slots)]
    tx.flush(plan.table.id, numbers, slots, entered, FLUSH)
    return [staged for staged, *_ in entered]
