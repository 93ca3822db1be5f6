"""Copies compared with plain Python: moves keep every version, compaction every needed version."""

from __future__ import annotations

from collections import Counter
from itertools import chain, repeat

import pytest
from hypothesis import given, settings

from elasticscan.base.errors import SchemaMismatch, StoreDamaged
from elasticscan.metadata import Bounds, StagedFragment
from elasticscan.storage import copying as copying_module
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage import merge as merge_module
from elasticscan.storage.copying import Keep, check_keys_differ, copy_slots
from elasticscan.storage.fragment_writer import Destination
from elasticscan.storage.pages import read_page
from elasticscan.storage.sealed_file import find_seal, verify_file
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.versions import (
    ORIGIN,
    PLENTY,
    SEEDS,
    Scenario,
    Shelf,
    Version,
    needed,
    read_all,
    shelf_of,
    together,
    versions_in,
)


@pytest.fixture(autouse=True, params=["in many windows", "in one window"])
def _small_batches(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(merge_module, "_SPARE_ROWS", 0)
    monkeypatch.setattr(copying_module, "BATCH_ROWS", 4 if request.param == "in many windows" else 1_000)
    if request.param == "in one window":  # keys of several columns do not fit into one integer
        monkeypatch.setattr(merge_module, "_MOST_BITS", 1)


def check_honest(staged: StagedFragment, rows: list[Version], shelf: Shelf, slots: SlotSet) -> None:
    """Check that the catalog's description of a copy matches its file."""
    assert rows == sorted(rows, key=lambda v: (v.slot, v.key, -v.commit))
    assert staged.rows == len(rows) > 0
    assert staged.tombstones == sum(version.value is None for version in rows)
    assert (staged.shard, staged.slots) == (2, slots)
    if staged.unique:
        assert len({version.key for version in rows}) == len(rows)
    assert all(staged.min_commit <= version.commit <= staged.max_commit for version in rows)
    if not staged.versioned:
        assert staged.min_commit == staged.max_commit
    found, seal = find_seal(shelf.disk, staged.path)
    assert seal == staged.seal
    assert (found.rows, found.tombstones, found.unique) == (staged.rows, staged.tombstones, staged.unique)
    assert (found.slots, found.min_commit, found.max_commit) == (slots, staged.min_commit, staged.max_commit)
    verify_file(shelf.disk, staged.path, staged.seal)


@pytest.mark.parametrize("compacts", [False, True], ids=["a move", "a merge"])
@settings(max_examples=examples(130), deadline=None)
@given(seed=SEEDS)
def test_a_copy_keeps_every_version_that_snapshots_from_its_horizon_on_see(compacts: bool, seed: int) -> None:
    """A move copies some slots unchanged, a merge copies all slots."""
    scenario = Scenario(seed)
    rng, shelf, slots, keep = scenario.rng, scenario.shelf, scenario.shelf.slots, Keep()
    if compacts:
        keep = Keep(scenario.snapshot(), drop_tombstones=rng.random() < 0.7)
        bounds = Bounds(scenario.floor(keep.horizon), scenario.commits)
    else:
        floor = rng.randint(0, scenario.commits + 1)
        bounds = Bounds(floor, rng.randint(floor, scenario.commits + 1))
        starts = [rng.randrange(shelf.slot_count) for _ in range(rng.randint(1, 2))]
        slots = SlotSet.of((start, rng.randint(start + 1, shelf.slot_count)) for start in starts)
    within = [v for v in shelf.versions() if v.slot in slots and bounds.floor <= v.commit <= bounds.snapshot]
    copies = copy_slots(shelf.source(), slots, bounds, keep, Destination(shelf.disk, 2, ORIGIN))
    rows = [versions_in(shelf, copied, copied.min_commit) for copied in copies]
    assert Counter(chain.from_iterable(rows)) == Counter(needed(within, keep))
    for copied, own in zip(copies, rows, strict=True):
        check_honest(copied, own, shelf, slots)
    fragments = [copied.entered(number, shelf.table.id) for number, copied in enumerate(copies, 99)]
    for snapshot in range(keep.horizon, scenario.commits + 1) if compacts else ():
        source, names = shelf.source(fragments, scenario.floor(snapshot)), scenario.columns()
        pages = read_all(read_page, source, shelf.everything(), snapshot, names, repeat(PLENTY))
        assert together(pages, shelf) == scenario.rows(snapshot)


@pytest.mark.parametrize("rows", [1, 30])
def test_a_key_in_two_fragments_of_one_write_is_refused_by_name(rows: int) -> None:
    first, second = [(k, 1, "a") for k in range(rows)], [(k + rows - 1, 1, "b") for k in range(rows)]
    with pytest.raises(SchemaMismatch, match=f"'k': {rows - 1}"):
        check_keys_differ(shelf_of(first, second, slots=4).source())


def test_a_write_whose_fragments_share_no_slot_has_no_key_twice() -> None:
    check_keys_differ(shelf_of([(1, 1, "a")]).source())


def test_a_version_that_is_there_twice_is_not_taken_for_history() -> None:
    shelf = shelf_of([(1, 1, "a"), (2, 1, "b")], [(1, 1, "a")])
    keep = Keep(complete=True)
    with pytest.raises(StoreDamaged, match="same key and commit"):
        copy_slots(shelf.source(), shelf.slots, Bounds(0, 2), keep, Destination(shelf.disk, 1, ORIGIN))
