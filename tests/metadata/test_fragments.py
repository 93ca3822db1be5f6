"""Staged fragments that serve other slots than they were written for; columns that a table does not have."""

from __future__ import annotations

import pytest

from elasticscan.metadata import StagedFragment, no_such_column
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
    assert served.slots_written == served.entered(1, 1, 1, 1).slots_written == written
    assert served.serving(SlotSet.of([(0, 4)])).slots_written >= 4


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("id,city", "several columns are a list: ['id', 'city']"),
        ("*", "leave columns out for all of them"),
        ("km > 1", "a condition stands in filter"),
        ("km DESC", "write the name alone"),
        ("id AS x", "columns keep their names"),
        ("km * 2", "SQL and aggregate compute"),
        ("$set", "operators are SQL"),
        ("kmm", "did you mean 'km'?"),
        ("km-s", "did you mean 'km'?"),
    ],
)
def test_a_text_that_is_more_than_a_column_is_reported_with_what_to_write(typed: str, message: str) -> None:
    error = no_such_column("t", typed, ["id", "city", "km"])
    assert message in error.message
    assert ("did you mean" in error.message) == message.startswith("did you mean")
