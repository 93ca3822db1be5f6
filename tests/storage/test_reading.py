"""Each way of reading compared with plain Python: visible rows once, in order, in pages, from any cursors.

All use one generator of tables (`versions.py`): pages of a scan, with and without statistics that skip
batches, lists of primary keys, and ranges of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from elasticscan.base.errors import StoreDamaged
from elasticscan.base.key_encoding import END, NULL, encode_value
from elasticscan.filters.key_sets import KeySet
from elasticscan.metadata import SORTED, Fragment, IndexInfo
from elasticscan.protocol import (
    Cursor,
    IndexOrder,
    KeyList,
    KeyRange,
    KeyRanges,
    PageRequest,
    PageRows,
    RowRequest,
)
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage import key_filter, lookup, merge, overlay, point_reads, ranges
from elasticscan.storage.disk import LocalDisk
from elasticscan.storage.fragment import UNTIL, FragmentReader, fragment_schema
from elasticscan.storage.fragment_writer import Contents, Destination, write_fragment
from elasticscan.storage.indexes.pages import IndexSource, read_index_page
from elasticscan.storage.indexes.run import RunReader, build_runs
from elasticscan.storage.memory_fragment import (
    pack_rows,
    schema_in_log,
    unpack_rows,
)
from elasticscan.storage.pages import PageSource, read_page
from elasticscan.storage.point_reads import read_listed, read_rows
from elasticscan.storage.ranges import read_ranges
from elasticscan.storage.view import most_rows
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.versions import (
    KEY_KINDS,
    ORIGIN,
    PLENTY,
    SEEDS,
    WIDE,
    Key,
    Row,
    Scenario,
    Shelf,
    Version,
    addresses,
    keys_of,
    newest,
    read_all,
    request_of,
    rows_of,
    shelf_of,
    table_of,
    together,
    varying,
)


@pytest.fixture(autouse=True)
def _small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set limits so that slots are larger than batches, and lists and ranges larger than one read."""
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(point_reads, "LEAST_KEYS", 3)


# ---------------------------------------------------------------------------------------- pages of a scan


def encoded_value(shelf: Shelf, version: Version, column: str) -> bytes:
    values: dict[str, Any] = dict(zip(shelf.table.primary_key, version.key, strict=True))
    values |= {"v": version.value, "n": None if version.value is None else version.commit}
    return encode_value(pa.scalar(values[column], shelf.table.schema.field(column).type))


@dataclass
class Way:
    """A way of reading, its arguments, and the expected rows; one that only prunes may return others, too."""

    read: Callable[[PageSource, PageRequest], PageRows]
    source: PageSource
    asked: dict[str, Any]
    gives: Callable[[Row], bool]


def in_pages(scenario: Scenario, snapshot: int) -> Way:
    return Way(read_page, scenario.source(snapshot), {}, lambda _: True)


def pruned(scenario: Scenario, snapshot: int) -> Way:
    """Prune by a range between two of a column's values, or by one with no row or every row in it."""
    rng, shelf = scenario.rng, scenario.shelf
    column = rng.choice(shelf.table.schema.names)
    keys = {b"", NULL, b"\1", b"\2"}
    for version in shelf.versions():
        key = encoded_value(shelf, version, column)
        keys |= {key, key + b"\0"}
    low, high = sorted(rng.choices(sorted(keys), k=2))
    versions = {(v.key, v.value): v for v in shelf.versions()}

    def gives(row: Row) -> bool:
        return low <= encoded_value(shelf, versions[row[1:]], column) < high

    asked = {"key_sets": {column: KeySet.of([(low, high)])}}
    return Way(read_page, scenario.source(snapshot), asked, gives)


def by_list(scenario: Scenario, snapshot: int) -> Way:
    rng = scenario.rng
    keys = rng.sample(sorted(scenario.slots), rng.randint(0, len(scenario.slots)))
    keys += [scenario.some_key() for _ in range(3)]
    listed = list_of(scenario.shelf, keys)
    return Way(read_listed, scenario.source(snapshot), {"keys": listed}, lambda row: row[1] in keys)


def by_ranges(scenario: Scenario, snapshot: int) -> Way:
    rng, encoded = scenario.rng, scenario.shelf.encoded
    slots = [slot for slot in range(scenario.shelf.slot_count) if rng.random() < 0.7]
    if rng.random() < 0.4:
        keys = KeyRanges(some_ranges(scenario))
    else:
        keys = KeyRanges(by_slot={slot: found for slot in slots if (found := some_ranges(scenario))})
    gives = partial(holds, keys)
    source = scenario.source(snapshot)
    return Way(read_ranges, source, {"keys": keys}, lambda row: gives(row[0], encoded(row[1])))


def some_ranges(scenario: Scenario) -> tuple[KeyRange, ...]:
    """Disjoint ranges whose ends are existing keys, missing keys, or prefixes of keys."""
    rng = scenario.rng
    keys = [scenario.shelf.encoded(key) for key in [*scenario.slots, *(scenario.some_key() for _ in "abc")]]
    bounds = {b""}
    for key in rng.sample(keys, rng.randint(0, len(keys))):
        bounds.add(rng.choice((key, key + b"\0", key[: rng.randint(0, len(key))])))
    pairs: list[KeyRange] = [*pairwise(sorted(bounds)), (max(bounds), None)]
    return tuple(pair for pair in pairs if rng.random() < 0.4)


def holds(key_ranges: KeyRanges, slot: int, key: bytes) -> bool:
    return any(
        low <= key and (high is None or key < high)
        for _, spans in key_ranges.within(slot, slot + 1)
        for low, high in spans
    )


@pytest.mark.parametrize("way", [in_pages, pruned, by_list, by_ranges])
@settings(max_examples=examples(280), deadline=None)
@given(seed=SEEDS)
def test_each_way_of_reading_gives_each_visible_row_that_it_is_asked_for_once_and_in_order(
    way: Callable[[Scenario, int], Way], seed: int
) -> None:
    """In pages of any limits, from any cursors. Keys are searched one by one, together, or by a filter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragment_module, "BATCH_ROWS", 1 + seed % 8)
        patch.setattr(overlay, "BATCH_ROWS", (3, 9, 1 << 17)[seed % 3])  # more is merged
        patch.setattr(ranges, "LEAST_ROWS", (1, 2, 3, 64)[seed % 4])  # cut, or slices
        patch.setattr(ranges, "_SLICED_ROWS", 1 + seed % 5)
        patch.setattr(lookup, "FEW_KEYS", 100 if seed % 3 == 1 else 0)
        patch.setattr(key_filter, "MOST_ROWS", 1 << 20 if seed % 3 == 2 else 0)
        patch.setattr(merge, "_SPARE_ROWS", 16 * (seed % 2))
        if seed % 2:  # keys of several columns do not fit into one integer
            patch.setattr(merge, "_MOST_BITS", 1)
        style = "layered" if way in (in_pages, by_ranges) and seed % 3 else None
        scenario = Scenario(seed, style=style, wide=way is in_pages)
        snapshot, (cursors, beyond) = scenario.snapshot(), scenario.cursors()
        how, limits, names = way(scenario, snapshot), varying(scenario.rng), scenario.columns()
        wide = list(WIDE) if scenario.wide else []
        pages = read_all(how.read, how.source, cursors, snapshot, [*names, *wide], limits, **how.asked)
        visible_now = scenario.rows(snapshot)
        found, rows = together(pages, scenario.shelf), beyond(visible_now)
        given_rows = [row for row in rows if how.gives(row)]
        if way is pruned:
            assert found == [row for row in rows if row in set(found)], "none that was replaced"
            assert set(given_rows) <= set(found)
        else:
            assert found == given_rows
        most, is_exact = most_rows(how.source.view.fragments, how.source.bounds(snapshot))
        assert most == len(visible_now) if is_exact else most >= len(visible_now), "known without a file"
        if way is by_list:
            check_rows(how.source, snapshot, how.asked["keys"], scenario)
        if scenario.wide:
            check_other_columns(scenario, snapshot, pages)
            alone = read_all(how.read, how.source, cursors, snapshot, ["v"], limits)
            values = [value for page in alone for value in page.rows["v"].to_pylist()]
            assert values == [value for _, _, value in rows], "also without the columns of the key"


def check_other_columns(scenario: Scenario, snapshot: int, pages: Sequence[PageRows]) -> None:
    versions = newest(scenario.shelf.versions(), scenario.floor(snapshot), snapshot)
    wide = {version.key: version.wide for version in versions}
    for page in pages:
        found = [tuple(row.values()) for row in page.rows.select(list(WIDE)).to_pylist()]
        keys = keys_of(page.rows, scenario.shelf.table)
        assert repr(found) == repr([wide[key] for key in keys])


def check_rows(source: PageSource, snapshot: int, keys: KeyList, scenario: Scenario) -> None:
    """Check that a list of keys returns the row of each key, with or without values."""
    request = RowRequest(1, 1, snapshot, ("v",), keys.slots, keys.keys)
    answer, now = read_rows(source, request), scenario.visible(snapshot)
    values = [*answer.rows.column("v").to_pylist(), None]
    asked = keys_of(keys.keys, scenario.shelf.table)
    assert [values[place] for place in answer.places] == [now.get(key) for key in asked]
    nothing_more = read_rows(source, replace(request, columns=()))
    assert ((nothing_more.places >= 0) == (answer.places >= 0)).all()


def loaded(count: int, value: str = "v") -> list[tuple[int, int, str | None]]:
    return [(key, 1, value) for key in range(count)]


def test_the_last_slot_of_the_largest_store_is_read_and_resumed() -> None:
    shelf = shelf_of(slots=1 << 16)
    shelf.add([Version((key,), 1, "v", (1 << 16) - 1 - (key < 5)) for key in range(15)])
    pages = read_all(read_page, shelf.source(), shelf.everything(), 1, ["k", "v"], repeat((2, 1 << 30)))
    assert [key for _, (key,), _ in together(pages, shelf)] == list(range(15))


def test_pages_of_a_clean_fragment_are_slices_of_its_batches_and_rather_of_whole_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 1_000)
    shelf = shelf_of(loaded(3_000), slots=64, disk=LocalDisk(tmp_path))
    source = shelf.source()
    pages = read_all(read_page, source, shelf.everything(), 1, ["k", "v"], repeat((600, 1 << 30)))
    assert sum(page.rows.num_rows for page in pages) == 3_000
    known = addresses(list(source.open(shelf.fragments[0], ("k", "v"))))
    assert all(addresses([page.rows]) <= known for page in pages)
    assert {cursor.position for page in pages for cursor in page.after} == {None}
    asked = SlotSet.of([(0, 1), (2, 5), (30, 31), (63, 64)])
    page = read_page(shelf.source(), request_of((Cursor(asked),), 9, ["k", "v"], PLENTY))
    assert page.rows.num_rows == page.scanned == sum(shelf.slot_of((key,)) in asked for key in range(3_000))


@pytest.mark.parametrize("rows", [1, 3, 4, 5])
def test_a_page_ends_and_goes_on_around_a_long_run_of_batches_passed_over(rows: int) -> None:
    """All rows are in one slot, so the position is a key before the run."""
    kept = [*range(6), *range(394, 400)]
    shelf = shelf_of([(key, 1, "wanted" if key in kept else "no") for key in range(400)])
    key = encode_value(pa.scalar("wanted"))
    opened, source = list[FragmentReader](), shelf.source()

    def opening(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        opened.append(source.open(fragment, columns))
        return opened[-1]

    pruning, limits = replace(source, open=opening), repeat((rows, 1 << 30))
    more = {"key_sets": {"v": KeySet.of([(key, key + b"\0")])}}
    pages = read_all(read_page, pruning, shelf.everything(), 1, ["k", "v"], limits, **more)
    found = [key for _, (key,), value in together(pages, shelf) if value == "wanted"]
    assert found == kept
    assert len(pages) <= 1 + 16 // rows + 1
    assert sum(page.skipped for page in pages) >= 380
    assert sum(opened[0].kept.peek(at) is not None for at in range(100)) < 20, "most are not even opened"


# ---------------------------------------------------------------------------------- lists of primary keys


def list_of(shelf: Shelf, keys: Sequence[Key]) -> KeyList:
    """Keys in the order of a direct scan."""
    keys = sorted(set(keys))
    fields = [shelf.table.schema.field(name) for name in shelf.table.primary_key]
    arrays = [pa.array([key[at] for key in keys], field.type) for at, field in enumerate(fields)]
    slots = np.array([shelf.slot_of(key) for key in keys], dtype=np.uint16)
    return KeyList.of(slots, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))


def test_hashes_of_keys_side_by_side_differ() -> None:
    """A filter of hashes excludes none of its own keys; few others pass it."""
    numbers = np.arange(100_000)
    for columns in ([numbers], np.divmod(numbers, 300)):
        hashes = key_filter.key_hashes([pa.array(column) for column in columns])
        assert len(np.unique(hashes)) > 99_990


def test_history_that_a_snapshot_has_left_behind_does_not_count() -> None:
    """Also if the tombstone that replaced it does not exist any more."""
    shelf = shelf_of(slots=4)
    versions = [shelf.version((n,), 1, "v") for n in (1, 2)]
    versions.sort(key=lambda version: (version.slot, version.key))
    schema = fragment_schema(shelf.table.schema, True, False, history=True)
    until = [2 if version.key == (1,) else 9 for version in versions]
    bare = rows_of(versions, shelf.table, fragment_schema(shelf.table.schema, True, False))
    batch = bare.append_column(schema.field(UNTIL), pa.array(until, pa.int64()))
    to = Destination(shelf.disk, 1, ORIGIN)
    staged = write_fragment(to, shelf.table, shelf.slots, [batch], Contents(1, 1, False, False, 9))
    fragment, index = shelf.register(staged, 1, versions), IndexInfo(3, 7, "by", SORTED, ("v",), ())
    runs = build_runs(shelf.disk, shelf.table, index, fragment, ORIGIN)
    readers = [RunReader(shelf.disk, shelf.table, index, run) for run in runs]
    source, order = shelf.source(), IndexOrder(3, ((b"", END),))
    by_index = IndexSource(shelf.table, source.view, source.open, index=index, runs=lambda _: readers)
    ways: list[tuple[Any, PageSource, dict[str, Any]]] = [
        (read_page, source, {}),
        (read_listed, source, {"keys": list_of(shelf, [(1,), (2,)])}),
        (read_index_page, by_index, {"order": order}),
    ]
    for snapshot, keys in ((1, [1, 2]), (2, [2]), (3, [2]), (9, [])):
        for read, of, more in ways:
            page = read(of, request_of(shelf.everything(), snapshot, ["k"], PLENTY, **more))
            assert sorted(page.rows.column("k").to_pylist()) == keys


# --------------------------------------------------------------------------------- ranges of primary keys


def test_only_the_rows_of_ranges_are_looked_at() -> None:
    shelf = Shelf(table_of(KEY_KINDS["string and int"]), 4)
    shelf.add([shelf.version(("a", n), 1, "v") for n in range(100)])
    low, high = (shelf.encoded(("a", n)) for n in (40, 43))
    request = request_of(shelf.everything(), 9, ["k", "j"], PLENTY, keys=KeyRanges(((low, high),)))
    page = read_ranges(shelf.source(), request)
    assert page.rows.column("j").to_pylist() == [40, 41, 42]
    assert (page.scanned, page.after) == (3, ())


# --------------------------------------------------------------------------------------- rows in the log


def test_bytes_that_are_no_rows_of_the_definition_are_damage() -> None:
    table = table_of(KEY_KINDS["int"])
    for packed in (b"", b"\xff" * 8, pack_rows(pa.record_batch({"a": ["x"]})), b"\0" * 4096):
        with pytest.raises(StoreDamaged, match="cannot be read"):
            unpack_rows("t", schema_in_log(table, tombstones=False), packed)
