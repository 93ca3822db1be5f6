"""The phases of an index: every pair of a phase and an event."""

from __future__ import annotations

from itertools import product

import pytest

from elasticscan.metadata import IndexEvent, IndexInfo, IndexPhase

# One row per phase, one column per event; a dot is a refusal.
TABLE = """
            runs_missing  completed  refused  dropped
entered     building      ready      dropped  dropped
building    building      ready      dropped  dropped
ready       .             ready      ready    dropped
dropped     .             .          .        .
"""


def expected() -> dict[tuple[IndexPhase, IndexEvent], str]:
    head, *rows = TABLE.strip().splitlines()
    events = [IndexEvent(name) for name in head.split()]
    cells = [(IndexPhase(row.split()[0]), row.split()[1:]) for row in rows]
    return {(phase, event): cell for phase, row in cells for event, cell in zip(events, row, strict=True)}


def index(phase: IndexPhase) -> IndexInfo:
    return IndexInfo(1, 1, "by_v", "sorted", ("v",), (), phase)


@pytest.mark.parametrize(("phase", "event"), list(product(IndexPhase, IndexEvent)))
def test_every_pair_does_what_the_table_says(phase: IndexPhase, event: IndexEvent) -> None:
    cell = expected()[phase, event]
    if cell != ".":
        assert index(phase).after(event) == index(IndexPhase(cell))
        return
    with pytest.raises(AssertionError, match=f"phase {phase} cannot take {event}"):
        index(phase).after(event)
