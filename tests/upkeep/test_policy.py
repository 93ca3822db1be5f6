"""The policy refuses bounds that nothing can keep, and debt is reported in numbers."""

from __future__ import annotations

import pytest

from elasticscan.topology import SlotSet
from elasticscan.upkeep import Debt, Part, Policy, Written, debt_of


@pytest.mark.parametrize(
    "bounds",
    [
        {"slot_fragments": 2},
        {"tier_ratio": 0.5},
        {"step_bytes": 0},
        {"write_amplification": 1},
        {"split_bytes": 100, "join_bytes": 51},
    ],
)
def test_bounds_that_cannot_be_met_or_contradict_each_other_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        Policy(**bounds)  # type: ignore[arg-type]


def test_debt_counts_merges_bytes_and_fragments() -> None:
    every = SlotSet.span(0, 8)
    untidy = [Part(n, every, 2_000) for n in range(12)]
    plain = [Part(20, SlotSet.span(8, 16), 5_000)]
    assert debt_of([untidy, plain, []], Policy()) == Debt(1, 24_000, 12, (12 * 12 + 1) / 13)
    assert debt_of([], Policy()) == Debt(0, 0, 0, 1.0)


def test_credit_is_what_the_bound_on_writes_leaves() -> None:
    written = Written(committed=1_000, merged=2_500)
    assert written.amplification == 3.5
    assert written.credit(Policy(write_amplification=5)) == 1_500
    assert Written().amplification == 1.0
