"""Catalog transactions: steps of upkeep under way, with their owners, and what was done.

A step is entered in the transaction that finds it due, so two keepers never do the same. Its row goes with
the step. One whose owner is gone (`store/moves/owners.py`) is taken over: a step that was interrupted has
changed nothing, or all that it was to change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam

from elasticscan.catalog.sealed import RowQuery
from elasticscan.catalog.state import StateTx
from elasticscan.catalog.tables import upkeep_done, upkeep_steps


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


_AT_ONCE = 500
_DONE_AT = RowQuery(upkeep_done, upkeep_done.c.target.in_(bindparam("some", expanding=True)))


class UpkeepTx(StateTx):
    """Steps of upkeep."""

    def step(self, target: str) -> OwnedStep | None:
        row = self._rows.one(upkeep_steps, missing_is_checked=False, target=target)
        return None if row is None else _step(row)

    def steps(self) -> tuple[OwnedStep, ...]:
        """All steps under way, the oldest first."""
        return tuple(_step(row) for row in self._rows.all(upkeep_steps, order_by=upkeep_steps.c.started_at))

    def enter_step(self, target: str, owner: str) -> None:
        """Begin a step, or take over one whose owner is gone."""
        at = self.times.stamp
        new = {"owner": owner, "started_at": at, "heartbeat_at": at}
        row = self._rows.one(upkeep_steps, missing_is_checked=False, target=target)
        if row is None:
            self._rows.insert(upkeep_steps, new | {"target": target})
        else:
            self._rows.update(upkeep_steps, [(row, new)])

    def end_step(self, target: str, owner: str) -> bool:
        """End a step; false when another owner has taken it over."""
        return self.end_steps({target: owner})

    def end_steps(self, owners: Mapping[str, str]) -> bool:
        """End the steps at some targets, all looked up before one is ended; false as `end_step`, of any."""
        rows = [self._rows.one(upkeep_steps, missing_is_checked=False, target=target) for target in owners]
        mine = [row for row in rows if row is not None and row.owner == owners[row.target]]
        self._rows.delete(upkeep_steps, mine)
        return len(mine) == len(owners)

    def forget_steps(self) -> None:
        """Remove all steps: in a store that was made of another one, they have no owner."""
        self._rows.delete(upkeep_steps, self._rows.all(upkeep_steps))

    def beat_steps(self, owner: str) -> None:
        """Show that an owner of steps is alive."""
        rows = self._rows.select(upkeep_steps, upkeep_steps.c.owner == owner)
        self._rows.update(upkeep_steps, [(row, {"heartbeat_at": self.times.stamp}) for row in rows])

    def add_done(self, target: str, pieces: int, bytes_read: int = 0, bytes_written: int = 0) -> None:
        """Note that a step was done."""
        self.add_all_done({target: (pieces, bytes_read, bytes_written)})

    def add_all_done(self, done: Mapping[str, tuple[int, int, int]]) -> None:
        """As `add_done`, of several targets, which are looked up before one of them is changed."""
        names, at = ("steps", "pieces", "bytes_read", "bytes_written"), {"newest_at": self.times.stamp}
        rows = {to: self._rows.one(upkeep_done, missing_is_checked=False, target=to) for to in done}
        changes = list[tuple[Any, dict[str, Any]]]()
        for target, row in rows.items():
            more = dict(zip(names, (1, *done[target]), strict=True))
            if row is None:
                self._rows.insert(upkeep_done, more | at | {"target": target})
            else:
                changes.append((row, {name: getattr(row, name) + more[name] for name in names} | at))
        self._rows.update(upkeep_done, changes)

    def done(self, targets: Collection[str] | None = None) -> tuple[StepsDone, ...]:
        """All that was done, by target; or at some targets alone, of which damage may hide some."""
        if targets is None:
            rows = self._rows.all(upkeep_done, order_by=upkeep_done.c.target)
        else:
            named = sorted(targets)
            parts = (named[at : at + _AT_ONCE] for at in range(0, len(named), _AT_ONCE))
            rows = [row for some in parts for row in self._rows.ask(_DONE_AT, some=some)]
        return tuple(
            StepsDone(r.target, r.steps, r.pieces, r.bytes_read, r.bytes_written, r.newest_at) for r in rows
        )


def _step(row: Any) -> OwnedStep:
    return OwnedStep(row.target, row.owner, row.started_at, row.heartbeat_at)
