"""Keys that a staged write has in common with commits: exact for every range of commits, from either side."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.metadata import Bounds
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage import shared_keys
from tests.base.examples import examples
from tests.storage.versions import Key, Scenario, Shelf, Version, keys_of, visible

SEEDS = st.integers(0, 1 << 32)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)


def staged_shelf(scenario: Scenario) -> tuple[Shelf, set[Key]]:
    """A write of a few keys, or of many, of which some were never there; perhaps in two fragments."""
    rng = scenario.rng
    shelf = Shelf(scenario.shelf.table, scenario.shelf.slot_count)
    pool = {*scenario.slots, *(scenario.kind.make(rng, n) for n in range(rng.choice((0, 40))))}
    keys = rng.sample(sorted(pool), rng.randint(0, len(pool)))
    rows = [Version(key, 1, None if rng.random() < 0.2 else "new", shelf.slot_of(key)) for key in keys]
    at = rng.randint(0, len(rows))
    for part in (rows[:at], rows[at:]):
        if part:
            shelf.add(part)
    return shelf, set(keys)


@settings(deadline=None, max_examples=examples(100))
@given(seed=SEEDS)
def test_they_are_those_of_the_versions_in_the_range(seed: int) -> None:
    scenario = Scenario(seed)
    staged, written = staged_shelf(scenario)
    for _ in range(4):
        floor, snapshot = sorted(scenario.rng.randint(0, scenario.commits + 1) for _ in range(2))
        bounds, versions = Bounds(floor, snapshot), scenario.shelf.versions()
        touched = {v.key for v in versions if floor <= v.commit <= snapshot}
        for living, expected in ((False, touched), (True, set(visible(versions, floor, snapshot)))):
            shared = shared_keys(staged.source(), scenario.shelf.source(), bounds, living)
            named = set() if shared is None else set(keys_of(shared, scenario.shelf.table))
            assert named <= expected & written
            assert bool(named) == bool(expected & written)
