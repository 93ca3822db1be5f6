"""Newer rows laid over a large fragment, compared with plain Python."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

import pyarrow as pa
import pytest
from hypothesis import given, settings

from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage import overlay as overlay_module
from elasticscan.storage.batches.reader import BatchCache
from elasticscan.storage.overlay import sorted_batches_of
from elasticscan.storage.pages import PageSource, read_page
from elasticscan.storage.view import View
from tests.base.examples import examples
from tests.storage.versions import (
    PLENTY,
    SEEDS,
    Scenario,
    Shelf,
    addresses,
    read_all,
    shelf_of,
    together,
    visible,
)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS)
def test_snapshots_that_share_batches_see_each_its_own_rows(seed: int) -> None:
    """Readers with growing or different sets of commits read in turns from the same open files."""
    scenario = Scenario(seed, style="layered")
    rng, shelf, source = scenario.rng, scenario.shelf, scenario.shelf.source()
    views = list[tuple[Sequence[Fragment], int, int]]()
    served = shelf.fragments
    for snapshot in rng.choices((3, 6, 9, 12, 25, 99), k=9):
        known = served if rng.random() < 0.6 else [f for f in served if rng.random() < 0.8]
        views.append((known, min(rng.choice((0, 0, rng.randint(1, 5))), snapshot), snapshot))
    for known, floor, snapshot in views:
        at_once, names = replace(source, view=View(known), floor=floor), scenario.columns()
        pages = read_all(read_page, at_once, shelf.everything(), snapshot, names, repeat(PLENTY))
        expected = visible(shelf.versions(known), floor, snapshot)
        assert together(pages, shelf) == sorted((shelf.slot_of(k), k, v) for k, v in expected.items())


# ------------------------------------------------------------------------------- cases with names


def loaded(count: int = 16) -> list[tuple[int, int, str | None]]:
    return [(key * 2, 1, "old") for key in range(count)]


def laid_over(shelf: Shelf, source: PageSource, count: int, snapshot: int) -> list[pa.RecordBatch]:
    """The batches of the first fragment with the next fragments laid over; None if they are merged."""
    bounds = Bounds(0, snapshot, snapshot)
    ((_, layers),) = View(shelf.fragments[:count]).within(bounds).parts
    run = sorted_batches_of(layers, source.open, ("k", "v"), bounds)
    return [run.batch(index) for index in range(run.batch_count)] if run else []


def shared(some: Sequence[pa.RecordBatch], others: Sequence[pa.RecordBatch]) -> list[bool]:
    """For each batch, whether its values are the other batch's memory, without a copy."""
    places = [[batch.column("v").buffers()[-1].address for batch in batches] for batches in (some, others)]
    return [a == b for a, b in zip(*places, strict=True)]


def test_nothing_is_laid_over_where_rows_crowd_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = shelf_of(loaded(), [(3, 5, "new"), (4, 5, None), (100, 5, "new"), (101, 5, "new")])
    assert laid_over(shelf, shelf.source(), 2, 9)
    monkeypatch.setattr(overlay_module, "BATCH_ROWS", 1)
    assert not laid_over(shelf, shelf.source(), 2, 9)


def test_a_commit_makes_anew_only_the_batches_that_it_touches() -> None:
    """Batches begin with 0, 8, 16, 24. A commit adds a row to the third, and one to the second."""
    shelf = shelf_of(
        loaded(), [(4, 2, "new"), (17, 2, "new")], [(18, 3, "newer")], [(9, 4, None), (11, 4, "x")]
    )
    source = shelf.source()
    before = laid_over(shelf, source, 2, 2)
    then = laid_over(shelf, source, 3, 3)
    now = laid_over(shelf, source, 4, 4)
    assert shared(before, then) == [True, True, False, True]
    assert shared(then, now) == [True, False, True, True]
    # An older snapshot that knows the newer files still has its own batches.
    assert all(shared(before, laid_over(shelf, source, 4, 2)))
    # Keys and slots of a batch with unchanged keys are not copied.
    own = addresses(list(source.open(shelf.fragments[0], ("k", "v")).plain))
    assert addresses([before[0].select(["k", "_slot"])]) <= own


def test_batches_of_past_snapshots_leave_the_cache_and_overlays_end_with_their_views() -> None:
    """Only the last few of many snapshots are kept, even if the cache has room."""
    cache, many = BatchCache(), [[(2 * (number % 4), number, "new")] for number in range(2, 32)]
    shelf = shelf_of(loaded(200), *many)
    source = shelf.source(kept=cache)
    seen = []
    for snapshot in range(2, 32):
        laid_over(shelf, source, snapshot, snapshot)
        seen.append(cache._bytes)
    assert seen[-1] < 2 * max(seen[:4])
    gc.collect()
    assert not source.open(shelf.fragments[0], ("k", "v")).overlays
