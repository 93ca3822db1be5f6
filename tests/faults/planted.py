"""Faults that the harnesses must find: each is a small patch that breaks one rule.

A harness that cannot find them proves nothing. Each fault names the rule that it breaks, and the
harness that must find it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.base.errors import TableChanged
from elasticscan.catalog import (
    StoreState,
    Tx,
    checkpoints,
    checks,
    fold,
    transaction,
)
from elasticscan.catalog import catalog as catalogs
from elasticscan.catalog.store_time import Belief
from elasticscan.filters import value_sets
from elasticscan.filters.key_sets import NOTHING, NULLS
from elasticscan.metadata import (
    Bounds,
    FileChanges,
    Fragment,
    FragmentsReplaced,
    HorizonRaised,
    IndexInfo,
    IndexPhase,
    MoveSwitched,
    TableDefined,
    TableInfo,
)
from elasticscan.optimizer import binding as access
from elasticscan.protocol import Cursor, Cursors, PageRequest, PageRows, keys
from elasticscan.reader import Accepted, ShardRead, cursor, sorted_scan
from elasticscan.reader import scan as driver
from elasticscan.storage import (
    Destination,
    Keep,
    PageSource,
    copy_slots,
    copying,
    fragment,
    pages,
    point_reads,
    ranges,
)
from elasticscan.storage.indexes import pages as index_pages
from elasticscan.storage.key_filter import KeyFilter
from elasticscan.storage.merge import Piece
from elasticscan.storage.pages import pieces_of
from elasticscan.store.context import Context, lookups
from elasticscan.store.moves import elasticity, mover, owners
from elasticscan.store.moves.mover import Mover
from elasticscan.store.moves.owners import OwnedMove
from elasticscan.store.reading import rows_by_key, scan
from elasticscan.store.upkeep import compaction, executor
from elasticscan.store.writing import definitions, indexing, preconditions, publishing
from elasticscan.store.writing.preconditions import KeyCheck
from elasticscan.topology import Event, Move, Phase, Placement, SlotSet
from tests.faults.unchecked import (
    files_may_lack_runs,
    files_may_lie_anywhere,
    horizons_may_pass_tags,
    indexes_may_be_unfinished,
    unchecked,
)
from tests.reader import memory
from tests.reader.memory import MemoryCluster
from tests.reader.simulation import Simulation
from tests.topology.moved import move_tablet

Patch = pytest.MonkeyPatch
Swap = Callable[..., Any]
Plant = Callable[[Patch], None]
Harness = Literal[
    "simulation", "programs", "scenarios", "damage", "log", "damaged log", "stream", "sink", "cluster"
]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault; `plant` breaks the rule while the patch lasts.

    Attributes:
        name, breaks: the fault, and the rule that it breaks.
        harness: the harness that must find it.
        style: the style of random programs that is most likely to find it; for "scenarios", the test.
        what: the replaced function, if the fault is only a replacement.
    """

    name: str
    breaks: str
    harness: Harness
    plant: Plant
    style: str | None = None
    what: str = ""


FAULTS: list[Fault] = []
_STYLES: dict[str, str] = {}


def fault(harness: Harness, breaks: str, style: str | None = None) -> Callable[[Plant], Plant]:
    def enter(plant: Plant) -> Plant:
        finder = style or _STYLES.get(plant.__name__)
        FAULTS.append(Fault(plant.__name__, breaks, harness, plant, finder))
        return plant

    return enter


def found_by(style: str) -> Callable[[Plant], Plant]:
    """Name the style or the test that finds a fault; a decorator below `@fault`."""

    def enter(plant: Plant) -> Plant:
        _STYLES[plant.__name__] = style
        return plant

    return enter


def replacing(owner: Any, name: Any, let: Plant | None = None) -> Callable[[Callable[..., Any]], Plant]:
    """Make a fault from a function that replaces another one, and gets the original as its first argument.

    The replaced function is an attribute of one or several modules or classes, or a value of a dictionary.
    `let` skips a check.
    """

    def given(honest: Any, instead: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: instead(honest, *arguments, **options)

    def enter(instead: Callable[..., Any]) -> Plant:
        @wraps(instead)
        def plant(patch: Patch) -> None:
            if let is not None:
                let(patch)
            if isinstance(owner, dict):
                patch.setitem(owner, name, given(owner[name], instead))
                return
            for each in owner if isinstance(owner, tuple) else (owner,):
                patch.setattr(each, name, given(getattr(each, name), instead))

        return plant

    return enter


@dataclass(frozen=True, slots=True)
class Finder:
    """A harness, and a style or a test, that must find the faults declared with it."""

    harness: Harness
    style: str | None = None

    def rule(self, breaks: str) -> Rule:
        return Rule(self, breaks)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule; its methods register a fault by a replacement of a function that keeps the rule."""

    finder: Finder
    breaks: str

    def gives(self, owner: Any, name: str, answer: Any = None, let: Plant | None = None) -> None:
        """Replace a function by one that always returns the same value."""
        self.alters(owner, name, lambda *_, **__: answer, let)

    def sets(self, owner: Any, name: str, instead: Any) -> None:
        """Replace an attribute."""
        self._enter(lambda patch: patch.setattr(owner, name, instead), owner, name)

    def alters(self, owner: Any, name: Any, instead: Callable[..., Any], let: Plant | None = None) -> None:
        """Replace a function by one that gets the original as its first argument: see `replacing`."""
        self._enter(replacing(owner, name, let)(instead), owner, name)

    def plants(self, plant: Callable[..., None], *given: Any, **more: Any) -> None:
        self._enter(lambda patch: plant(patch, *given, **more), plant, "")

    def _enter(self, plant: Plant, owner: Any, name: Any) -> None:
        """Register a fault, with the name of the replaced function in the first of several modules."""
        first = owner[0] if isinstance(owner, tuple) else owner
        where = getattr(first, "__name__", "handlers").rpartition(".")[2].strip("_")
        what = f"{where}.{getattr(name, '__name__', name)}".strip(".")
        known, harness, style = re.sub(r"\W+", "_", self.breaks), self.finder.harness, self.finder.style
        FAULTS.append(Fault(known, self.breaks, harness, plant, style, what))


def while_running(patch: Patch, function: tuple[Any, str], other: tuple[Any, str], instead: Any) -> None:
    """Replace a function or method while another one runs."""
    honest: Callable[..., Any] = getattr(*function)

    def careless(*arguments: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(*other, instead)
            return honest(*arguments, **options)

    patch.setattr(*function, careless)


def follow_any_copy(patch: Patch) -> None:
    """Fold the records of a log, even if an older copy was put back."""
    honest = checkpoints.replay

    def trusting(home: Any, _: object) -> Any:
        return honest(home, checkpoints.newest_state(home))

    patch.setattr(checkpoints, "replay", trusting)


# ------------------------------------------------------------------------------ the cursor rule


@fault("simulation", "the placement is checked again after a page")
@replacing(driver, "accept_page")
def no_second_look(accept: Any, cursors: Cursors, read: ShardRead, after: Cursors, _: Placement) -> Accepted:
    return accept(cursors, read, after, read.placement)


@fault("simulation", "the second placement check comes after the rows were read, not before")
def second_look_too_early(patch: Patch) -> None:
    read_page, accept = MemoryCluster.read_page, cursor.accept_page
    seen: list[Placement] = []

    def looking_first(self: MemoryCluster, request: PageRequest) -> PageRows:
        self.during()
        seen.append(self.current())
        return read_page(self, request)

    def with_the_early_look(cursors: Cursors, read: ShardRead, after: Cursors, _: Placement) -> Accepted:
        return accept(cursors, read, after, seen[-1])

    patch.setattr(MemoryCluster, "read_page", looking_first)
    patch.setattr(driver, "accept_page", with_the_early_look)


@fault("simulation", "a placement check made while rows are still being read is not the second one")
def second_look_amid_the_page(patch: Patch) -> None:
    read_page, beyond, accept = MemoryCluster.read_page, MemoryCluster._beyond, cursor.accept_page
    seen: list[Placement] = []

    def forgetting_looks(self: MemoryCluster, request: PageRequest) -> PageRows:
        seen.clear()
        return read_page(self, request)

    def looking_at_once(self: MemoryCluster, *args: Any) -> Any:
        seen.append(self.current())
        return beyond(self, *args)

    def with_the_look_amid(cursors: Cursors, read: ShardRead, after: Cursors, _: Placement) -> Accepted:
        return accept(cursors, read, after, seen[0])

    patch.setattr(MemoryCluster, "read_page", forgetting_looks)
    patch.setattr(MemoryCluster, "_beyond", looking_at_once)
    patch.setattr(driver, "accept_page", with_the_look_amid)


@fault("simulation", "the epoch grows with every move, so out and back within a page is seen")
@replacing(memory, "move_tablet")
def epoch_stays(_: Any, placement: Placement, tablet_id: int, target: int) -> Placement:
    moved = move_tablet(placement, tablet_id, target)
    return Placement(tuple(replace(t, epoch=t.epoch - 1) if t.id == tablet_id else t for t in moved.tablets))


@fault("simulation", "slots that moved while a page was read keep their old position")
@replacing(driver, "accept_page")
def moved_slots_advance(
    accept: Any, cursors: Cursors, read: ShardRead, after: Cursors, placement: Placement
) -> Accepted:
    honest = accept(cursors, read, after, placement)
    further = [Cursor(c.slots & honest.moved, c.position) for c in after]
    done = honest.moved - cursor.slots_of(after)
    still = [Cursor(c.slots - honest.moved, c.position) for c in honest.cursors]
    return Accepted(cursor.merge([*still, *further]), honest.finished | done, honest.moved)


@fault("simulation", "cursors are values: a page cannot change the cursors that its retry starts from")
@replacing(MemoryCluster, "read_page")
def cursors_are_shared(honest: Any, self: MemoryCluster, request: PageRequest) -> Any:
    page = honest(self, request)
    for old in request.cursors:
        for new in page.after:
            if old.slots & new.slots and new.position is not None:
                object.__setattr__(old, "position", new.position)
    return page


@fault("simulation", "cursors merge only when their positions are equal")
@replacing(cursor, "merge")
def different_positions_merge(honest: Any, cursors: Iterable[Cursor]) -> Any:
    merged = honest(cursors)
    begun = [c for c in merged if c.position is not None]
    if len(begun) < 2:
        return merged
    furthest = max(c.position or b"" for c in begun)
    return honest([*(c for c in merged if c.position is None), Cursor(cursor.slots_of(begun), furthest)])


@fault("simulation", "no slot falls out of the cursors unread (the proof of coverage notices)")
@replacing(driver, "accept_page")
def cursor_gets_lost(
    accept: Any, cursors: Cursors, read: ShardRead, after: Cursors, placement: Placement
) -> Accepted:
    honest = accept(cursors, read, after, placement)
    return replace(honest, cursors=tuple(c for c in honest.cursors if not c.slots <= honest.moved))


@fault("simulation", "the epoch grows no later than the rows stop being readable at the source")
def rows_vanish_before_the_epoch_grows(patch: Patch) -> None:
    accept = cursor.accept_page
    late: list[Callable[[], None]] = []

    def struck_first(self: MemoryCluster, tablet_id: int) -> None:
        switch_now()
        move = self._moves.pop(tablet_id)
        self._catch_up(move)
        self._strike(move)
        late.append(lambda: self._switch(move))

    def switch_now() -> None:
        while late:
            late.pop()()

    def then_switched(*args: Any) -> Accepted:
        accepted = accept(*args)
        switch_now()
        return accepted

    def after_the_switch(honest: Callable[..., Any]) -> Callable[..., Any]:
        def later(*args: Any) -> Any:
            switch_now()
            return honest(*args)

        return later

    patch.setattr(MemoryCluster, "commit_move", struck_first)
    patch.setattr(driver, "accept_page", then_switched)
    # Only a page comes between the two steps.
    patch.setattr(Simulation, "_change", after_the_switch(Simulation._change))
    patch.setattr(MemoryCluster, "_at_rest", after_the_switch(MemoryCluster._at_rest))


# ------------------------------------------------------------------------------------- the store


@fault("programs", "a switch copies the last commits", style="compaction below movers")
@replacing(Mover, "_switch")
def switch_without_the_last_commits(honest: Any, self: Mover) -> None:
    self.copied_to = 1 << 40
    honest(self)


def replace_fragments(tx: Tx, table: int, slots: Mapping[int, SlotSet], copies: Iterable[Any]) -> None:
    """Replace fragments by others; `slots` are the slots that these serve from now on, by id."""
    changes = FileChanges(tuple(copies), slots=tuple(slots.items()))
    tx.append(FragmentsReplaced(table, compaction.COMPACT, changes))


def _strike(tx: Tx, shard: int, slots: SlotSet) -> None:
    """Remove some slots from the fragments at a shard."""
    for table in tx.state.infos():
        served = {fragment.id: fragment.slots for fragment in tx.state.fragments(table.id, shard)}
        left = {number: own - slots for number, own in served.items() if not own.isdisjoint(slots)}
        replace_fragments(tx, table.id, left, ())


@fault("programs", "striking the source and growing the epoch are one record")
@replacing(Mover, "_switch")
def strike_in_a_transaction_of_its_own(honest: Any, self: Mover) -> None:
    with self._context.catalog.writing() as tx:
        self._copy(self._sources(tx), tx.state.commit, self._destination())
        _strike(tx, self.move.source, self.tablet.slots)
    self._sync_point("struck")
    honest(self)


def _with_the_layout_before(patch: Patch, is_hidden: Callable[[Any], bool]) -> None:
    """Let some records not change the layout; the stores that programs copy have no such records."""

    def silently(honest: Any, before: Any, entry: Any, record: Any) -> Any:
        after = honest(before, entry, record)
        return replace(after, layout=before.layout) if is_hidden(record) else after

    replacing((transaction, catalogs, checkpoints), "apply")(silently)(patch)


def _copying_with(patch: Patch, keep: Callable[[Keep, Bounds], Keep]) -> None:

    def careless(source: PageSource, slots: SlotSet, bounds: Bounds, given: Keep, to: Destination) -> Any:
        return copy_slots(source, slots, bounds, keep(given, bounds), to)

    patch.setattr(mover, "copy_slots", careless)


@fault("programs", "a mover carries tombstones", style="compaction below movers")
@replacing(copying, "_retained")
def mover_forgets_tombstones(honest: Any, versions: Any, *of: Any) -> Any:
    return honest(versions, *of) & ~versions.deleted[versions.order]


@fault("programs", "compaction keeps what a leased snapshot needs", style="leases")
def compaction_ignores_leases(patch: Patch) -> None:
    patch.setattr(compaction, "oldest_held", lambda tx, table: None)
    patch.setattr(compaction, "_retained", lambda tx, seconds: tx.state.commit)


@fault("programs", "a tombstone stays as long as an older version of its row does", "compaction below movers")
@replacing(compaction, "copy_slots")
def compaction_drops_needed_tombstones(
    _: Any, source: PageSource, slots: SlotSet, bounds: Bounds, keep: Keep, to: Destination
) -> Any:
    with pytest.MonkeyPatch.context() as inner:
        mover_forgets_tombstones(inner)
        return copy_slots(source, slots, bounds, keep, to)


def _keeping(patch: Patch, change: Callable[[Keep], Keep]) -> None:
    honest = compaction.keep_for
    patch.setattr(compaction, "keep_for", lambda *args: change(honest(*args)))


@fault("programs", "a merge keeps the versions of all snapshots that are kept", style="merges of some")
def partial_merge_forgets_snapshots(patch: Patch) -> None:
    unchecked(patch, HorizonRaised)
    _keeping(patch, lambda keep: replace(keep, horizon=keep.horizon + 1))


@fault("programs", "a merge whose sources another process merged meanwhile changes nothing", style="keepers")
@replacing(compaction.Merging, "_enter")
def merge_outlives_its_owner(enter: Any, merging: Any, tx: Tx, copies: Any) -> Any:
    there = {fragment.id for fragment in tx.state.fragments(table=merging.table.id)}
    if merging.commits or there & {fragment.id for fragment in merging.fragments}:
        return enter(merging, tx, copies)
    for shard, slots in merging.targets.items():
        whole = compaction.with_runs(merging.context, merging.table, tx.state, copies.pop(shard))
        merged = slots & tx.state.placement.at(shard)
        replace_fragments(tx, merging.table.id, {}, [c.serving(merged) for c in whole])
    return compaction.Merged(added=len(whole))


@fault("programs", "a merge of some slots leaves the others to its sources", style="keepers")
@replacing(compaction.Merging, "_swap")
def merges_in_pieces_take_all(swap: Swap, merging: Any, tx: Tx, copies: Any, slots: SlotSet) -> Any:
    merged = swap(merging, tx, copies, slots)
    left = {fragment.id for fragment in tx.state.fragments(table=merging.table.id)}
    if not merging.commits and (merged.gone or merged.added):
        rest = {f.id: SlotSet() for f in merging.fragments if f.id in left}
        replace_fragments(tx, merging.table.id, rest, ())
    return merged


@fault("programs", "a stage of a merge keeps tombstones for the stages after it", style="keepers")
@replacing(compaction.Merging, "_copy")
def stages_drop_tombstones(honest: Any, self: Any, shard: int, some: Any, replaced: Any, keep: Keep) -> Any:
    is_a_stage = replaced is some
    return honest(self, shard, some, replaced, replace(keep, drop_tombstones=True) if is_a_stage else keep)


@fault("programs", "an expired snapshot is refused even when its table is known already", style="leases")
def expired_snapshot_is_read(patch: Patch) -> None:
    patch.setattr(lookups.KnownTable, "serves", lambda self, snapshot, *_: snapshot <= self.last_commit)
    patch.setattr(StoreState, "check_snapshot", lambda self, table, snapshot: None)


@fault("programs", "a placement is used only while it is the newest one")
def placement_is_cached_for_ever(patch: Patch) -> None:
    placement, first = Context.placement, dict[Context, Placement]()

    def stale(self: Context) -> Placement:
        return first.setdefault(self, placement(self))

    patch.setattr(Context, "placement", stale)


@fault("programs", "a cached list of fragments is used only while the layout is the same")
@replacing(Context, "table_state")
def fragments_are_cached_for_ever(
    honest: Any, self: Context, table: int, snapshot: int | None = None, *asked: Any, **more: Any
) -> Any:
    known = self._tables.get(table)
    if snapshot is not None and known is not None and known.serves(snapshot, *asked[:1]):
        return known
    return honest(self, table, snapshot, *asked, **more)


@fault("programs", "a page of files begins beyond its position")
def page_begins_at_its_position(patch: Patch) -> None:

    def inclusive(cursors: Any) -> list[Piece]:
        return [p._replace(low=p.low[:-1]) for p in pieces_of(cursors)]

    patch.setattr(pages, "pieces_of", inclusive)


@fault("programs", "a mover whose move was taken over stops")
@replacing(mover, "transition", let=lambda patch: unchecked(patch, MoveSwitched))
def zombie_mover_goes_on(honest: Any, tx: Tx, move: Move, owner: str, event: Event) -> Move:
    return honest(tx, move, owner, event) or replace(move, phase=_phase_after(event))


@fault("programs", "every phase of a move is written down, by its table", style="compaction below movers")
@replacing((mover, elasticity, owners), "transition")
def phases_of_moves_are_not_written(_: Any, tx: Tx, move: Move, owner: str, event: Event) -> Move | None:
    there = owners.move_of(tx, move.tablet)
    if there is None or there.owner != owner:
        return None
    after = replace(move, phase=_phase_after(event))
    if after.is_over:
        tx.remove_lease(OwnedMove, str(move.tablet))
    return after


def _phase_after(event: Event) -> Phase:
    """The phase that a mover assumes without reading the catalog."""
    return {
        Event.START_COPY: Phase.COPYING,
        Event.COPIED: Phase.CAUGHT_UP,
        Event.SWITCHED: Phase.TARGET_SERVES,
    }.get(event, Phase.UNDONE)


@fault("programs", "a move that failed leaves everything as it was")
@replacing(Mover, "_undo")
def failed_move_strikes_the_source(honest: Any, self: Mover) -> bool:
    with contextlib.suppress(Exception), self._context.catalog.writing() as tx:
        _strike(tx, self.move.source, self.tablet.slots)
    return bool(honest(self))


# ------------------------------------------------------------------------------- secondary indexes


@fault("programs", "an index is ready once every fragment has its runs", style="builds alongside changes")
def index_is_ready_around_its_table(patch: Patch) -> None:
    honest = indexing.transition_index

    def hasty(tx: Tx, index: IndexInfo, phase: IndexPhase) -> IndexInfo:
        return honest(tx, index, IndexPhase.READY if phase is IndexPhase.BUILDING else phase)

    indexes_may_be_unfinished(patch)
    patch.setattr(indexing, "transition_index", hasty)


@fault("programs", "runs are garbage only when nothing refers to them", style="builds alongside changes")
@replacing(StoreState, "known_paths")
def garbage_collection_takes_runs(honest: Any, self: StoreState) -> frozenset[tuple[int, str]]:
    runs = {run.path for run in self.runs()}
    return frozenset((shard, path) for shard, path in honest(self) if path not in runs)


@fault("programs", "entries serve only the slots of their fragment")
@replacing(index_pages.DirectedRun, "__init__")
def entries_of_tablets_that_left_count(honest: Any, self: Any, fragment: Any, run: Any, *rest: Any) -> None:
    honest(self, replace(fragment, slots=SlotSet.span(0, 64)), run, *rest)
    self.fragment = fragment


@fault("programs", "versions in other fragments hide an entry")
@replacing(index_pages, "find_newest")
def other_fragments_are_not_asked(honest: Any, sought: Any, fragments: Any, bounds: Any, known: Any) -> Any:
    found = honest(sought, fragments, bounds, known)
    rows = np.where(found.fragment_numbers == known.fragment_numbers, found.rows, known.rows)
    return replace(known, rows=rows)


@fault("programs", "in a page of an index each slot goes on behind its own position")
@found_by("merged scans alongside movers")
@replacing(index_pages.DirectedRun, "selects")
def slots_go_on_behind_the_lowest_position(_: Any, self: Any, entries: Any, slots: Any) -> Any:
    firsts = self._firsts[np.minimum(slots, len(self._firsts) - 1)]
    return firsts < self.reader.entry_count


# ------------------------------------------------------------------------------------- reads by key


@fault("programs", "rows that are read by key are read again where their slots moved", style="by key")
@replacing(rows_by_key, "read_by_key")
def moved_rows_are_not_got(honest: Any, request: Any, placement: Placement, _: Any, shards: Any) -> Any:
    class Once:
        def current(self) -> Placement:
            return placement

    return honest(replace(request, layout=None), placement, Once(), shards)


@fault("programs", "older fragments are asked for keys that the newest does not have", style="by key")
@replacing(point_reads, "find_newest")
def only_the_newest_fragment_is_asked_for_keys(
    honest: Any, sought: Any, fragments: Sequence[Fragment], *rest: Any
) -> Any:
    first = max(range(len(fragments)), key=lambda number: fragments[number].max_commit, default=0)
    found = honest(sought, fragments[first : first + 1], *rest)
    return replace(found, fragment_numbers=np.where(found.fragment_numbers >= 0, first, -1))


@fault("programs", "the key of a merged scan says how far rows have left, not how far they were read")
@found_by("merged scans alongside movers")
@replacing(sorted_scan._Pool, "take")
def merged_key_is_ahead_of_its_rows(honest: Any, self: Any, count: int, page_bytes: int) -> Any:
    rows, slots, last = honest(self, count, page_bytes)
    waiting = self._rows.num_rows
    return rows, slots, self._key.at(self._rows, waiting - 1) if waiting and last else last


@fault("programs", "a fragment that cannot match is read all the same where it may hide an older row")
def newer_fragments_are_passed_over(patch: Patch) -> None:
    honest = pages._read_merged

    def hasty(source: PageSource, page: Any, fragments: Any, *rest: Any) -> Any:
        kept = page.pruner.matching(fragments, SlotSet()) if page.pruner else fragments
        return honest(source, page, kept, *rest)

    patch.setattr(pages, "_read_merged", hasty)
    patch.setattr(pages, "sorted_batches_of", lambda *_: None)  # then all rows are merged


@fault("programs", "NOT leaves what is null unknown")
@replacing(value_sets._ColumnMeaning, "truth")
def not_takes_nulls_for_matches(honest: Any, self: Any, node: Any) -> Any:
    found = honest(self, node)
    return replace(found, true=found.true | NULLS, null=NOTHING) if node.op == "NOT" else found


@fault("programs", "a scan whose index was dropped ends, even if there is one of the same name")
def dropped_index_is_read_on(patch: Patch) -> None:
    honest, known = lookups.KnownTable.index, {}

    def remembering(self: Any, index_id: int) -> Any:
        with contextlib.suppress(TableChanged):
            known[index_id] = honest(self, index_id)
        return known.get(index_id) or honest(self, index_id)

    patch.setattr(lookups.KnownTable, "index", remembering)
    patch.setattr(lookups.KnownTable, "runs", lambda self, f, index: self._runs.get((f.id, index.id), []))


# ------------------------------------------------------------------------------- columns that come later


@fault("programs", "a column that a fragment lacks is null in all of its rows")
@replacing(fragment.FragmentReader, "_nulls_of")
def missing_columns_have_a_default(_: Any, self: Any, field: pa.Field, count: int) -> pa.Array:
    return (
        pa.array([0] * count)
        .cast(pa.string() if "binary" in str(field.type) else field.type)
        .cast(field.type)
    )


@fault("programs", "a fragment that lacks a column of its table is not damaged")
@replacing(fragment.FragmentReader, "_missing_field")
def missing_columns_are_damage(__: Any, self: Any, name: str, *_: Any) -> None:
    raise ValueError(f"it has no column {name!r}")


@fault("scenarios", "a merge copies all columns that its fragments may have, also those added since it began")
@found_by("test_a_merge_that_began_before_a_column_copies_its_values")
def compaction_with_an_old_definition(patch: Patch) -> None:
    merge, begun = compaction.compact, [pa.schema([])]

    def remembering(known: Context, table: TableInfo) -> int:
        begun.append(table.schema)
        try:
            return merge(known, table)
        finally:
            begun.pop()

    def of_then(table: TableInfo, *rest: Any, **more: Any) -> PageSource:
        then = replace(table, schema=begun[-1] if begun[-1].names else table.schema)
        return PageSource(then, *rest, **more)

    patch.setattr(compaction, "compact", remembering)
    patch.setattr(compaction, "PageSource", of_then)


@fault("programs", "a name that was dropped and comes again is another column", style="columns change")
@replacing(definitions, "new_column")
def dropped_columns_come_back(honest: Any, columns: Any, field: pa.Field, definition: int) -> Any:
    return replace(honest(columns, field, definition), stored=field.name)


@fault("programs", "an open file gives the columns of one definition", style="columns change")
@replacing(lookups.LruCache, "get")
def readers_are_of_any_definition(honest: Any, self: Any, key: Any, make: Any, weight: int = 1) -> Any:
    is_fragment = isinstance(key, tuple) and len(key) == 5 and isinstance(key[2], tuple)
    return honest(self, key[:3] if is_fragment else key, make, weight)


# ---------------------------------------------------------------------------- writes that check


@fault("programs", "a check begins at the commit that the rows were read at", style="writes that check")
@replacing(KeyCheck, "compare")
def checks_begin_at_the_wrong_snapshot(honest: Any, self: KeyCheck, tx: Tx, staged: Any) -> None:
    if self._since is not None and not _is_committing(self):
        self._checked_to = tx.state.commit
    honest(self, tx, staged)


def _is_committing(check: KeyCheck) -> bool:
    return check._context.catalog.home.in_transaction


@fault("programs", "an overwrite changes the rows that it removes", style="writes that check")
@replacing(KeyCheck, "_known_table")
def overwrites_remove_unseen(honest: Any, self: KeyCheck, tx: Tx) -> Any:
    seen = copy(honest(self, tx))
    seen._overwrites = seen._overwrites if self._since is None else ()
    return seen


@fault("programs", "rows that meet a condition are written only if no other commit changed them")
@found_by("writes that check")
def rows_by_condition_are_not_checked(patch: Patch) -> None:
    @contextlib.contextmanager
    def unchecked(*_: Any) -> Iterator[None]:
        yield None

    patch.setattr(publishing, "unchanged", unchecked)


# Rules that one function keeps, and the replacement of that function.
in_simulation = Finder("simulation")
in_simulation.rule("rows of slots that moved while a page was read never leave").sets(
    driver, "drop_moved", lambda page, moved: page
)
in_simulation.rule("slots that a shard refuses keep their position").sets(
    driver, "remaining", lambda _, page: page.after
)
in_simulation.rule("a page holds rows beyond the position, not at it").sets(
    memory, "_is_beyond", lambda order, position: position is None or order >= position
)
in_simulation.rule("the placement of slots is looked up for each page, never cached").sets(
    MemoryCluster, "current", lambda self: self.__dict__.setdefault("_first", self._placement)
)
in_simulation.rule("a switch carries what was committed since the copy").gives(MemoryCluster, "_catch_up")
in_simulation.rule("a slot is finished only when its shard has no more rows of it").alters(
    driver,
    "accept_page",
    lambda accept, cursors, read, after, now: accept(
        cursors, read, tuple(c for c in after if c.position is None), now
    ),
)
in_simulation.rule("a continuation key keeps every position").alters(
    keys,
    "pack",
    lambda honest, key, end: honest(replace(key, cursors=tuple(Cursor(c.slots) for c in key.cursors)), end),
)
in_simulation.rule("a move carries deletions").alters(
    MemoryCluster,
    "_copy",
    lambda honest, *of: {key: [v for v in some if v[1] is not None] for key, some in honest(*of).items()},
)
in_simulation.rule("a move carries every version that a scan may still need").alters(
    MemoryCluster, "_copy", lambda honest, *of: {key: versions[-1:] for key, versions in honest(*of).items()}
)
in_programs = Finder("programs")
in_programs.rule("fragments of the source no longer serve a tablet that left").sets(
    fold, "without_moved_slots", lambda table, record, since: table
)
in_programs.rule("the layout grows with every move").plants(
    _with_the_layout_before, lambda record: isinstance(record, MoveSwitched)
)
in_programs.rule("a mover carries old versions").plants(
    _copying_with, lambda keep, bounds: replace(keep, horizon=bounds.snapshot)
)
in_programs.rule("a scan reads at its snapshot").sets(
    PageSource, "bounds", lambda self, snapshot: Bounds(self.floor, 1 << 40, since=1 << 40)
)
in_programs.rule("an overwrite hides all rows before it").gives(lookups.KnownTable, "floor", 0)
in_programs.rule("only a file that nothing refers to is garbage").gives(
    StoreState, "known_paths", frozenset()
)
in_programs.rule("a mover's copy is still there when the target begins to serve").gives(
    Context, "check_not_collected"
)
in_programs.rule("a descending position is an inverted key").sets(index_pages, "inverted", lambda key: key)
in_programs.rule("a condition is checked again unless the ranges of the index say all of it").sets(
    access, "value_set", lambda *args: replace(value_sets.value_set(*args), exact=True)
)
in_programs.rule("a cached definition of a table is read again when the table gained a column").plants(
    _with_the_layout_before, lambda record: isinstance(record, TableDefined) and record.made_from > 0
)
# Rows go to the shards that have their slots just before the commit; others act only while keys are compared.
Finder("programs", "writes that check").rule(
    "a commit requires that each fragment lies where its slots live"
).gives(publishing, "_in_place", True, let=files_may_lie_anywhere)
in_programs.rule("an entry counts only if its row is the newest at the snapshot").sets(
    index_pages, "find_newest", lambda sought, fragments, bounds, known: known
)
Finder("programs", "leases").rule("compaction checks the leases again in the transaction that swaps").gives(
    compaction, "oldest_held"
)
movers = Finder("programs", "compaction below movers")
movers.rule("compaction leaves alone what a mover is copying").gives(compaction, "being_copied", SlotSet())
movers.rule("later rounds of a move do not turn its tombstones into history").sets(
    mover, "Keep", lambda floor, complete: Keep(floor=floor, complete=True)
)
movers.rule("a compacted fragment serves no slot that left meanwhile").alters(
    compaction.Merging,
    "_still_served",
    lambda _, self, tx: self.targets,
    let=files_may_lie_anywhere,
)
merges = Finder("programs", "merges of some")
merges.rule("a merge drops a tombstone only if all fragments that may hold the deleted row take part").plants(
    _keeping, lambda keep: replace(keep, drop_tombstones=True)
)
merges.rule("a tombstone that hides rows of other fragments is no history").plants(
    _keeping, lambda keep: replace(keep, complete=True)
)
merges.rule("history is read by all snapshots before the first without it").alters(
    Fragment, "is_needed_at", lambda honest, self, snapshot: honest(self, snapshot + 1)
)
Finder("programs", "builds alongside changes").rule(
    "runs that garbage collection removed meanwhile are not entered"
).gives(indexing, "_exist", True)
by_key = Finder("programs", "by key")
by_key.rule("a filter has every key of its fragment").alters(
    KeyFilter, "may_have", lambda honest, self, hashes, keys: honest(self, hashes, islice(keys, 1, None))
)
by_key.rule("the slots of a condition are the ones that its values hash to").alters(
    access, "slots_of", lambda honest, columns, slots: (honest(columns, slots) + 1) % slots
)
by_key.rule("a range of keys without an end goes to the end of its slot").alters(
    ranges,
    "_extent",
    lambda honest, *of: (honest(*of)[0], max(honest(*of)[0], honest(*of)[1] - (of[-1] is None))),
)
merged = Finder("programs", "merged scans alongside movers")
merged.rule("a row of a merged scan leaves when no shard can come up with a lower one").sets(
    sorted_scan._Pool, "ready", lambda self, ahead: 0 if self._rows is None else len(self._rows)
)
merged.rule("slots are not done while rows of theirs wait in the pool").sets(
    sorted_scan._Pool, "slots", SlotSet()
)
merged.rule("rows of tablets that moved while a shard was read do not enter the pool").sets(
    driver, "drop_moved", lambda page, moved: page
)
columns = Finder("programs", "columns change")
columns.rule("a scan goes on with the columns that it began with").alters(
    scan, "PageRequest", lambda honest, **asked: honest(**(asked | {"definition": None}))
)
columns.rule("copies keep dropped columns while older scans may read them").sets(
    TableInfo, "with_dropped", lambda self, oldest: self
)
checking = Finder("programs", "writes that check")
checking.rule("commits made since the comparison are compared, too").alters(
    KeyCheck, "compare", lambda honest, self, *of: None if _is_committing(self) else honest(self, *of)
)
checking.rule("a deleted key is free for an insert").alters(
    preconditions, "shared_keys", lambda honest, *arguments: honest(*arguments[:3])
)
Finder("scenarios", "test_a_writer_behind_and_a_compactor_ahead_take_no_snapshot_away").rule(
    "times of commits grow with their numbers"
).sets(transaction, "time_after", lambda _, clock: clock)
undone = Finder("scenarios", "test_a_move_that_could_not_be_undone_is_taken_up_by_whoever_comes_next")
undone.rule("undoing a move is tried again while the catalog is away").sets(mover, "UNDO_WAITS_SECONDS", ())
undone.rule("a move belongs to a running operation, not to a process that is alive").gives(owners, "retire")
Finder("log").rule("a record of a move lets the epoch grow").alters(
    (fold, checks), "moved_tablet", lambda _, record: replace(record.tablet, shard=record.target)
)
keepers = Finder("programs", "keepers")
keepers.rule("a merged fragment tells the oldest commit that it holds").alters(
    compaction.Merging,
    "_swap",
    lambda swap, merging, tx, copies, slots: swap(
        merging, tx, [replace(c, min_commit=c.max_commit) for c in copies], slots
    ),
)
keepers.rule("a tag keeps its snapshot").gives(compaction, "_tagged", [], let=horizons_may_pass_tags)
keepers.rule("the steps of keepers that died are taken over").alters(
    (owners, executor),
    "owner_is_gone",
    lambda honest, owned, now: isinstance(owned, OwnedMove) and honest(owned, now),
)
keepers.rule("a keeper removes no file before its grace is over").alters(
    executor, "GarbageRules", lambda honest: honest(grace_seconds=0, orphan_seconds=0, share=1.0)
)
Finder("programs", "builds alongside changes").rule(
    "an index is used only when every fragment has its entries"
).gives(indexing, "without_runs", [], let=indexes_may_be_unfinished)
Finder("scenarios", "test_a_store_answers_as_the_transcript_says[index_made_meanwhile]").rule(
    "a commit brings the entries of all indexes there are"
).gives(publishing, "missing_runs", False, let=files_may_lack_runs)
Finder("programs", "index scans alongside movers").rule(
    "a tablet takes its entries along when it moves"
).alters(mover, "with_runs", lambda _, context, table, state, copies: list(copies), let=files_may_lack_runs)
Finder("scenarios", "test_a_writer_behind_and_a_compactor_ahead_take_no_snapshot_away").rule(
    "one clock far ahead is ignored"
).alters((fold, transaction), "observe", lambda _, belief, clock: Belief(max(belief.accepted_at, clock)))
