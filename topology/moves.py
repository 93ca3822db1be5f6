"""A move, and its phases as a table.

Every phase is named by what is true in it, so a half-finished move that is found after a crash
says which shard serves the tablet, and that there is exactly one:

    phase            who serves    what the target has
    planned          source        nothing
    copying          source        a part
    caught_up        source        all but the last commits
    target_serves    target        everything; final
    undone           source        at most garbage, to be collected; final

    planned ──start_copy──> copying ──copied──> caught_up ──switched──> target_serves
       │                       │                      │
       └──────── failed ───────┴──────────────────────┴───────> undone

The recovery rule is one line: a move whose owner died before the target served is undone. Nothing
needs to be rescued, since the source served all along, and a tablet that still has to
move gets a new move. The only step that changes who serves is `switched`, one transaction of
the catalog; there is no phase "in between" for a crash to leave behind.

The table drives: a move begins in `planned`, each change of it goes through `Move.after`, and the one
writer of what is kept of moves (`transition` in `store/moves/owners.py`) calls that. Of a move that is
over nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self


class Phase(StrEnum):
    """The phases of a move, each named by the fact that holds in it."""

    PLANNED = "planned"
    COPYING = "copying"
    CAUGHT_UP = "caught_up"
    TARGET_SERVES = "target_serves"
    UNDONE = "undone"


class Event(StrEnum):
    """The events of a move. `FAILED`: its owner gives up, or another process found that it is gone."""

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

FINAL: Final = frozenset({Phase.TARGET_SERVES, Phase.UNDONE})


@dataclass(frozen=True, slots=True)
class Move:
    """One tablet, by its id, on its way between two shards, by theirs."""

    tablet: int
    source: int
    target: int
    phase: Phase = Phase.PLANNED

    @property
    def server(self) -> int:
        """The shard that serves the tablet: always exactly one."""
        return self.target if self.phase is Phase.TARGET_SERVES else self.source

    @property
    def is_over(self) -> bool:
        return self.phase in FINAL

    def after(self, event: Event) -> Self:
        """Return the move after an event, one that can happen in its phase."""
        assert (self.phase, event) in TRANSITIONS, f"a move in phase {self.phase} cannot take {event}"
        return replace(self, phase=TRANSITIONS[self.phase, event])
