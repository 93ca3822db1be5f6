"""The proof of coverage finds every slot that was lost or read twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import CoverageBroken
from elasticscan.reader.coverage import Coverage
from elasticscan.topology import SlotSet
from tests.base.examples import examples

ALL = SlotSet.span(0, 20)


def slots(*chosen: int) -> SlotSet:
    return SlotSet.of((slot, slot + 1) for slot in chosen)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.integers(0, 4), min_size=20, max_size=20), st.integers(0, 4))
def test_a_scan_is_covered_if_all_its_slots_were_finished_in_any_portions(
    portion_of: list[int], before: int
) -> None:
    """A scan that is resumed finished one portion before; the last one is missing at first."""
    portions = [slots(*(slot for slot, p in enumerate(portion_of) if p == portion)) for portion in range(5)]
    coverage = Coverage(ALL, ALL - portions[before])
    *others, last = portions[:before] + portions[before + 1 :]
    for portion in others:
        coverage.finish(portion)
    if last:
        with pytest.raises(CoverageBroken) as caught:
            coverage.prove()
        assert caught.value.fields["slots"] == str(last)
    coverage.finish(last)
    coverage.prove()


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
