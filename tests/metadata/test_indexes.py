"""The phases of an index: every pair of a phase and an event."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from elasticscan.metadata import IndexEvent, IndexInfo, IndexPhase

# By phase, what follows from each event: runs missing, completed, refused, dropped; a dot is a refusal.
TABLE = {
    "building": "building ready dropped dropped",
    "ready": ". ready ready dropped",
    "dropped": ". . . .",
}


@pytest.mark.parametrize("phase", IndexPhase)
def test_every_event_does_what_the_table_says(phase: IndexPhase) -> None:
    index = IndexInfo(1, 1, "by_v", "sorted", ("v",), (), phase)
    for event, after in zip(IndexEvent, TABLE[phase].split(), strict=True):
        refused = pytest.raises(AssertionError, match=f"phase {phase} cannot take {event}")
        with refused if after == "." else nullcontext():
            assert index.after(event).phase == after
