"""`SlotSet` against Python's own sets."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.topology import SlotSet
from tests.base.examples import examples

few = settings(max_examples=examples(200), deadline=None)

slot = st.integers(0, 40)
ranges = st.lists(st.tuples(slot, slot), max_size=8)


def model(pairs: list[tuple[int, int]]) -> set[int]:
    return {s for start, end in pairs for s in range(start, end)}


def slots_of(slots: SlotSet) -> set[int]:
    return model(list(slots.ranges))


spans = st.tuples(st.integers(0, 900), st.integers(0, 3))
many = st.lists(spans, max_size=8) | st.lists(spans, min_size=65, max_size=90)  # which are made at once


@few
@given(many, many)
def test_the_algebra_of_many_ranges_is_that_of_sets(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    a, b = ([(start, start + length) for start, length in pairs] for pairs in (a, b))
    left, right = SlotSet.of(a), SlotSet.of(b)
    for slots, as_set in [
        (left, model(a)),
        (left | right, model(a) | model(b)),
        (left & right, model(a) & model(b)),
        (left - right, model(a) - model(b)),
        (right - left, model(b) - model(a)),
    ]:
        assert slots == SlotSet.of(slots.ranges) == SlotSet.parse(str(slots))
        assert slots_of(slots) == as_set
        assert len(slots) == len(as_set)
        assert slots.edges.tolist() == [edge for pair in slots for edge in pair]
        assert {type(bound) for pair in slots for bound in pair} <= {int}
    assert (left <= right) == (model(a) <= model(b))
    assert left & right <= left
    assert left.isdisjoint(right) == model(a).isdisjoint(model(b))
    assert pickle.loads(pickle.dumps(left)) == left


@few
@given(ranges, slot)
def test_membership_is_that_of_sets_for_numpy_integers_too_and_beyond_the_last_slot(
    pairs: list[tuple[int, int]], first: int
) -> None:
    slots, asked = SlotSet.of(pairs), np.arange(first, 50, dtype=np.uint16)
    expected = [int(at) in model(pairs) for at in asked]
    assert slots.mask(asked).tolist() == expected
    assert [at in slots for at in asked] == [int(at) in slots for at in asked] == expected
    assert "0" not in slots
    assert 0.0 not in slots


def test_numpy_bounds_become_plain_integers_and_a_span_that_ends_before_it_begins_is_empty() -> None:
    start, end = np.array([0, 4], dtype=np.int64)
    for slots in (SlotSet.of([(start, end)]), SlotSet.span(start, end)):
        assert slots == SlotSet.span(0, 4)
        assert {type(bound) for pair in slots for bound in pair} == {int}
    assert SlotSet.span(4, 4) == SlotSet.span(5, 2) == SlotSet.span(65_536, 65_536) == SlotSet()


def test_the_text_is_ranges_with_ends_excluded() -> None:
    assert str(SlotSet.of([(128, 192), (0, 32), (32, 64)])) == "0-64,128-192"
    assert str(SlotSet()) == ""
    for text in ("7", "-1-4", "a-b", "0-64,", "0-4;8-9"):
        with pytest.raises(ValueError, match=r"unpack|literal"):
            SlotSet.parse(text)


@pytest.mark.parametrize("pair", [(-1, 2), (0, 65_537), (3, 1 << 60), (70_000, 4)])
def test_slots_that_there_cannot_be_are_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="are not within"):
        SlotSet.of([pair])
