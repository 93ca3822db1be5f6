"""Steps of upkeep under way, with their owners: leases without an end; and when garbage was collected last.

A step is entered before it begins, so two keepers never do the same, and goes when it is over. One whose
owner is gone is taken over: a step that was interrupted has changed nothing, or all that it was to change.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticscan.catalog import Tx
from elasticscan.store.moves.owners import OwnedStep, owner_is_gone


@dataclass(frozen=True, slots=True)
class LastCollection:
    """The time of the last collection of garbage by a keeper, in seconds since 1970."""

    at: float


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


def end_step(tx: Tx, target: str, owner: str) -> None:
    """End the step of an owner, unless another one has taken it over."""
    lease = tx.lease(OwnedStep, target)
    if lease is not None and lease.value.owner == owner:
        tx.remove_lease(OwnedStep, target)


def note_collection(tx: Tx) -> None:
    """Note that a keeper has collected garbage."""
    tx.put_lease("garbage", LastCollection(tx.times.stamp))


def last_collection(tx: Tx) -> float:
    """Return when a keeper collected garbage; minus infinity for never."""
    lease = tx.lease(LastCollection, "garbage")
    return float("-inf") if lease is None else lease.value.at
