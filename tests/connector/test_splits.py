"""Cutting a scan: every slot once, one place each, few and even."""

from __future__ import annotations

from typing import Any

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


def even(now: Placement, total: float) -> Any:
    return np.full(now.slot_count, total / now.slot_count)


def everything(parts: list[ScanPart]) -> SlotSet:
    found = SlotSet()
    for part in parts:
        assert not found & part.slots
        found |= part.slots
    return found


def parts_of(now: Placement, base: Placement, **more: Any) -> list[tuple[str, str]]:
    """The parts of slots without rows, or as large as they are named."""
    parts = cut(now, base, even(now, 64 * MB), **{"split_bytes": 1_000 * MB, **more})
    return [(part.kind, str(part.slots)) for part in parts]


def test_parts_are_of_one_kind_and_few_and_even() -> None:
    now, base = placement(1, 2, 2, 3), placement(1, 1, 2, 3)
    apart = [(BASE, "0-16"), (BASE, "32-48"), (BASE, "48-64"), (VIRTUAL, "16-32")]
    assert sorted(parts_of(now, base)) == apart
    assert (
        sorted(parts_of(now, base, split_bytes=MB, most=4)) == apart
    )  # cut less before any are put together
    together = [(BASE, "0-16,32-64"), (VIRTUAL, "16-32")]
    assert sorted(parts_of(now, base, split_bytes=MB, most=1)) == together
    assert parts_of(base, base, split_bytes=MB, most=1) == [(BASE, "0-64")]
    some = [(BASE, "32-40"), (BASE, "8-16"), (VIRTUAL, "16-32")]
    assert sorted(parts_of(now, base, slots=SlotSet.span(8, 40))) == some
    parts = cut(base, base, even(base, 1000 * MB), 128 * MB)
    assert len(parts) == 8
    assert all(abs(part.size - 125 * MB) < 20 * MB for part in parts)


def test_each_core_has_a_part_unless_parts_would_be_small() -> None:
    now = placement(1, 2)
    for cores, total, found in (
        (1, 400, 2),
        (4, 400, 4),
        (6, 400, 6),
        (16, 400, 6),
        (4, 100, 2),
        (40, 9_999, 32),
    ):
        parts = cut(now, now, even(now, total * MB), 9_999 * MB, cores=cores)
        assert len(parts) == found
        assert everything(parts) == SlotSet.span(0, 32)
    assert len(cut(now, now, even(now, 400 * MB), 9_999 * MB, 3, cores=4)) == 3


def test_a_fragment_weighs_on_the_slots_it_speaks_for() -> None:
    slots = SlotSet.of([(0, 2), (6, 8)])
    fragment = StagedFragment(1, "p", slots, 4, 400, True, 0, False, 0, 0).entered(1, 1, 1)
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
        home = SlotSet.union(part.slots & here.at(s) & there.at(s) for s in here.shards)
        assert home == (part.slots if part.kind == BASE else SlotSet())
