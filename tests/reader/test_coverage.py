"""The proof of coverage finds every slot that was lost or read twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import CoverageBroken
from elasticscan.reader.coverage import Coverage
from elasticscan.topology import SlotSet
from tests.base.examples import examples


def slots(*chosen: int) -> SlotSet:
    return SlotSet.of((slot, slot + 1) for slot in chosen)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.integers(0, 4), min_size=20, max_size=20))
def test_slots_finished_in_any_portions_cover_the_scan(portion_of: list[int]) -> None:
    coverage = Coverage(SlotSet.span(0, 20), SlotSet.span(0, 20))
    for portion in range(5):
        coverage.finish(slots(*(slot for slot, p in enumerate(portion_of) if p == portion)))
    coverage.prove()


@settings(deadline=None, max_examples=examples(100))
@given(st.sets(st.integers(0, 19), max_size=19))
def test_any_slot_that_is_missing_breaks_the_proof_and_is_named(finished: set[int]) -> None:
    coverage = Coverage(SlotSet.span(0, 20), SlotSet.span(0, 20))
    coverage.finish(slots(*finished))
    with pytest.raises(CoverageBroken) as caught:
        coverage.prove()
    assert caught.value.fields["slots"] == str(SlotSet.span(0, 20) - slots(*finished))


@pytest.mark.parametrize(
    ("pending", "finished"), [((0, 1, 2, 3), (2, 3)), ((0, 1, 2, 3), (4,)), ((1, 2, 3), (0,))]
)
def test_a_slot_that_was_finished_or_is_not_of_the_scan_cannot_be(
    pending: tuple[int, ...], finished: tuple[int, ...]
) -> None:
    coverage = Coverage(SlotSet.span(0, 4), slots(*pending))
    coverage.finish(slots(1, 2))
    with pytest.raises(CoverageBroken, match="twice or never"):
        coverage.finish(slots(*finished))


def test_a_resumed_scan_counts_what_was_finished_before_it() -> None:
    coverage = Coverage(SlotSet.span(0, 4), slots(3))
    coverage.finish(slots(3))
    coverage.prove()


def test_a_scan_of_no_slots_is_covered() -> None:
    Coverage(SlotSet(), SlotSet()).prove()
