"""Flushes: rows that lie in the log are copied to files at the shards where their slots live.

One record puts the files in the place of the rows. Some rows stay in the log until a later flush:

- of a tablet that a mover has begun to copy: it reads commit by commit, and would miss older rows that arrive
  in new files;
- of a tablet that was moved since the files were written;
- of a shard that cannot be written to.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from elasticscan.base.errors import OperatorNeeded
from elasticscan.base.limits import FLUSH_BYTES, FLUSH_COMMITS, FLUSH_SECONDS, MEMORY_STORE_BYTES
from elasticscan.catalog import StoreState, Tx, retry_interrupted
from elasticscan.metadata import Bounds, FileChanges, StagedFragment, TableInfo, floor_at
from elasticscan.storage import Destination, Keep, PageSource, View, copy_slots, discard
from elasticscan.store.context import Context
from elasticscan.store.context.memory import TableMemory
from elasticscan.store.upkeep.compaction import being_copied, compact
from elasticscan.store.writing.indexing import indexed, replace_files
from elasticscan.topology import SlotSet

FLUSH = "flush"

_Copies = dict[int, list[StagedFragment]]  # by shard


@dataclass(frozen=True, slots=True)
class _FlushPlan:
    """Rows to flush, as one transaction sees them.

    Attributes:
        bounds, keep: which of their versions are needed.
        slots: the copied ones, by shard.
    """

    table: TableInfo
    memory: TableMemory
    bounds: Bounds
    keep: Keep
    slots: dict[int, SlotSet]


def pending_after_commit(state: StoreState, table_id: int) -> int | None:
    """Return the table to flush after a commit to a table: this one, or one that fills the store's log."""
    if has_much(state, table_id):
        return table_id
    size = {number: table.memory_bytes for number, table in state.tables.items()}
    return max(size, key=size.__getitem__) if sum(size.values()) >= MEMORY_STORE_BYTES - FLUSH_BYTES else None


def pending_tables(tx: Tx) -> list[TableInfo]:
    """Return the tables that have much in the log, or had it there for long."""
    old = tx.commit_before(tx.times.stamp - FLUSH_SECONDS)

    def has_old(table: TableInfo) -> bool:
        return any(commit.number <= old for commit in tx.state.memory(table.id)[:1])  # the oldest comes first

    return [table for table in tx.state.infos() if has_much(tx.state, table.id) or has_old(table)]


def has_much(state: StoreState, table_id: int) -> bool:
    """Return whether a table has so many rows, or commits with rows, in the log that it is to be flushed."""
    table = state.tables.get(table_id)
    return table is not None and (len(table.memory) >= FLUSH_COMMITS or table.memory_bytes >= FLUSH_BYTES)


def flush_and_compact(context: Context, table: TableInfo) -> int:
    """Write a table's rows in the log to files, then merge its fragments; return how many went away.

    Raises:
        ReadOnlyStore: the store cannot be written.
    """
    context.catalog.check_writable()
    flush(context, table.id)
    return compact(context, table)


@retry_interrupted
def flush(context: Context, table_id: int) -> bool:
    """Copy a table's rows from the log to files; returns whether any row left the log.

    Raises:
        DiskFull, ShardUnavailable: a shard cannot be written to. Rows of the others were flushed.
    """
    plan = _plan(context, context.catalog.newest(), table_id)
    if plan is None:
        return False
    copies, entered = _Copies(), frozenset[int]()
    try:
        with context.noticing_collection():
            problem = _copy(context, plan, copies)
            context.checkpoint("rows flushed")
            with context.catalog.writing() as tx:
                entered = _enter(context, tx, plan, copies)
    finally:
        left = (here for shard, here in copies.items() if shard not in entered)
        discard(chain.from_iterable(left), context.disk_of)
    if problem is not None:
        raise problem
    return bool(entered)


def _plan(context: Context, tx: Tx, table_id: int) -> _FlushPlan | None:
    table, commits = tx.state.info(table_id), tx.state.memory(table_id)
    slots = SlotSet.union(commit.slots for commit in commits) - being_copied(tx) if commits else None
    if table is None or not slots:
        return None
    overwrites, horizon, newest = tx.state.overwrites(table_id), table.oldest_snapshot, tx.state.commit
    return _FlushPlan(
        table.with_dropped(horizon),
        context.memory(tx, table),
        Bounds(floor_at(overwrites, horizon), newest, since=horizon),
        Keep(horizon, floor=floor_at(overwrites, newest)),
        tx.state.placement.split_by_shard(slots),
    )


def _copy(context: Context, plan: _FlushPlan, copies: _Copies) -> OperatorNeeded | None:
    """Stage the rows of each shard that can be written to; returns the error of another one."""
    source = PageSource(plan.table, View(plan.memory.fragments), context.readers.opener(plan.table))
    state, problem = context.state(), None
    for shard, slots in plan.slots.items():
        try:
            to = Destination(context.writable_disk(shard), shard, context.origin(FLUSH))
            copies[shard] = copy_slots(source, slots, plan.bounds, plan.keep, to)
            copies[shard] = with_runs(context, plan.table, state, copies[shard])
        except OperatorNeeded as error:
            discard(copies.pop(shard, ()), context.disk_of)
            problem = error
    return problem


def _enter(context: Context, tx: Tx, plan: _FlushPlan, copies: _Copies) -> frozenset[int]:
    """Put the files in the place of the rows; returns the shards whose files the record has.

    There are none, and nothing is done, where another flush has changed what is left of one of the commits.
    """
    placement, copying = tx.state.placement, being_copied(tx)
    here = {shard: (plan.slots[shard] & placement.at(shard)) - copying for shard in copies}
    here = {shard: own for shard, own in here.items() if own}
    slots = SlotSet.union(here.values())
    flushed = [commit for commit in plan.memory.commits if not commit.slots.isdisjoint(slots)]
    if not flushed or not {*flushed} <= {*tx.state.memory(plan.table.id)}:
        return frozenset()
    entering = list[StagedFragment]()
    for shard, own in here.items():
        copies[shard] = with_runs(context, plan.table, tx.state, copies[shard])
        entering += [copied.serving(own) for copied in copies[shard]]
    context.check_not_collected(tx, entering)
    numbers = tuple(commit.number for commit in flushed)
    changes = FileChanges(tuple(entering), flushed=numbers, flushed_slots=slots)
    replace_files(tx, plan.table.id, FLUSH, changes)
    return frozenset(here)
