"""What a shard owns when it is read, at each moment of a scan and through each access path.

A shard that owned tablets 1 and 2 when a scan was planned owns less, the same or more when it is read:
wherever the change falls, the rows are exactly those of the snapshot, and what has an order keeps it. Named
schedules that need no code are in `tests/transcripts/scan_*.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.store import Store
from tests.base.manual_clock import ManualClock
from tests.conftest import AT_SERVER
from tests.simulation.programs import fast_store
from tests.simulation.world import START
from tests.store.copies_of_stores import copied_store

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
COUNT = 200

Row = tuple[int, int | None, int]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("scenarios") / "store")


def filled(place: Path) -> Path:
    """Shard `s1` owns tablets 1 and 2, `s2` 3 and 4. No snapshot is kept without a lease."""
    shards, clock = ["s1", "s2"], ManualClock(START)
    with Store.create(place, shards, tablets=4, slots=32, retention_seconds=0, clock=clock) as made:
        for tablet, shard in ((1, "s1"), (2, "s1"), (3, "s2"), (4, "s2")):
            if tablet not in tablets_at(made, shard):
                made.move(tablet, shard)
        table = made.create_table("t", SCHEMA, ["id"])
        table.upsert(rows_of(range(COUNT)))
        table.create_index("by_k", ["k"], include=["v"])
        table.create_index("plain", ["k"])
        table.create_index("hashed", ["k"], kind="hash", include=["v"])
        table.upsert(rows_of(range(0, COUNT, 3), value=1))
        table.delete(range(0, COUNT, 10))
    return place


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Iterator[Store]:
    place = tmp_path / "store"
    made = filled(place) if AT_SERVER else copied_store(template, place, ManualClock(START))
    with fast_store(made, ManualClock(START)) as opened:
        yield opened


def row_of(number: int, value: int = 0) -> Row:
    return number, None if number % 7 == 0 else (number + value) % 8, value


def rows_of(ids: Any, value: int = 0) -> pa.Table:
    columns = zip(*(row_of(i, value) for i in ids), strict=True)
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


def tablets_at(store: Store, shard: str) -> list[int]:
    ids = {name: number for number, name in store.context.shard_names().items()}
    return [t.id for t in store.context.placement().tablets if t.shard == ids[shard]]


def while_reading(store: Store, happens: Callable[[], object], after: bool = True) -> None:
    """Let something happen after (or before) the next page's rows are read, before the second look."""
    quiet = store.context.sync_point

    def interrupt(point: str) -> None:
        if point == ("page read" if after else "page asked for"):
            store.context.sync_point = quiet
            happens()

    store.context.sync_point = interrupt


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


def own(store: Store, tablets: list[int]) -> None:
    """Make `s1` own these tablets; 2, where it stays, has been away: same place, another epoch."""
    if 2 in tablets and 2 in tablets_at(store, "s1"):
        store.move(2, "s2")
    for tablet in (1, 2, 3):
        wanted = "s1" if tablet in tablets else "s2"
        if tablet not in tablets_at(store, wanted):
            store.move(tablet, wanted)


def in_order(row: Row) -> tuple[bool, int, int]:
    return row[1] is not None, row[1] or 0, row[0]


def check_rows(got: list[Row], path: str) -> None:
    expected = sorted((row_of(i, int(i % 3 == 0)) for i in range(COUNT) if i % 10), key=in_order)
    assert sorted(got, key=in_order) == expected
    if "order_by" in PATHS[path]:
        assert got == sorted(got, key=in_order, reverse=PATHS[path]["order_by"] == "k DESC")


@pytest.mark.parametrize("owned", [[1], [1, 2], pytest.param([1, 2, 3], marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("path", PATHS)
def test_the_rows_are_exact_whatever_the_shard_owns_when_it_is_read(
    store: Store, path: str, moment: str, owned: list[int]
) -> None:
    # The first page at `s1` ends among the rows of tablet 2, or has some of both.
    page_rows = 60 if moment.startswith("in a page") else 9
    scan = store.table("t").scan(page_rows=page_rows, **PATHS[path])
    index = PATHS[path]["index"]
    assert scan.explain()["access"] == (index if index != "none" else "direct")
    if moment == MOMENTS[0]:
        own(store, owned)
    elif moment.startswith("in a page"):
        while_reading(store, lambda: own(store, owned), after=moment == MOMENTS[3])
    got: list[Row] = []
    for number, page in enumerate(scan):
        got += zip(*page.rows.to_pydict().values(), strict=True)
        if number == 1 and moment == MOMENTS[1]:
            own(store, owned)
    check_rows(got, path)
    if moment == MOMENTS[3]:
        assert scan.stats.moved_slots > 0
        # A page of merged rows ends at a window, which may be before the rows that left.
        assert scan.stats.dropped_rows > 0 or path.startswith("direct")
    assert tablets_at(store, "s1") == owned
