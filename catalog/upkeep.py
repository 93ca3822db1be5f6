"""Catalog transactions: steps of upkeep under way, with their owners, and what was done.

Both are leases without an end. A step is entered in the transaction that finds it pending, so two keepers
never do the same, and goes when it is over. One whose owner is gone (`store/moves/owners.py`) is taken over:
a step that was interrupted has changed nothing, or all that it was to change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from elasticscan.catalog.codec import pack_value
from elasticscan.catalog.leases import ENDLESS, LogLease, find_lease, find_leases, held_value, leases_of
from elasticscan.catalog.transaction import StateTx

_STEP, _DONE = "step", "done"


@dataclass(frozen=True, slots=True)
class OwnedStep:
    """A step under way, as every process sees it.

    Attributes:
        target: what it works at: `merge/<table>/<shard>`, `balance` or `garbage`.
        owner: as from `store/moves/owners.py`.
    """

    target: str
    owner: str
    started_at: float
    heartbeat_at: float


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


class UpkeepTx(StateTx):
    """Steps of upkeep."""

    def step(self, target: str) -> OwnedStep | None:
        lease = find_lease(self, _lease_id(_STEP, target))
        return None if lease is None else held_value(lease, OwnedStep)

    def steps(self) -> tuple[OwnedStep, ...]:
        """Return all steps under way, the oldest first."""
        found = (held_value(lease, OwnedStep) for lease in leases_of(self, _STEP))
        return tuple(sorted(found, key=lambda step: (step.started_at, step.target)))

    def enter_step(self, target: str, owner: str) -> None:
        """Begin a step, or take over one whose owner is gone."""
        at = self.times.stamp
        _put(self, _STEP, OwnedStep(target, owner, at, at), owner)

    def end_steps(self, owners: Mapping[str, str]) -> bool:
        """End the steps at some targets, each of its owner; false when another one has taken any over."""
        found = find_leases(self, [_lease_id(_STEP, target) for target in owners])
        steps = (held_value(lease, OwnedStep) for lease in found.values())
        mine = [step.target for step in steps if step.owner == owners[step.target]]
        for target in mine:
            self.writing.remove_lease(_lease_id(_STEP, target))
        return len(mine) == len(owners)

    def beat_steps(self, owner: str) -> None:
        """Show that an owner of steps is alive."""
        for step in self.steps():
            if step.owner == owner:
                _put(self, _STEP, replace(step, heartbeat_at=self.times.stamp), owner)

    def add_done(self, done: Mapping[str, tuple[int, int, int]]) -> None:
        """Note that a step was done at each of some targets: its pieces, and bytes read and written."""
        before = {of.target: of for of in self.done(done)}
        for target, (pieces, bytes_read, bytes_written) in done.items():
            of = before.get(target, StepsDone(target, 0, 0, 0, 0, 0.0))
            more = replace(
                of,
                steps=of.steps + 1,
                pieces=of.pieces + pieces,
                bytes_read=of.bytes_read + bytes_read,
                bytes_written=of.bytes_written + bytes_written,
                newest_at=self.times.stamp,
            )
            _put(self, _DONE, more, "")

    def done(self, targets: Collection[str] | None = None) -> tuple[StepsDone, ...]:
        """Return what was done, by target: at some of them, or at all."""
        if targets is None:
            found = leases_of(self, _DONE)
        else:
            found = list(find_leases(self, [_lease_id(_DONE, target) for target in targets]).values())
        return tuple(sorted((held_value(lease, StepsDone) for lease in found), key=lambda of: of.target))


def _put(tx: StateTx, kind: str, value: OwnedStep | StepsDone, owner: str) -> None:
    lease = LogLease(_lease_id(kind, value.target), kind, owner, pack_value(value), ENDLESS)
    tx.writing.put_lease(lease)


def _lease_id(kind: str, target: str) -> str:
    return f"{kind}/{target}"
