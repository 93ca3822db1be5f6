"""Newer rows laid over a large fragment, against plain Python."""

from __future__ import annotations

import datetime
import decimal
import functools
import gc
import random
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.metadata import Bounds, Fragment
from elasticscan.protocol import Cursor
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage import overlay as overlay_module
from elasticscan.storage import patch as patch_module
from elasticscan.storage.batches.cache import BatchCache
from elasticscan.storage.fragment import FragmentReader
from elasticscan.storage.overlay import Overlay, run_of
from elasticscan.storage.pages import PageSource, read_page
from elasticscan.storage.view import View
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.versions import (
    KEY_KINDS,
    Key,
    Limits,
    Shelf,
    Version,
    addresses,
    position_of,
    read_all,
    request_of,
    table_of,
    together,
    varying,
    visible,
)

SEEDS = st.integers(0, 1 << 32)
PLENTY = (1 << 20, 1 << 30)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)


class Layered:
    """A large fragment with each key once, and a few with other versions of some keys, older and newer."""

    def __init__(self, seed: int, kind: str | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.kind = KEY_KINDS[kind or rng.choice(sorted(KEY_KINDS))]
        self.shelf = Shelf(table_of(self.kind, rng.choice((None, "lz4"))), rng.choice((1, 2, 5, 16)))
        pool = sorted({self.kind.make(rng, n) for n in range(rng.choice((20, 50)))})
        begun = rng.randint(1, 4)
        share = rng.choice((0.1, 0.4, 1.0))  # of keys that the others may have
        large = rng.sample(pool, max(1, int(len(pool) * rng.choice((0.5, 0.8, 1)))))
        commits = (begun, begun + 1) if rng.random() < 0.3 else (begun,)
        self._add([self._version(key, rng.choice(commits), 0.0) for key in large], rng.random() < 0.3)
        few = [key for key in pool if rng.random() < share]
        for commit in rng.sample(range(1, 12), rng.randint(1, 4)):
            if commit not in commits:
                touched = [key for key in few if rng.random() < 0.4]
                versions = [self._version(key, commit, rng.choice((0.0, 0.4, 1.0))) for key in touched]
                if rng.random() < 0.3:  # several versions of a key in one fragment
                    versions += [
                        self._version(key, 20 + commit, 0.3) for key in touched if rng.random() < 0.5
                    ]
                self._add(versions)

    def _version(self, key: Key, commit: int, deleting: float) -> Version:
        text = None if self.rng.random() < deleting else f"{commit}" + "x" * self.rng.choice((0, 40))
        return Version(key, commit, text, self.shelf.slot_of(key))

    def _add(self, versions: Sequence[Version], marked: bool = False) -> None:
        """One fragment; of some of them slots have left since."""
        if not versions:
            return
        fragment = self.shelf.add(versions, versioned=marked or None, marked=marked)
        if self.rng.random() < 0.3 and self.shelf.slot_count > 1:
            at = self.rng.randrange(self.shelf.slot_count)
            slots = fragment.slots - SlotSet.span(at, at + self.rng.randint(1, 3))
            self.shelf.fragments[-1] = replace(fragment, slots=slots)

    def read(self, snapshot: int, limits: Iterator[Limits]) -> list[tuple[int, Key, Any]]:
        columns = [*self.shelf.table.primary_key, "v"]
        served = [fragment for fragment in self.shelf.fragments if fragment.slots]
        source = self.shelf.source(served)
        return together(
            read_all(read_page, source, self.shelf.everything(), snapshot, columns, limits), self.shelf
        )

    def check(self, snapshot: int, limits: Iterator[Limits]) -> None:
        expected = visible(self.shelf.versions(), 0, snapshot)
        assert self.read(snapshot, limits) == sorted(
            (self.shelf.slot_of(key), key, value) for key, value in expected.items()
        )
        source = self.shelf.source([fragment for fragment in self.shelf.fragments if fragment.slots])
        pages = read_all(read_page, source, self.shelf.everything(), snapshot, ["v"], limits)
        values = [value for page in pages for value in page.rows.column("v").to_pylist()]
        assert sorted(values) == sorted(expected.values())


@pytest.mark.long
@settings(max_examples=examples(120), deadline=None)
@given(SEEDS)
def test_rows_laid_over_a_large_fragment_are_the_visible_ones_in_order(seed: int) -> None:
    layered = Layered(seed)
    layered.check(layered.rng.choice((99, 99, layered.rng.randint(0, 30))), varying(layered.rng))


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS)
def test_batches_of_any_size_are_laid_over(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragment_module, "BATCH_ROWS", 1 + seed % 8)
        layered = Layered(seed)
        layered.check(99, varying(layered.rng))


@pytest.mark.parametrize(
    "bound",
    [
        {"BATCH_ROWS": 3},
        {"BATCH_ROWS": 9},
        {"BATCH_BYTES": 9_000},
        {"_MOST_JOINED": 0},
        {"_MOST_JOINED": 2},
        {"_BISECTED_SHARE": 0.0},
        {"_BISECTED_SHARE": 0.0, "_MOST_JOINED": 0},
        {"_BISECTED_SHARE": 9.0},
    ],
    ids=str,
)
@settings(max_examples=examples(12), deadline=None)
@given(SEEDS)
def test_batches_are_laid_over_by_any_of_the_ways(bound: dict[str, float], seed: int) -> None:
    """Rows are merged for more or fewer batches at once, joined or taken, bisected for or packed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bound.items():
            module = patch_module if name == "_MOST_JOINED" else overlay_module
            patch.setattr(module, name, value)
        layered = Layered(seed)
        layered.check(layered.rng.choice((99, layered.rng.randint(0, 30))), varying(layered.rng))


@pytest.mark.long
@settings(max_examples=examples(50), deadline=None)
@given(SEEDS)
def test_snapshots_that_share_batches_see_each_its_own_rows(seed: int) -> None:
    """Every snapshot and floor is read by turns from the same open files, newer and older."""
    layered = Layered(seed)
    rng, shelf = layered.rng, layered.shelf
    served = [fragment for fragment in shelf.fragments if fragment.slots]
    bounds = [(floor, snapshot) for snapshot in (3, 6, 9, 12, 25, 99) for floor in (0, 0, rng.randint(1, 5))]
    source = shelf.source(served)
    for floor, snapshot in rng.choices(bounds, k=12):
        known = tuple(f for f in served if rng.random() < 0.8) if rng.random() < 0.4 else tuple(served)
        numbers = {fragment.id for fragment in known}
        at_once = replace(source, view=View(known), floor=min(floor, snapshot))
        pages = read_all(
            read_page, at_once, shelf.everything(), snapshot, [*shelf.table.primary_key, "v"], repeat(PLENTY)
        )
        versions = [
            version
            for fragment in served
            if fragment.id in numbers
            for version in shelf.contents[fragment.id]
            if version.slot in fragment.slots
        ]
        expected = visible(versions, at_once.floor, snapshot)
        assert together(pages, shelf) == sorted((shelf.slot_of(k), k, value) for k, value in expected.items())


class Followed:
    """A large fragment, and commits that mostly change its rows; a reader looks at some snapshots."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        kind = KEY_KINDS[rng.choice(sorted(KEY_KINDS))]
        self.shelf = Shelf(table_of(kind), rng.choice((1, 3)))
        pool = sorted({kind.make(rng, n) for n in range(50)})
        large = rng.sample(pool, max(1, len(pool) * 3 // 4))
        self._add(1, large, 0.0)
        for commit in range(2, 12):
            of = large if rng.random() < 0.8 else pool
            self._add(
                commit, rng.sample(of, rng.randint(1, min(6, len(of)))), rng.choice((0.0, 0.0, 0.0, 0.3))
            )

    def _add(self, commit: int, keys: Sequence[Key], deleting: float) -> None:
        texts = [None if self.rng.random() < deleting else f"{commit}" for _ in keys]
        slots = map(self.shelf.slot_of, keys)
        self.shelf.add([Version(*of) for of in zip(keys, [commit] * len(keys), texts, slots, strict=True)])

    def check(self) -> None:
        shelf, source = self.shelf, self.shelf.source()
        for count in range(2, len(shelf.fragments) + 1):
            if self.rng.random() < 0.6:
                at_once = replace(source, view=View(shelf.fragments[:count]))
                columns = [*shelf.table.primary_key, "v"]
                pages = read_all(read_page, at_once, shelf.everything(), 99, columns, repeat(PLENTY))
                versions = [v for f in shelf.fragments[:count] for v in shelf.contents[f.id]]
                expected = visible(versions, 0, 99)
                rows = sorted((shelf.slot_of(key), key, value) for key, value in expected.items())
                assert together(pages, shelf) == rows


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS)
def test_a_reader_that_follows_commits_sees_those_that_it_knows(seed: int) -> None:
    Followed(seed).check()


def test_most_batches_that_a_commit_changes_are_those_of_before_with_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, patched = Overlay._patched, list[bool]()

    def counted(self: Overlay, index: int) -> pa.RecordBatch | None:
        batch = honest(self, index)
        patched.append(batch is not None)
        return batch

    monkeypatch.setattr(Overlay, "_patched", counted)
    for seed in range(20):
        Followed(seed).check()
    assert sum(patched) > len(patched) / 4


def test_of_many_overlays_one_after_the_other_two_are_held() -> None:
    changes = [[(4, commit, str(commit))] for commit in range(2, 12)]
    shelf = shelf_of(loaded(), *changes)
    source, made = shelf.source(), list[weakref.ref[Overlay]]()
    for count in range(2, len(shelf.fragments) + 1):
        overlay = laid_over(shelf, source, shelf.fragments[:count], 99)
        batches_of(overlay)
        made.append(weakref.ref(overlay))
    del overlay
    gc.collect()
    assert sum(one() is not None for one in made) <= overlay_module._MOST_KEPT + 1


def test_most_of_these_tables_are_read_by_an_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Overlay] = []
    honest = Overlay._lay_over

    def counted(self: Overlay, index: int) -> pa.RecordBatch:
        made.append(self)
        return honest(self, index)

    monkeypatch.setattr(Overlay, "_lay_over", counted)
    for seed in range(40):
        Layered(seed).check(99, repeat(PLENTY))
    assert len(set(made)) >= 20


# ------------------------------------------------------------------------------- cases with names


def shelf_of(*layers: Sequence[tuple[int, int, str | None]], slots: int = 1) -> Shelf:
    """A table of fragments, each of (key, commit, value)."""
    shelf = Shelf(table_of(KEY_KINDS["int"]), slots)
    for layer in layers:
        shelf.add([Version((key,), commit, value, shelf.slot_of((key,))) for key, commit, value in layer])
    return shelf


def loaded(count: int = 16, step: int = 2) -> list[tuple[int, int, str | None]]:
    return [(key * step, 1, "old") for key in range(count)]


def rows_of(
    shelf: Shelf, snapshot: int = 99, limit: Limits = PLENTY, after: int | None = None
) -> dict[int, str]:
    cursors = shelf.everything() if after is None else (Cursor(SlotSet.span(0, 1), position_of(0, after)),)
    pages = read_all(read_page, shelf.source(), cursors, snapshot, ["k", "v"], repeat(limit))
    rows = [(key, value) for _, (key,), value in together(pages, shelf)]
    assert rows == sorted(rows)
    return dict(rows)


def overlay_of(shelf: Shelf, bounds: Bounds | None = None) -> Any:
    source, bounds = shelf.source(), bounds or Bounds(0, 99, 99)
    (slot_range,), _ = source.view.slot_ranges(bounds)
    return slot_range.layers and run_of(slot_range.layers, source.open, ("k", "v"), bounds)


@pytest.mark.parametrize("batch_rows", [4, 99])
def test_rows_below_slots_are_counted_in_small_files_as_in_large_ones(
    batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", batch_rows)
    shelf = shelf_of(loaded(40), slots=16)
    reader = shelf.source().open(shelf.fragments[0], ("k", "v"))
    slots = sorted(version.slot for version in shelf.contents[shelf.fragments[0].id])
    sought = [0, 1, 7, 15, 16, 17, 1 << 16]
    counts = reader.rows_below(np.array(sought))
    assert counts.tolist() == [bisect_left(slots, slot) for slot in sought]


@pytest.mark.parametrize("bound", [{"BATCH_ROWS": 3}, {"BATCH_BYTES": 100}])
def test_rows_that_crowd_in_one_place_are_merged_instead(
    bound: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd: list[tuple[int, int, str | None]] = [(100 + key, 2, "new") for key in range(4)]
    shelf = shelf_of(loaded(), crowd)
    assert isinstance(overlay_of(shelf), Overlay)
    for name, value in bound.items():
        monkeypatch.setattr(overlay_module, name, value)
    assert overlay_of(shelf) is None
    assert rows_of(shelf) == dict.fromkeys(range(0, 32, 2), "old") | dict.fromkeys(range(100, 104), "new")


@pytest.mark.parametrize("shape", ["versions", "tombstones", "beyond", "history"])
def test_nothing_is_laid_over_a_fragment_of_another_shape(shape: str) -> None:
    large, few = loaded(), [(3, 5, "new"), (4, 5, None)]
    if shape == "versions":
        large.append((0, 2, "newer"))
    elif shape == "tombstones":
        large.append((99, 1, None))
    elif shape == "beyond":
        large.append((99, 100, "beyond"))
    shelf = shelf_of(large, few)
    if shape == "history":
        shelf.fragments[1] = replace(shelf.fragments[1], superseded_at=100)
    assert overlay_of(shelf) is None


def test_others_with_far_too_many_rows_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay_module, "BATCH_ROWS", 2)
    shelf = shelf_of(loaded(), [(key, 2, "new") for key in range(14)], slots=4)
    source, bounds = shelf.source(), Bounds(0, 9, 9)
    (slot_range,), _ = source.view.slot_ranges(bounds)
    assert slot_range.layers is not None
    assert run_of(slot_range.layers, source.open, ("k", "v"), bounds) is None
    assert not any(source.open(fragment, ("k", "v")).holds(0) for fragment in shelf.fragments)


def test_batches_that_were_laid_over_are_kept_and_shared_by_pages_and_snapshots() -> None:
    shelf = shelf_of(loaded(), [(3, 2, "new"), (4, 2, "new")])
    source = shelf.source()
    first = read_all(read_page, source, shelf.everything(), 5, ["k", "v"], repeat(PLENTY))
    overlay = next(iter(source.open(shelf.fragments[0], ("k", "v")).overlays.values()))
    again = [overlay.batch(index) for index in range(overlay.batch_count)]
    assert [overlay.batch(index) for index in range(overlay.batch_count)] == again
    assert all(a is b for a, b in zip(again, map(overlay.batch, range(overlay.batch_count)), strict=True))
    later = read_all(read_page, source, shelf.everything(), 6, ["k", "v"], repeat(PLENTY))
    assert together(later, shelf) == together(first, shelf)
    assert len(source.open(shelf.fragments[0], ("k", "v")).overlays) == 1


def batches_of(overlay: Overlay) -> list[pa.RecordBatch]:
    return [overlay.batch(index) for index in range(overlay.batch_count)]


def shared(some: Sequence[pa.RecordBatch], others: Sequence[pa.RecordBatch]) -> list[bool]:
    """True for each batch whose values are the other's, uncopied."""
    places = [[batch.column("v").buffers()[-1].address for batch in batches] for batches in (some, others)]
    return [a == b for a, b in zip(*places, strict=True)]


def laid_over(
    shelf: Shelf,
    source: PageSource,
    fragments: Sequence[Fragment],
    snapshot: int,
    columns: tuple[str, ...] = ("k", "v"),
) -> Overlay:
    bounds = Bounds(0, snapshot, snapshot)
    (slot_range,), _ = View(fragments).slot_ranges(bounds)
    assert slot_range.layers is not None
    run = run_of(slot_range.layers, source.open, columns, bounds)
    assert isinstance(run, Overlay)
    return run


def test_a_commit_makes_anew_only_the_batches_that_it_touches() -> None:
    """Batches begin with 0, 8, 16, 24. A commit adds a row to the third, and one to the second."""
    shelf = shelf_of(
        loaded(), [(4, 2, "new"), (17, 2, "new")], [(18, 3, "newer")], [(9, 4, None), (11, 4, "x")]
    )
    source = shelf.source()
    first = laid_over(shelf, source, shelf.fragments[:2], 2)
    before = batches_of(first)
    then = batches_of(laid_over(shelf, source, shelf.fragments[:3], 3))
    now = batches_of(laid_over(shelf, source, shelf.fragments, 4))
    assert shared(before, then) == [True, True, False, True]
    assert shared(then, now) == [True, False, True, True]
    # An older snapshot that knows the newer files has its own batches still.
    again = batches_of(laid_over(shelf, source, shelf.fragments, 2))
    assert all(shared(before, again))


def test_batches_stay_when_upkeep_merges_what_was_laid_over_them() -> None:
    few: list[list[tuple[int, int, str | None]]] = [
        [(4, 2, "new"), (17, 2, "new")],
        [(4, 3, "newer"), (20, 3, None)],
    ]
    shelf = shelf_of(loaded(), *few, [row for rows in few for row in rows])
    source = shelf.source()
    before = batches_of(laid_over(shelf, source, shelf.fragments[:3], 9))
    merged = batches_of(laid_over(shelf, source, [shelf.fragments[0], shelf.fragments[3]], 9))
    assert all(shared(before, merged))


def test_batches_with_other_values_of_the_same_commit_are_not_shared() -> None:
    """An older catalog may have been put back: the commits that were made since have the same numbers."""
    shelf = shelf_of(loaded(), [(4, 2, "lost")], [(4, 2, "new")])
    source = shelf.source()
    lost = laid_over(shelf, source, shelf.fragments[:2], 9).batch(0)
    new = laid_over(shelf, source, [shelf.fragments[0], shelf.fragments[2]], 9).batch(0)
    assert [batch.column("v")[2].as_py() for batch in (lost, new)] == ["lost", "new"]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_nan_is_the_same_value_in_two_snapshots(kind: pa.DataType) -> None:
    values = pa.array(np.array([np.nan, 1.0, np.nan, 0.0], dtype=kind.to_pandas_dtype()), kind)
    others = pa.array(np.array([9.0, np.nan, 1.0, np.nan, 0.0], dtype=kind.to_pandas_dtype()), kind)
    assert overlay_module._are_equal(values, others[1:])
    assert not overlay_module._are_equal(values, others[:4])
    assert overlay_module._are_equal(pa.array([None, 1], kind), pa.array([None, 1], kind))


def test_overlays_of_past_snapshots_leave_the_cache() -> None:
    """Of many snapshots the last few are kept, however much room there is."""
    cache, many = BatchCache(), [[(2 * number, number, "new")] for number in range(2, 32)]
    shelf = shelf_of(loaded(200), *many)

    @functools.cache
    def open_fragment(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        return FragmentReader(shelf.disk, fragment.path, columns, fragment.seal, shelf.table, cache)

    source = replace(shelf.source(), open=open_fragment)
    seen = []
    for snapshot in range(2, 32):
        overlay = laid_over(shelf, source, shelf.fragments[:snapshot], snapshot)
        batches_of(overlay)
        seen.append(cache._bytes)
    assert seen[-1] < 2 * max(seen[:4])
    reader = open_fragment(shelf.fragments[0], ("k", "v"))
    assert len(reader.overlays) == overlay_module._MOST_KEPT
    assert overlay in reader.overlays.values()


def test_an_overlay_that_is_read_again_and_again_stays() -> None:
    shelf = shelf_of(loaded(), *[[(2 * number, number, "new")] for number in range(2, 12)])
    source = shelf.source()
    old = laid_over(shelf, source, shelf.fragments[:2], 2)
    for snapshot in range(3, 12):
        laid_over(shelf, source, shelf.fragments[:snapshot], snapshot)
        assert laid_over(shelf, source, shelf.fragments[:2], 2) is old


@pytest.mark.parametrize(("most_bytes", "again"), [(10_000, set()), (4_000, {"_merge"})])
def test_places_of_newer_rows_are_sought_once_though_no_batch_stays(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, again: set[str]
) -> None:
    """As for a table that is larger than the cache: batches are copied again, rows not merged again.

    Where the newer rows themselves are too large to be kept, their places are all the same.
    """
    monkeypatch.setattr(overlay_module, "BATCH_ROWS", 4)  # so they are merged for some batches at once
    shelf = shelf_of(
        loaded(2_000),
        [(4, 2, "new"), (17, 2, "new"), (20, 2, None)],
        [(2, 3, "newer"), (300, 3, "new")],
        slots=16,
    )
    assert 2_000 < sum(fragment.bytes for fragment in shelf.fragments[1:]) < 5_000
    calls: set[str] = set()
    for name in ("_merge", "_places"):
        honest = getattr(Overlay, name)

        def noted(self: Overlay, *args: Any, name: str = name, honest: Any = honest) -> Any:
            calls.add(name)
            return honest(self, *args)

        monkeypatch.setattr(Overlay, name, noted)
    reader = functools.cache(
        lambda fragment, columns: FragmentReader(
            shelf.disk, fragment.path, columns, fragment.seal, shelf.table, cache
        )
    )
    cache, source = BatchCache(most_bytes), replace(shelf.source(), open=reader)
    seen = []
    for expected in ({"_merge", "_places"}, again, again):
        pages = read_all(read_page, source, shelf.everything(), 99, ["k", "v"], repeat(PLENTY))
        seen.append(together(pages, shelf))
        pages.clear()
        assert calls == expected
        calls.clear()
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("rows", [[(4, "new"), (600, "new")], [(4, "new"), (601, "new")]])
def test_a_table_that_the_cache_has_room_for_once_is_read_once(
    monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, str]]
) -> None:
    """Batches that rows were laid over take the place of those of which they were made."""
    loads = [(number, 1, "x" * 60) for number in range(0, 1_600, 2)]
    shelf = shelf_of(loads, *[[(key, commit, value) for key, value in rows] for commit in (2, 3)])
    cache, calls = BatchCache(), list[tuple[object, int]]()
    for kind, name in ((FragmentReader, "_read_whole"), (Overlay, "_lay_over")):
        honest = getattr(kind, name)

        def noted(self: Any, index: int, honest: Any = honest) -> Any:
            calls.append((self, index))
            return honest(self, index)

        monkeypatch.setattr(kind, name, noted)
    reader = functools.cache(
        lambda fragment, columns: FragmentReader(
            shelf.disk, fragment.path, columns, fragment.seal, shelf.table, cache
        )
    )
    source, large = replace(shelf.source(), open=reader), reader(shelf.fragments[0], ("k", "v"))
    cache._most_bytes = sum(batch.nbytes for batch in large) * 3 // 2
    for count in (2, 3):  # fragments that a snapshot sees
        calls.clear()
        overlay = laid_over(shelf, source, shelf.fragments[:count], count)
        for _ in range(3):
            assert sum(batch.num_rows for batch in batches_of(overlay)) == len(loads) + rows[1][0] % 2
        assert [index for of, index in calls if of is overlay] == list(range(overlay.batch_count))
        assert count == 2 or not [index for of, index in calls if of is large.plain]


# ------------------------------------------------------------------------------- columns of all types

TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-1, 2]),
    (pa.uint64(), [1, 1 << 63]),
    (pa.float32(), [0.5, -0.0]),
    (pa.float64(), [0.5, 1e300]),
    (pa.decimal128(30, 4), [decimal.Decimal("1.5"), decimal.Decimal("-12345678901234567890.1234")]),
    (pa.date32(), [datetime.date(2024, 2, 29)]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)]),
    (pa.string(), ["", "a", "\U0001f600" * 9]),
    (pa.large_string(), ["", "b" * 99]),
    (pa.binary(), [b"", b"\0\xff"]),
    (pa.binary(3), [b"abc", b"\0\0\0"]),
    (pa.list_(pa.int32()), [[], [1, None, 3]]),
    (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)]]),
    (pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": 1, "y": None}, {"x": None, "y": "z"}]),
    (pa.list_(pa.struct([("x", pa.string())])), [[{"x": "a"}, None], []]),
]


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
@settings(max_examples=examples(15), deadline=None)
@given(SEEDS)
def test_columns_of_any_type_are_joined_and_taken(kind: pa.DataType, values: list[Any], seed: int) -> None:
    """Slices of longer columns, nulls or none, against lists."""
    rng = random.Random(seed)
    some = [*values, None] if rng.random() < 0.7 else values
    count, few = rng.randint(1, 40), rng.randint(1, 12)
    before, behind = rng.randint(0, 9), rng.randint(0, 9)
    whole = pa.array(rng.choices(some, k=before + count + behind), kind)
    old, new = (
        whole.slice(before, count),
        pa.array(rng.choices(some, k=few + before), kind).slice(before, few),
    )
    places = sorted(rng.sample(range(2 * count + 1), min(few, 2 * count + 1)))  # odd ones are those of rows
    new = new.slice(0, len(places))
    rows, replaces = np.array(places) // 2, np.array(places) % 2 == 1
    shares = rng.choice(((0.4, 0.8), (0.0, 0.8), (0.0, 1.0)))
    if rng.random() < 0.3:  # keys stay
        replaces = np.ones(len(rows), dtype=bool)
        rows = np.unique(np.minimum(rows, count - 1))
        new, replaces = new.slice(0, len(rows)), replaces[: len(rows)]
    deleted, counts = (np.array([rng.random() < share for _ in rows]) for share in shares)
    changes = overlay_module._Placed(count, rows, replaces, counts & ~deleted, counts & deleted & replaces)
    expected: list[Any] = []
    at = 0
    for number, row in enumerate(rows.tolist()):
        expected += old[at:row].to_pylist()
        at = row
        if changes.living[number]:
            expected.append(new[number].as_py())
        if replaces[number] and counts[number]:
            at += 1
    expected += old[at:].to_pylist()
    for column in (changes.column(old, new), changes.joined(old, new), changes.taken(old, new)):
        column.validate(full=True)
        assert column.type == kind and column.to_pylist() == expected
    keys_stay = not any((changes.living & ~replaces) | changes.gone)
    assert changes.keep_keys is keys_stay


@settings(max_examples=examples(50), deadline=None)
@given(SEEDS)
def test_many_keys_are_bisected_for_at_once(seed: int) -> None:
    rng = random.Random(seed)
    values = range(rng.choice((2, 5, 50)))
    own = sorted(
        {(rng.choice((0, 1, 7)), rng.choice(values), rng.choice(values)) for _ in range(rng.randint(1, 60))}
    )
    sought = sorted({(rng.choice((0, 1, 3, 7, 9)), rng.choice(values), rng.choice(values)) for _ in range(9)})
    slots, slots_sought = (np.array([row[0] for row in rows], np.uint16) for rows in (own, sought))
    low, high = (slots.searchsorted(slots_sought, side) for side in ("left", "right"))
    columns = [[np.array([row[at] for row in rows]) for at in (1, 2)] for rows in (own, sought)]
    places, there = overlay_module._bisected(columns[0], columns[1], low, high)
    assert places.tolist() == [bisect_left(own, key) for key in sought]
    assert there.tolist() == [key in own for key in sought]


def test_keys_and_slots_of_a_batch_whose_keys_stay_are_not_copied() -> None:
    shelf = shelf_of(loaded(), [(4, 2, "new")])
    source = shelf.source()
    page = read_page(source, request_of(shelf.everything(), 9, ["k", "v"], PLENTY))
    assert page.rows.column("v").to_pylist()[2] == "new"
    overlay: Overlay = next(iter(source.open(shelf.fragments[0], ("k", "v")).overlays.values()))
    own = addresses(source.open(shelf.fragments[0], ("k", "v")).plain)
    for name in ("k", "_slot"):
        assert {b.address for b in overlay.batch(0).column(name).buffers() if b is not None} <= own
