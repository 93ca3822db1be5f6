"""Ranges of primary keys against plain Python: visible rows in them, once, in order, in pages of any size."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.key_encoding import encode_row
from elasticscan.protocol import KeyRange, KeyRanges
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage import ranges
from elasticscan.storage.ranges import read_ranges
from tests.base.examples import examples
from tests.storage.versions import (
    KEY_KINDS,
    Key,
    Scenario,
    Shelf,
    Version,
    read_all,
    request_of,
    table_of,
    together,
    varying,
)

SEEDS = st.integers(0, 1 << 32)
PLENTY = (1 << 20, 1 << 30)


@pytest.fixture(autouse=True)
def _small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are larger than batches, and ranges than what is looked at together."""
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(ranges, "LEAST_ROWS", 3)
    monkeypatch.setattr(ranges, "_SLICED_ROWS", 2)


def encoded(key: Key, scenario: Scenario) -> bytes:
    return encode_row([pa.array([v], f.type) for v, f in zip(key, scenario.kind.fields, strict=True)], 0)


def some_ranges(scenario: Scenario, rng: random.Random) -> tuple[KeyRange, ...]:
    """Disjoint ranges whose ends are keys that are there, are not, or begin like some."""
    keys = [encoded(key, scenario) for key in scenario.slots]
    keys += [encoded(scenario.kind.make(rng, rng.randint(0, 30)), scenario) for _ in range(3)]
    bounds = {b""}
    for key in rng.sample(keys, rng.randint(0, len(keys))):
        bounds.add(rng.choice((key, key + b"\0", key[: rng.randint(0, len(key))])))
    pairs: list[KeyRange] = [*pairwise(sorted(bounds)), (max(bounds), None)]
    return tuple(pair for pair in pairs if rng.random() < 0.4)


def any_ranges(scenario: Scenario, rng: random.Random) -> KeyRanges:
    if rng.random() < 0.4:
        return KeyRanges(some_ranges(scenario, rng))
    slots = [slot for slot in range(scenario.shelf.slot_count) if rng.random() < 0.7]
    return KeyRanges(by_slot={slot: found for slot in slots if (found := some_ranges(scenario, rng))})


def holds(key_ranges: KeyRanges, slot: int, key: bytes) -> bool:
    return any(
        low <= key and (high is None or key < high)
        for _, spans in key_ranges.within(slot, slot + 1)
        for low, high in spans
    )


def check(scenario: Scenario) -> None:
    rng, shelf = scenario.rng, scenario.shelf
    key_ranges = any_ranges(scenario, rng)
    source = shelf.source(floor=scenario.floor(scenario.commits))
    columns, keys = [*shelf.table.primary_key, "v"], key_ranges
    pages = read_all(
        read_ranges, source, shelf.everything(), scenario.commits, columns, varying(rng), keys=keys
    )
    assert together(pages, shelf) == sorted(
        (scenario.slots[key], key, value)
        for key, value in scenario.visible(scenario.commits).items()
        if holds(key_ranges, scenario.slots[key], encoded(key, scenario))
    )


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_ranges_of_any_keys_give_each_visible_row_in_them_once_and_in_order(seed: int) -> None:
    check(Scenario(seed))


@pytest.mark.parametrize("kind", sorted(KEY_KINDS))
@settings(max_examples=examples(15), deadline=None)
@given(seed=SEEDS)
def test_keys_of_any_kind_are_found_by_their_ranges(kind: str, seed: int) -> None:
    check(Scenario(seed, kind))


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS)
def test_large_ranges_go_out_as_slices_and_small_ones_row_by_row(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "LEAST_ROWS", 1 + seed % 64)
        patch.setattr(ranges, "_SLICED_ROWS", 1 + seed % 5)
        check(Scenario(seed))


def test_only_the_rows_of_ranges_are_looked_at() -> None:
    shelf = Shelf(table_of(KEY_KINDS["string and int"]), 4)
    versions = [Version(("a", n), 1, "v", shelf.slot_of(("a", n))) for n in range(100)]
    shelf.add(versions)
    low, high = (encode_row([pa.array(["a"]), pa.array([n], pa.int32())], 0) for n in (40, 43))
    request = request_of(shelf.everything(), 9, ["s", "i"], PLENTY, keys=KeyRanges(((low, high),)))
    page = read_ranges(shelf.source(), request)
    assert page.rows.column("i").to_pylist() == [40, 41, 42]
    assert (page.scanned, page.after) == (3, ())
