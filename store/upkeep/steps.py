"""Steps of upkeep under way, with their owners, and what was done: leases without an end.

A step is entered in the transaction that finds it pending, so two keepers never do the same, and goes when it
is over. One whose owner is gone is taken over: a step that was interrupted has changed nothing, or all that
it was to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from elasticscan.catalog import Tx
from elasticscan.store.moves.owners import OwnedStep, owner_is_gone


@dataclass(frozen=True, slots=True)
class StepsDone:
    """The steps that were done at one target.

    Attributes:
        steps: how many.
        pieces: fragments that went, tablets that were cut, joined or moved, files that were removed.
        newest_at: when the last one ended.
    """

    target: str
    steps: int
    pieces: int
    bytes_read: int
    bytes_written: int
    newest_at: float


def steps_in(tx: Tx) -> tuple[OwnedStep, ...]:
    """Return all steps under way, the oldest first."""
    found = (lease.value for lease in tx.leases(OwnedStep))
    return tuple(sorted(found, key=lambda step: (step.started_at, step.target)))


def claim(tx: Tx, target: str, owner: str) -> bool:
    """Begin a step, or take it over, unless a live owner is at it."""
    lease, at = tx.lease(OwnedStep, target), tx.times.stamp
    if lease is not None and lease.value.owner != owner and not owner_is_gone(lease.value, tx.times.expiry):
        return False
    tx.put_lease(target, OwnedStep(target, owner, at, at))
    return True


def end_steps(tx: Tx, owners: Mapping[str, str]) -> None:
    """End the steps at some targets, each of its owner, where no other one has taken it over."""
    for step in steps_in(tx) if owners else ():
        if owners.get(step.target) == step.owner:
            tx.remove_lease(OwnedStep, step.target)


def add_done(tx: Tx, done: Mapping[str, tuple[int, int, int]]) -> None:
    """Note that a step was done at each of some targets: its pieces, and bytes read and written."""
    for target, (pieces, bytes_read, bytes_written) in done.items():
        before = tx.lease(StepsDone, target)
        of = StepsDone(target, 0, 0, 0, 0, 0.0) if before is None else before.value
        more = replace(
            of,
            steps=of.steps + 1,
            pieces=of.pieces + pieces,
            bytes_read=of.bytes_read + bytes_read,
            bytes_written=of.bytes_written + bytes_written,
            newest_at=tx.times.stamp,
        )
        tx.put_lease(target, more)


def done_in(tx: Tx) -> tuple[StepsDone, ...]:
    """Return what was done, by target."""
    return tuple(lease.value for lease in tx.leases(StepsDone))
