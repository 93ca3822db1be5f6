"""Staged fragments that serve other slots than they were written for."""

from __future__ import annotations

import pytest

from elasticscan.metadata import StagedFragment
from elasticscan.topology import SlotSet


@pytest.mark.parametrize(
    ("serving", "written"),
    [
        ([(0, 4)], 4),
        ([(0, 3)], 4),  # a slot moved away, and its rows are still in the file
        ([(0, 9)], 9),  # a merged file speaks for slots of which it has no rows
        ([(2, 9)], 9),  # both
        ([], 4),
    ],
)
def test_a_file_knows_of_how_many_slots_it_may_have_rows(
    serving: list[tuple[int, int]], written: int
) -> None:
    staged = StagedFragment(1, "f", SlotSet.of([(0, 4)]), 4, 400, True, 0, False, 0, 0)
    served = staged.serving(SlotSet.of(serving))
    assert served.slots == SlotSet.of(serving)
    assert served.slots_written == served.entered(1, 1, 1).slots_written == written
    assert served.serving(SlotSet.of([(0, 4)])).slots_written >= 4
