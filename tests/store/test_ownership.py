"""A shard that owned tablets 1 and 2 when a scan was planned is read when it owns less, the same or more.

Three cases, wherever the change falls (before the first page, between two pages, in a page before
its rows are read, in a page after they were), through every access path: the rows are exactly those
of the snapshot, and what has an order keeps it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.store import Scan, Store
from tests.base.manual_clock import ManualClock
from tests.simulation.programs import fast_store
from tests.simulation.world import START
from tests.store.copies_of_stores import copied_store
from tests.store.test_scenarios import tablets_at, while_reading

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
COUNT = 160

Row = tuple[int, int | None, int]

PATHS: dict[str, dict[str, Any]] = {
    "direct": {"index": "none"},
    "direct with a filter": {"index": "none", "filter": "k < 1000 OR k IS NULL"},
    "index": {"index": "by_k"},
    "index, rows fetched": {"index": "plain"},
    "one order": {"index": "by_k", "order_by": "k"},
    "one order, descending": {"index": "by_k", "order_by": "k DESC"},
    "hash index": {"index": "hashed", "filter": "k IN (0, 1, 2, 3, 4, 5, 6, 7) OR k IS NULL"},
}
MOMENTS = [
    "before the first page",
    "between two pages",
    "in a page, before its rows are read",
    "in a page, after they were",
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Shard `a` owns tablets 1 and 2, shard `b` 3 and 4; versions, deletions and nulls in each."""
    place = tmp_path_factory.mktemp("ownership") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        with Store.create(place, ["a", "b"], tablets=4, slots=32, clock=ManualClock(START)) as made:
            for tablet, shard in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
                if tablet not in tablets_at(made, shard):
                    made.move(tablet, shard)
            made.create_table("t", SCHEMA, ["id"])
            made.table("t").upsert(table_of(range(COUNT), value=0))
            made.table("t").create_index("by_k", ["k"], include=["v"])
            made.table("t").create_index("plain", ["k"])
            made.table("t").create_index("hashed", ["k"], kind="hash", include=["v"])
            made.table("t").upsert(table_of(range(0, COUNT, 3), value=1))
            made.table("t").delete(pa.table({"id": pa.array(range(0, COUNT, 10), pa.int64())}))
        yield place


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Iterator[Store]:
    copied_store(template, tmp_path / "store", ManualClock(START))
    with fast_store(tmp_path / "store", ManualClock(START)) as opened:
        yield opened


def key_of(number: int, value: int) -> int | None:
    return None if number % 7 == 0 else (number + value) % 8


def table_of(ids: Any, value: int) -> pa.Table:
    ids = list(ids)
    return pa.table({"id": ids, "k": [key_of(i, value) for i in ids], "v": [value] * len(ids)}, schema=SCHEMA)


def everything() -> list[Row]:
    rows = [(i, key_of(i, int(i % 3 == 0)), int(i % 3 == 0)) for i in range(COUNT) if i % 10]
    return sorted(rows, key=in_order)


def in_order(row: Row) -> tuple[bool, int, int]:
    return (row[1] is not None, row[1] or 0, row[0])


def own(store: Store, tablets: list[int]) -> None:
    """Make `a` own these tablets; 2, where it stays, has been away: same place, another epoch."""
    if 2 in tablets and 2 in tablets_at(store, "a"):
        store.move(2, "b")
    for tablet in (1, 2, 3):
        wanted = "a" if tablet in tablets else "b"
        if tablet not in tablets_at(store, wanted):
            store.move(tablet, wanted)


def read(scan: Scan, between: Any = lambda: None) -> list[Row]:
    rows: list[Row] = []
    for number, page in enumerate(scan):
        rows += zip(*(page.rows[name].to_pylist() for name in ("id", "k", "v")), strict=True)
        if number == 1:
            between()
    return rows


@pytest.mark.parametrize("owned", [[1], [1, 2], pytest.param([1, 2, 3], marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("path", PATHS)
def test_the_rows_are_exact_whatever_the_shard_owns_when_it_is_read(
    store: Store, path: str, moment: str, owned: list[int]
) -> None:
    options = PATHS[path]
    # The first page at `a` ends among the rows of tablet 2, or has some of both.
    scan = store.table("t").scan(page_rows=50 if moment.startswith("in a page") else 9, **options)
    assert scan.explain()["access"] == (options["index"] if options["index"] != "none" else "direct")

    def happens() -> None:
        own(store, owned)

    if moment == "before the first page":
        happens()
    elif moment.startswith("in a page"):
        while_reading(store, happens, after=moment.endswith("after they were"))
    got = read(scan, happens if moment == "between two pages" else lambda: None)
    assert sorted(got, key=in_order) == everything()
    if "order_by" in options:
        assert got == sorted(got, key=in_order, reverse=options["order_by"] == "k DESC")
    if moment == MOMENTS[-1]:
        assert scan.stats.moved_slots > 0
        # A page of merged rows ends at a window, which may be before the rows that left.
        assert scan.stats.dropped_rows > 0 or path.startswith("direct")
    assert tablets_at(store, "a") == owned


@pytest.mark.parametrize("path", PATHS)
def test_a_key_from_before_each_change_goes_on_after_it(store: Store, path: str) -> None:
    """The shard owns one, two and three tablets in turn, and every page is read by somebody else."""
    rows: list[Row] = []
    key = store.table("t").scan(page_rows=20, **PATHS[path]).key
    changes = [[1], [1, 2, 3], [1, 2], [1], [1, 2], [1, 2, 3]]
    number = 0
    while key is not None:
        own(store, changes[number % len(changes)])
        page = next(iter(store.resume(key)))
        rows += zip(*(page.rows[name].to_pylist() for name in ("id", "k", "v")), strict=True)
        key, number = page.key, number + 1
    assert sorted(rows, key=in_order) == everything()
    if "order_by" in PATHS[path]:
        assert rows == sorted(rows, key=in_order, reverse=PATHS[path]["order_by"] == "k DESC")
