"""Boundaries of tablets: splits and joins, which copy nothing.

A tablet that is being moved keeps its boundaries, unless its mover died: then its source goes on serving, and
the move is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, islice

from elasticscan.base.errors import InvalidTopologyChange, NotReady
from elasticscan.catalog import Tx, append_topology, retry_interrupted
from elasticscan.metadata import TabletsChanged
from elasticscan.store.context import Context
from elasticscan.store.moves.owners import owner_is_gone
from elasticscan.store.moves.under_way import move_of, moves_in, transition
from elasticscan.topology import (
    Change,
    Event,
    Placement,
    Topology,
    change_tablets,
    halves,
    join_tablets,
    split_tablet,
    whole,
)


@retry_interrupted
def split(context: Context, tablet_id: int, at: int | None = None) -> Topology:
    """Cut a tablet in two, in the middle or before slot `at`."""
    with context.catalog.writing() as tx:
        _check_not_moving(tx, tablet_id)
        left, right = islice(_new_tablet_ids(tx), 2)
        after = split_tablet(tx.state.placement, tablet_id, at, (left, right))
        return _replace(tx, after, f"tablet {tablet_id} split into {left} and {right}")


@retry_interrupted
def join(context: Context, left: int, right: int) -> Topology:
    """Make two neighbouring tablets at one shard one."""
    with context.catalog.writing() as tx:
        for tablet_id in (left, right):
            _check_not_moving(tx, tablet_id)
        joined = next(_new_tablet_ids(tx))
        after = join_tablets(tx.state.placement, left, right, joined)
        return _replace(tx, after, f"tablets {left} and {right} joined into {joined}")


@retry_interrupted
def split_and_join(
    context: Context, splits: Sequence[int], joins: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Cut tablets in the middle, and make neighbours one, all in one transaction.

    Changes that became impossible meanwhile are skipped. Returns how many were cut, and joined.
    """
    with context.catalog.writing() as tx:
        for move in moves_in(tx):
            forget_dead(tx, move.tablet)
        moving = {move.tablet for move in moves_in(tx)}
        before = tx.state.placement
        there = {tablet.id: tablet for tablet in before.tablets if tablet.id not in moving}
        ids, changes = _new_tablet_ids(tx), list[Change]()
        for tablet in splits:
            with suppress(InvalidTopologyChange, KeyError):
                changes.append(halves(there[tablet], None, (next(ids), next(ids))))
        cut = len(changes)
        for left, right in joins:
            with suppress(InvalidTopologyChange, KeyError):
                changes.append(whole(there[left], there[right], next(ids)))
        if not changes:
            return 0, 0
        reason = f"{cut} tablets split, {len(changes) - cut} pairs of neighbours joined"
        _replace(tx, change_tablets(before, changes), reason)
    return cut, len(changes) - cut


def forget_dead(tx: Tx, tablet_id: int) -> None:
    """End the move of a tablet whose mover died, because something else is to happen to it."""
    move = move_of(tx, tablet_id)
    if move is not None and owner_is_gone(move, tx.times.expiry):
        transition(tx, move, move.owner, Event.OWNER_DIED)


def _check_not_moving(tx: Tx, tablet_id: int) -> None:
    """Raise unless a tablet is there, and stays where it is."""
    forget_dead(tx, tablet_id)
    if move_of(tx, tx.state.tablet(tablet_id).id) is not None:
        raise NotReady(
            f"tablet {tablet_id} is being moved; try again when it has arrived",
            tablet=tablet_id,
            kind="tablet",
        )


def _replace(tx: Tx, after: Placement, reason: str) -> Topology:
    """Replace the placement, and return its topology."""
    gone, came = after.difference(tx.state.placement)
    epochs = {tablet.id: tablet.epoch for tablet in gone}
    assert all(t.epoch > epochs.get(t.id, -1) for t in came), "an epoch must grow with every change"
    tx.append(TabletsChanged(gone, came))
    return append_topology(tx, reason)


def _new_tablet_ids(tx: Tx) -> Iterator[int]:
    """Return ids that no tablet has had; they are taken once a placement with them is appended."""
    return count(tx.state.newest_ids["tablet"] + 1)
