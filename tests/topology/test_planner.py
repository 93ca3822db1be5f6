"""Plans: balanced, and by the fewest moves that can do it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import InvalidOption
from elasticscan.topology import (
    Move,
    Placement,
    SlotSet,
    Tablet,
    initial_placement,
    plan_balance,
)
from tests.base.examples import examples
from tests.topology.moved import move_tablet

few = settings(max_examples=examples(150), deadline=None)


def placed(homes: Sequence[int]) -> Placement:
    """Tablets 1, 2, ... of one slot, at these shards."""
    return Placement.of(Tablet(i + 1, i, i + 1, home, 1) for i, home in enumerate(homes))


def carried_out(placement: Placement, plan: Sequence[Move]) -> Placement:
    for move in plan:
        tablet = placement.tablet(move.tablet)
        assert tablet is not None
        assert tablet.shard == move.source
        placement = move_tablet(placement, move.tablet, move.target)
    return placement


def is_balanced(homes: Sequence[int], shards: Sequence[int]) -> bool:
    counts = [homes.count(s) for s in shards]
    return sum(counts) == len(homes) and max(counts) - min(counts) <= 1


def homes_of(placement: Placement) -> list[int]:
    return [t.shard for t in placement.tablets]


shard_lists = st.lists(st.integers(1, 9), min_size=1, max_size=9, unique=True)
homes_lists = st.lists(st.integers(1, 9), min_size=1, max_size=40)


@few
@given(homes_lists, shard_lists, st.data())
def test_a_plan_balances_in_whatever_order_shards_are_listed(
    homes: list[int], shards: list[int], data: st.DataObject
) -> None:
    before = placed(homes)
    plan = plan_balance(before, shards)
    after = carried_out(before, plan)
    assert is_balanced(homes_of(after), shards)
    assert len({m.tablet for m in plan}) == len(plan)
    assert all(m.source != m.target for m in plan)
    givers = {m.source for m in plan} & set(shards)
    assert not givers & {m.target for m in plan}, "no shard both gives and takes"
    assert plan_balance(after, shards) == ()
    assert plan_balance(before, data.draw(st.permutations(shards))) == plan


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True),
)
def test_no_other_way_to_balance_moves_fewer_tablets(homes: list[int], shards: list[int]) -> None:
    others = (ways for ways in product(shards, repeat=len(homes)) if is_balanced(ways, shards))
    fewest = min(sum(a != b for a, b in zip(homes, way, strict=True)) for way in others)
    assert len(plan_balance(placed(homes), shards)) == fewest


def test_donors_give_their_last_tablets_and_receivers_take_neighbours() -> None:
    before = initial_placement(64, 12, [1, 2])
    assert plan_balance(before, [1, 2, 3]) == (
        Move(5, 1, 3),
        Move(6, 1, 3),
        Move(11, 2, 3),
        Move(12, 2, 3),
    )
    after = carried_out(before, plan_balance(before, [2]))
    assert after.at(2) == SlotSet.span(0, 64)


@few
@given(st.integers(1, 300), st.data())
def test_a_new_store_is_even_and_contiguous(slots: int, data: st.DataObject) -> None:
    tablets = data.draw(st.integers(1, min(slots, 40)))
    shards = data.draw(shard_lists)
    placement = initial_placement(slots, tablets, shards)
    sizes = [t.end - t.start for t in placement.tablets]
    assert placement.slot_count == slots
    assert [t.id for t in placement.tablets] == list(range(1, tablets + 1))
    assert {t.epoch for t in placement.tablets} == {1}
    assert max(sizes) - min(sizes) <= 1
    assert is_balanced(homes_of(placement), shards)
    assert all(len(placement.at(s).ranges) <= 1 for s in shards)
    assert plan_balance(placement, shards) == ()


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


@pytest.mark.parametrize("shards", [[], [1, 1]])
def test_tablets_always_need_a_shard_to_live_at(shards: list[int]) -> None:
    with pytest.raises(AssertionError):
        plan_balance(placed([1, 1, 2]), shards)
