"""Merges and flushes: fragments of a shard, or rows in the log, copied to fragments that take their place.

A merge writes two fragments. One has the newest version of each key, so that scans of the newest snapshot
give out slices of it. The other has history: the versions that only older snapshots, changes and moves need.
What a lease or the retention period may need stays. A tombstone goes, or becomes history, only when all
fragments take part that may hold what it deleted. A flush is a merge of memory fragments, which writes to
every shard where their slots live. It raises no horizon: it drops only what no kept snapshot can read.

Nothing is visible before one transaction, which puts the new fragments in for what their sources still serve
then: a process that comes second, or dies before, has changed nothing. Left out are slots of tablets that
were moved since, or that a mover has begun to copy; of a flush, slots of shards that cannot be written to.

More than `MOST_AT_ONCE` fragments, or more than `MOST_BATCH_BYTES` of their batches, are merged in stages,
the smallest first, so that memory and open files are bounded whatever the number and the size of fragments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from elasticscan.base.errors import OperatorNeeded
from elasticscan.base.limits import BATCH_BYTES
from elasticscan.catalog import InlineCommit, Tx, retry_interrupted
from elasticscan.metadata import (
    Bounds,
    FileChanges,
    Fragment,
    FragmentsReplaced,
    HorizonRaised,
    StagedFragment,
    TableInfo,
    floor_at,
)
from elasticscan.storage import Destination, Keep, PageSource, View, copy_slots, discard
from elasticscan.store.context import Context
from elasticscan.store.context.leases import holds_in
from elasticscan.store.context.lookups import by_shard
from elasticscan.store.moves.owners import moves_in
from elasticscan.store.upkeep.planning import is_current
from elasticscan.store.writing.indexing import with_runs
from elasticscan.topology import Phase, SlotSet

COMPACT, FLUSH = "compact", "flush"
MOST_AT_ONCE = 32
MOST_BATCH_BYTES = 8 * BATCH_BYTES  # a merge holds a batch of each fragment
MOST_COMPRESSED = 8  # so many times the bytes of a compressed file, about, its batches take in memory

_Copies = dict[int, list[StagedFragment]]  # by shard


class Merged(NamedTuple):
    """The outcome: how many sources went, and how many fragments took their place."""

    gone: int = 0  # they serve no slots any more; of a flush, commits of which some slots were flushed
    added: int = 0


@retry_interrupted
def compact(context: Context, table: TableInfo) -> int:
    """Merge all of a table's fragments at each shard; return how many went away, less those that came.

    A single fragment is written again where the table is compressed otherwise by now. Reads, writes and moves
    go on. The number is negative where one fragment became two: current rows, and history.

    Raises:
        DiskFull, ShardUnavailable, FragmentDamaged: a disk or a file. Nothing has changed there.
        Busy: files of the merge were collected before it ended. Nothing has changed there.
    """
    gone = 0
    for shard, here in sorted(by_shard(context.state().fragments(table.id)).items()):
        rewrite_single = _needs_recompression(context, table, here)
        ids, tx = {fragment.id for fragment in here}, context.catalog.newest()
        merging = plan_merge(context, tx, table.id, shard, ids, rewrite_single=rewrite_single)
        if merging is not None:
            merged = merging.carry_out()
            gone += merged.gone - merged.added
    return gone


def _needs_recompression(context: Context, table: TableInfo, fragments: Sequence[Fragment]) -> bool:
    """If one fragment holds all current rows of a shard and is compressed otherwise: several merge anyway."""
    current = [fragment for fragment in fragments if fragment.superseded_at is None]
    if len(current) == 1:
        (alone,) = current
        with context.unless_left(alone.shard), context.noticing_collection():
            context.writable_disk(alone.shard)  # the marker is checked before a file is read
            return context.readers.compression_of(alone) != table.compression
    return False


@retry_interrupted
def flush(context: Context, table_id: int) -> bool:
    """Copy a table's rows from the log to files; returns whether any row left the log.

    Raises:
        DiskFull, ShardUnavailable: a shard cannot be written to. Rows of the others were flushed.
    """
    flushing = plan_flush(context, context.catalog.newest(), table_id)
    return flushing is not None and flushing.carry_out().gone > 0


def plan_flush(context: Context, tx: Tx, table_id: int) -> Merging | None:
    """Plan a flush of a table's rows in the log; None if there are none."""
    table = tx.state.info(table_id)
    slots = SlotSet.union(commit.slots for commit in tx.state.memory(table_id)) - being_copied(tx)
    if table is None or not slots:
        return None
    memory, horizon = context.memory(tx, table), table.oldest_snapshot
    overwrites, newest = tx.state.overwrites(table_id), tx.state.commit
    return Merging(
        context,
        table.with_dropped(horizon),
        tx.state.placement.split_by_shard(slots),
        memory.fragments,
        Bounds(floor_at(overwrites, horizon), newest, since=horizon),
        Keep(horizon, floor=floor_at(overwrites, newest)),
        memory.commits,
    )


def plan_merge(
    context: Context,
    tx: Tx,
    table_id: int,
    shard: int,
    fragment_ids: Collection[int],
    slots: SlotSet | None = None,
    rewrite_single: bool = False,
) -> Merging | None:
    """Plan a merge of some of the fragments that a shard serves; None if it is not worth it.

    Fragments that are not there are left out. With `slots`, fragments go on to serve their others. With
    `rewrite_single` one fragment is written, too, which would stay as it is.
    """
    # The table as of the list of fragments, which may have values in a column that was just added.
    table = tx.state.info(table_id)
    if table is None:
        return None
    horizon = horizon_of(tx, table.id, context.retention_of(table))
    overwrites, upto = tx.state.overwrites(table.id), tx.state.commit
    bounds = Bounds(floor_at(overwrites, horizon), upto, since=horizon)
    overwritten = floor_at(overwrites, upto)
    parts = list(tx.state.fragments(table.id, shard))
    if slots is not None:
        cut = ((fragment, fragment.slots & slots) for fragment in parts)
        parts = [replace(fragment, slots=own) for fragment, own in cut if own]
    asked = tuple(part for part in parts if part.id in fragment_ids)
    taking_part = asked if rewrite_single else worth_merging(asked, bounds, overwritten)
    if not taking_part:
        return None
    others = [part for part in parts if part not in taking_part]
    hidden = [o for o in others if o.superseded_at is None and o.max_commit < overwritten]
    has_newest = any(is_current(part, overwritten) for part in taking_part)
    return Merging(
        context,
        table.with_dropped(horizon),
        {shard: _slots_of(taking_part)},
        taking_part,
        bounds,
        keep_for(taking_part, others, tx.state.memory(table.id), horizon, overwritten),
        hidden=tuple(hidden) if has_newest else (),
    )


def keep_for(
    fragments: Sequence[Fragment],
    others: Sequence[Fragment],
    memory: Sequence[InlineCommit],
    horizon: int,
    overwritten: int,
) -> Keep:
    """Return the versions to keep; given what takes no part: fragments, and rows in the log."""
    slots, newest = _slots_of(fragments), max(fragment.max_commit for fragment in fragments)
    # They can hold a version of a key which is older than one that takes part. There are never more of them
    # while the merge goes on: what comes to its slots is newer, or comes from a fragment that was there.
    overlapping = [o for o in others if o.min_commit <= newest and not o.slots.isdisjoint(slots)]
    history = [other for other in overlapping if not is_current(other, overwritten)]
    complete = len(history) == len(overlapping)
    complete &= all(commit.number > newest or commit.slots.isdisjoint(slots) for commit in memory)
    until = max((other.superseded_at or overwritten for other in history), default=0)
    return Keep(horizon, complete and until <= horizon, overwritten, complete, until)


def worth_merging(fragments: Sequence[Fragment], bounds: Bounds, overwritten: int) -> tuple[Fragment, ...]:
    """Return the fragments that are worth a merge; a single one of newest rows stays as it is.

    `bounds` are those of all snapshots that are kept, `overwritten` is the newest overwrite.
    """
    current = [fragment for fragment in fragments if is_current(fragment, overwritten)]
    if len(current) > 1 or any(fragment.tombstones or not fragment.unique for fragment in current):
        return tuple(fragments)
    history = tuple(fragment for fragment in fragments if fragment not in current)
    return history if len(history) > 1 or not all(map(bounds.touch, history)) else ()


@dataclass(slots=True)
class Merging:
    """One merge or flush under way.

    Attributes:
        targets: the slots that are copied, by the shards that get them.
        fragments: what is copied.
        commits: of a flush, whose rows the fragments hold.
        hidden: fragments that take no part, and of which an overwrite has left no newest row. A file of the
            newest rows says that it replaces them, too: a repair does not find an overwrite that was merged.
    """

    context: Context
    table: TableInfo
    targets: dict[int, SlotSet]
    fragments: tuple[Fragment, ...]
    bounds: Bounds
    keep: Keep
    commits: tuple[InlineCommit, ...] = ()
    hidden: tuple[Fragment, ...] = ()

    def carry_out(self) -> Merged:
        """Stage the new fragments, and make them visible in one transaction.

        Returns what was merged: nothing, when another process merged some of them first. Raises as `compact`
        and `flush`.
        """
        copies, merged = _Copies(), Merged()
        with self.context.noticing_collection():
            try:
                problem = self._stage(copies)
                self.context.sync_point("rows flushed" if self.commits else "fragments merged")
                if copies:
                    with self.context.catalog.writing() as tx:
                        merged = self._enter(tx, copies)
            finally:
                discard((copied for here in copies.values() for copied in here), self.context.disk_of)
            if problem is not None:
                raise problem
        return merged

    def _stage(self, copies: _Copies) -> OperatorNeeded | None:
        """Stage the fragments of each shard that can be written to; returns the error of another one."""
        problem = None
        for shard in self.targets:
            try:
                with self.context.unless_left(shard):
                    copies[shard] = self._stage_at(shard)
            except OperatorNeeded as error:
                problem = error
        return problem

    def _stage_at(self, shard: int) -> list[StagedFragment]:
        """Stage the fragments of a shard, with runs of indexes: there is less to do under the lock."""
        in_part = replace(self.keep, drop_tombstones=False, complete=False)
        left, stages, staged = list(self.fragments), list[Fragment](), list[StagedFragment]()
        copies = list[StagedFragment]()
        try:
            while len(some := self._at_once(left)) < len(left):
                left = [fragment for fragment in left if fragment not in some]
                for copied in self._copy(shard, some, some, in_part):
                    staged.append(copied)
                    stages.append(copied.entered(-len(staged), self.table.id))
                    left.append(stages[-1])
            copies = self._copy(shard, left, (*self.fragments, *stages, *self.hidden), self.keep)
            return with_runs(self.context, self.table, self.context.state(), copies)
        except BaseException:
            discard(copies, self.context.disk_of)
            raise
        finally:
            discard(staged, self.context.disk_of)

    def _at_once(self, fragments: Sequence[Fragment]) -> Sequence[Fragment]:
        """Return the fragments to merge at once: as many as memory allows, at least three."""
        if self.commits:  # they are in memory
            return fragments
        ascending = sorted(fragments, key=lambda fragment: fragment.bytes)
        grow = MOST_COMPRESSED if self.table.compression is not None else 1
        sizes = accumulate(min(grow * fragment.bytes, BATCH_BYTES) for fragment in ascending)
        fitting = sum(size <= MOST_BATCH_BYTES for size in sizes)
        return ascending[: min(max(fitting, 3), MOST_AT_ONCE)]

    def _copy(
        self, shard: int, sources: Sequence[Fragment], replaced: Sequence[Fragment], keep: Keep
    ) -> list[StagedFragment]:
        """Merge a few fragments into files which say whose place they take."""
        context, readers = self.context, self.context.readers
        if self.commits:
            slots, origin = self.targets[shard], context.origin(FLUSH)
        else:
            slots, origin = _slots_of(sources), context.origin(COMPACT, replaced)
        source = PageSource(self.table, View(sources), readers.opener(self.table), prefetch=readers.prefetch)
        to = Destination(context.writable_disk(shard), shard, origin)
        return copy_slots(source, slots, self.bounds, keep, to)

    def _enter(self, tx: Tx, copies: _Copies) -> Merged:
        """Make copies visible for what all sources still serve, and remove the entered ones from `copies`.

        Where others came first only the horizon is raised; nothing is done where a lease keeps older rows.
        """
        now, horizon = tx.state.info(self.table.id), self.keep.horizon
        if now is None:
            return Merged()
        if horizon > now.oldest_snapshot:
            held = oldest_held(tx, self.table.id)
            if held is not None and held < horizon:  # a lease was taken since the horizon was chosen
                return Merged()
            tx.append(HorizonRaised(self.table.id, horizon))
        # Where nothing is left, the shard need not be there any more.
        here = {s: slots for s, slots in self._still_served(tx).items() if slots and s in copies}
        entering = list[StagedFragment]()
        for shard, slots in here.items():
            copies[shard] = with_runs(self.context, self.table, tx.state, copies[shard])
            entering += [copied.serving(slots) for copied in copies[shard]]
        self.context.check_not_collected(tx, entering)
        merged = self._swap(tx, entering, SlotSet.union(here.values()))
        for shard in here:
            del copies[shard]  # the commit refers to them, or may do so
        return merged

    def _still_served(self, tx: Tx) -> dict[int, SlotSet]:
        """Return the slots by shard that all sources serve as they did when this was planned."""
        slots, served = SlotSet.union(self.targets.values()) - being_copied(tx), self._served(tx)
        for number, before in self._sources().items():
            slots -= before - served.get(number, SlotSet())
        return {shard: own & slots & tx.state.placement.at(shard) for shard, own in self.targets.items()}

    def _sources(self) -> dict[int, SlotSet]:
        """Return the slots of the sources when this was planned: of commits by their numbers, or by ids."""
        if self.commits:
            return {commit.number: commit.slots for commit in self.commits}
        return {fragment.id: fragment.slots for fragment in self.fragments}

    def _served(self, tx: Tx) -> dict[int, SlotSet]:
        """Return what all commits, or fragments at the shard, serve now, as `_sources`."""
        if self.commits:
            return {commit.number: commit.slots for commit in tx.state.memory(self.table.id)}
        (shard,) = self.targets
        return {fragment.id: fragment.slots for fragment in tx.state.fragments(self.table.id, shard)}

    def _swap(self, tx: Tx, entering: Sequence[StagedFragment], slots: SlotSet) -> Merged:
        """Put the new fragments in for what their sources still serve."""
        if not slots:
            return Merged()
        served, files = self._served(tx), tuple(entering)
        if self.commits:
            flushed = tuple(c.number for c in self.commits if not c.slots.isdisjoint(slots))
            changes = FileChanges(files, flushed=flushed, flushed_slots=slots)
            tx.append(FragmentsReplaced(self.table.id, FLUSH, changes))
            return Merged(len(flushed), len(files))
        left = {number: served[number] - slots for number in self._sources() if number in served}
        tx.append(FragmentsReplaced(self.table.id, COMPACT, FileChanges(files, slots=tuple(left.items()))))
        return Merged(sum(not some for some in left.values()), len(files))


def _slots_of(fragments: Sequence[Fragment]) -> SlotSet:
    return SlotSet.union(fragment.slots for fragment in fragments)


def being_copied(tx: Tx) -> SlotSet:
    """Return the slots of tablets that a mover has begun to copy.

    It copies commit by commit: were a deletion merged away between two of its rounds, the row that it deleted
    would come back at the target; and the target would lack what a flush wrote of commits that it has passed.
    """
    copying = {move.tablet for move in moves_in(tx) if move.phase is not Phase.PLANNED}
    tablets = tx.state.placement.tablets if copying else ()
    return SlotSet.of((t.start, t.end) for t in tablets if t.id in copying)


# Horizons: the oldest snapshot of a table that can still be asked for. Merges leave out what is older. While
# any lease is damaged, horizons are unknown.


def horizon_of(tx: Tx, table: int, retention_seconds: float) -> int:
    """Return the oldest snapshot that may still be asked for, or the oldest with the same rows.

    That is the table's own commit before it: commits of other tables take none of its snapshots away.
    """
    oldest, held, known = _retained(tx, retention_seconds), oldest_held(tx, table), tx.state.tables[table]
    oldest = oldest if held is None else min(oldest, held)
    if oldest < known.info.created_commit:
        return known.info.oldest_snapshot
    own = known.newest if oldest >= known.newest else tx.newest_upto(table, oldest).number
    # Where retention was prolonged, what is gone stays gone.
    return max(known.info.oldest_snapshot, own)


def oldest_held(tx: Tx, table: int) -> int | None:
    """Return the oldest snapshot of a table that some lease or tag holds."""
    leased = (hold.value.snapshot for hold in holds_in(tx) if hold.value.table == table)
    return min([*leased, *_tagged(tx, table)], default=None)


def _tagged(tx: Tx, table: int) -> list[int]:
    return [tag.snapshot for tag in tx.state.tables[table].tags]


def _retained(tx: Tx, seconds: float) -> int:
    """Return the oldest snapshot that a retention period keeps by itself."""
    return tx.state.commit if seconds <= 0 else tx.newest_commit_at(tx.times.expiry - seconds)
