"""The mover: carries out one move by copy, catch-up, and a switch in one transaction.

The phases are those of `elasticscan.topology.moves`. The source serves until the switch, and the target after
it. So if the process dies at any point, the tablet is served from exactly one shard. No record names an
unfinished copy, so garbage collection deletes it.
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

# The switch copies about so many rows while writers wait; after `MOST_ROUNDS`, all that are left.
SMALL_REST_ROWS = 20_000
MOST_ROUNDS = 6
# Pauses between attempts to undo a move while the catalog is unreachable.
UNDO_WAITS_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0)

T = TypeVar("T")

# (fragments of a table with rows of the tablet, range of commits, versions to keep).
_TabletRows: TypeAlias = tuple[PageSource, Bounds, Keep]


class Mover:
    """Moves one tablet for the owner that claimed the move.

    Attributes:
        move: the move in its last known phase.
        tablet: the tablet when the move began.
        copied_to: the commit up to which rows were copied.
        copies: (table, fragment) of the copies at the target.
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

        After an error the move is undone: the source continues to serve, and the copy is removed. If the
        catalog stays unreachable, `resume_moves` undoes it after the owner has retired.
        """
        self.tablet = self._context.state().tablet(self.move.tablet)
        try:
            with self._context.noticing_collection():
                self._copy_and_switch()
        except CommitUnknown:
            if not self._undo():  # else the switch was committed, and only its answer was lost
                raise
        except BaseException as error:
            self._undo()
            shards = (self.move.source, self.move.target) if isinstance(error, OperatorNeeded) else ()
            for shard in filter(self._context.has_left, shards):  # its disk's error does not matter then
                raise InvalidCall(
                    f"shard {shard} left the store while tablet {self.move.tablet} was being moved; "
                    "plan the move again",
                    tablet=self.move.tablet,
                    shard=shard,
                ) from error
            raise

    def _copy_and_switch(self) -> None:
        # Check the markers of both roots: the source's files become garbage, the target may be empty yet.
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
        """Change the phase of the move; raise if it has another owner, which may have changed the tablet."""
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
        """Copy the rows of commits since the last round, up to a commit."""
        for source, bounds, keep in sources:
            copies = copy_slots(source, self.tablet.slots, bounds, keep, to)
            first = len(self.copies)
            # Listed before their runs are built, so that an error removes them.
            self.copies += [(source.table.id, copied) for copied in copies]
            copies = with_runs(self._context, source.table, self._context.state(), copies)
            self.copies[first:] = [(source.table.id, copied) for copied in copies]
        self.copied_to = upto

    def _rest_rows(self, tx: Tx) -> int:
        """Return an upper bound of the rows of the tablet that were committed since the last round."""
        fragments, slots = tx.state.fragments(shard=self.move.source), self.tablet.slots
        return sum(f.rows for f in fragments if f.max_commit > self.copied_to and f.slots & slots)

    def _sources(self, tx: Tx) -> list[_TabletRows]:
        """Return the source's rows of the tablet, by table, from commits that were not copied yet."""
        slots, sources, readers = self.tablet.slots, list[_TabletRows](), self._context.readers
        for table in tx.state.infos():
            bounds = Bounds(self.copied_to + 1, tx.state.commit, since=table.oldest_snapshot)
            at_source = tx.state.fragments(table.id, self.move.source)
            fragments = [f for f in at_source if f.slots & slots and bounds.touch(f)]
            if fragments:
                whole = table.with_dropped(table.oldest_snapshot)
                source = PageSource(whole, View(fragments), readers.opener(whole), prefetch=readers.prefetch)
                in_files = all(commit.slots.isdisjoint(slots) for commit in tx.state.memory(table.id))
                floor = max(tx.state.overwrites(table.id), default=0)
                # The first round copies all versions in files, a later round only newer ones.
                keep = Keep(floor=floor, complete=in_files and not self.copied_to)
                sources.append((source, bounds, keep))
        return sources

    @retry_interrupted
    def _switch(self) -> None:
        """Switch the tablet to the target: raise the epoch, add the copies, strike the source's slots.

        This is one transaction, which also copies the last commits. No writer can commit meanwhile. So each
        row that was committed at the source is at the target, and a later writer finds the new owner. If the
        transaction is repeated, the copies of the failed attempt stay valid, since commits are never undone.
        """
        move = self.move
        to = self._destination()  # before the transaction, since it may read the catalog
        with self._context.catalog.writing() as tx:
            if tx.state.commit > self.copied_to:
                self._copy(self._sources(tx), tx.state.commit, to)
            self._context.check_not_collected(tx, (copied for _, copied in self.copies))
            self._sync_point("switching")
            files = dict[int, FileChanges]()
            for table in tx.state.infos({number for number, _ in self.copies}):  # not of dropped tables
                copies = [copied for number, copied in self.copies if number == table.id]
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
        """Undo the move; return True if the target serves already, which cannot be undone.

        The copies are deleted last, and only if it is certain that the catalog does not name them.
        """
        if self.move.server == self.move.target:
            return True
        switched = when_possible(self._context, self._end)
        if switched is False:
            discard([copied for _, copied in self.copies], self._context.disk_of)
        return bool(switched)

    def _end(self, tx: Tx) -> bool:
        """End the move; return whether its switch was committed although the answer was lost."""
        if transition(tx, self.move, self.owner, Event.FAILED) is not None:
            return False
        try:  # only the switch gives the tablet this shard with this epoch
            now = tx.state.tablet(self.move.tablet)
        except NotFound:  # split or joined since, after the switch or after it was taken over
            files = {(self.move.target, copied.path) for _, copied in self.copies}
            return bool(files & tx.state.known_paths())
        return (now.shard, now.epoch) == (self.move.target, self.tablet.epoch + 1)


def when_possible(context: Context, work: Callable[[Tx], T]) -> T | None:
    """Return the result of a transaction, retried while the catalog is unreachable; None if it stays so."""
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
