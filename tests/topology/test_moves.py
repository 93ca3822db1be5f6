"""The phases of a move: every pair of a phase and an event."""

from __future__ import annotations

from itertools import product

import pytest

from elasticscan.base.errors import InvalidTopologyChange
from elasticscan.topology import TRANSITIONS, Event, Move, Phase

# One row per phase, one column per event; a dot is a refusal.
TABLE = """
                start_copy  copied     more_commits  switched       failed  owner_died
planned         copying     .          .             .              undone  undone
copying         .           caught_up  copying       .              undone  undone
caught_up       .           .          copying       target_serves  undone  undone
target_serves   .           .          .             .              .       .
undone          .           .          .             .              .       .
"""


def expected() -> dict[tuple[Phase, Event], str]:
    head, *rows = TABLE.strip().splitlines()
    events = [Event(name) for name in head.split()]
    cells = [(Phase(row.split()[0]), row.split()[1:]) for row in rows]
    return {(phase, event): cell for phase, row in cells for event, cell in zip(events, row, strict=True)}


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, Event)))
def test_every_pair_does_what_the_table_says(phase: Phase, event: Event) -> None:
    cell = expected()[phase, event]
    move = Move(7, source=1, target=2, phase=phase)
    if cell != ".":
        assert move.after(event) == Move(7, 1, 2, Phase(cell))
        return
    with pytest.raises(InvalidTopologyChange) as caught:
        move.after(event)
    allowed = tuple(e for e in Event if expected()[phase, e] != ".")
    assert caught.value.fields == {"phase": phase, "event": event, "allowed": allowed}
    for word in (phase, event, *allowed):
        assert word in str(caught.value)


def server(phase: Phase) -> str:
    return {1: "source", 2: "target"}[Move(7, source=1, target=2, phase=phase).server]


def test_only_the_switch_changes_who_serves() -> None:
    changing = {e for (phase, e), after in TRANSITIONS.items() if server(phase) != server(after)}
    assert changing == {Event.SWITCHED}
    assert [p for p in Phase if server(p) == "target"] == [Phase.TARGET_SERVES]
