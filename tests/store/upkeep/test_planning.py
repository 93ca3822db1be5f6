"""Merges by size tiers: bounds hold, little is written again, plans settle.

The store is nothing but sizes, so that a life of one takes a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.metadata import Fragment
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

FILE_BYTES, ROW_BYTES = 3_500, 48  # as measured: a fragment with one index run, and each of its rows


def fragment(number: int, slots: SlotSet, size: int, shard: int = 1) -> Fragment:
    """A fragment of which nothing matters but its slots and its size."""
    facts = {"unique": True, "tombstones": 0, "versioned": False, "tail": 0, "digest": 0}
    place = {"id": number, "table": 1, "shard": shard, "path": f"t1/{number}.arrow"}
    commits = {"min_commit": number, "max_commit": number}
    return Fragment(**place, **facts, **commits, slots=slots, rows=size // ROW_BYTES, bytes=size)


class World:
    """The fragments of one table at one shard."""

    def __init__(self, policy: Policy, slots: int = 2_048) -> None:
        self.policy, self.every_slot = policy, SlotSet.span(0, slots)
        self.parts: dict[int, Part] = {}
        self.committed = self.merged = self.steps = 0
        self._ids = 0

    @property
    def amplification(self) -> float:
        return (self.committed + self.merged) / self.committed

    def commit(self, rows: int, slots: SlotSet | None = None) -> None:
        self.committed += self._enter(FILE_BYTES + ROW_BYTES * rows, slots or self.every_slot)

    def plan(self, tidy: bool = False) -> tuple[Merge, ...]:
        """Return the merges that are planned now, which are bounded and disjoint."""
        done, bounds = SlotSet(), self.policy
        merges = plan_merges(tuple(self.parts.values()), bounds, tidy)
        for merge in merges:
            assert len(merge.fragments) > 1
            parts = [self.parts[number] for number in merge.fragments]
            # One slot of many fragments cannot be cut any further, and small fragments are merged at once.
            one_slot = sum(part.density for part in parts) * 2
            small = sum(part.bytes for part in parts if part.bytes < bounds.small_bytes)
            assert merge.bytes <= max(bounds.step_bytes + one_slot, small)
            if small < merge.bytes:
                assert not merge.slots & done
                done |= merge.slots
        return merges

    def carry_out(self, merge: Merge) -> None:
        size = FILE_BYTES
        for number in merge.fragments:
            part = self.parts.pop(number)
            share = part.bytes * len(part.slots & merge.slots) // len(part.slots)
            size += max(share - FILE_BYTES, 0)
            if left := part.slots - merge.slots:
                self.parts[number] = Part(number, left, part.bytes - share)
        self.merged += self._enter(size, merge.slots)
        self.steps += 1

    def settle(self, tidy: bool = False, most_rounds: int = 12) -> None:
        """Plan and carry out until nothing is left to do."""
        for _ in range(most_rounds):
            merges = self.plan(tidy)
            if not merges:
                return
            for merge in merges:
                self.carry_out(merge)
        raise AssertionError(f"after {most_rounds} rounds there is still something to do: {self.plan(tidy)}")

    def depths(self) -> Sequence[int]:
        """Return from how many fragments each slot is read."""
        counts = [0] * len(self.every_slot)
        for part in self.parts.values():
            for start, end in part.slots:
                for slot in range(start, end):
                    counts[slot] += 1
        return counts

    def _enter(self, size: int, slots: SlotSet) -> int:
        self._ids += 1
        self.parts[self._ids] = Part(self._ids, slots, size)
        return size


POLICY = Policy()
SLOTS = 64
SMALL = replace(POLICY, small_bytes=5_000, step_bytes=40_000)


def slot_sets() -> st.SearchStrategy[SlotSet]:
    spans = st.tuples(st.integers(0, SLOTS - 1), st.integers(1, SLOTS)).map(
        lambda s: (s[0], min(SLOTS, sum(s)))
    )
    return st.lists(spans, min_size=1, max_size=4).map(SlotSet.of)


commits = st.lists(st.tuples(st.integers(1, 3_000), st.none() | slot_sets()), max_size=60)


@settings(deadline=None, max_examples=examples(120))
@given(commits, st.sampled_from([3, 8]), st.booleans(), st.sampled_from([1, 1, 7, 60]))
def test_plans_settle_lose_no_slot_and_leave_none_more_fragments_than_allowed(
    history: list[tuple[int, SlotSet | None]], most: int, tidy: bool, every: int
) -> None:
    world, served = World(replace(SMALL, slot_fragments=most), SLOTS), SlotSet()
    for number, (rows, slots) in enumerate(history, 1):
        world.commit(rows, slots)
        served |= slots or world.every_slot
        if number % every:
            world.plan(tidy)
            continue
        world.settle(most_rounds=11 + every)
        assert max(world.depths()) <= most
        assert depth_of(tuple(world.parts.values()), world.policy) <= most
    world.settle(tidy, most_rounds=40)
    assert SlotSet.of(r for part in world.parts.values() for r in part.slots) == served
    assert world.plan(tidy) == ()


def test_ten_thousand_small_commits_beside_a_large_fragment() -> None:
    world = World(POLICY)
    world.commit(500_000)
    deepest = 0
    for _ in range(10_000):
        world.commit(50)
        world.settle()
        deepest = max(deepest, len(world.parts))
    assert deepest <= POLICY.slot_fragments
    assert world.amplification <= 5
    assert world.steps < 2_200


EVERY = SlotSet.span(0, SLOTS)
NEWER = [Part(n, EVERY, 300_000) for n in range(2, 12)]
LARGE = [Part(1, EVERY, 30_000_000), Part(2, EVERY, 12_000_000)]
ARRIVED = [Part(n, SlotSet.span(4 * n, 4 * n + 4), POLICY.small_bytes) for n in range(16)]
SMALL_ONES = [Part(n, SlotSet.span(4 * n, 4 * n + 4), 3_000) for n in range(12)]


@pytest.mark.parametrize(
    ("parts", "tidy", "merged"),
    [
        # Newer rows are merged into all others where they hold enough.
        ([Part(1, EVERY, 8_000_000), *NEWER], False, range(1, 12)),
        ([Part(1, EVERY, 30_000_000), *NEWER], False, range(2, 12)),
        # While all bounds hold, merges are for a keeper that has nothing else to do.
        (LARGE, False, None),
        (LARGE, True, range(1, 3)),
        # Tablets that arrived with large fragments of their own are left alone.
        (ARRIVED, True, None),
        # Small fragments count for all slots.
        (SMALL_ONES, False, range(12)),
        (SMALL_ONES[:9], False, range(9)),
        (SMALL_ONES[:8], False, None),
    ],
)
def test_what_is_merged(parts: list[Part], tidy: bool, merged: range | None) -> None:
    found = [merge.fragments for merge in plan_merges(parts, POLICY, tidy)]
    assert found == ([] if merged is None else [tuple(merged)])


def test_index_runs_count_with_their_fragments_and_slots_that_left_do_not() -> None:
    moved = replace(fragment(7, SlotSet.span(0, 16), 1_000), slots_written=64)
    assert parts_of([moved], []) == (Part(7, SlotSet.span(0, 16), 250),)


def test_overwritten_fragments_are_dropped_uncopied_and_only_small_ones_are_merged_before() -> None:
    every, policy = SlotSet.span(0, SLOTS), replace(POLICY, history_fragments=3)
    large, small = POLICY.small_bytes, 3_000
    old = [fragment(number, every, large) for number in range(1, 10)]
    few = [fragment(number, every, small) for number in range(10, 15)]
    newest = [fragment(number, every, small) for number in range(20, 22)]

    def plan(horizon: int) -> tuple[Merge, ...]:
        state = SiteState.of([*old, *few, *newest], [], 20)
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
