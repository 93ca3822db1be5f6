"""Boundaries of tablets: splits and joins, which copy nothing.

A tablet that is being moved keeps its boundaries, unless its mover died: then its source goes on serving, and
the move is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count

from elasticscan.base.errors import InvalidTopologyChange, NotFound, NotReady
from elasticscan.catalog import Tx, append_topology, retry_interrupted
from elasticscan.metadata import TabletsChanged
from elasticscan.store.context import Context
from elasticscan.store.moves.owners import forget_dead, move_of
from elasticscan.topology import Change, Tablet, Topology, join_tablets, split_tablet


@retry_interrupted
def split(context: Context, tablet_id: int, at: int | None = None) -> Topology:
    """Cut a tablet in two, in the middle or before slot `at`."""
    with context.catalog.writing() as tx:
        new = _new_tablet_ids(tx)
        left, right = ids = next(new), next(new)
        change = split_tablet(_resting(tx, tablet_id), at, ids)
        return _replace(tx, [change], f"tablet {tablet_id} split into {left} and {right}")


@retry_interrupted
def join(context: Context, left: int, right: int) -> Topology:
    """Make two neighbouring tablets at one shard one."""
    with context.catalog.writing() as tx:
        joined = next(_new_tablet_ids(tx))
        change = join_tablets(_resting(tx, left), _resting(tx, right), joined)
        return _replace(tx, [change], f"tablets {left} and {right} joined into {joined}")


@retry_interrupted
def split_and_join(
    context: Context, splits: Sequence[int], joins: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Cut tablets in the middle, and make neighbours one, all in one transaction.

    No tablet is named twice. Changes that became impossible meanwhile are skipped. Returns how many were cut,
    and joined.
    """
    impossible = suppress(InvalidTopologyChange, NotFound, NotReady)
    with context.catalog.writing() as tx:
        ids, changes = _new_tablet_ids(tx), list[Change]()
        for tablet in splits:
            with impossible:
                changes.append(split_tablet(_resting(tx, tablet), None, (next(ids), next(ids))))
        cut = len(changes)
        for left, right in joins:
            with impossible:
                changes.append(join_tablets(_resting(tx, left), _resting(tx, right), next(ids)))
        joined = len(changes) - cut
        if changes:
            _replace(tx, changes, f"{cut} tablets split, {joined} pairs of neighbours joined")
    return cut, joined


def _resting(tx: Tx, tablet_id: int) -> Tablet:
    """Return a tablet that stays where it is; raises `NotFound`, or `NotReady` while it is being moved."""
    tablet = tx.state.tablet(tablet_id)
    forget_dead(tx, tablet_id)
    if move_of(tx, tablet_id) is not None:
        raise NotReady(
            f"tablet {tablet_id} is being moved; try again when it has arrived",
            tablet=tablet_id,
            kind="tablet",
        )
    return tablet


def _replace(tx: Tx, changes: Sequence[Change], reason: str) -> Topology:
    """Replace tablets, and return the topology after that."""
    before = tuple(tablet for old, _ in changes for tablet in old)
    after = tuple(tablet for _, new in changes for tablet in new)
    tx.append(TabletsChanged(before, after))
    return append_topology(tx, reason)


def _new_tablet_ids(tx: Tx) -> Iterator[int]:
    """Return ids that no tablet has had; they are taken once tablets with them are appended."""
    return count(tx.state.newest_ids["tablet"] + 1)
