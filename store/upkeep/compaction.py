"""Merges and flushes: the rows of fragments, or of commits in the log, are copied to new fragments.

A merge writes two fragments. One has the newest version of each key, so that a scan of the newest snapshot
returns slices of it. The other has history: versions that only older snapshots, changes and moves need.
Versions that a lease, a tag or the retention period may need are kept. A tombstone is dropped, or becomes
history, only if the merge includes all fragments that may have a version of the row that it deleted. A flush
is a merge of memory fragments that writes to every shard of their slots. It raises no horizon, and drops only
versions that no kept snapshot can read.

One transaction makes the new fragments visible, for the slots that their sources still serve at that time. So
the second of two processes with the same merge changes nothing, and so does one that dies earlier. Slots of
tablets that moved since, or that a mover has begun to copy, are left out; a flush also leaves out slots of
shards that cannot be written.

More than `MOST_AT_ONCE` fragments, or more than `MOST_BATCH_BYTES` of batches, are merged in stages, smallest
first, so that memory and open files are bounded for any number and size of fragments.
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
MOST_BATCH_BYTES = 8 * BATCH_BYTES  # a merge has one batch of each fragment in memory
MOST_COMPRESSED = 8  # assumed size of batches in memory, in sizes of their compressed file

_Copies = dict[int, list[StagedFragment]]  # by shard


class Merged(NamedTuple):
    """The result of a merge or flush: numbers of replaced sources and of new fragments."""

    gone: int = 0  # sources that serve no slots any more; for a flush, commits with at least one flushed slot
    added: int = 0


@retry_interrupted
def compact(context: Context, table: TableInfo) -> int:
    """Merge all of a table's fragments at each shard; return how many fragments fewer there are.

    A single fragment is rewritten if the table's compression has changed. The number is negative if one
    fragment became two: current rows, and history.

    Raises:
        DiskFull, ShardUnavailable, FragmentDamaged: of a shard, where nothing has changed.
        Busy: garbage collection deleted files of the merge before its end. Nothing has changed.
    """
    gone = 0
    for shard, fragments in sorted(by_shard(context.state().fragments(table.id)).items()):
        rewrite_single = _needs_recompression(context, table, fragments)
        ids, tx = {fragment.id for fragment in fragments}, context.catalog.newest()
        merging = plan_merge(context, tx, table.id, shard, ids, rewrite_single=rewrite_single)
        if merging is not None:
            merged = merging.carry_out()
            gone += merged.gone - merged.added
    return gone


def _needs_recompression(context: Context, table: TableInfo, fragments: Sequence[Fragment]) -> bool:
    """Return True if a shard has one fragment of current rows with another compression than the table."""
    current = [fragment for fragment in fragments if fragment.superseded_at is None]
    if len(current) == 1:
        (single,) = current
        with context.unless_left(single.shard), context.noticing_collection():
            context.writable_disk(single.shard)  # the marker is checked before a file is read
            return context.readers.compression_of(single) != table.compression
    return False


@retry_interrupted
def flush(context: Context, table_id: int) -> bool:
    """Copy a table's rows from the log to files; return whether any rows were flushed.

    Raises:
        DiskFull, ShardUnavailable: a shard cannot be written. The rows of other shards were flushed.
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
    """Plan a merge of some fragments at a shard; None if it would be useless.

    Fragments that no longer serve slots are skipped. With `slots`, only these are merged, and the fragments
    continue to serve their others. With `rewrite_single`, a single fragment is rewritten.
    """
    # From the same state as the fragments, which may have values in a column that was just added.
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
        parts = [replace(fragment, slots=served) for fragment, served in cut if served]
    chosen = tuple(part for part in parts if part.id in fragment_ids)
    sources = chosen if rewrite_single else worth_merging(chosen, bounds, overwritten)
    if not sources:
        return None
    others = [part for part in parts if part not in sources]
    hidden = [o for o in others if o.superseded_at is None and o.max_commit < overwritten]
    has_newest = any(is_current(part, overwritten) for part in sources)
    return Merging(
        context,
        table.with_dropped(horizon),
        {shard: _slots_of(sources)},
        sources,
        bounds,
        keep_for(sources, others, tx.state.memory(table.id), horizon, overwritten),
        hidden=tuple(hidden) if has_newest else (),
    )


def keep_for(
    fragments: Sequence[Fragment],
    others: Sequence[Fragment],
    memory: Sequence[InlineCommit],
    horizon: int,
    overwritten: int,
) -> Keep:
    """Return the versions to keep, given the fragments (`others`) and rows in the log that are not merged."""
    slots, newest = _slots_of(fragments), max(fragment.max_commit for fragment in fragments)
    # They may have an older version of a key than the merged ones. No more of them appear during the merge:
    # a later fragment of these slots has newer rows, or copies of rows in the present fragments.
    overlapping = [o for o in others if o.min_commit <= newest and not o.slots.isdisjoint(slots)]
    history = [other for other in overlapping if not is_current(other, overwritten)]
    complete = len(history) == len(overlapping)
    complete &= all(commit.number > newest or commit.slots.isdisjoint(slots) for commit in memory)
    until = max((other.superseded_at or overwritten for other in history), default=0)
    return Keep(horizon, complete and until <= horizon, overwritten, complete, until)


def worth_merging(fragments: Sequence[Fragment], bounds: Bounds, overwritten: int) -> tuple[Fragment, ...]:
    """Return the fragments that a merge would improve; a single one of current rows stays as it is.

    `bounds` are those of all kept snapshots, `overwritten` is the newest overwrite.
    """
    current = [fragment for fragment in fragments if is_current(fragment, overwritten)]
    if len(current) > 1 or any(fragment.tombstones or not fragment.unique for fragment in current):
        return tuple(fragments)
    history = tuple(fragment for fragment in fragments if fragment not in current)
    return history if len(history) > 1 or not all(map(bounds.touch, history)) else ()


@dataclass(slots=True)
class Merging:
    """A planned merge or flush.

    Attributes:
        targets: the slots to copy, by target shard.
        fragments: the sources.
        commits: for a flush, the commits whose rows the sources have; empty for a merge.
        hidden: fragments that are not merged, all of whose rows an overwrite has replaced. The manifest of
            the merged file says that it replaces them, too, since a repair cannot see the merged overwrite.
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

        Returns an empty result if another process has merged some of the sources first. Raises the errors of
        `compact` and `flush`.
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
                discard((each for staged in copies.values() for each in staged), self.context.disk_of)
            if problem is not None:
                raise problem
        return merged

    def _stage(self, copies: _Copies) -> OperatorNeeded | None:
        """Stage the fragments of all shards that can be written; return another shard's error, or None."""
        problem = None
        for shard in self.targets:
            try:
                with self.context.unless_left(shard):
                    copies[shard] = self._stage_at(shard)
            except OperatorNeeded as error:
                problem = error
        return problem

    def _stage_at(self, shard: int) -> list[StagedFragment]:
        """Stage the fragments of a shard, with index runs, so that there is less to do under the lock."""
        in_part = replace(self.keep, drop_tombstones=False, complete=False)
        rest, stages, staged = list(self.fragments), list[Fragment](), list[StagedFragment]()
        copies = list[StagedFragment]()
        try:
            while len(sources := self._next_stage(rest)) < len(rest):
                rest = [fragment for fragment in rest if fragment not in sources]
                for copied in self._copy(shard, sources, sources, in_part):
                    staged.append(copied)
                    stages.append(copied.entered(-len(staged), self.table.id))
                    rest.append(stages[-1])
            copies = self._copy(shard, rest, (*self.fragments, *stages, *self.hidden), self.keep)
            return with_runs(self.context, self.table, self.context.state(), copies)
        except BaseException:
            discard(copies, self.context.disk_of)
            raise
        finally:
            discard(staged, self.context.disk_of)

    def _next_stage(self, fragments: Sequence[Fragment]) -> Sequence[Fragment]:
        """Return the fragments to merge in the next stage: as many as memory allows, at least three."""
        if self.commits:  # of a flush, which are in memory anyway
            return fragments
        ascending = sorted(fragments, key=lambda fragment: fragment.bytes)
        grow = MOST_COMPRESSED if self.table.compression is not None else 1
        sizes = accumulate(min(grow * fragment.bytes, BATCH_BYTES) for fragment in ascending)
        fitting = sum(size <= MOST_BATCH_BYTES for size in sizes)
        return ascending[: min(max(fitting, 3), MOST_AT_ONCE)]

    def _copy(
        self, shard: int, sources: Sequence[Fragment], replaced: Sequence[Fragment], keep: Keep
    ) -> list[StagedFragment]:
        """Merge a few fragments to files; their manifests name the fragments that they replace."""
        context, readers = self.context, self.context.readers
        if self.commits:
            slots, origin = self.targets[shard], context.origin(FLUSH)
        else:
            slots, origin = _slots_of(sources), context.origin(COMPACT, replaced)
        source = PageSource(self.table, View(sources), readers.opener(self.table), prefetch=readers.prefetch)
        to = Destination(context.writable_disk(shard), shard, origin)
        return copy_slots(source, slots, self.bounds, keep, to)

    def _enter(self, tx: Tx, copies: _Copies) -> Merged:
        """Make copies visible for the slots that all sources still serve; remove these from `copies`.

        If other processes have replaced the sources, only the horizon is raised. If a lease or tag needs
        older rows, nothing is done.
        """
        now, horizon = tx.state.info(self.table.id), self.keep.horizon
        if now is None:
            return Merged()
        if horizon > now.oldest_snapshot:
            held = oldest_held(tx, self.table.id)
            if held is not None and held < horizon:  # a lease or tag is newer than the plan
                return Merged()
            tx.append(HorizonRaised(self.table.id, horizon))
        # A shard without slots may have been removed.
        slots_at = {s: slots for s, slots in self._still_served(tx).items() if slots and s in copies}
        entered = list[StagedFragment]()
        for shard, slots in slots_at.items():
            copies[shard] = with_runs(self.context, self.table, tx.state, copies[shard])
            entered += [copied.serving(slots) for copied in copies[shard]]
        self.context.check_not_collected(tx, entered)
        merged = self._swap(tx, entered, SlotSet.union(slots_at.values()))
        for shard in slots_at:
            del copies[shard]  # the commit names them, or may do so
        return merged

    def _still_served(self, tx: Tx) -> dict[int, SlotSet]:
        """Return the slots that all sources serve as when the merge was planned, by target shard."""
        slots, served = SlotSet.union(self.targets.values()) - being_copied(tx), self._served(tx)
        for number, before in self._sources().items():
            slots -= before - served.get(number, SlotSet())
        placement = tx.state.placement
        return {shard: target & slots & placement.at(shard) for shard, target in self.targets.items()}

    def _sources(self) -> dict[int, SlotSet]:
        """Return the slots of the sources when the merge was planned, by commit number or fragment id."""
        if self.commits:
            return {commit.number: commit.slots for commit in self.commits}
        return {fragment.id: fragment.slots for fragment in self.fragments}

    def _served(self, tx: Tx) -> dict[int, SlotSet]:
        """Return the slots of all commits in the log, or of all fragments at the shard, now."""
        if self.commits:
            return {commit.number: commit.slots for commit in tx.state.memory(self.table.id)}
        (shard,) = self.targets
        return {fragment.id: fragment.slots for fragment in tx.state.fragments(self.table.id, shard)}

    def _swap(self, tx: Tx, entering: Sequence[StagedFragment], slots: SlotSet) -> Merged:
        """Append the record that replaces the sources for the slots."""
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
        return Merged(sum(not slots for slots in left.values()), len(files))


def _slots_of(fragments: Sequence[Fragment]) -> SlotSet:
    return SlotSet.union(fragment.slots for fragment in fragments)


def being_copied(tx: Tx) -> SlotSet:
    """Return the slots of tablets that a mover has begun to copy.

    The mover copies by commit number. If a merge dropped a tombstone between two of its rounds, the deleted
    row would reappear at the target. If a flush wrote rows of commits that the mover has passed, they would
    be missing at the target.
    """
    copying = {move.tablet for move in moves_in(tx) if move.phase is not Phase.PLANNED}
    tablets = tx.state.placement.tablets if copying else ()
    return SlotSet.of((t.start, t.end) for t in tablets if t.id in copying)


# Horizons: the oldest snapshot of a table that can still be read. Merges drop older versions. While any lease
# is damaged, horizons are unknown.


def horizon_of(tx: Tx, table: int, retention_seconds: float) -> int:
    """Return the commit of the oldest snapshot of a table that must stay readable.

    This is the table's own commit at or before a kept snapshot, which may be a commit of another table.
    """
    oldest, held, known = _retained(tx, retention_seconds), oldest_held(tx, table), tx.state.tables[table]
    oldest = oldest if held is None else min(oldest, held)
    if oldest < known.info.created_commit:
        return known.info.oldest_snapshot
    commit = known.newest if oldest >= known.newest else tx.newest_upto(table, oldest).number
    # Not lower than before: a longer retention does not bring dropped versions back.
    return max(known.info.oldest_snapshot, commit)


def oldest_held(tx: Tx, table: int) -> int | None:
    """Return the oldest snapshot of a table that a lease or tag keeps; None if there is none."""
    leased = (hold.value.snapshot for hold in holds_in(tx) if hold.value.table == table)
    return min([*leased, *_tagged(tx, table)], default=None)


def _tagged(tx: Tx, table: int) -> list[int]:
    return [tag.snapshot for tag in tx.state.tables[table].tags]


def _retained(tx: Tx, seconds: float) -> int:
    """Return the oldest snapshot that a retention period keeps."""
    return tx.state.commit if seconds <= 0 else tx.newest_commit_at(tx.times.expiry - seconds)
