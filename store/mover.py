"""Carries one move out: copy, catch up, switch in one transaction.

The phases are those of `elasticscan.topology.moves`. The source serves until the switch and the
target after it, so a process that dies at any point leaves the tablet served from one place; the
target's half-made copy is a file that nothing refers to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from elasticscan.base.errors import (
    CommitUnknown,
    ElasticScanError,
    InvalidTopologyChange,
    TabletNotFound,
    TryAgain,
)
from elasticscan.catalog import Tx
from elasticscan.metadata import Bounds
from elasticscan.storage import Copied, Destination, Keep, PageSource, View, copy_slots, discard
from elasticscan.store.context import Context
from elasticscan.store.indexing import with_runs
from elasticscan.topology import Event, MovePlan, Phase, SlotSet, Tablet, move_tablet

SMALL_REST_ROWS = 20_000  # what the switch may copy while writers wait
MOST_ROUNDS = 6
# How long to wait before each further attempt to undo a move, if the catalog is away.
UNDO_WAITS_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0)

# For tests: called with a point's name at each point where a mover could be killed.
Checkpoint = Callable[[str], None]


@dataclass(slots=True)
class _Progress:
    """One move under way."""

    plan: MovePlan
    tablet: Tablet
    phase: Phase
    copied_to: int = 0
    copies: list[tuple[int, Copied]] | None = None


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

    def carry_out(self, plan: MovePlan) -> None:
        """Move a tablet whose move was planned for this owner.

        On any error the move is undone: the source goes on serving, the copy is removed. If the catalog
        stays away meanwhile, whoever resumes moves does that, once the owner has retired.
        """
        move = _Progress(plan, self._look_up(plan), Phase.PLANNED, copies=[])
        tablet = move.tablet
        try:
            if tablet.shard != plan.source:
                raise InvalidTopologyChange(
                    f"tablet {plan.tablet} is not at shard {plan.source} any more; plan the move again",
                    tablet=plan.tablet,
                )
            with self._context.noticing_collection():
                self._copy_and_switch(move)
        except CommitUnknown:
            if not self._undo(move):  # else it was the switch, and it went through
                raise
        except BaseException:
            self._undo(move)
            raise

    def _look_up(self, plan: MovePlan) -> Tablet:
        try:
            with self._context.catalog.reading() as tx:
                return tx.tablet(plan.tablet)
        except BaseException:
            self._end(plan, lambda _: False)  # nothing was begun
            raise

    def _copy_and_switch(self, move: _Progress) -> None:
        # The source's files become garbage, the target's may be none yet: both have to be what they should.
        for shard in (move.plan.source, move.plan.target):
            self._context.writable_disk(shard)
        self._advance(move, Event.START_COPY)
        for _ in range(MOST_ROUNDS):
            self._copy_round(move)
            if self._rest_rows(move) <= SMALL_REST_ROWS:
                break
            self._advance(move, Event.MORE_COMMITS)
        self._advance(move, Event.COPIED)
        self._switch(move)

    def _advance(self, move: _Progress, event: Event) -> None:
        with self._context.catalog.writing() as tx:
            phase = tx.advance_move(move.plan.tablet, self.owner, event)
            if phase is None:
                raise InvalidTopologyChange(
                    f"the move of tablet {move.plan.tablet} was taken over by another process",
                    tablet=move.plan.tablet,
                )
        move.phase = phase
        self._checkpoint(str(move.phase))

    def _copy_round(self, move: _Progress) -> None:
        """Copy what was committed since the last round."""
        with self._context.catalog.reading() as tx:
            upto = tx.versions()[1]
            sources = _sources(self._context, tx, move, upto)
        started = self._context.clock.now()
        copied = self._copy(move, sources, upto)
        self._checkpoint("copied")
        if self._bytes_per_second:
            due = started + copied / self._bytes_per_second
            self._context.clock.sleep(max(0.0, due - self._context.clock.now()))

    def _copy(self, move: _Progress, sources: list[PageSource], upto: int) -> int:
        target = move.plan.target
        to = Destination(self._context.writable_disk(target), target, self._context.origin("move"))
        size = 0
        for source in sources:
            bounds = Bounds(move.copied_to + 1, upto)
            copied = copy_slots(source, move.tablet.slots, bounds, Keep(), to)
            if copied is not None:
                assert move.copies is not None
                move.copies.append((source.table.id, copied))  # so it is removed if its runs cannot be built
                indexes = self._context.indexes(source.table.id)
                (staged,) = with_runs(self._context, source.table, indexes, [copied.staged])
                move.copies[-1] = (source.table.id, replace(copied, staged=staged))
                size += staged.bytes + sum(run.bytes for run in staged.runs)
        move.copied_to = upto
        return size

    def _rest_rows(self, move: _Progress) -> int:
        """How many rows were committed near the tablet since the last round, at most."""
        with self._context.catalog.reading() as tx:
            found = tx.fragments(shard=move.plan.source)
        slots = move.tablet.slots
        return sum(f.rows for f in found if f.max_commit > move.copied_to and f.slots & slots)

    def _switch(self, move: _Progress) -> None:
        """The target serves: new epoch, its fragments in, the source's out, in one transaction.

        The last commits are copied inside it. No writer can commit meanwhile, so a row that the
        source accepted is at the target, or its writer is told to route again.
        """
        plan, slots = move.plan, move.tablet.slots
        with self._context.catalog.writing() as tx:
            self._check_still_right(tx, move)
            upto = tx.versions()[1]
            if upto > move.copied_to:
                self._copy(move, _sources(self._context, tx, move, upto), upto)
            self._context.check_not_collected(copied.staged for _, copied in move.copies or ())
            self._checkpoint("switching")
            placement = tx.placement()
            tx.replace_placement(
                placement, move_tablet(placement, plan.tablet, plan.target, move.tablet.epoch)
            )
            tx.strike_slots(plan.source, slots)
            for table_id, copied in move.copies or ():
                table = tx.table_by_id(table_id)
                if table is not None:
                    # An index may have been made since the copy; then its runs are still missing.
                    staged = with_runs(self._context, table, tx.indexes(table_id), [copied.staged])
                    tx.add_fragments(table_id, staged, copied.min_commit, copied.max_commit)
            after = tx.advance_move(plan.tablet, self.owner, Event.SWITCHED)
            assert after is Phase.TARGET_SERVES
        move.phase = after
        self._context.note_newest((plan.source, plan.target))
        self._checkpoint(str(move.phase))

    def _check_still_right(self, tx: Tx, move: _Progress) -> None:
        row = tx.move(move.plan.tablet)
        active = {shard.id for shard in tx.shards() if not shard.draining}
        if (
            row is None
            or row.owner != self.owner
            or tx.tablet(move.plan.tablet) != move.tablet
            or move.plan.target not in active
        ):
            raise InvalidTopologyChange(
                f"tablet {move.plan.tablet} or its target changed while it was being moved; "
                "plan the move again",
                tablet=move.plan.tablet,
            )

    def _undo(self, move: _Progress) -> bool:
        """Let the source go on serving; true if the target serves, which cannot be undone.

        Files go last, and only when it is known that the catalog does not refer to them.
        """
        if move.phase is Phase.TARGET_SERVES:
            return True
        switched = self._end(move.plan, lambda tx: _has_switched(tx, move))
        if switched is False:
            discard([copied.staged for _, copied in move.copies or ()], self._context.disk_of)
        return bool(switched)

    def _end(self, plan: MovePlan, has_switched: Callable[[Tx], bool]) -> bool | None:
        """End a move that failed, as soon as the catalog can be asked.

        Returns whether it went through all the same; None when nobody knows.
        """
        for wait in (*UNDO_WAITS_SECONDS, None):
            try:
                with self._context.catalog.writing() as tx:
                    ended = tx.advance_move(plan.tablet, self.owner, Event.FAILED)
                    return ended is None and has_switched(tx)
            except TryAgain:
                if wait is not None:
                    self._context.clock.sleep(wait)
            except ElasticScanError:
                return None
        return None


def _has_switched(tx: Tx, move: _Progress) -> bool:
    """Whether the answer to a switch was lost, but not the switch: nothing else grows an epoch so."""
    try:
        now = tx.tablet(move.plan.tablet)
    except TabletNotFound:  # it was split or joined since, after a switch or after an adoption
        files = {(move.plan.target, copied.staged.path) for _, copied in move.copies or ()}
        return bool(files & tx.known_paths())
    return (now.shard, now.epoch) == (move.plan.target, move.tablet.epoch + 1)


def _sources(context: Context, tx: Tx, move: _Progress, upto: int) -> list[PageSource]:
    """What the source holds of the tablet, table by table, of commits not copied yet."""
    wanted = Bounds(move.copied_to + 1, upto)
    slots: SlotSet = move.tablet.slots
    sources = []
    for table in tx.tables():
        here = tx.fragments(table=table.id, shard=move.plan.source)
        found = [f for f in here if wanted.touch(f) and f.slots & slots]
        if found:
            sources.append(PageSource(table, View(found), context.opener(table)))
    return sources
