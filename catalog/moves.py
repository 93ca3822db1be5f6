"""Catalog transactions: the moves under way, and the one writer of what state they are in.

A row is entered in the first phase of `elasticscan.topology.moves`, goes from phase to phase by that table,
and is removed with the phase that ends it. A test proves that no other code writes these rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from elasticscan.base.errors import NotReady
from elasticscan.catalog.failures import decoding
from elasticscan.catalog.placement import PlacementTx
from elasticscan.catalog.tables import moves
from elasticscan.topology import Event, Move, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedMove(Move):
    """A move under way, as every process sees it."""

    owner: str
    started_at: float
    heartbeat_at: float


class MoveTx(PlacementTx):
    """Reads and changes of moves."""

    def plan_move(self, move: Move, owner: str) -> None:
        """Enter a planned move; no other process may move the tablet until it ended."""
        assert move.phase is Phase.PLANNED, f"a move begins with a plan: {move}"
        # A row that damage hides would be refused as the second one with its key.
        row = self._rows.one(moves, missing_is_checked=False, tablet_id=move.tablet)
        if row is not None:
            raise _busy(_move(row))
        self._rows.insert(moves, _entered(move, owner, self.times.stamp))

    def plan_moves(self, planned: Sequence[Move], owner: str) -> None:
        """As `plan_move`, for several, after one look at those under way."""
        assert all(move.phase is Phase.PLANNED for move in planned), f"a move begins with a plan: {planned}"
        under_way = {move.tablet: move for move in self.moves()} if planned else {}
        for move in planned:
            if move.tablet in under_way:
                raise _busy(under_way[move.tablet])
        self._rows.insert(moves, *(_entered(move, owner, self.times.stamp) for move in planned))

    def give_up_moves(self, owner: str, planned: Collection[Move]) -> None:
        """Let what is left of an owner's moves fail, after one look at those under way."""
        tablets = {move.tablet for move in planned}
        left = [row for row in self._all() if row.owner == owner and row.tablet_id in tablets]
        assert all(_move(row).after(Event.FAILED).is_over for row in left), "a move that failed is over"
        self._rows.delete(moves, left)

    def move(self, tablet: int) -> OwnedMove | None:
        row = self._rows.one(moves, tablet_id=tablet)
        return None if row is None else _move(row)

    def moves(self) -> tuple[OwnedMove, ...]:
        return tuple(_move(row) for row in self._all())

    def _all(self) -> list[Any]:
        return self._rows.all(moves, order_by=moves.c.started_at)

    def disown_moves(self) -> None:
        """Clear the owners of all moves: in a store that was made of another one, they have none."""
        unowned = {"owner": "", "heartbeat_at": 0.0}
        self._rows.update(moves, [(row, unowned) for row in self._rows.all(moves)])

    def transition(self, move: Move, owner: str, event: Event) -> Move | None:
        """Let something happen to a move, by the table of its phases; it is forgotten when it is over.

        The caller switches the placement before it reports `SWITCHED`, in the same transaction.

        Returns:
            The move in the phase that it is in now; None, and nothing changed, when it is not this owner's.

        Raises:
            InvalidTopologyChange: that cannot happen in the phase that the catalog knows.
        """
        row = self._rows.one(moves, tablet_id=move.tablet)
        if row is None or row.owner != owner:
            return None
        before = _move(row)
        after = before.after(event)
        if after.server != before.server:
            assert self.tablet(move.tablet).shard == after.server, f"{after} and the placement differ"
        if after.is_over:
            self._rows.delete(moves, [row])
        else:
            new = {"phase": after.phase.value, "heartbeat_at": self.times.stamp}
            self._rows.update(moves, [(row, new)])
        return after

    def heartbeat(self, owner: str) -> None:
        """Show that an owner of moves is alive."""
        rows = self._rows.select(moves, moves.c.owner == owner)
        self._rows.update(moves, [(row, {"heartbeat_at": self.times.stamp}) for row in rows])


def _entered(move: Move, owner: str, at: float) -> dict[str, Any]:
    """Return the row of a move that begins."""
    new = {"tablet_id": move.tablet, "source": move.source, "target": move.target}
    return new | {"phase": move.phase.value, "owner": owner, "started_at": at, "heartbeat_at": at}


def _busy(move: OwnedMove) -> NotReady:
    return NotReady(
        f"tablet {move.tablet} is already being moved by {move.owner}; wait for it, or run "
        "`elasticscan move --resume` if that process is gone",
        tablet=move.tablet,
        owner=move.owner,
        kind="tablet",
    )


def _move(row: Any) -> OwnedMove:
    with decoding(f"the move of tablet {row.tablet_id}"):
        phase = Phase(row.phase)
    return OwnedMove(
        row.tablet_id,
        row.source,
        row.target,
        phase,
        owner=row.owner,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
    )
