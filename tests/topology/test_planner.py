"""The placement of a new store."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import InvalidOption
from elasticscan.topology import Tablet, initial_placement
from tests.base.examples import examples


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(1, 300), st.data())
def test_a_new_store_is_even_and_contiguous(slots: int, data: st.DataObject) -> None:
    tablets = data.draw(st.integers(1, min(slots, 40)))
    shards = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=9, unique=True))
    placement = initial_placement(slots, tablets, shards)
    sizes = [t.end - t.start for t in placement.tablets]
    assert placement.slot_count == slots
    assert [t.id for t in placement.tablets] == list(range(1, tablets + 1))
    assert {t.epoch for t in placement.tablets} == {1}
    assert max(sizes) - min(sizes) <= 1
    counts = Counter(t.shard for t in placement.tablets)
    assert max(counts[shard] for shard in shards) - min(counts[shard] for shard in shards) <= 1
    assert all(len(placement.at(s).ranges) <= 1 for s in shards)


@pytest.mark.parametrize(
    ("slots", "tablets", "shards", "error"),
    [
        (4, 5, [1], InvalidOption),
        (4, 0, [1], InvalidOption),
        (4, -1, [1], InvalidOption),
        (0, 1, [1], AssertionError),
        (65_537, 1, [1], AssertionError),
        (4, 1, [], AssertionError),
        (4, 1, [1, 1], AssertionError),
    ],
)
def test_a_store_that_cannot_be_is_refused(
    slots: int, tablets: int, shards: list[int], error: type[Exception]
) -> None:
    with pytest.raises(error):
        initial_placement(slots, tablets, shards)


def test_the_largest_store_and_the_smallest_can_be_and_some_shards_hold_nothing() -> None:
    assert len(initial_placement(65_536, 65_536, [1, 2]).tablets) == 65_536
    assert initial_placement(1, 1, [1]).tablets == (Tablet(1, 0, 1, 1, 1),)
    assert initial_placement(8, 2, [5, 3, 4]).shards == (3, 5)
