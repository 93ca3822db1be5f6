"""Carries one move out: copy, catch up, switch in one transaction.

The phases are those of `elasticscan.topology.moves`. The source serves until the switch and the
target after it, so a process that dies at any point leaves the tablet served from one place; the
target's half-made copy is a file that nothing refers to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from elasticscan.base.errors import (
    CommitUnknown,
    ElasticScanError,
    InvalidTopologyChange,
    NotFound,
    OperatorNeeded,
    TryAgain,
)
from elasticscan.catalog import Tx, append_topology, retry_interrupted
from elasticscan.metadata import Bounds, FileChanges, Fragment, MoveSwitched
from elasticscan.storage import Apart, Copied, Destination, Keep, PageSource, View, copy_slots, discard
from elasticscan.store.context import Checkpoint, Context
from elasticscan.store.moves.under_way import move_of, transition
from elasticscan.store.writing.entering import added
from elasticscan.store.writing.indexing import indexed
from elasticscan.topology import Event, Move, SlotSet, Tablet

SMALL_REST_ROWS = 20_000  # what the switch may copy while writers wait
MOST_ROUNDS = 6
# How long to wait before each further attempt to undo a move, if the catalog is away.
UNDO_WAITS_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0)

T = TypeVar("T")


# A table's rows of a tablet, of which commits they are, and which of their versions stay.
_TabletRows: TypeAlias = tuple[PageSource, Bounds, Keep]


@dataclass(slots=True)
class _Progress:
    """The progress of a move: its phase as the catalog knows it, and what was copied."""

    move: Move
    tablet: Tablet
    copied_to: int = 0
    copies: list[tuple[int, Copied]] = field(default_factory=list)


class Mover:
    """Moves tablets for one owner. Several threads may share one.

    Args:
        context: the store.
        owner: as from `owning`; the rows of `moves` with this owner are ours.
        bytes_per_second: upper bound on how fast one move copies, to spare the disks; None for
            no bound.
        checkpoint: see `Checkpoint`.
    """

    def __init__(
        self,
        context: Context,
        owner: str,
        bytes_per_second: float | None = None,
        checkpoint: Checkpoint = lambda _: None,
    ) -> None:
        self._context, self.owner = context, owner
        self._bytes_per_second, self._checkpoint = bytes_per_second, checkpoint

    def carry_out(self, move: Move) -> None:
        """Move a tablet whose move was planned for this owner.

        On any error the move is undone: the source goes on serving, the copy is removed. If the catalog
        stays away meanwhile, `resume_moves` does that, once the owner has retired.
        """
        try:
            with self._context.catalog.reading() as tx:
                progress = _Progress(move, tx.state.tablet(move.tablet))
        except BaseException:
            # Nothing was begun.
            when_possible(self._context, lambda tx: transition(tx, move, self.owner, Event.FAILED))
            raise
        try:
            if progress.tablet.shard != move.server:
                raise InvalidTopologyChange(
                    f"tablet {move.tablet} is not at shard {move.source} any more; plan the move again",
                    tablet=move.tablet,
                )
            with self._context.noticing_collection():
                self._copy_and_switch(progress)
        except CommitUnknown:
            if not self._undo(progress):  # else the switch was committed, though its answer was lost
                raise
        except BaseException as error:
            self._undo(progress)
            if isinstance(error, OperatorNeeded):
                self._check_still_shards(move, error)
            raise

    def _check_still_shards(self, move: Move, error: OperatorNeeded) -> None:
        """Raise in place of what a disk says which is none of the store's any more."""
        for shard in (move.source, move.target):
            if self._context.has_left(shard):
                raise InvalidTopologyChange(
                    f"shard {shard} left the store while tablet {move.tablet} was being moved from or to it; "
                    "plan the move again",
                    tablet=move.tablet,
                    shard=shard,
                ) from error

    def _copy_and_switch(self, progress: _Progress) -> None:
        # The source's files become garbage, and the target may have no files yet: so both roots are checked.
        for shard in (progress.move.source, progress.move.target):
            self._context.writable_disk(shard)
        self._advance(progress, Event.START_COPY)
        for _ in range(MOST_ROUNDS):
            self._copy_round(progress)
            if self._rest_rows(progress) <= SMALL_REST_ROWS:
                break
            self._advance(progress, Event.MORE_COMMITS)
        self._advance(progress, Event.COPIED)
        self._switch(progress)

    @retry_interrupted
    def _advance(self, progress: _Progress, event: Event) -> None:
        with self._context.catalog.writing() as tx:
            after = transition(tx, progress.move, self.owner, event)
            if after is None:
                raise InvalidTopologyChange(
                    f"the move of tablet {progress.move.tablet} was taken over by another process",
                    tablet=progress.move.tablet,
                )
        progress.move = after
        self._checkpoint(str(after.phase))

    def _copy_round(self, progress: _Progress) -> None:
        """Copy what was committed since the last round."""
        sources, upto = self._due(progress)
        started = self._context.clock.now()
        copied = self._copy(progress, sources, upto, self._destination(progress))
        self._checkpoint("copied")
        if self._bytes_per_second:
            due = started + copied / self._bytes_per_second
            self._context.clock.sleep(max(0.0, due - self._context.clock.now()))

    @retry_interrupted
    def _due(self, progress: _Progress) -> tuple[list[_TabletRows], int]:
        with self._context.catalog.reading() as tx:
            upto = tx.state.commit
            return _sources(self._context, tx, progress, upto), upto

    def _destination(self, progress: _Progress) -> Destination:
        target = progress.move.target
        return Destination(self._context.writable_disk(target), target, self._context.origin("move"))

    def _copy(self, progress: _Progress, sources: list[_TabletRows], upto: int, to: Destination) -> int:
        size = 0
        for source, bounds, keep in sources:
            copies = copy_slots(source, progress.tablet.slots, bounds, keep, to)
            first = len(progress.copies)
            # From here on they are removed if their runs cannot be built.
            progress.copies += [(source.table.id, copied) for copied in copies]
            indexes = self._context.state().indexes(source.table.id)
            copies = indexed(self._context, source.table, indexes, copies)
            progress.copies[first:] = [(source.table.id, copied) for copied in copies]
            size += sum(c.staged.bytes + sum(run.bytes for run in c.staged.runs) for c in copies)
        progress.copied_to = upto
        return size

    @retry_interrupted
    def _rest_rows(self, progress: _Progress) -> int:
        """Count how many rows were committed near the tablet since the last round, at most."""
        with self._context.catalog.reading() as tx:
            if tx.state.commit <= progress.copied_to:
                return 0
            fragments = tx.state.fragments(shard=progress.move.source)
        slots = progress.tablet.slots
        return sum(f.rows for f in fragments if f.max_commit > progress.copied_to and f.slots & slots)

    @retry_interrupted
    def _switch(self, progress: _Progress) -> None:
        """Let the target serve: new epoch, its fragments in, the source's out, in one transaction.

        The last commits are copied inside it. No writer can commit meanwhile, so a row that the
        source accepted is at the target, or its writer has to route again. Where it begins again, what was
        copied inside it is there: no commit is taken back.
        """
        move = progress.move
        to = self._destination(progress)  # before the transaction: it may have to ask the catalog
        with self._context.catalog.writing() as tx:
            self._check_still_right(tx, progress)
            upto = tx.state.commit
            if upto > progress.copied_to:
                self._copy(progress, _sources(self._context, tx, progress, upto), upto, to)
            self._context.check_not_collected(tx, (copied.staged for _, copied in progress.copies))
            self._checkpoint("switching")
            files = dict[int, FileChanges]()
            for table in tx.state.infos({of for of, _ in progress.copies}):  # else it was dropped
                copies = [copied for of, copied in progress.copies if of == table.id]
                copies = indexed(self._context, table, tx.state.indexes(table.id), copies)
                entering = [(c.staged, c.min_commit, c.max_commit) for c in copies]
                files[table.id] = FileChanges(added(tx.state, entering))
            tx.append(MoveSwitched(progress.tablet, move.target, tx.state.number, files))
            reason = f"tablet {move.tablet} moved from shard {move.source} to {move.target}"
            append_topology(tx, reason, published=False)
            after = transition(tx, move, self.owner, Event.SWITCHED)
            assert after is not None
        progress.move = after
        self._context.roots.note_newest((move.source,))
        self._checkpoint(str(after.phase))

    def _check_still_right(self, tx: Tx, progress: _Progress) -> None:
        row, target = move_of(tx, progress.move.tablet), tx.state.shards.get(progress.move.target)
        if (
            row is None
            or row.owner != self.owner
            or tx.state.tablet(progress.move.tablet) != progress.tablet
            or target is None
            or target.draining
        ):
            raise InvalidTopologyChange(
                f"tablet {progress.move.tablet} or its target changed while it was being moved; "
                "plan the move again",
                tablet=progress.move.tablet,
            )

    def _undo(self, progress: _Progress) -> bool:
        """Let the source go on serving; true if the target serves, which cannot be undone.

        Files go last, and only when it is known that the catalog does not refer to them.
        """
        move = progress.move
        if move.server == move.target:
            return True

        def has_switched(tx: Tx) -> bool:
            return transition(tx, move, self.owner, Event.FAILED) is None and _has_switched(tx, progress)

        switched = when_possible(self._context, has_switched)
        if switched is False:
            discard([copied.staged for _, copied in progress.copies], self._context.disk_of)
        return bool(switched)


def when_possible(context: Context, work: Callable[[Tx], T]) -> T | None:
    """Return what a transaction gives, as soon as the catalog can be asked; None if it stays away."""
    for wait in (*UNDO_WAITS_SECONDS, None):
        try:
            with context.catalog.writing() as tx:
                return work(tx)
        except TryAgain:
            if wait is not None:
                context.clock.sleep(wait)
        except ElasticScanError:
            return None
    return None


def _has_switched(tx: Tx, progress: _Progress) -> bool:
    """Return whether the answer to a switch was lost, but not the switch: nothing else grows an epoch so."""
    try:
        now = tx.state.tablet(progress.move.tablet)
    except NotFound:  # it was split or joined since, after a switch or after an adoption
        files = {(progress.move.target, copied.staged.path) for _, copied in progress.copies}
        return bool(files & tx.state.known_paths())
    return (now.shard, now.epoch) == (progress.move.target, progress.tablet.epoch + 1)


def _sources(context: Context, tx: Tx, progress: _Progress, upto: int) -> list[_TabletRows]:
    """Return the source's rows of the tablet, table by table, of commits not copied yet, up to the newest."""
    slots: SlotSet = progress.tablet.slots
    sources, here = list[_TabletRows](), dict[int, list[Fragment]]()
    for fragment in tx.state.fragments(shard=progress.move.source):
        here.setdefault(fragment.table, []).append(fragment)
    here = {table: found for table, found in here.items() if any(f.slots & slots for f in found)}
    for table in tx.state.infos(here):
        bounds = Bounds(progress.copied_to + 1, upto, since=table.oldest_snapshot)
        fragments = [f for f in here[table.id] if bounds.touch(f) and f.slots & slots]
        if fragments:
            floor = max(tx.state.overwrites(table.id), default=0)
            whole = table.with_dropped(table.oldest_snapshot)
            source = PageSource(
                whole, View(fragments), context.readers.opener(whole), floor, expect=context.readers.expect
            )
            in_files = all(commit.slots.isdisjoint(slots) for commit in tx.state.memory(table.id))
            # What the first round copies is all there is in files; a later one brings what is newer.
            keep = Keep(apart=Apart(floor, complete=in_files and not progress.copied_to))
            sources.append((source, bounds, keep))
    return sources
