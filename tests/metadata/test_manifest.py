"""What a file says of its origin."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.metadata import Origin
from elasticscan.topology import Placement, SlotSet, Tablet
from tests.base.examples import examples

epochs = st.lists(st.integers(1, 3), min_size=1, max_size=12)
ranges = st.lists(st.tuples(st.integers(0, 36), st.integers(0, 36)), max_size=4)


@settings(max_examples=examples(200), deadline=None)
@given(epochs, ranges)
def test_the_epochs_of_some_slots_are_those_of_their_tablets(
    of_tablets: list[int], some: list[tuple[int, int]]
) -> None:
    tablets = [Tablet(at, 3 * at, 3 * at + 3, 1, epoch) for at, epoch in enumerate(of_tablets)]
    placement = Placement(tuple(tablets))
    slots = SlotSet.of(some) & SlotSet.span(0, placement.slot_count)
    origin = Origin("s", placement.slot_count, "spark", "write", "w", 0, 0.0, placement.epochs)
    message = origin.epochs_of(slots)
    by_slot = {slot: epoch for start, end, epoch in message for slot in range(start, end)}
    inside = {slot for start, end in slots for slot in range(start, end)}
    assert by_slot == {slot: placement.tablet_of(slot).epoch for slot in inside}
    assert list(message) == sorted(message)
    assert sum(end - start for start, end, _ in message) == len(inside)
