"""Merging fragments: some of a shard's, or all of them.

A merge writes two fragments. One has the newest version of each key, so that scans of the newest snapshot
give out slices of it. The other has history: the versions that only older snapshots, changes and moves need.
What a lease or the retention period may need stays. A tombstone goes, or becomes history, only when all
fragments take part that may hold what it deleted. Nothing is visible before one transaction, which puts the
merged fragments in for what their sources still serve then: a process that comes second, or dies before, has
changed nothing.

More than `MOST_AT_ONCE` fragments, or more than `MOST_BATCH_BYTES` of their batches, are merged in stages,
the smallest first, so that memory and open files are bounded whatever the number and the size of fragments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from elasticscan.base.limits import BATCH_BYTES
from elasticscan.catalog import InlineCommit, Tx, retry_interrupted
from elasticscan.metadata import (
    Bounds,
    FileChanges,
    Fragment,
    HorizonRaised,
    StagedFragment,
    TableInfo,
    floor_at,
)
from elasticscan.storage import (
    Destination,
    Keep,
    PageSource,
    View,
    copy_slots,
    discard,
)
from elasticscan.store.context import Context
from elasticscan.store.context.leases import holds_in
from elasticscan.store.context.lookups import by_shard
from elasticscan.store.moves.owners import moves_in
from elasticscan.store.upkeep.planning import is_current
from elasticscan.store.writing.indexing import indexed, replace_files
from elasticscan.topology import Phase, SlotSet

COMPACT = "compact"
MOST_AT_ONCE = 32
MOST_BATCH_BYTES = 8 * BATCH_BYTES  # a merge holds a batch of each fragment
MOST_COMPRESSED = 8  # so many times the bytes of a compressed file, about, its batches take in memory


class Merged(NamedTuple):
    """The outcome of a merge: how many fragments serve no slots any more, and how many took their place."""

    gone: int = 0
    added: int = 0


@retry_interrupted
def compact(context: Context, table: TableInfo) -> int:
    """Merge all of a table's fragments at each shard; returns how many fragments went away.

    A single fragment is written again where the table is compressed otherwise by now. Reads, writes and moves
    go on.

    Raises:
        DiskFull, ShardUnavailable, FragmentDamaged: a disk or a file. Nothing has changed there.
        WriteConflict: files of the merge were collected before it ended. Nothing has changed there.
    """
    gone = 0
    for shard, here in sorted(by_shard(context.state().fragments(table.id)).items()):
        again = _is_alone_and_otherwise(context, table, here)
        ids, tx = {fragment.id for fragment in here}, context.catalog.newest()
        merging = plan_merge(context, tx, table.id, shard, ids, again=again)
        if merging is not None:
            merged = merging.carry_out()
            gone += merged.gone - merged.added
    return gone


def _is_alone_and_otherwise(context: Context, table: TableInfo, fragments: Sequence[Fragment]) -> bool:
    """If one fragment holds all current rows of a shard and is compressed otherwise: several merge anyway."""
    current = [fragment for fragment in fragments if fragment.superseded_at is None]
    if len(current) == 1:
        (alone,) = current
        with context.unless_left(alone.shard), context.noticing_collection():
            context.writable_disk(alone.shard)  # the marker is checked before a file is read
            return context.readers.compression_of(alone) != table.compression
    return False


def plan_merge(
    context: Context,
    tx: Tx,
    table_id: int,
    shard: int,
    fragments: Collection[int],
    slots: SlotSet | None = None,
    again: bool = False,
) -> Merging | None:
    """Plan a merge of some of the fragments that a shard serves; None if it is not worth it.

    Fragments that are not there are left out. With `slots`, fragments go on to serve their others. With
    `again` a single fragment is written, too, which would stay as it is.
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
    asked = tuple(part for part in parts if part.id in fragments)
    taking_part = asked if again else worth_merging(asked, bounds, overwritten)
    if not taking_part:
        return None
    others = [part for part in parts if part not in taking_part]
    hidden = [o for o in others if o.superseded_at is None and o.max_commit < overwritten]
    if not any(is_current(part, overwritten) for part in taking_part):
        hidden = []
    return Merging(
        context,
        table.with_dropped(horizon),
        shard,
        taking_part,
        bounds,
        keep_for(taking_part, others, tx.state.memory(table.id), horizon, overwritten),
        tuple(hidden),
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
    """One merge under way.

    Attributes:
        hidden: fragments that take no part, and of which an overwrite has left no newest row. A file of the
            newest rows says that it replaces them, too: a repair does not find an overwrite that was merged.
    """

    context: Context
    table: TableInfo
    shard: int
    fragments: tuple[Fragment, ...]
    bounds: Bounds
    keep: Keep
    hidden: tuple[Fragment, ...]

    def carry_out(self) -> Merged:
        """Stage the merged fragments, and make them visible in one transaction.

        Returns what was merged: nothing, when another process merged some of them first. Raises as `compact`.
        """
        copies = list[StagedFragment]()
        with self.context.noticing_collection():
            try:
                with self.context.unless_left(self.shard):
                    self._stage(copies)
                self.context.checkpoint("fragments merged")
                with self.context.catalog.writing() as tx:
                    merged = self._enter(tx, copies)
                    if merged.added:
                        copies = []  # the commit refers to them, or may do so
            finally:
                discard(copies, self.context.disk_of)
        return merged

    def _stage(self, copies: list[StagedFragment]) -> None:
        """Stage the merged fragments, with runs of indexes, so that there is less to do under the lock."""
        in_part = replace(self.keep, drop_tombstones=False, complete=False)
        left, stages, staged = list(self.fragments), list[Fragment](), list[StagedFragment]()
        try:
            while len(some := _smallest(left, self.table.compression is not None)) < len(left):
                left = [fragment for fragment in left if fragment not in some]
                for copied in self._copy(some, some, in_part):
                    staged.append(copied)
                    stages.append(copied.entered(-len(staged), self.table.id))
                    left.append(stages[-1])
            copies += self._copy(left, (*self.fragments, *stages, *self.hidden), self.keep)
            copies[:] = with_runs(self.context, self.table, self.context.state(), copies)
        finally:
            discard(staged, self.context.disk_of)

    def _enter(self, tx: Tx, copies: list[StagedFragment]) -> Merged:
        """Make them visible, in place of what all sources still serve.

        Where others came first only the horizon is raised; nothing is done where a lease keeps older rows.
        """
        now = tx.state.info(self.table.id)
        held = None if now is None else oldest_held(tx, self.table.id)
        # A scan may have taken a lease on an older snapshot since the horizon was chosen.
        if now is None or (held is not None and held < self.keep.horizon):
            return Merged()
        slots = self._still_served(tx)
        if slots:  # else the shard need not be there any more
            copies[:] = with_runs(self.context, self.table, tx.state, copies)
            self.context.check_not_collected(tx, copies)
        if self.keep.horizon > now.oldest_snapshot:
            tx.append(HorizonRaised(self.table.id, self.keep.horizon))
        return self._swap(tx, copies, slots)

    def _copy(
        self, sources: Sequence[Fragment], replaced: Sequence[Fragment], keep: Keep
    ) -> list[StagedFragment]:
        """Merge a few fragments into files which say whose place they take."""
        context, readers = self.context, self.context.readers
        to = Destination(context.writable_disk(self.shard), self.shard, context.origin(COMPACT, replaced))
        source = PageSource(self.table, View(sources), readers.opener(self.table), expect=readers.expect)
        return copy_slots(source, _slots_of(sources), self.bounds, keep, to)

    def _still_served(self, tx: Tx) -> SlotSet:
        """Return the slots that all sources serve as they did when the merge was planned."""
        slots, served = _slots_of(self.fragments) - being_copied(tx), self._served(tx)
        for fragment in self.fragments:
            slots -= fragment.slots - served.get(fragment.id, SlotSet())
        return slots

    def _served(self, tx: Tx) -> dict[int, SlotSet]:
        return {fragment.id: fragment.slots for fragment in tx.state.fragments(self.table.id, self.shard)}

    def _swap(self, tx: Tx, copies: Sequence[StagedFragment], slots: SlotSet) -> Merged:
        """Put the merged fragments in for what their sources still serve."""
        if not slots:
            return Merged()
        served = self._served(tx)
        left = {f.id: served[f.id] - slots for f in self.fragments if f.id in served}
        added = tuple(copied.serving(slots) for copied in copies)
        replace_files(tx, self.table.id, COMPACT, FileChanges(added, slots=tuple(left.items())))
        return Merged(sum(not some for some in left.values()), len(copies))


def _smallest(fragments: Sequence[Fragment], compressed: bool = False) -> list[Fragment]:
    """Return the fragments to merge at once: as many as memory allows, at least three."""
    ascending = sorted(fragments, key=lambda fragment: fragment.bytes)
    grow = MOST_COMPRESSED if compressed else 1
    sizes = accumulate(min(grow * fragment.bytes, BATCH_BYTES) for fragment in ascending)
    fitting = sum(size <= MOST_BATCH_BYTES for size in sizes)
    return ascending[: min(max(fitting, 3), MOST_AT_ONCE)]


def _slots_of(fragments: Sequence[Fragment]) -> SlotSet:
    return SlotSet.union(fragment.slots for fragment in fragments)


def being_copied(tx: Tx) -> SlotSet:
    """Return the slots of tablets that a mover has begun to copy.

    It copies commit by commit: were a deletion merged away between two of its rounds, the row that
    it deleted would come back at the target.
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
    return tx.state.commit if seconds <= 0 else tx.commit_before(tx.times.expiry - seconds)
