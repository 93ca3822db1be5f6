"""Splits, joins and moves by bytes: they settle, and none undoes another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.store.moves.balancing import (
    Balance,
    plan_even,
    plan_joins,
    plan_moves,
    plan_splits,
    tablet_bytes,
)
from elasticscan.topology import (
    Move,
    Placement,
    SlotSet,
    Tablet,
    initial_placement,
    join_tablets,
    split_tablet,
)
from tests.base.examples import examples
from tests.store.upkeep.test_planning import fragment
from tests.topology.moved import move_tablet

BOUNDS = Balance(split_bytes=1_000, join_bytes=300, fewest_tablets=4, share=0.25, bytes=50)
SLOTS = 64


@st.composite
def loads(draw: st.DrawFn) -> tuple[Placement, list[int], list[int]]:
    """A placement, the bytes of each slot (whole: sums are exact), and the shards that take tablets."""
    shards = list(range(1, 1 + draw(st.integers(1, 4))))
    placement = initial_placement(SLOTS, draw(st.integers(1, 32)), shards)
    heavy = draw(st.dictionaries(st.integers(0, SLOTS - 1), st.integers(0, 3_000), max_size=8))
    every = draw(st.integers(0, 60))
    return placement, [every + heavy.get(slot, 0) for slot in range(SLOTS)], shards


def sizes_of(placement: Placement, slots: list[int]) -> dict[int, float]:
    return {t.id: sum(slots[t.start : t.end]) for t in placement.tablets}


def carry_out(placement: Placement, step: int | tuple[int, int]) -> Placement:
    fresh = max(t.id for t in placement.tablets) + 1
    tablets = {tablet.id: tablet for tablet in placement.tablets}
    if isinstance(step, int):
        return placement.replaced(*split_tablet(tablets[step], None, (fresh, fresh + 1)))
    return placement.replaced(*join_tablets(*map(tablets.__getitem__, step), fresh))


@settings(deadline=None, max_examples=examples(100))
@given(loads())
def test_splits_and_joins_settle_and_none_undoes_another(
    load: tuple[Placement, list[int], list[int]],
) -> None:
    placement, slots, _ = load
    twins, joined = set[frozenset[int]](), set[int]()
    for _ in range(12):
        sizes = sizes_of(placement, slots)
        steps = (*plan_splits(placement, sizes, BOUNDS), *plan_joins(placement, sizes, BOUNDS))
        if not steps:
            break
        for step in steps:
            before = {tablet.id for tablet in placement.tablets}
            placement = carry_out(placement, step)
            made = {tablet.id for tablet in placement.tablets} - before
            if isinstance(step, int):
                assert step not in joined
                twins.add(frozenset(made))
            else:
                assert set(step) not in twins
                joined |= made
    else:
        raise AssertionError("plans do not settle")
    sizes = sizes_of(placement, slots)
    for tablet in placement.tablets:
        assert sizes[tablet.id] <= BOUNDS.split_bytes or tablet.end - tablet.start == 1


@settings(deadline=None, max_examples=examples(200))
@given(loads(), st.data())
def test_what_evens_shards_out_and_what_keeps_them_so_never_undo_each_other(
    load: tuple[Placement, list[int], list[int]], data: st.DataObject
) -> None:
    """In whatever order, and whatever shards join or leave: it settles, and every tablet has a home."""
    placement, slots, _ = load
    sizes = sizes_of(placement, slots)
    active = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5, unique=True))
    plans = [partial(plan_even, shards=active), partial(plan_moves, shards=active)]
    done = list[str]()
    for turn in range(24):
        moves = plans[turn % 2](placement, sizes, bounds=BOUNDS)
        held = {shard: sum(sizes[t.id] for t in placement.tablets if t.shard == shard) for shard in active}
        for move in moves:
            assert move.target in active
            tablet = placement.tablet(move.tablet)
            assert tablet is not None
            assert tablet.shard == move.source
            if turn % 2:
                assert held[move.target] + sizes[move.tablet] < held[move.source]
                held[move.target] += sizes[move.tablet]
                held[move.source] -= sizes[move.tablet]
            placement = move_tablet(placement, move.tablet, move.target)
        assert {tablet.shard for tablet in placement.tablets} <= set(active)
        done = [] if moves else [*done, "nothing"]
        if len(done) == 2:
            return
    raise AssertionError("plans do not settle")


def by_count(homes: Sequence[int], shards: Sequence[int]) -> tuple[list[int], tuple[Move, ...]]:
    """Plan for tablets without rows at these shards; return where they are after it, and the plan."""
    placement = Placement.of(Tablet(i + 1, i, i + 1, home, 1) for i, home in enumerate(homes))
    plan = plan_even(placement, dict.fromkeys(range(1, len(homes) + 1), 0.0), shards, BOUNDS)
    for move in plan:
        assert placement.tablets[move.tablet - 1].shard == move.source
        placement = move_tablet(placement, move.tablet, move.target)
    return [tablet.shard for tablet in placement.tablets], plan


def is_even(homes: Sequence[int], shards: Sequence[int]) -> bool:
    counts = [homes.count(shard) for shard in shards]
    return sum(counts) == len(homes) and max(counts) - min(counts) <= 1


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.permutations(range(1, 10)), st.integers(1, 9))
def test_a_plan_by_count_is_even_in_whatever_order_shards_are_listed(
    homes: list[int], every: list[int], count: int
) -> None:
    shards = every[:count]
    after, plan = by_count(homes, shards)
    assert is_even(after, shards)
    assert len({move.tablet for move in plan}) == len(plan)
    assert not {m.source for m in plan} & {m.target for m in plan}, "no shard both gives and takes"
    assert by_count(after, shards)[1] == ()
    assert by_count(homes, sorted(shards))[1] == plan


@settings(deadline=None, max_examples=examples(80))
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True),
)
def test_no_other_way_to_be_even_moves_fewer_tablets(homes: list[int], shards: list[int]) -> None:
    others = (ways for ways in product(shards, repeat=len(homes)) if is_even(ways, shards))
    fewest = min(sum(a != b for a, b in zip(homes, way, strict=True)) for way in others)
    assert len(by_count(homes, shards)[1]) == fewest


def test_bytes_come_first_and_tablets_break_the_tie() -> None:
    placement = initial_placement(24, 12, [1, 2])
    equal = dict.fromkeys(range(1, 13), 10.0)
    expected = [Move(5, 1, 3), Move(6, 1, 3), Move(11, 2, 4), Move(12, 2, 4)]
    assert [*plan_even(placement, equal, [1, 2, 3], BOUNDS)] == [replace(move, target=3) for move in expected]
    assert {*expected} <= {*plan_even(placement, equal, [1, 2, 3, 4], BOUNDS)}, "neighbours go to one shard"
    placement = initial_placement(16, 8, [1, 2])
    skewed = dict.fromkeys(range(2, 9), 100.0) | {1: 800.0}  # shard 1 has 1,100 bytes, shard 2 has 400
    plan = plan_even(placement, skewed, [1, 2], BOUNDS)
    assert plan == (Move(4, 1, 2), Move(3, 1, 2), Move(2, 1, 2)), "by their number they are not even then"
    for move in plan:
        placement = move_tablet(placement, move.tablet, move.target)
    assert plan_even(placement, skewed, [1, 2], BOUNDS) == plan_moves(placement, skewed, [1, 2], BOUNDS) == ()


def test_tablets_that_grew_are_split_and_small_neighbours_are_joined_while_enough_are_left() -> None:
    placement = initial_placement(8, 4, [1])
    assert plan_splits(placement, {1: 999, 2: 1_001, 3: 0, 4: 0}, BOUNDS) == (2,)
    assert plan_splits(initial_placement(4, 4, [1]), dict.fromkeys(range(1, 5), 5_000.0), BOUNDS) == ()
    placement, small = initial_placement(16, 8, [1, 2]), dict.fromkeys(range(1, 9), 10.0)
    assert plan_joins(placement, small, BOUNDS) == ((1, 2), (3, 4), (5, 6), (7, 8))
    assert plan_joins(placement, small, replace(BOUNDS, fewest_tablets=7)) == ((1, 2),)
    assert plan_joins(placement, dict.fromkeys(range(1, 9), 200.0), BOUNDS) == ()


def test_few_tablets_move_and_shards_that_are_equal_or_being_emptied_give_and_take_nothing() -> None:
    placement, about = initial_placement(16, 8, [1, 2]), {n: 100.0 if n < 5 else 90.0 for n in range(1, 9)}
    assert plan_moves(placement, about, [1, 2], BOUNDS) == plan_moves(placement, about, [1], BOUNDS) == ()
    nearest = {1: 60.0, 2: 180.0, 3: 260.0, 4: 0.0, 5: 0.0, 6: 0.0}
    assert plan_moves(initial_placement(12, 6, [1, 2]), nearest, [1, 2], BOUNDS) == (Move(3, 1, 2),)
    placement = initial_placement(16, 8, [1, 2, 3])
    sizes = {t.id: 500.0 if t.shard == 1 else 10.0 for t in placement.tablets}
    assert plan_moves(placement, sizes, [2, 3], BOUNDS) == ()
    assert {move.target for move in plan_moves(placement, sizes, [1, 2], BOUNDS)} == {2}


def test_bytes_of_tablets_follow_the_slots_of_fragments() -> None:
    placement = initial_placement(8, 4, [1])
    wide, narrow = fragment(1, SlotSet.span(0, 8), 800), fragment(2, SlotSet.of([(1, 2), (6, 8)]), 300)
    assert tablet_bytes(placement, [wide, narrow]) == {1: 300, 2: 200, 3: 200, 4: 400}
