"""Merges by size tiers: bounds hold, little is written again, plans settle."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.store.upkeep.planning import (
    Merge,
    Part,
    Policy,
    SiteState,
    depth_of,
    parts_of,
    plan_merges,
    plan_scattered,
    plan_site,
)
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.store.upkeep.world import World, fragment

POLICY = Policy()
SLOTS = 64
SMALL = replace(POLICY, small_bytes=5_000, small_tier_bytes=20_000, step_bytes=40_000)


def slot_sets() -> st.SearchStrategy[SlotSet]:
    spans = st.tuples(st.integers(0, SLOTS - 1), st.integers(1, SLOTS)).map(
        lambda s: (s[0], min(SLOTS, sum(s)))
    )
    return st.lists(spans, min_size=1, max_size=4).map(SlotSet.of)


commits = st.lists(st.tuples(st.integers(1, 3_000), st.none() | slot_sets()), max_size=60)


@settings(deadline=None, max_examples=examples(60))
@given(commits, st.sampled_from([3, 8]))
def test_after_each_commit_and_its_merges_no_slot_has_more_fragments_than_allowed(
    history: list[tuple[int, SlotSet | None]], most: int
) -> None:
    world = World(replace(SMALL, slot_fragments=most), SLOTS)
    for rows, slots in history:
        world.commit(rows, slots)
        world.settle()
        assert max(world.depths()) <= most
        assert depth_of(tuple(world.parts.values()), world.policy) <= most


@settings(deadline=None, max_examples=examples(60))
@given(commits, st.booleans())
def test_plans_settle_and_lose_no_slot(history: list[tuple[int, SlotSet | None]], tidy: bool) -> None:
    world = World(SMALL, SLOTS)
    served = SlotSet()
    for rows, slots in history:
        world.commit(rows, slots)
        served |= slots or world.every_slot
    world.settle(tidy, most_rounds=40)
    assert SlotSet.of(r for part in world.parts.values() for r in part.slots) == served
    assert world.plan(tidy) == ()


@settings(deadline=None, max_examples=examples(60))
@given(commits)
def test_steps_are_bounded_and_disjoint(history: list[tuple[int, SlotSet | None]]) -> None:
    world = World(replace(SMALL, most_pieces=1_000), SLOTS)
    for rows, slots in history:
        world.commit(rows, slots)
    merges = world.plan(tidy=True)
    done = SlotSet()
    for merge in merges:
        assert len(merge.fragments) > 1
        parts = [world.parts[number] for number in merge.fragments]
        # One slot of many fragments cannot be cut any further, and small fragments are merged at once.
        one_slot = sum(part.density for part in parts) * 2
        small = sum(part.bytes for part in parts if part.bytes < SMALL.small_bytes)
        assert merge.bytes <= max(SMALL.step_bytes + one_slot, small)
        if small < merge.bytes:
            assert not merge.slots & done
            done |= merge.slots


@settings(deadline=None, max_examples=examples(20))
@given(st.integers(0, 2**32), st.sampled_from([20, 200, 2_000]), st.sampled_from([0.0, 1.0]))
def test_write_amplification_grows_with_the_logarithm(seed: int, count: int, spread: float) -> None:
    chance, world = random.Random(seed), World(POLICY)
    for _ in range(count):
        world.commit(int(100 * chance.lognormvariate(0, spread)) + 1)
        world.settle()
    assert world.amplification <= 3 + math.log2(count)


def test_ten_thousand_small_commits_beside_a_large_fragment() -> None:
    world = World(POLICY)
    world.commit(500_000)
    deepest = 0
    for _ in range(10_000):
        world.commit(50)
        world.settle()
        deepest = max(deepest, len(world.parts))
    assert deepest <= POLICY.slot_fragments
    assert world.amplification <= 6.5
    assert world.steps < 2_000


def test_newer_rows_are_merged_into_all_others_where_they_hold_enough() -> None:
    every = SlotSet.span(0, SLOTS)
    newer = [Part(n, every, 300_000) for n in range(2, 12)]
    (all_of_them,) = plan_merges([Part(1, every, 8_000_000), *newer], POLICY)
    assert all_of_them.fragments == tuple(range(1, 12))
    (small_ones,) = plan_merges([Part(1, every, 30_000_000), *newer], POLICY)
    assert small_ones.fragments == tuple(range(2, 12))


def test_nothing_is_tidied_while_all_bounds_hold_unless_a_keeper_has_nothing_else_to_do() -> None:
    every = SlotSet.span(0, SLOTS)
    parts = [Part(1, every, 30_000_000), Part(2, every, 12_000_000)]
    assert plan_merges(parts, POLICY) == ()
    assert plan_merges(parts, POLICY, tidy=True) == (Merge((1, 2), every, 42_000_000),)


def test_tablets_that_arrived_with_their_own_large_fragments_are_left_alone() -> None:
    parts = [Part(n, SlotSet.span(4 * n, 4 * n + 4), POLICY.small_bytes) for n in range(16)]
    assert plan_merges(parts, POLICY, tidy=True) == ()


def test_index_runs_count_with_their_fragments_and_slots_that_left_do_not() -> None:
    moved = replace(fragment(7, SlotSet.span(0, 16), 1_000), slots_written=64)
    assert parts_of([moved], []) == (Part(7, SlotSet.span(0, 16), 250),)


@pytest.mark.parametrize("count", [9, 12])
def test_small_fragments_count_for_all_slots(count: int) -> None:
    parts = [Part(n, SlotSet.span(4 * n, 4 * n + 4), 3_000) for n in range(count)]
    assert depth_of(parts, POLICY) == count
    (merge,) = plan_merges(parts, POLICY)
    assert len(merge.fragments) == count


def test_overwritten_fragments_are_dropped_uncopied_and_only_small_ones_are_merged_before() -> None:
    every, policy = SlotSet.span(0, SLOTS), replace(POLICY, history_fragments=3)
    large, small = POLICY.small_bytes, 3_000
    old = [fragment(number, every, large) for number in range(1, 10)]
    few = [fragment(number, every, small) for number in range(10, 15)]
    newest = [fragment(number, every, small) for number in range(20, 22)]

    def plan(horizon: int) -> tuple[Merge, ...]:
        state = SiteState([*old, *few, *newest], [], 20)
        return plan_site(state, 20, horizon, policy)

    (merge,) = plan(0)
    assert merge.fragments == (10, 11, 12, 13, 14)
    assert plan(13) == (Merge(tuple(range(1, 13)), every, 0),)


def test_small_fragments_that_share_no_slots_are_packed_into_as_few_as_steps_may_read() -> None:
    parts = [Part(number, SlotSet.span(number, number + 1), 6_000) for number in range(20)]
    policy = replace(SMALL, small_bytes=20_000)
    merges = plan_scattered(parts, policy)
    assert sorted(number for merge in merges for number in merge.fragments) == list(range(20))
    assert len(merges) == 4
    assert all(len(merge.fragments) > 1 and merge.bytes <= policy.step_bytes for merge in merges)
    assert plan_merges(parts, replace(policy, slot_fragments=30), tidy=True) == merges
    assert plan_scattered(parts[:2], policy) == ()
    assert plan_scattered([*parts, Part(20, SlotSet.span(0, 20), 6_000)], policy) == ()
    assert plan_scattered([replace(part, bytes=30_000) for part in parts], policy) == ()
