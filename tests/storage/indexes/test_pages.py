"""Pages of an index compared with plain Python: visible rows once, in the index's order, within limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from elasticscan.base.errors import FragmentDamaged
from elasticscan.base.key_encoding import END, inverted
from elasticscan.metadata import Bounds
from elasticscan.protocol import Cursors, IndexOrder, PageRows
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage.indexes import pages as index_pages
from elasticscan.storage.indexes import run as index_run
from elasticscan.storage.indexes.pages import IndexSource, read_index_page
from elasticscan.storage.indexes.run import RunReader, run_columns
from tests.base.examples import examples
from tests.storage.indexed import COLUMNS, Indexed
from tests.storage.versions import (
    PLENTY,
    SEEDS,
    Key,
    Limits,
    Values,
    Version,
    keys_of,
    request_of,
    varying,
)

EVERYTHING = IndexOrder(3, ((b"", END),))
ONE_ROW = (1, 1 << 20)
Row = tuple[int, Key, Values]


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set limits so small that a few rows exceed batches, runs, rounds and budgets."""
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(index_run, "BATCH_ROWS", 3)
    monkeypatch.setattr(index_run, "RUN_ROWS", 7)
    monkeypatch.setattr(index_run, "KEY_BYTES", 4)
    monkeypatch.setattr(index_pages, "_FIRST_ROUND", 3)
    monkeypatch.setattr(index_pages, "_EMPTY_PAGE_FACTOR", 1)


def rows_of(page: PageRows, indexed: Indexed) -> list[Row]:
    values = zip(*(page.rows.column(name).to_pylist() for name in COLUMNS), strict=True)
    return list(zip(page.slots.to_pylist(), keys_of(page.rows, indexed.table), values, strict=True))


def alike(rows: Sequence[Row]) -> list[tuple[int, Key, str]]:
    """A row in a form in which NaN equals NaN, and both zeros are equal."""
    return [(slot, key, repr(values)) for slot, key, values in rows]


def read_one(
    source: IndexSource,
    cursors: Cursors,
    order: IndexOrder,
    bounds: Bounds,
    names: Sequence[str],
    limit: Limits,
) -> PageRows:
    request = request_of(cursors, bounds.snapshot, names, limit, order=order)
    page = read_index_page(replace(source, floor=bounds.floor), request)
    assert page.rows.schema == pa.schema([source.table.schema.field(name) for name in names])
    page.rows.validate(full=True)
    assert page.rows.num_rows == len(page.slots) <= limit[0]
    assert page.rows.num_rows <= 1 or page.rows.nbytes <= limit[1]
    assert_moved_on(cursors, page.after)
    return page


def assert_moved_on(before: Cursors, after: Cursors) -> None:
    if not after:
        return

    def of_slots(cursors: Cursors) -> dict[int, bytes]:
        return {at: c.position or b"" for c in cursors for r in c.slots for at in range(*r)}

    old, new = of_slots(before), of_slots(after)
    assert old.keys() == new.keys()
    assert all(new[slot] >= old[slot] for slot in old)
    assert any(new[slot] > old[slot] for slot in old)


def read_all(
    indexed: Indexed,
    order: IndexOrder,
    bounds: Bounds,
    limits: Iterator[Limits],
    cursors: Cursors | None = None,
    source: IndexSource | None = None,
) -> list[PageRows]:
    """Read all pages, each from the cursors of the page before."""
    names, pages = [*indexed.table.primary_key, *COLUMNS], list[PageRows]()
    cursors, source = cursors or indexed.shelf.everything(), source or indexed.index_source()
    while cursors:
        pages.append(read_one(source, cursors, order, bounds, names, next(limits)))
        cursors = pages[-1].after
    return pages


def expected_rows(indexed: Indexed, cursors: Cursors, order: IndexOrder, bounds: Bounds) -> list[Row]:
    found = []
    for row in indexed.expected(bounds, order.descending):
        slot, key = indexed.slots[row[0]], indexed.order_key(row)
        position = next((c.position or b"" for c in cursors if slot in c.slots), None)
        is_beyond = position is not None and (inverted(key) if order.descending else key) > position
        if is_beyond and any(low <= key < high for low, high in order.ranges):
            found.append((slot, row[0], row[1]))
    return found


@settings(max_examples=examples(300), deadline=None)
@example(78, False, 6)  # another fragment also has the newest commit of a merged fragment
@given(SEEDS, st.booleans(), st.sampled_from([1, 6]))
def test_pages_of_any_limits_hold_each_visible_row_once_and_in_the_order_of_the_index(
    seed: int, descending: bool, least: int
) -> None:
    """Pages of stale entries and of many empty ranges make progress, even if each reads only a few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_pages, "LEAST_ENTRIES", least)
        check_pages(Indexed(seed), descending)


def check_pages(indexed: Indexed, descending: bool) -> None:
    rng, source, limits = indexed.rng, indexed.index_source(), varying(indexed.rng, least_bytes=60)
    bounds, order = indexed.bounds(indexed.snapshot()), IndexOrder(3, tuple(indexed.ranges()), descending)
    cursors = indexed.index_cursors(descending) if rng.random() < 0.7 else indexed.shelf.everything()
    expected = alike(expected_rows(indexed, cursors, order, bounds))
    pages = read_all(indexed, order, bounds, limits, cursors, source) if cursors else []
    assert alike([row for page in pages for row in rows_of(page, indexed)]) == expected
    # A reader may skip any cursors in a page, so that their positions differ.
    left, found = list(cursors), list[Any]()
    while left:
        rng.shuffle(left)
        count, names = rng.randint(1, len(left)), [*indexed.table.primary_key, *COLUMNS]
        page = read_one(source, tuple(left[:count]), order, bounds, names, next(limits))
        left = [*left[count:], *page.after]
        rows = rows_of(page, indexed)
        keys = [indexed.order_key(row[1:]) for row in rows]
        assert keys == sorted(keys, reverse=descending)
        found += alike(rows)
    assert sorted(found) == sorted(expected)
    # Other columns are those of the same rows.
    names = rng.sample(indexed.table.schema.names, rng.randint(1, len(indexed.table.schema)))
    some = read_one(source, cursors, order, bounds, names, PLENTY).rows if cursors else None
    if some is not None and some.num_rows == len(expected):
        for name in set(names) & set(COLUMNS):
            whole = [value for page in pages for value in page.rows.column(name).to_pylist()]
            assert repr(some.column(name).to_pylist()) == repr(whole)


# ------------------------------------------------------------------------------- cases with names


def test_an_index_that_carries_the_columns_is_read_without_the_rows() -> None:
    tables = (t for t in map(Indexed, range(10_000)) if len(t.fragments) == 1 and t.fragments[0].unique)
    indexed = next(t for t in tables if len(t.expected(Bounds(0, t.commits))) > 9)

    def refuse(fragment: Any, columns: Any) -> Any:
        raise AssertionError(f"{fragment.path} was opened for {columns}")

    source, bounds = replace(indexed.index_source(), open=refuse), Bounds(0, indexed.commits)
    names = run_columns(indexed.table, indexed.index)
    page = read_one(source, indexed.shelf.everything(), EVERYTHING, bounds, names, PLENTY)
    assert page.rows.num_rows > 0


class Shuffled(RunReader):
    """A run whose entries are in any order."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self._shuffled = np.random.default_rng(1).permutation(self.entry_count)

    def take(self, entries: NDArray[np.int64], columns: Sequence[str]) -> pa.RecordBatch:
        return super().take(self._shuffled[entries], columns)

    def key(self, entry: int) -> bytes:
        return super().key(int(self._shuffled[entry]))


@pytest.mark.long
@pytest.mark.parametrize("descending", [False, True])
def test_an_index_whose_entries_are_not_in_order_never_makes_a_scan_endless(descending: bool) -> None:
    ends = set[str]()
    for seed in range(60):
        indexed = Indexed(seed)
        order = IndexOrder(3, tuple(indexed.ranges()), descending)
        source, bounds = indexed.index_source(Shuffled), indexed.bounds(indexed.commits)
        try:
            read_all(indexed, order, bounds, repeat(ONE_ROW), source=source)
            ends.add("read")
        except FragmentDamaged:
            ends.add("damaged")
    assert ends == {"read", "damaged"}


def test_an_index_of_another_fragment_is_damaged() -> None:
    """Its entries refer to missing rows; this index does not have all columns."""
    indexed = Indexed(0, style="layered")
    shelf, keys = indexed.shelf, sorted(indexed.slots)
    shelf.fragments.clear()
    large, small = (
        shelf.add([Version(key, 1, "", shelf.slot_of(key), indexed.some_values(few=True)) for key in some])
        for some in (keys[2:], keys[:2])
    )
    source = indexed.index_source()
    swapped = replace(source, runs=lambda fragment: source.runs(large if fragment == small else small))
    with pytest.raises(FragmentDamaged, match="a row that it does not have"):
        read_all(indexed, EVERYTHING, Bounds(0, 1), repeat(ONE_ROW), source=swapped)
