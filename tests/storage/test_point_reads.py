"""Lists of primary keys against plain Python: rows that have them, once, in order, in pages of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.protocol import KeyList, RowRequest
from elasticscan.storage import fragment_writer as fragment_module
from elasticscan.storage import key_filter, lookup, point_reads
from elasticscan.storage.fragment import UNTIL, fragment_schema
from elasticscan.storage.fragment_writer import Contents, FragmentTarget, write_fragment
from elasticscan.storage.point_reads import read_listed, read_rows
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.storage.versions import (
    KEY_KINDS,
    ORIGIN,
    Key,
    Scenario,
    Shelf,
    Version,
    read_all,
    request_of,
    rows_of,
    table_of,
    together,
    varying,
)

SEEDS = st.integers(0, 1 << 32)
PLENTY = (1 << 20, 1 << 30)


@pytest.fixture(autouse=True, params=["one by one", "at once", "filtered"])
def _small_numbers(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Slots are larger than batches, and lists than what is looked up together."""
    monkeypatch.setattr(fragment_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(point_reads, "LEAST_KEYS", 3)
    monkeypatch.setattr(lookup, "FEW_KEYS", 100 if request.param == "one by one" else 0)
    monkeypatch.setattr(key_filter, "MOST_ROWS", 1 << 20 if request.param == "filtered" else 0)


def list_of(shelf: Shelf, keys: Sequence[Key]) -> KeyList:
    """Keys in the order of a direct scan."""
    keys = sorted(set(keys))
    fields = [shelf.table.schema.field(name) for name in shelf.table.primary_key]
    arrays = [pa.array([key[at] for key in keys], field.type) for at, field in enumerate(fields)]
    slots = np.array([shelf.slot_of(key) for key in keys], dtype=np.uint16)
    return KeyList.of(slots, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))


def check(scenario: Scenario) -> None:
    rng, shelf = scenario.rng, scenario.shelf
    asked = rng.sample(sorted(scenario.slots), rng.randint(0, len(scenario.slots)))
    asked += [scenario.kind.make(rng, rng.randint(0, 30)) for _ in range(3)]
    source = shelf.source(floor=scenario.floor(scenario.commits))
    columns, keys = [*shelf.table.primary_key, "v"], list_of(shelf, asked)
    pages = read_all(
        read_listed, source, shelf.everything(), scenario.commits, columns, varying(rng), keys=keys
    )
    visible = scenario.visible(scenario.commits)
    assert together(pages, shelf) == sorted(
        (scenario.slots[key], key, value) for key, value in visible.items() if key in asked
    )
    request = RowRequest(1, 1, scenario.commits, ("v",), keys.slots, keys.keys)
    answer = read_rows(source, request)
    values = [*answer.rows.column("v").to_pylist(), None]
    sought = zip(*(column.to_pylist() for column in keys.keys.columns), strict=True)
    assert [values[place] for place in answer.places] == [visible.get(key) for key in sought]
    nothing_more = read_rows(source, replace(request, columns=()))
    assert ((nothing_more.places >= 0) == (answer.places >= 0)).all()


@settings(max_examples=examples(100), deadline=None)
@given(SEEDS)
def test_a_list_of_keys_gives_each_visible_row_that_has_one_once_and_in_order(seed: int) -> None:
    check(Scenario(seed))


def test_older_fragments_are_not_asked_for_what_newer_ones_have() -> None:
    shelf = Shelf(table_of(KEY_KINDS["int"]), 4)
    for commit in (1, 2, 3):
        shelf.add([Version((n,), commit, f"{commit}", shelf.slot_of((n,))) for n in range(8 - commit)])
    asked = list_of(shelf, [(n,) for n in range(9)])
    page = read_listed(shelf.source(), request_of(shelf.everything(), 9, ["k", "v"], PLENTY, keys=asked))
    rows = dict(zip(page.rows.column("k").to_pylist(), page.rows.column("v").to_pylist(), strict=True))
    assert rows == {0: "3", 1: "3", 2: "3", 3: "3", 4: "3", 5: "2", 6: "1"}
    assert (page.scanned, page.after) == (7, ())


def test_history_that_a_snapshot_has_left_behind_does_not_count() -> None:
    shelf = Shelf(table_of(KEY_KINDS["int"]), 4)
    versions = [Version((n,), 1, "v", shelf.slot_of((n,))) for n in (1, 2)]
    versions.sort(key=lambda version: (version.slot, version.key))
    schema = fragment_schema(shelf.table.schema, True, False, history=True)
    until = [2 if version.key == (1,) else 9 for version in versions]
    bare = fragment_schema(shelf.table.schema, True, False)
    batch = rows_of(versions, shelf.table, bare).append_column(
        schema.field(UNTIL), pa.array(until, pa.int64())
    )
    target = FragmentTarget(shelf.disk, 1, shelf.table, schema, ORIGIN)
    staged = write_fragment(target, SlotSet.span(0, 4), [batch], Contents(1, 1, False, False, 9))
    shelf.register(staged, 1, 1, 1, versions)
    source, asked = shelf.source(), list_of(shelf, [(1,), (2,)])
    for snapshot, keys in ((1, [1, 2]), (3, [2]), (9, [])):
        page = read_listed(source, request_of(shelf.everything(), snapshot, ["k"], PLENTY, keys=asked))
        assert sorted(page.rows.column("k").to_pylist()) == keys
