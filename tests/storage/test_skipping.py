"""Passing over what cannot match: no row that matches is lost, none that was replaced comes back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.key_encoding import NULL, encode_row, encode_value, encode_values
from elasticscan.filters.key_sets import Interval, KeySet, KeySets
from elasticscan.metadata import Bounds, Fragment, FragmentStatistics
from elasticscan.protocol import Cursor, Cursors, PageRows
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage import pages as pages_module
from elasticscan.storage.fragment import SYSTEM_COLUMNS, FragmentReader
from elasticscan.storage.pages import read_page
from elasticscan.storage.statistics import StatisticsCollector
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.versions import (
    KEY_KINDS,
    Key,
    Limits,
    Scenario,
    Shelf,
    Version,
    keys_of,
    request_of,
    table_of,
)

SEEDS = st.integers(0, 1 << 32)
PLENTY = (1 << 20, 1 << 30)
Row = tuple[int, Key, Any, Any]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)


class Range:
    """The filter low <= value key of a column < high, and what statistics say about it."""

    def __init__(self, shelf: Shelf, column: str, low: bytes, high: bytes) -> None:
        self.shelf, self.column, self.low, self.high = shelf, column, low, high
        self.key_sets = {column: KeySet.of([Interval(low, high)])}
        self.asked: list[tuple[int, int]] = []
        self._statistics: dict[int, FragmentStatistics] = {}

    def accepts(self, key: bytes) -> bool:
        return self.low <= key < self.high

    def statistics(self, fragment: Fragment) -> Any:
        if fragment.id not in self._statistics:
            self._statistics[fragment.id] = statistics_of(self.shelf, fragment)
        return Watched(fragment.id, self._statistics[fragment.id], self.asked)


@dataclass
class Watched:
    """Statistics of a fragment that write down which blocks were asked for."""

    fragment: int
    statistics: FragmentStatistics
    asked: list[tuple[int, int]]

    @property
    def block_rows(self) -> tuple[int, ...]:
        return self.statistics.block_rows

    def may_match(self, block: int, key_sets: KeySets) -> bool:
        self.asked.append((self.fragment, block))
        return self.statistics.may_match(block, key_sets)


def statistics_of(shelf: Shelf, fragment: Fragment) -> FragmentStatistics:
    names = shelf.table.schema.names
    batches = list(FragmentReader(shelf.disk, fragment.path, names, fragment.seal))
    collector = StatisticsCollector([f for f in batches[0].schema if f.name not in SYSTEM_COLUMNS])
    for batch in batches:
        collector.add(batch)
    return collector.finish()


def read_all(
    shelf: Shelf,
    bounds: Bounds,
    limits: Callable[[], Limits],
    wanted: Range | None,
    cursors: Cursors | None = None,
) -> list[PageRows]:
    """Page after page; each is from a fresh source, as if read by another process."""
    cursors = shelf.everything() if cursors is None else cursors
    pages: list[PageRows] = []
    while cursors:
        page = one_page(shelf, bounds, limits(), wanted, cursors)
        assert page.rows.num_rows or not page.after, "a page without rows is the last one"
        cursors = page.after
        pages.append(page)
    return pages


def one_page(
    shelf: Shelf, bounds: Bounds, limits: Limits, wanted: Range | None, cursors: Cursors, **source: Any
) -> PageRows:
    served = replace(shelf.source(floor=bounds.floor), **source)
    request = request_of(cursors, bounds.snapshot, shelf.table.schema.names, limits)
    if wanted is not None:
        served, request = (
            replace(served, statistics=wanted.statistics),
            replace(request, key_sets=wanted.key_sets),
        )
    return read_page(served, request)


def rows_of(pages: Sequence[PageRows], shelf: Shelf) -> list[Row]:
    return [
        row
        for page in pages
        for row in zip(
            page.slots.to_pylist(),
            keys_of(page.rows, shelf.table),
            page.rows.column("v").to_pylist(),
            page.rows.column("n").to_pylist(),
            strict=True,
        )
    ]


def matching(pages: Sequence[PageRows], shelf: Shelf, wanted: Range) -> list[Row]:
    """The rows that the reader's own filter keeps."""
    found = []
    for page in pages:
        column = page.rows.column(wanted.column)
        kept = [row for row in range(len(column)) if wanted.accepts(encode_values([column], row))]
        found += [rows_of([page], shelf)[row] for row in kept]
    return found


def varying(rng: random.Random) -> Callable[[], Limits]:
    return lambda: (rng.choice((1, 2, 3, 5, 9, 100)), rng.choice((1, 30, 100, 300, 1 << 20)))


def same(rows: int) -> Callable[[], Limits]:
    return lambda: (rows, 1 << 30)


def some_range(scenario: Scenario) -> Range:
    """Between two of a column's values, or something that no row or every row meets."""
    rng, shelf = scenario.rng, scenario.shelf
    column = rng.choice(shelf.table.schema.names)
    keys = {b"", NULL, b"\1", b"\2"}
    for version in shelf.versions():
        value: Any = {"v": version.value, "n": None if version.value is None else version.commit}.get(column)
        if column in shelf.table.primary_key:
            value = version.key[shelf.table.primary_key.index(column)]
        key = encode_value(pa.scalar(value, shelf.table.schema.field(column).type))
        keys |= {key, key + b"\0"}
    low, high = sorted(rng.choices(sorted(keys), k=2))
    return Range(shelf, column, low, high)


@settings(max_examples=examples(250), deadline=None)
@given(SEEDS)
def test_no_row_that_matches_is_lost_with_pages_of_any_limits(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragment_module, "BATCH_ROWS", 1 + seed % 5)
        scenario = Scenario(seed)
        shelf = scenario.shelf
        snapshot = scenario.rng.randint(0, scenario.commits)
        bounds = Bounds(scenario.floor(snapshot), snapshot)
        wanted = some_range(scenario)
        pages = read_all(shelf, bounds, varying(scenario.rng), wanted)
        everything = read_all(shelf, bounds, lambda: PLENTY, None)
        rows = rows_of(pages, shelf)
        visible = rows_of(everything, shelf)
        assert {key: value for _, key, value, _ in visible} == scenario.visible(snapshot)
        assert matching(pages, shelf, wanted) == matching(everything, shelf, wanted)
        assert set(rows) <= set(visible), "what comes besides was not replaced either"
        assert rows == [row for row in visible if row in set(rows)], "each once, in order"


@settings(max_examples=examples(120), deadline=None)
@given(SEEDS)
def test_no_row_is_lost_from_any_cursors(seed: int) -> None:
    """Positions come from other shards: their keys may be inside a batch that is skipped."""
    scenario = Scenario(seed)
    rng, shelf, snapshot = scenario.rng, scenario.shelf, scenario.commits
    kinds = [shelf.table.schema.field(name).type for name in shelf.table.primary_key]
    drawn: list[Cursor] = []
    for slot in rng.sample(range(shelf.slot_count), rng.randint(1, shelf.slot_count)):
        key = scenario.kind.make(rng, rng.randint(0, 30))
        columns = [pa.array([value], kind) for value, kind in zip(key, kinds, strict=True)]
        position = slot.to_bytes(2, "big") + encode_row(columns, 0) if rng.random() < 0.6 else None
        drawn.append(Cursor(SlotSet.span(slot, slot + 1), position))
    bounds = Bounds(scenario.floor(snapshot), snapshot)
    wanted, cursors = some_range(scenario), tuple(drawn)
    pages = read_all(shelf, bounds, varying(rng), wanted, cursors)
    everything = read_all(shelf, bounds, lambda: PLENTY, None, cursors)
    assert matching(pages, shelf, wanted) == matching(everything, shelf, wanted)


# ------------------------------------------------------------------------------- cases with names


def shelf_of(slot_count: int = 1) -> Shelf:
    return Shelf(table_of(KEY_KINDS["int"]), slot_count)


def versions(
    shelf: Shelf, keys: Sequence[int], value: Callable[[int], str | None], commit: int = 1
) -> list[Version]:
    return [Version((key,), commit, value(key), shelf.slot_of((key,))) for key in keys]


def equal_to(shelf: Shelf, value: str) -> Range:
    key = encode_value(pa.scalar(value))
    return Range(shelf, "v", key, key + b"\0")


def test_a_batch_that_cannot_match_is_not_even_opened() -> None:
    shelf = shelf_of()
    shelf.add(versions(shelf, range(400), lambda key: f"{key // 4}"))
    wanted = equal_to(shelf, "71")
    source = shelf.source()
    one_page(shelf, Bounds(0, 1), PLENTY, wanted, shelf.everything(), open=source.open)
    reader = source.open(shelf.fragments[0], tuple(dict.fromkeys((*shelf.table.schema.names, "k"))))
    assert len(reader._kept._held) <= 9, "the bisection for the first row, and the one that may match"


@pytest.mark.parametrize("rows", [1, 3, 4, 5])
def test_a_page_ends_and_goes_on_around_a_long_run_of_batches_passed_over(rows: int) -> None:
    """All rows are in one slot, so the position is a key before the run."""
    shelf = shelf_of()
    shelf.add(versions(shelf, range(400), lambda key: "wanted" if key < 6 or key >= 394 else "no"))
    wanted = equal_to(shelf, "wanted")
    pages = read_all(shelf, Bounds(0, 1), same(rows), wanted)
    assert [key for _, (key,), _, _ in matching(pages, shelf, wanted)] == [*range(6), *range(394, 400)]
    assert len(pages) <= 1 + 16 // rows + 1
    assert len(wanted.asked) <= 102 * len(pages), "each batch at most once a page"
    assert all(page.rows.num_rows for page in pages)


def test_a_run_over_many_slots_is_asked_about_once_a_page() -> None:
    shelf = shelf_of(512)
    for start in range(2):
        at = SlotSet.of((slot, slot + 1) for slot in range(512) if slot % 2 == start)
        fragment = versions(shelf, range(start * 1_000, start * 1_000 + 800), lambda _: "no")
        shelf.add([version for version in fragment if version.slot in at], at)
    wanted = equal_to(shelf, "nothing is")
    asked: Counter[tuple[int, int]] = Counter()

    class Promising(Watched):
        """Says that a fragment may match although none of its batches does, so that all are asked for."""

        @property
        def block_rows(self) -> tuple[int, ...]:
            return (*self.statistics.block_rows, 0)

        def may_match(self, block: int, key_sets: KeySets) -> bool:
            asked[self.fragment, block] += block < len(self.statistics.block_rows)
            return block == len(self.statistics.block_rows)

    def promising(fragment: Fragment) -> Promising:
        return Promising(fragment.id, statistics_of(shelf, fragment), [])

    wanted.statistics = promising  # type: ignore[method-assign]
    page = one_page(shelf, Bounds(0, 1), PLENTY, wanted, shelf.everything())
    assert (page.rows.num_rows, page.after) == (0, ())
    assert max(asked.values()) == 2, "once for all of the fragment, once on its own"
    assert page.skipped == sum(fragment.rows for fragment in shelf.fragments)


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS)
def test_slots_of_a_fragment_with_others_between_them_are_pruned_in_one_go(seed: int) -> None:
    """Rows of what lies between are in the fragment: this shard serves them, or did once."""
    rng, shelf = random.Random(seed), shelf_of(64)
    asked = SlotSet.of((slot, slot + 1) for slot in rng.sample(range(64), rng.randint(2, 40)))
    values = [rng.choice(("wanted", "no", "no", "no")) for _ in range(16)]
    served = asked if rng.random() < 0.5 else None
    shelf.add(versions(shelf, range(300), lambda key: values[shelf.slot_of((key,)) // 4]), served)
    for commit in range(2, 2 + rng.randint(0, 2)):  # laid over some of it
        newer = versions(shelf, rng.sample(range(320), 5), lambda _: rng.choice(("wanted", "no")), commit)
        shelf.add(newer, SlotSet.of((version.slot, version.slot + 1) for version in newer))
    wanted, cursors = equal_to(shelf, "wanted"), (Cursor(asked),)
    pages = read_all(shelf, Bounds(0, 9), varying(rng), wanted, cursors)
    everything = read_all(shelf, Bounds(0, 9), same(1_000), None, cursors)
    assert matching(pages, shelf, wanted) == matching(everything, shelf, wanted)
    assert set(rows_of(pages, shelf)) <= set(rows_of(everything, shelf))
    assert all(slot in asked for slot, *_ in rows_of(pages, shelf))


@pytest.mark.parametrize("others", [0, 3])
def test_many_tablets_of_a_fragment_are_looked_up_in_it_once(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    looked, read_slices = [0], pages_module._read_slices

    def counted(*given: Any, **named: Any) -> Any:
        looked[0] += 1
        return read_slices(*given, **named)

    monkeypatch.setattr(pages_module, "_read_slices", counted)
    shelf = shelf_of(512)
    at = SlotSet.of((slot, slot + 1) for slot in range(0, 512, 2))
    rows = versions(shelf, range(2_000), lambda key: "wanted" if key % 50 == 0 else "no")
    shelf.add([version for version in rows if version.slot in at], at)
    for newer in [version for version in rows if version.slot in at and version.value == "no"][:others]:
        shelf.add([replace(newer, commit=2, value="wanted")], SlotSet.span(newer.slot, newer.slot + 1))
    wanted = equal_to(shelf, "wanted")
    (page,) = read_all(shelf, Bounds(0, 2), same(10_000), wanted)
    before = sum(row.value == "wanted" for row in rows if row.slot in at)
    assert len(matching([page], shelf, wanted)) == before + others
    assert looked[0] <= 1 + 2 * others, "of 256 ranges"
