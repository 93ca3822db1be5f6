"""Cutting a scan: every slot once, one place each, few and even."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.connector.splits import (
    BASE,
    ENTRIES_PER_TASK,
    VIRTUAL,
    ScanPart,
    cut,
    most_index_parts,
)
from elasticscan.metadata import StagedFragment
from elasticscan.store import slot_bytes
from elasticscan.topology import Placement, SlotSet, Tablet
from tests.base.examples import examples

MB = 1 << 20


def placement(*homes: int) -> Placement:
    """One tablet of 16 slots for each shard id."""
    return Placement.of(Tablet(i + 1, 16 * i, 16 * i + 16, home, 1) for i, home in enumerate(homes))


def even(now: Placement, total: float) -> np.ndarray:  # type: ignore[type-arg]
    return np.full(now.slot_count, total / now.slot_count)


def everything(parts: list[ScanPart]) -> SlotSet:
    found = SlotSet()
    for part in parts:
        assert not found & part.slots
        found |= part.slots
    return found


def test_a_large_shard_is_cut_into_even_parts() -> None:
    now = placement(1, 1, 1, 1)
    parts = cut(now, now, even(now, 1000 * MB), 256 * MB)
    assert len(parts) == 4
    assert all(abs(part.size - 250 * MB) < 20 * MB for part in parts)


def test_slots_away_from_their_base_shard_are_virtual_scans() -> None:
    parts = cut(placement(1, 2, 2, 2), placement(1, 1, 2, 2), np.zeros(64), MB)
    assert [(p.kind, p.shards, str(p.slots)) for p in parts] == [
        (BASE, (1,), "0-16"),
        (BASE, (2,), "32-64"),
        (VIRTUAL, (2,), "16-32"),
    ]


def test_a_bound_lowers_the_cuts_before_it_puts_anything_together() -> None:
    now, base = placement(1, 2, 2, 3), placement(1, 1, 2, 3)
    parts = cut(now, base, even(now, 64 * MB), MB, most=4)
    assert sorted(part.kind for part in parts) == [BASE, BASE, BASE, VIRTUAL]


def test_one_partition_takes_everything_that_did_not_move_and_another_what_did() -> None:
    now, base = placement(1, 2, 2, 3), placement(1, 1, 2, 3)
    (part,) = cut(base, base, even(base, 64 * MB), MB, most=1)
    assert (part.kind, part.shards, part.slots) == (BASE, (1, 2, 3), SlotSet.span(0, 64))
    parts = cut(now, base, even(now, 64 * MB), MB, most=1)
    assert sorted((p.kind, p.shards) for p in parts) == [(BASE, (1, 2, 3)), (VIRTUAL, (2,))]
    assert everything(parts) == SlotSet.span(0, 64)


def test_a_part_of_the_slots_is_cut_like_all_of_them() -> None:
    now, base = placement(1, 2, 2, 3), placement(1, 1, 2, 3)
    parts = cut(now, base, even(now, 64 * MB), MB * 1000, slots=SlotSet.span(8, 40))
    assert [(p.kind, p.shards, str(p.slots)) for p in parts] == [
        (BASE, (1,), "8-16"),
        (BASE, (2,), "32-40"),
        (VIRTUAL, (2,), "16-32"),
    ]


def test_a_fragment_weighs_on_the_slots_it_speaks_for() -> None:
    slots = SlotSet.of([(0, 2), (6, 8)])
    fragment = StagedFragment(1, "p", slots, 4, 400, True, 0, False, 0, 0).entered(1, 1, 1, 1)
    assert slot_bytes([fragment, fragment], 8).tolist() == [200, 200, 0, 0, 0, 0, 200, 200]


def test_an_index_scan_gets_a_task_for_every_so_many_entries_and_at_most_one_a_shard() -> None:
    assert [most_index_parts(3, entries) for entries in (0, 1, ENTRIES_PER_TASK)] == [1, 1, 1]
    assert [most_index_parts(3, n * ENTRIES_PER_TASK + 1) for n in (1, 2, 3)] == [2, 3, 3]
    assert [most_index_parts(3, 10 * ENTRIES_PER_TASK, most) for most in (1, 2, 9)] == [1, 2, 3]


@settings(deadline=None, max_examples=examples(200))
@given(
    now=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    base=st.lists(st.integers(1, 4), min_size=8, max_size=8),
    weights=st.lists(st.floats(0, 1e9), min_size=128, max_size=128),
    split_bytes=st.integers(1, 10**9),
    most=st.none() | st.integers(1, 20),
)
def test_every_slot_is_in_exactly_one_part(
    now: list[int], base: list[int], weights: list[float], split_bytes: int, most: int | None
) -> None:
    here, there = placement(*now), placement(*base[: len(now)])
    parts = cut(here, there, np.array(weights[: here.slot_count]), split_bytes, most)
    assert everything(parts) == SlotSet.span(0, here.slot_count)
    assert most is None or len(parts) <= max(most, len({part.kind for part in parts}))
    for part in parts:
        if part.kind == BASE:
            assert all(part.slots & here.at(s) <= there.at(s) for s in part.shards)
        if part.kind == VIRTUAL:
            assert not any(part.slots & here.at(s) & there.at(s) for s in part.shards)
