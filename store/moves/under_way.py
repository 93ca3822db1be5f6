"""Moves under way: leases that end with their owner.

A move is entered in the first phase of `elasticscan.topology.moves`, goes from phase to phase by that table,
and is removed with the phase that ends it. A test proves that no other code writes these leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elasticscan.base.errors import NotReady
from elasticscan.catalog import Tx
from elasticscan.store.moves.owners import OwnedMove
from elasticscan.topology import Event, Move, Phase


def moves_in(tx: Tx) -> tuple[OwnedMove, ...]:
    """Return all moves under way, the oldest first."""
    found = (lease.value for lease in tx.leases(OwnedMove))
    return tuple(sorted(found, key=lambda move: (move.started_at, move.tablet)))


def move_of(tx: Tx, tablet: int) -> OwnedMove | None:
    lease = tx.lease(OwnedMove, str(tablet))
    return None if lease is None else lease.value


def enter_moves(tx: Tx, planned: Sequence[Move], owner: str) -> None:
    """Enter planned moves, or none of them; no other process may move their tablets until they ended."""
    assert all(move.phase is Phase.PLANNED for move in planned), f"a move begins with a plan: {planned}"
    tablets = {move.tablet for move in planned}
    for other in (move for move in moves_in(tx) if move.tablet in tablets):
        raise NotReady(
            f"tablet {other.tablet} is already being moved by {other.owner}; wait for it, or run "
            "`elasticscan move --resume` if that process is gone",
            tablet=other.tablet,
            owner=other.owner,
            kind="tablet",
        )
    at = tx.times.stamp
    for move in planned:
        _put_move(tx, OwnedMove(move.tablet, move.source, move.target, move.phase, owner, at, at))


def transition(tx: Tx, move: Move, owner: str, event: Event) -> Move | None:
    """Let something happen to a move, by the table of its phases; it is forgotten when it is over.

    The caller switches the placement before it reports `SWITCHED`, in the same transaction.

    Returns:
        The move in the phase that it is in now; None, and nothing changed, when it is not this owner's.

    Raises:
        InvalidTopologyChange: that cannot happen in the phase that the catalog knows.
    """
    before = move_of(tx, move.tablet)
    if before is None or before.owner != owner:
        return None
    after = before.after(event)
    if after.server != before.server:
        assert tx.state.tablet(move.tablet).shard == after.server, f"{after} and the placement differ"
    if after.is_over:
        tx.remove_lease(OwnedMove, str(move.tablet))
    else:
        _put_move(tx, replace(after, heartbeat_at=tx.times.stamp))
    return after


def _put_move(tx: Tx, move: OwnedMove) -> None:
    tx.put_lease(str(move.tablet), move)
