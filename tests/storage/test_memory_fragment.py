"""Rows in the log against plain Python: as a fragment in memory, flushed, and both at once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import StoreDamaged
from elasticscan.metadata import Bounds, Fragment, TableInfo
from elasticscan.storage.copying import Destination, Keep, copy_slots
from elasticscan.storage.fragment import FragmentReader, fragment_schema
from elasticscan.storage.memory_fragment import (
    MEMORY_DISK,
    CommittedRows,
    pack_rows,
    schema_in_log,
    unpack_rows,
)
from elasticscan.storage.pages import PageSource, read_page
from elasticscan.storage.view import View
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.memory_disk import MemoryDisk
from tests.storage.versions import (
    ORIGIN,
    Scenario,
    Shelf,
    Version,
    read_all,
    rows_of,
    together,
    varying,
)

SEEDS = st.integers(0, 1 << 32)


def packed_commits(scenario: Scenario) -> dict[int, tuple[bytes, bool]]:
    """The rows of each commit as the log keeps them, and whether tombstones are among them."""
    by_commit = defaultdict(list)
    for version in scenario.shelf.versions():
        by_commit[version.commit].append(version)
    packed = {}
    for commit, versions in by_commit.items():
        tombstones = any(version.value is None for version in versions)
        schema = fragment_schema(scenario.shelf.table.schema, versioned=False, tombstones=tombstones)
        ordered = sorted(versions, key=lambda version: (version.slot, version.key))
        packed[commit] = pack_rows(rows_of(ordered, scenario.shelf.table, schema)), tombstones
    return packed


def unpacked(table: TableInfo, packed: bytes, tombstones: bool) -> pa.RecordBatch:
    return unpack_rows(table.name, schema_in_log(table, tombstones), packed)


def merged(scenario: Scenario, commits: Collection[int]) -> CommittedRows | None:
    table, packed = scenario.shelf.table, packed_commits(scenario)
    if not commits:
        return None
    return CommittedRows.of(table, {number: unpacked(table, *packed[number]) for number in commits})


def put(shelf: Shelf, rows: CommittedRows | None, slots: SlotSet, contents: list[Version]) -> None:
    """Write rows to a shelf as a fragment that serves some slots, if there are any."""

    def opened(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        return FragmentReader(MEMORY_DISK, fragment.path, columns, fragment.seal, shelf.table)

    there = [] if rows is None else [rows.fragment(-1, slots)]
    whole = PageSource(shelf.table, View(there), opened)
    to = Destination(shelf.disk, 1, ORIGIN)
    for copied in copy_slots(whole, slots, Bounds(0, 1 << 62), Keep(), to):
        shelf.register(
            copied.staged, len(shelf.fragments) + 1, copied.min_commit, copied.max_commit, contents
        )


def check(scenario: Scenario, shelf: Shelf) -> None:
    columns = [*shelf.table.primary_key, "v"]
    for snapshot in range(scenario.commits + 1):
        source = shelf.source(floor=scenario.floor(snapshot))
        limits = varying(scenario.rng)
        rows = together(read_all(read_page, source, shelf.everything(), snapshot, columns, limits), shelf)
        expected = scenario.visible(snapshot)
        assert {key: value for _, key, value in rows} == expected
        assert [(slot, key) for slot, key, _ in rows] == sorted((scenario.slots[k], k) for k in expected)


@settings(max_examples=examples(80), deadline=None)
@given(SEEDS)
def test_a_memory_fragment_holds_each_row_at_each_snapshot(seed: int) -> None:
    scenario = Scenario(seed)
    shelf = Shelf(scenario.shelf.table, scenario.shelf.slot_count, MemoryDisk())
    everything = SlotSet.span(0, shelf.slot_count)
    put(shelf, merged(scenario, packed_commits(scenario)), everything, scenario.shelf.versions())
    check(scenario, shelf)


@settings(max_examples=examples(80), deadline=None)
@given(SEEDS)
def test_what_is_flushed_of_some_slots_and_the_rest_in_memory_are_the_same_rows(seed: int) -> None:
    """Some commits are flushed, of some slots in two files; the others stay in a memory fragment."""
    scenario, rng = Scenario(seed), random.Random(seed)
    shelf = Shelf(scenario.shelf.table, scenario.shelf.slot_count, MemoryDisk())
    everything = SlotSet.span(0, shelf.slot_count)
    commits = packed_commits(scenario)
    flushed = {commit for commit in commits if rng.random() < 0.6}
    part = SlotSet.of((slot, slot + 1) for slot in range(shelf.slot_count) if rng.random() < 0.5)
    versions = scenario.shelf.versions()
    for slots in (part, everything - part):
        put(shelf, merged(scenario, flushed), slots, [v for v in versions if v.commit in flushed])
    left = commits.keys() - flushed
    put(shelf, merged(scenario, left), everything, [v for v in versions if v.commit in left])
    check(scenario, shelf)


def test_bytes_that_are_no_rows_of_the_definition_are_damage() -> None:
    scenario = Scenario(3, "int")
    table = scenario.shelf.table
    for packed in (b"", b"\xff" * 8, pack_rows(pa.record_batch({"a": ["x"]})), b"\0" * 4096):
        with pytest.raises(StoreDamaged, match="cannot be read"):
            unpacked(table, packed, tombstones=False)
