"""Intervals of slots against a look at every single slot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasticscan.metadata import Bounds, Fragment, StagedFragment, intervals_of
from elasticscan.storage.view import View
from elasticscan.topology import SlotSet

SLOTS = 24


def fragment(number: int, slots: SlotSet, min_commit: int = 1, max_commit: int = 1) -> Fragment:
    staged = StagedFragment(1, f"t1/{number}.arrow", slots, 1, 1, True, 0, min_commit < max_commit, 0, 0)
    return staged.entered(number, 1, min_commit, max_commit)


ranges = st.tuples(st.integers(0, SLOTS), st.integers(0, SLOTS))
slot_sets = st.lists(ranges, max_size=4).map(SlotSet.of)
commits = st.tuples(st.integers(1, 5), st.integers(0, 3)).map(lambda c: (c[0], c[0] + c[1]))
fragment_lists = st.lists(st.tuples(slot_sets, commits), max_size=6).map(
    lambda drawn: [fragment(n, slots, *c) for n, (slots, c) in enumerate(drawn, 1)]
)


@given(fragment_lists)
def test_each_slot_is_in_the_interval_of_exactly_its_fragments(fragments: list[Fragment]) -> None:
    intervals = intervals_of(fragments)
    found = {
        slot: {f.id for f in interval.fragments}
        for interval in intervals
        for slot in range(interval.start, interval.end)
    }
    expected = {slot: ids for slot in range(SLOTS) if (ids := {f.id for f in fragments if slot in f.slots})}
    assert found == expected
    assert sum(interval.end - interval.start for interval in intervals) == len(found)
    assert list(intervals) == sorted(intervals, key=lambda interval: interval.start)


@given(fragment_lists, ranges, st.integers(0, 6), st.integers(0, 9))
def test_a_view_gives_the_fragments_that_count_of_the_slots_asked_for(
    fragments: list[Fragment], span: tuple[int, int], floor: int, snapshot: int
) -> None:
    start, end = min(span), max(span) + 1
    view, bounds = View(fragments), Bounds(floor, snapshot)
    found: dict[int, set[int]] = {}
    at = start
    for interval in view.between(start, end, bounds):
        assert at <= interval.start < interval.end <= end
        at = interval.end
        for slot in range(interval.start, interval.end):
            found[slot] = {f.id for f in interval.fragments}
    counting = [f for f in fragments if f.min_commit <= snapshot and f.max_commit >= floor]
    assert found == {
        slot: ids for slot in range(start, end) if (ids := {f.id for f in counting if slot in f.slots})
    }


@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 9), st.integers(0, 9))
def test_bounds_wholly_hold_what_has_no_commit_outside(
    low: int, more: int, floor: int, snapshot: int
) -> None:
    bounds, made_of = Bounds(floor, snapshot), fragment(1, SlotSet.span(0, 1), low, low + more)
    inside = [floor <= commit <= snapshot for commit in range(low, low + more + 1)]
    assert bounds.wholly_hold(made_of) == all(inside)
    if any(inside):
        assert bounds.touch(made_of)
