"""Pages of an index against plain Python: every visible row once, in the index's order, within limits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import FragmentDamaged
from elasticscan.base.key_encoding import END, encode_value, inverted, successor
from elasticscan.metadata import Bounds
from elasticscan.protocol import Cursor, Cursors, IndexOrder, PageRows
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.indexes import iterator as index_iterator
from elasticscan.storage.indexes import pages as index_pages
from elasticscan.storage.indexes import run as index_run
from elasticscan.storage.indexes.pages import IndexSource, read_index_page
from elasticscan.storage.indexes.run import run_columns
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.indexed import COLUMNS, NAN, Indexed, Key, Values
from tests.storage.versions import Limits, request_of

PLENTY = (1 << 20, 1 << 30)
EVERYTHING = IndexOrder(3, ((b"", END),))
SEEDS = st.integers(0, 1 << 32)

Row = tuple[int, Key, Values]


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches, runs, rounds and budgets that a few rows overflow."""
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(index_run, "BATCH_ROWS", 3)
    monkeypatch.setattr(index_run, "RUN_ROWS", 7)
    monkeypatch.setattr(index_run, "KEY_BYTES", 4)
    monkeypatch.setattr(index_iterator, "RANGES_PER_ROUND", 1)
    monkeypatch.setattr(index_pages, "LEAST_ENTRIES", 6)
    monkeypatch.setattr(index_pages, "_FIRST_ROUND", 3)
    monkeypatch.setattr(index_pages, "_LEAST_SHARE", 1)
    monkeypatch.setattr(index_pages, "_EMPTY_PAGE_FACTOR", 1)
    monkeypatch.setattr(index_pages, "_RANGE_EFFORT", 1)


def rows_of(page: PageRows, indexed: Indexed) -> list[Row]:
    values = zip(*(page.rows.column(name).to_pylist() for name in COLUMNS), strict=True)
    keys = zip(*(page.rows.column(name).to_pylist() for name in indexed.table.primary_key), strict=True)
    return list(zip(page.slots.to_pylist(), keys, values, strict=True))


def alike(rows: Sequence[Any]) -> str:
    """For comparing rows with NaN and with both zeros."""
    return repr(list(rows))


def varying(rng: random.Random) -> Iterator[Limits]:
    while True:
        yield rng.choice((1, 2, 3, 5, 9, 100)), rng.choice((1, 60, 200, 600, 1 << 20))


def read_one(
    source: IndexSource,
    cursors: Cursors,
    order: IndexOrder,
    bounds: Bounds,
    names: Sequence[str],
    limits: Limits,
) -> PageRows:
    request = request_of(cursors, bounds.snapshot, names, limits, order=order)
    return read_index_page(replace(source, floor=bounds.floor), request)


def read_all(
    indexed: Indexed,
    source: IndexSource,
    cursors: Cursors,
    order: IndexOrder,
    bounds: Bounds,
    limits: Iterator[Limits],
) -> list[PageRows]:
    """Page after page, each from what the one before it left."""
    names = [*indexed.table.primary_key, *COLUMNS]
    pages: list[PageRows] = []
    while cursors:
        limit = next(limits)
        page = read_one(source, cursors, order, bounds, names, limit)
        assert page.rows.schema == pa.schema([indexed.table.schema.field(name) for name in names])
        assert page.rows.num_rows == len(page.slots) <= limit[0]
        assert page.rows.num_rows <= 1 or page.rows.nbytes <= limit[1]
        assert_moved_on(cursors, page.after)
        pages.append(page)
        cursors = page.after
    return pages


def assert_moved_on(before: Cursors, after: Cursors) -> None:
    if not after:
        return

    def of_slots(cursors: Cursors) -> dict[int, bytes]:
        return {at: c.position or b"" for c in cursors for r in c.slots for at in range(*r)}

    old, new = of_slots(before), of_slots(after)
    assert old.keys() == new.keys()
    assert all(new[slot] >= old[slot] for slot in old)
    assert any(new[slot] > old[slot] for slot in old)


def expected_rows(
    indexed: Indexed,
    cursors: Cursors,
    order: IndexOrder,
    bounds: Bounds,
) -> list[Row]:
    found = []
    for row in indexed.expected(bounds, order.descending):
        slot, key = indexed.slots[row[0]], indexed.order_key(row)
        position = next((c.position or b"" for c in cursors if slot in c.slots), None)
        is_beyond = position is not None and (inverted(key) if order.descending else key) > position
        if is_beyond and any(low <= indexed.index_key(row) < high for low, high in order.ranges):
            found.append((slot, row[0], row[1]))
    return found


def check_against_oracle(indexed: Indexed, limits: Iterator[Limits]) -> None:
    rng = indexed.rng
    source = indexed.source()
    for descending in (False, True):
        bounds, order = indexed.bounds(indexed.snapshot()), order_of(indexed, descending)
        cursors = whole(indexed)
        if rng.random() < 0.7:
            cursors = indexed.cursors(descending)
        pages = read_all(indexed, source, cursors, order, bounds, limits)
        found = [row for page in pages for row in rows_of(page, indexed)]
        assert alike(found) == alike(expected_rows(indexed, cursors, order, bounds))


@settings(max_examples=examples(200), deadline=None)
@given(SEEDS)
def test_pages_of_any_limits_hold_each_visible_row_once_and_in_the_order_of_the_index(seed: int) -> None:
    indexed = Indexed(seed)
    check_against_oracle(indexed, varying(indexed.rng))


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS)
def test_pieces_that_are_read_one_by_one_or_together_give_the_same_rows(seed: int) -> None:
    """Whoever reads may hold back any cursors, so that their positions come apart."""
    indexed = Indexed(seed)
    rng, source, limits = indexed.rng, indexed.source(), varying(indexed.rng)
    names = [*indexed.table.primary_key, *COLUMNS]
    descending = rng.random() < 0.5
    bounds, order = indexed.bounds(indexed.snapshot()), order_of(indexed, descending)
    cursors = list(indexed.cursors(descending))
    expected = expected_rows(indexed, cursors, order, bounds)
    found: list[Row] = []
    while cursors:
        rng.shuffle(cursors)
        count = rng.randint(1, len(cursors))
        page = read_one(source, tuple(cursors[:count]), order, bounds, names, next(limits))
        cursors = [*cursors[count:], *page.after]
        rows = rows_of(page, indexed)
        keys = [indexed.order_key(row[1:]) for row in rows]
        assert keys == sorted(keys, reverse=descending)
        found += rows
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS)
def test_columns_come_as_asked_for(seed: int) -> None:
    indexed = Indexed(seed)
    schema, bounds = indexed.table.schema, indexed.bounds(indexed.snapshot())
    names = indexed.rng.sample(schema.names, indexed.rng.randint(1, len(schema)))
    left = whole(indexed)
    source = indexed.source()
    while left:
        page = read_one(source, left, EVERYTHING, bounds, names, PLENTY)
        assert page.rows.schema == pa.schema([schema.field(name) for name in names])
        page.rows.validate(full=True)
        left = page.after


# ------------------------------------------------------------------------------- cases with names


def seed_where(holds: Any) -> Indexed:
    """The first of some random tables for which a condition holds."""
    return next(indexed for indexed in map(Indexed, range(10_000)) if holds(indexed))


def whole(indexed: Indexed) -> Cursors:
    return (Cursor(SlotSet.span(0, indexed.slot_count)),)


def order_of(indexed: Indexed, descending: bool) -> IndexOrder:
    return IndexOrder(3, tuple(indexed.ranges()), descending)


def test_an_index_that_carries_the_columns_is_read_without_the_rows() -> None:
    def clean(indexed: Indexed) -> bool:
        only = indexed.fragments[0] if len(indexed.fragments) == 1 else None
        if only is None or not only.unique:
            return False
        return len(indexed.expected(Bounds(0, indexed.commits))) > 9

    indexed = seed_where(clean)

    def refuse(fragment: Any, columns: Any) -> Any:
        raise AssertionError(f"{fragment.path} was opened for {columns}")

    source = replace(indexed.source(), open=refuse)
    bounds = Bounds(0, indexed.commits)
    names = run_columns(indexed.table, indexed.index)
    cursors = whole(indexed)
    rows = 0
    while cursors:
        page = read_one(source, cursors, EVERYTHING, bounds, names, PLENTY)
        rows, cursors = rows + page.rows.num_rows, page.after
    assert rows == len(indexed.expected(bounds)) > 0


def test_a_page_of_stale_entries_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_pages, "LEAST_ENTRIES", 1)
    indexed = seed_where(lambda t: len(t.versions) > 60 and not t.expected(t.bounds(t.commits)))
    bounds = indexed.bounds(indexed.commits)
    pages = read_all(indexed, indexed.source(), whole(indexed), EVERYTHING, bounds, one_row())
    assert not any(page.rows.num_rows for page in pages)


def one_row() -> Iterator[Limits]:
    while True:
        yield 1, 1 << 20


@pytest.mark.parametrize("descending", [False, True])
def test_pages_go_on_through_many_ranges_that_hold_nothing(
    descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_pages, "LEAST_ENTRIES", 1)
    indexed = seed_where(lambda t: t.index.columns == ("i", "k") and len(t.versions) > 30)
    nothing = [encode_value(pa.scalar(number, pa.int16())) for number in range(-290, -190)]
    order = IndexOrder(3, tuple((key, successor(key)) for key in nothing), descending)
    bounds = indexed.bounds(indexed.commits)
    pages = read_all(indexed, indexed.source(), whole(indexed), order, bounds, one_row())
    assert len(pages) > 5
    assert not any(page.rows.num_rows for page in pages)


def test_descending_pages_go_on_past_bounds_that_differ_by_zeros_at_their_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of (NaN) and of (NaN, null): turned, the longer one does not come first."""
    monkeypatch.setattr(index_pages, "LEAST_ENTRIES", 1)
    indexed = seed_where(lambda t: t.index.columns == ("f", "i") and len(t.versions) > 30)
    low = encode_value(pa.scalar(NAN, pa.float64()))
    between = [(low + bytes(n), low + bytes(n + 1)) for n in range(9)]
    order = IndexOrder(3, ((b"", low), *between, (low + bytes(9), END)), descending=True)
    bounds, cursors = indexed.bounds(indexed.commits), whole(indexed)
    pages = read_all(indexed, indexed.source(), cursors, order, bounds, one_row())
    found = [row for page in pages for row in rows_of(page, indexed)]
    assert alike(found) == alike(expected_rows(indexed, cursors, order, bounds))


def test_what_a_page_examines_is_bounded() -> None:
    indexed = seed_where(lambda t: len(t.expected(t.bounds(t.commits))) > 25)
    bounds, source = indexed.bounds(indexed.commits), indexed.source()
    cursors = whole(indexed)
    pages = read_all(indexed, source, cursors, EVERYTHING, bounds, one_row())
    total = sum(run.entries for fragment in indexed.fragments for run in source.runs(fragment))
    assert len(pages) > 25
    assert all(page.scanned < total for page in pages)


@pytest.mark.long
@pytest.mark.parametrize("descending", [False, True])
def test_an_index_whose_entries_are_not_in_order_never_makes_a_scan_endless(
    descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    monkeypatch.setattr(index_run, "_order", lambda codes: rng.permutation(len(codes[0])))
    ends = set()
    for seed in range(60):
        indexed = Indexed(seed)
        bounds, cursors = indexed.bounds(indexed.commits), whole(indexed)
        try:
            read_all(indexed, indexed.source(), cursors, order_of(indexed, descending), bounds, one_row())
            ends.add("read")
        except FragmentDamaged:
            ends.add("damaged")
    assert ends == {"read", "damaged"}


def test_an_index_of_another_fragment_is_damaged() -> None:
    """Its entries speak of rows that are not there."""
    indexed = seed_where(lambda t: len(t.fragments) == 2 and t.fragments[0].rows > t.fragments[1].rows + 9)
    large, small = indexed.fragments
    source = indexed.source()
    swapped = replace(source, runs=lambda fragment: source.runs(large if fragment == small else small))
    bounds = Bounds(0, indexed.commits)
    with pytest.raises(FragmentDamaged, match="a row that it does not have"):
        read_all(indexed, swapped, whole(indexed), EVERYTHING, bounds, one_row())
