"""A move, and its phases as a table.

Each phase is named by the fact that holds in it. So after a crash, the phase of an unfinished move
tells which shard serves the tablet; it is always exactly one:

    phase            who serves    what the target has
    planned          source        nothing
    copying          source        some of the rows
    caught_up        source        all rows but those of the last commits
    target_serves    target        all rows; final
    undone           source        at most files for garbage collection; final

    planned ──start_copy──> copying ──copied──> caught_up ──switched──> target_serves
       │                       │                      │
       └──────── failed ───────┴──────────────────────┴───────> undone

The recovery rule: if the owner of a move dies before the target serves, the move is undone. No data needs
to be recovered, because the source still serves the tablet. A tablet that still has to move gets a new
move. Only `switched` changes the serving shard. It is one transaction of the catalog, so a crash
cannot leave a state between two phases.

A move begins in `planned`, and `Move.after` makes each change of phase. `transition` in
`store/moves/owners.py` calls it, and is the only function that changes the phase of a stored move. Moves in
a final phase are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self


class Phase(StrEnum):
    """The phases of a move; the table above says what holds in each."""

    PLANNED = "planned"
    COPYING = "copying"
    CAUGHT_UP = "caught_up"
    TARGET_SERVES = "target_serves"
    UNDONE = "undone"


class Event(StrEnum):
    """The events of a move. `FAILED`: the owner gave up, or another process found that the owner is dead."""

    START_COPY = "start_copy"
    COPIED = "copied"
    SWITCHED = "switched"
    FAILED = "failed"


TRANSITIONS: Final[Mapping[tuple[Phase, Event], Phase]] = MappingProxyType(
    {
        (Phase.PLANNED, Event.START_COPY): Phase.COPYING,
        (Phase.PLANNED, Event.FAILED): Phase.UNDONE,
        (Phase.COPYING, Event.COPIED): Phase.CAUGHT_UP,
        (Phase.COPYING, Event.FAILED): Phase.UNDONE,
        (Phase.CAUGHT_UP, Event.SWITCHED): Phase.TARGET_SERVES,
        (Phase.CAUGHT_UP, Event.FAILED): Phase.UNDONE,
    }
)


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a tablet between two shards; all three are ids."""

    tablet: int
    source: int
    target: int
    phase: Phase = Phase.PLANNED

    @property
    def server(self) -> int:
        """The id of the shard that serves the tablet."""
        return self.target if self.phase is Phase.TARGET_SERVES else self.source

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.TARGET_SERVES, Phase.UNDONE)

    def after(self, event: Event) -> Self:
        """Return the move after an event. The event must be allowed in this phase."""
        assert (self.phase, event) in TRANSITIONS, f"a move in phase {self.phase} cannot take {event}"
        return replace(self, phase=TRANSITIONS[self.phase, event])
