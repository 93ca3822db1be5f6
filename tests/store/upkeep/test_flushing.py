"""Flushes: what becomes files and when. What they meet is in `tests/transcripts/flush*.txt`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticscan.catalog import checkpoints
from elasticscan.store import Store
from elasticscan.store.upkeep import compaction, flushing
from tests.base.manual_clock import ManualClock
from tests.store.writing.test_small_commits import SCHEMA, ids_of, in_log, rows


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(2_000_000_000.0)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=8, slots=64, clock=clock) as it:
        it.create_table("t", SCHEMA, ["id"]).create_index("by_k", ["k"])
        yield it


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
    monkeypatch.setattr("elasticscan.base.limits.INLINE_BYTES", 0)
    table.delete(list(range(20, 40)))
    clock.advance(100)
    compaction.compact(store.context, table.definition)  # of files alone, without a flush
    tablet = store.context.placement().tablets[0]
    store.move(tablet.id, "s2" if tablet.shard == 1 else "s1")
    assert in_log(store) == 1
    check(store, 20)


def test_writers_flush_what_is_much_and_keepers_what_is_old(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushing, "FLUSH_COMMITS", 5)
    for n in range(7):
        store.table("t").upsert(rows(n, n + 1))
    assert in_log(store) == 2
    assert store.keep().flushes == 0
    clock.advance(flushing.FLUSH_SECONDS + 1)
    kept = store.keep()
    assert (kept.flushes, kept.problems) == (1, [])
    assert in_log(store) == 0
    monkeypatch.setattr(flushing, "FLUSH_BYTES", 10)
    store.table("t").upsert(rows(7, 8))
    assert in_log(store) == 0
    check(store, 8)


def test_what_was_flushed_is_dropped_from_the_log_and_nothing_else(store: Store, clock: ManualClock) -> None:
    store.table("t").upsert(rows(0, 40))
    store.table("t").compact()
    store.table("t").upsert(rows(40, 45))
    catalog, log = store.context.catalog, store.context.catalog._log
    for _ in range(checkpoints.KEPT):
        assert log.write_checkpoint()
        store.table("t").upsert(rows(45, 46))
    with Store.open(store.uri) as sleeper:
        sleeper.table("t")
        clock.advance(10_000)
        catalog.drop_values(1.0)
        assert ids_of(sleeper.table("t")) == list(range(46))
    check(store, 46)


def test_a_flush_that_leaves_rows_is_not_tried_after_each_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushing, "FLUSH_COMMITS", 5)
    root, flushed = Path(store.uri) / "shards" / "s1", list[str]()
    root.rename(root.with_name("away"))
    store.context.checkpoint = lambda point: flushed.append(point) if point == "rows flushed" else None
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
    monkeypatch.setattr(flushing, "MEMORY_STORE_BYTES", flushing.FLUSH_BYTES + 5_000)
    store.table("t").upsert(rows(0, 1))
    with store.context.catalog.reading() as tx:
        left = {table.name for table in tx.state.infos() if tx.state.memory(table.id)}
    assert left == {"small", "t"}
