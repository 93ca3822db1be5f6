"""Small commits: rows in the log, in files only where the log may not have them; what is flushed and when.

How they are read, checked, flushed and backed up is in `tests/transcripts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base import limits
from elasticscan.base.errors import LimitExceeded, NotFound, StoreDamaged, TableChanged
from elasticscan.catalog import checkpoints
from elasticscan.catalog.entries import ROWS
from elasticscan.store import Store, Table
from elasticscan.store.upkeep import compaction, executor
from elasticscan.store.writing import publishing
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("t", pa.string())])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(2_000_000_000.0)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=8, slots=64, clock=clock) as it:
        it.create_table("t", SCHEMA, ["id"]).create_index("by_k", ["k"])
        yield it


def rows(first: int, end: int, text: str = "a") -> pa.Table:
    ids = range(first, end)
    return pa.table({"id": ids, "k": [i % 7 for i in ids], "t": [text] * len(ids)}, schema=SCHEMA)


def files_of(store: Store) -> set[str]:
    return {path.name for path in Path(store.uri).rglob("*.arrow")}


def in_log(store: Store) -> int:
    """Of the table's commits, how many have rows in the log."""
    return len(store.context.catalog.newest().state.memory(store.table("t").definition.id))


def ids_of(table: Table, **asked: Any) -> list[int]:
    return sorted(table.scan(**asked).to_table()["id"].to_pylist())


def test_the_log_takes_so_much_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.table("t")
    table.upsert(rows(0, 3, "x" * 60_000))
    assert in_log(store) == 0
    assert files_of(store)
    table.upsert(rows(3, 4, "x" * 60_000))
    assert in_log(store) == 1
    monkeypatch.setattr(publishing, "MEMORY_TABLE_BYTES", 70_000)
    table.upsert(rows(4, 5, "x" * 60_000))
    assert in_log(store) == 1
    table.upsert(rows(5, 6))
    assert in_log(store) == 2
    monkeypatch.setattr(publishing, "MEMORY_STORE_BYTES", 0)
    table.upsert(rows(6, 7))
    assert in_log(store) == 2
    assert ids_of(table) == list(range(7))


def test_what_an_index_cannot_take_is_refused_when_it_is_written_and_when_the_index_is_made(
    store: Store,
) -> None:
    table, long = store.table("t"), rows(0, 1, "x" * 20_000)
    table.upsert(long)
    with pytest.raises(LimitExceeded, match="key of index 'by_t'"):
        table.create_index("by_t", ["t"])
    assert [index.name for index in table.indexes()] == ["by_k"]
    table.create_index("hashed", ["t"], kind="hash")
    assert ids_of(table, filter=f"t = '{'x' * 20_000}'", index="hashed") == [0]
    another = store.create_table("u", SCHEMA, ["id"])
    another.create_index("by_t", ["t"])
    with pytest.raises(LimitExceeded):
        another.upsert(long)
    assert ids_of(another) == []


def test_damaged_rows_stop_reads_of_their_table_alone(store: Store) -> None:
    store.create_table("u", SCHEMA, ["id"]).upsert(rows(0, 5))
    store.table("t").upsert(rows(0, 5))
    number = store.table("t").definition.id
    with store.context.catalog.leasing() as tx:
        tx.execute(
            """UPDATE payload SET bytes = :bytes WHERE part = :part
                AND number IN (SELECT number FROM log WHERE table_id = :table)""",
            {"bytes": b"\0" * 100, "table": number, "part": ROWS},
        )
    with Store.open(store.uri) as again:
        assert ids_of(again.table("u")) == list(range(5))
        with pytest.raises(StoreDamaged):
            ids_of(again.table("t"))
        assert again.verify()


# Flushes


def check(store: Store, count: int) -> None:
    with Store.open(store.uri) as again:
        for handle in (store.table("t"), again.table("t")):
            assert ids_of(handle) == list(range(count))
            assert ids_of(handle, filter="k >= 0", index="by_k") == list(range(count))
    assert store.verify() == []


def test_a_tombstone_in_a_file_hides_an_older_row_in_the_log(
    store: Store, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    table = store.table("t")
    table.set_retention("1s")
    table.upsert(rows(0, 40))
    monkeypatch.setattr(limits, "INLINE_BYTES", 0)
    table.delete(list(range(20, 40)))
    clock.advance(100)
    compaction.compact(store.context, table.definition)  # of files alone, without a flush
    tablet = store.context.placement().tablets[0]
    store.move(tablet.id, "s2" if tablet.shard == 1 else "s1")
    assert in_log(store) == 1
    check(store, 20)


@pytest.mark.usefixtures("rows_in_files")
def test_a_merge_that_began_before_a_column_copies_its_values(store: Store) -> None:
    table = store.table("t")
    table.upsert(rows(0, 20))
    before = table.definition
    table.add_columns([pa.field("n", pa.int64())])
    table.merge([{"id": 1, "n": 7}], columns=["n"])
    compaction.compact(store.context, before)
    assert table.scan(["id", "n"], "n = 7").to_table().to_pylist() == [{"id": 1, "n": 7}]
    assert table.scan().count() == 20


def test_writers_flush_what_is_much(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "FLUSH_COMMITS", 5)
    for n in range(7):
        store.table("t").upsert(rows(n, n + 1))
    assert in_log(store) == 2
    monkeypatch.setattr(executor, "FLUSH_BYTES", 10)
    store.table("t").upsert(rows(7, 8))
    assert in_log(store) == 0
    check(store, 8)


def test_what_was_flushed_is_dropped_from_the_log_and_nothing_else(store: Store, clock: ManualClock) -> None:
    store.table("t").upsert(rows(0, 40))
    store.table("t").compact()
    store.table("t").upsert(rows(40, 45))
    catalog = store.context.catalog
    for _ in range(checkpoints.KEPT):
        catalog.write_checkpoint()
        store.table("t").upsert(rows(45, 46))
    with Store.open(store.uri) as sleeper:
        sleeper.table("t")
        clock.advance(10_000)
        catalog.drop_payloads(clock.now() - 1.0)
        assert ids_of(sleeper.table("t")) == list(range(46))
    check(store, 46)


def test_a_flush_that_leaves_rows_is_not_tried_after_each_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "FLUSH_COMMITS", 5)
    root, flushed = Path(store.uri) / "shards" / "s1", list[str]()
    root.rename(root.with_name("away"))
    store.context.sync_point = lambda point: flushed.append(point) if point == "rows flushed" else None
    for n in range(20):
        store.table("t").upsert(rows(n, n + 1))
    assert 1 <= len(flushed) <= 5
    assert "s1" in str(store.status()["upkeep"]["problem"])
    root.with_name("away").rename(root)
    for n in range(20, 40):
        store.table("t").upsert(rows(n, n + 1))
    assert in_log(store) < 20
    assert store.status()["upkeep"]["problem"] is None
    check(store, 40)


def test_the_largest_table_is_flushed_where_the_store_has_much_in_the_log(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("large", "small"):
        store.create_table(name, SCHEMA, ["id"]).upsert(rows(0, 300 if name == "large" else 1))
    monkeypatch.setattr(executor, "MEMORY_STORE_BYTES", executor.FLUSH_BYTES + 5_000)
    store.table("t").upsert(rows(0, 1))
    tx = store.context.catalog.newest()
    left = {table.name for table in tx.state.infos() if tx.state.memory(table.id)}
    assert left == {"small", "t"}


# At a server each is one statement, unless something stands against it. Two handles write; one changes
# what the other knows of the table.

LONG = "x" * 70_000  # too long for a key of an index
COMMITS = 70  # more than come between two commits that are transactions all the same


@pytest.fixture
def stores(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    roots = {name: str(tmp_path / name) for name in "ab"}
    with (
        Store.create(postgres_url, roots, tablets=4, slots=16, upkeep="off") as one,
        Store.open(postgres_url, upkeep="off") as other,
    ):
        one.create_table("t", [{"k": 0, "v": "first"}], primary_key="k")
        yield one, other


def content(store: Store) -> dict[int, str]:
    return {row["k"]: row["v"] for row in store.table("t").to_arrow(["k", "v"]).to_pylist()}


def test_each_commit_has_a_number_of_its_own_and_its_rows(stores: tuple[Store, Store]) -> None:
    expected, numbers = {0: "first"}, list[int]()
    for number in range(COMMITS):
        numbers.append(stores[number % 2].table("t").upsert([{"k": number % 9, "v": str(number)}]))
        expected[number % 9] = str(number)
    assert numbers == sorted(set(numbers))
    assert [content(store) for store in stores] == [expected, expected]
    listed = [commit.number for commit in stores[0].table("t").history()]
    assert listed[-COMMITS:] == numbers
    stores[0].context.catalog.check_whole()


def moved(store: Store) -> None:
    placed = {tablet["id"]: tablet["shard"] for tablet in store.status()["tablets"]}
    store.move(1, "b" if placed[1] == "a" else "a")


MEANWHILE: dict[str, Callable[[Store], object]] = {
    "a tablet moves": moved,
    "a column comes": lambda store: store.table("t").add_columns({"w": "int64"}),
    "an index is made": lambda store: store.table("t").create_index("by_v", ["v"]),
    "rows are flushed": lambda store: store.table("t").compact(),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_what_changes_meanwhile_is_seen_by_the_next_commit(stores: tuple[Store, Store], what: str) -> None:
    one, other = stores
    one.table("t").upsert([{"k": 1, "v": "before"}])
    MEANWHILE[what](other)
    others = dict.fromkeys(one.table("t").schema.names)
    one.table("t").upsert([others | {"k": 1, "v": "after"}, others | {"k": 2, "v": "new"}])
    assert content(other) == content(one) == {0: "first", 1: "after", 2: "new"}
    one.table("t").compact()
    assert content(other) == {0: "first", 1: "after", 2: "new"}
    assert one.verify() == []


def test_what_the_table_cannot_take_any_more_is_refused(stores: tuple[Store, Store]) -> None:
    one, other = stores
    table = one.table("t")
    table.upsert([{"k": 1, "v": "before"}])
    other.table("t").create_index("by_v", ["v"])
    with pytest.raises(LimitExceeded):
        table.upsert([{"k": 1, "v": LONG}])
    assert content(other) == {0: "first", 1: "before"}
    other.table("t").drop()
    with pytest.raises((NotFound, TableChanged)):
        table.upsert([{"k": 2, "v": "lost"}])
    other.create_table("t", [{"k": 5, "v": "another"}], primary_key="k")
    with pytest.raises(TableChanged):
        table.upsert([{"k": 2, "v": "lost"}])
    assert content(other) == {5: "another"}
