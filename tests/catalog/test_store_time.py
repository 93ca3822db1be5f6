"""The time of a store, with wrong clocks of single processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticscan.catalog.store_time import Belief, observe

DAY, HOUR = 86_400.0, 3_600.0


@pytest.mark.parametrize(
    ("belief", "clock", "after"),
    [
        (Belief(1_000.0), 900.0, Belief(1_000.0)),
        (Belief(1_000.0), 1_000.0 + DAY, Belief(1_000.0 + DAY)),
        (Belief(1_000.0), 1_001.0 + DAY, Belief(1_000.0, 1_001.0 + DAY)),
        (Belief(0.0, 9 * DAY), 5.0, Belief(5.0)),
        (Belief(0.0, 9 * DAY), 8 * DAY, Belief(0.0, 8 * DAY)),
        (Belief(0.0, 9 * DAY), 9 * DAY + HOUR - 1, Belief(0.0, 9 * DAY)),
        (Belief(0.0, 9 * DAY), 9 * DAY + HOUR, Belief(9 * DAY + HOUR)),
        (Belief(0.0, 9 * DAY), 20 * DAY, Belief(9 * DAY, 20 * DAY)),
    ],
)
def test_the_table_of_what_is_believed(belief: Belief, clock: float, after: Belief) -> None:
    assert observe(belief, clock) == after


times = st.floats(0, 1e9)


@given(times, st.lists(st.sampled_from([0.0, 30 * DAY]), min_size=1, max_size=30))
def test_a_clock_ahead_beside_others_is_never_believed(start: float, skews: list[float]) -> None:
    belief = Belief(start)
    for minute, skew in enumerate(skews):  # the others write once a minute, too
        belief = observe(observe(belief, start + 60 * minute), start + 60 * minute + skew)
        assert belief.accepted_at <= start + 60 * minute
