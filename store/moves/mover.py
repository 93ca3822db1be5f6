"""Carries one move out: copy, catch up, switch in one transaction.

The phases are those of `elasticscan.topology.moves`. The source serves until the switch and the
target after it, so a process that dies at any point leaves the tablet served from one place; the
target's half-made copy is a file that nothing refers to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from elasticscan.base.errors import (
    CommitUnknown,
    ElasticScanError,
    InvalidCall,
    NotFound,
    OperatorNeeded,
    TryAgain,
)
from elasticscan.catalog import Tx, append_topology, retry_interrupted
from elasticscan.metadata import Bounds, FileChanges, MoveSwitched, StagedFragment
from elasticscan.storage import Destination, Keep, PageSource, View, copy_slots, discard
from elasticscan.store.context import Context, SyncPoint
from elasticscan.store.moves.owners import transition
from elasticscan.store.writing.indexing import with_runs
from elasticscan.topology import Event, Move, Tablet

SMALL_REST_ROWS = 20_000  # what the switch may copy while writers wait
MOST_ROUNDS = 6
# How long to wait before each further attempt to undo a move, if the catalog is away.
UNDO_WAITS_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0)

T = TypeVar("T")

# A table's rows of a tablet, of which commits they are, and which of their versions stay.
_TabletRows: TypeAlias = tuple[PageSource, Bounds, Keep]


class Mover:
    """Moves one tablet for its owner, with which the move was entered.

    Attributes:
        move: as the catalog knows it.
        tablet: as it was when the move began.
        copied_to: the commit up to which its rows were copied.
        copies: the files at the target, with their tables.
    """

    tablet: Tablet

    def __init__(
        self, context: Context, owner: str, move: Move, sync_point: SyncPoint = lambda _: None
    ) -> None:
        self._context, self.owner, self.move, self._sync_point = context, owner, move, sync_point
        self.copied_to = 0
        self.copies: list[tuple[int, StagedFragment]] = []

    def carry_out(self) -> None:
        """Move the tablet.

        On any error the move is undone: the source goes on serving, the copy is removed. If the catalog
        stays away meanwhile, `resume_moves` does that, once the owner has retired.
        """
        self.tablet = self._context.state().tablet(self.move.tablet)
        try:
            with self._context.noticing_collection():
                self._copy_and_switch()
        except CommitUnknown:
            if not self._undo():  # else the switch was committed, though its answer was lost
                raise
        except BaseException as error:
            self._undo()
            shards = (self.move.source, self.move.target) if isinstance(error, OperatorNeeded) else ()
            for shard in filter(self._context.has_left, shards):  # what its disk says is of no interest
                raise InvalidCall(
                    f"shard {shard} left the store while tablet {self.move.tablet} was being moved; "
                    "plan the move again",
                    tablet=self.move.tablet,
                    shard=shard,
                ) from error
            raise

    def _copy_and_switch(self) -> None:
        # The source's files become garbage, and the target may have no files yet: so both roots are checked.
        for shard in (self.move.source, self.move.target):
            self._context.writable_disk(shard)
        self._advance(Event.START_COPY)
        for _ in range(MOST_ROUNDS):
            sources, upto = self._context.ask(lambda tx: (self._sources(tx), tx.state.commit))
            self._copy(sources, upto, self._destination())
            self._sync_point("copied")
            if self._context.ask(self._rest_rows) <= SMALL_REST_ROWS:
                break
        self._advance(Event.COPIED)
        self._switch()

    @retry_interrupted
    def _advance(self, event: Event) -> None:
        with self._context.catalog.writing() as tx:
            after = self._after(tx, event)
        self.move = after
        self._sync_point(str(after.phase))

    def _after(self, tx: Tx, event: Event) -> Move:
        """Let something happen to the move. While it is ours, nothing else happens to its tablet."""
        after = transition(tx, self.move, self.owner, event)
        if after is None:
            raise InvalidCall(
                f"the move of tablet {self.move.tablet} was taken over by another process; plan it again",
                tablet=self.move.tablet,
            )
        return after

    def _destination(self) -> Destination:
        target = self.move.target
        return Destination(self._context.writable_disk(target), target, self._context.origin("move"))

    def _copy(self, sources: list[_TabletRows], upto: int, to: Destination) -> None:
        """Copy what was committed since the last round, up to a commit."""
        for source, bounds, keep in sources:
            copies = copy_slots(source, self.tablet.slots, bounds, keep, to)
            first = len(self.copies)
            # From here on they are removed if their runs cannot be built.
            self.copies += [(source.table.id, copied) for copied in copies]
            copies = with_runs(self._context, source.table, self._context.state(), copies)
            self.copies[first:] = [(source.table.id, copied) for copied in copies]
        self.copied_to = upto

    def _rest_rows(self, tx: Tx) -> int:
        """Count how many rows were committed near the tablet since the last round, at most."""
        fragments, slots = tx.state.fragments(shard=self.move.source), self.tablet.slots
        return sum(f.rows for f in fragments if f.max_commit > self.copied_to and f.slots & slots)

    def _sources(self, tx: Tx) -> list[_TabletRows]:
        """Return the source's rows of the tablet, table by table, of commits not copied yet."""
        slots, sources, readers = self.tablet.slots, list[_TabletRows](), self._context.readers
        for table in tx.state.infos():
            bounds = Bounds(self.copied_to + 1, tx.state.commit, since=table.oldest_snapshot)
            here = tx.state.fragments(table.id, self.move.source)
            fragments = [f for f in here if f.slots & slots and bounds.touch(f)]
            if fragments:
                whole = table.with_dropped(table.oldest_snapshot)
                source = PageSource(whole, View(fragments), readers.opener(whole), prefetch=readers.prefetch)
                in_files = all(commit.slots.isdisjoint(slots) for commit in tx.state.memory(table.id))
                floor = max(tx.state.overwrites(table.id), default=0)
                # What the first round copies is all there is in files; a later one brings what is newer.
                keep = Keep(floor=floor, complete=in_files and not self.copied_to)
                sources.append((source, bounds, keep))
        return sources

    @retry_interrupted
    def _switch(self) -> None:
        """Let the target serve: new epoch, its fragments in, the source's out, in one transaction.

        The last commits are copied inside it. No writer can commit meanwhile, so a row that the
        source accepted is at the target, or its writer has to route again. Where it begins again, what was
        copied inside it is there: no commit is taken back.
        """
        move = self.move
        to = self._destination()  # before the transaction: it may have to ask the catalog
        with self._context.catalog.writing() as tx:
            if tx.state.commit > self.copied_to:
                self._copy(self._sources(tx), tx.state.commit, to)
            self._context.check_not_collected(tx, (copied for _, copied in self.copies))
            self._sync_point("switching")
            files = dict[int, FileChanges]()
            for table in tx.state.infos({of for of, _ in self.copies}):  # else it was dropped
                copies = [copied for of, copied in self.copies if of == table.id]
                copies = with_runs(self._context, table, tx.state, copies)
                files[table.id] = FileChanges(tuple(copies))
            tx.append(MoveSwitched(self.tablet, move.target, files))
            reason = f"tablet {move.tablet} moved from shard {move.source} to {move.target}"
            append_topology(tx, reason, published=False)
            after = self._after(tx, Event.SWITCHED)
        self.move = after
        self._context.roots.note_newest((move.source,))
        self._sync_point(str(after.phase))

    def _undo(self) -> bool:
        """Let the source go on serving; true if the target serves, which cannot be undone.

        Files go last, and only when it is known that the catalog does not refer to them.
        """
        if self.move.server == self.move.target:
            return True
        switched = when_possible(self._context, self._give_up)
        if switched is False:
            discard([copied for _, copied in self.copies], self._context.disk_of)
        return bool(switched)

    def _give_up(self, tx: Tx) -> bool:
        """End the move; return whether a switch took place whose answer was lost."""
        if transition(tx, self.move, self.owner, Event.FAILED) is not None:
            return False
        try:  # nothing else grows an epoch so
            now = tx.state.tablet(self.move.tablet)
        except NotFound:  # it was split or joined since, after a switch or after an adoption
            files = {(self.move.target, copied.path) for _, copied in self.copies}
            return bool(files & tx.state.known_paths())
        return (now.shard, now.epoch) == (self.move.target, self.tablet.epoch + 1)


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
