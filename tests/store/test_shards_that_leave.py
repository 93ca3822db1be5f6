"""A shard leaves the store in the middle of a step at it, and a later one gets its root: nothing is wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import FragmentMissing, InvalidTopologyChange, ShardUnavailable
from elasticscan.base.limits import GC_GRACE_SECONDS
from elasticscan.store import Action, Context, Store, Table
from elasticscan.store.copies import backup
from elasticscan.store.moves.mover import Mover
from elasticscan.store.moves.under_way import move_of, transition
from elasticscan.store.upkeep.collector import _Collection, collect_dropped
from elasticscan.store.upkeep.compaction import Merging
from elasticscan.store.writing import indexing
from elasticscan.topology import Event
from tests.base.manual_clock import ManualClock
from tests.store.test_root_scenarios import away

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
KEYS = range(200)
LEAVING = 2  # shard c


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["a", "c"], tablets=4, slots=16, upkeep="off") as made:
        table = made.create_table("t", SCHEMA, ["id"])
        for number in range(3):
            table.upsert(pa.table({"id": KEYS, "v": [number] * len(KEYS)}))
        yield made


def renew(store: Store) -> None:
    """Remove shard c and make another one of its name, which gets its root."""
    with Store.open(store.uri) as other:
        other.contract("c")
        other.expand(["c"])


def once(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    work: Callable[[], object],
    when: Callable[..., bool] = lambda *_: True,
) -> list[int]:
    """Do some work when a function is about to be called for the first time; the list tells that it was."""
    honest, calls = getattr(owner, name), list[int]()

    def late(*given: Any, **named: Any) -> Any:
        if not calls and when(*given):
            calls.append(1)
            work()
        return honest(*given, **named)

    monkeypatch.setattr(owner, name, late)
    return calls


def check(store: Store, table: Table) -> None:
    assert table.scan().to_table().sort_by("id")["v"].to_pylist() == [2] * len(KEYS)
    assert store.verify() == []
    assert 3 in store.context.shard_names()


def test_an_index_is_built_where_its_rows_have_gone(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_there(_disk: Any, _table: Any, _index: Any, fragment: Any, *_: Any) -> bool:
        return bool(fragment.shard == LEAVING)

    calls = once(monkeypatch, indexing, "build_runs", lambda: renew(store), is_there)
    table.create_index("by_v", ["v"])
    assert calls
    assert table.scan(index="by_v", filter="v = 2").count() == len(KEYS)
    check(store, table)


def test_an_index_is_built_where_the_shard_left_before_it_began(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = once(
        monkeypatch, Context, "writable_disk", lambda: renew(store), lambda _, shard: shard == LEAVING
    )
    table.create_index("by_v", ["v"])
    assert calls
    assert table.scan(index="by_v", filter="v = 2").count() == len(KEYS)
    check(store, table)


@pytest.mark.parametrize("moment", ["_stage", "_index"])
def test_a_merge_leaves_out_what_has_gone(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    table.create_index("by_v", ["v"])
    calls = once(
        monkeypatch, Merging, moment, lambda: renew(store), lambda merging, *_: merging.shard == LEAVING
    )
    table.compact()
    assert calls
    check(store, table)


def test_a_merge_enters_nothing_where_the_shard_has_gone(store: Store, table: Table) -> None:
    points = list[str]()

    def between(point: str) -> None:
        points.append(point)
        if point == "fragments merged" and points.count(point) == LEAVING:
            renew(store)

    store.context.checkpoint = between
    table.compact()
    assert points.count("fragments merged") == 2
    check(store, table)


def test_a_look_at_how_a_single_fragment_is_compressed_leaves_out_what_has_gone(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.compact()
    table.set_compression("zstd")
    calls = once(
        monkeypatch, Context, "writable_disk", lambda: renew(store), lambda _, shard: shard == LEAVING
    )
    table.compact()
    assert calls
    check(store, table)


def test_a_mover_whose_target_has_gone_says_so(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    tablet = next(tablet.id for tablet in store.context.placement().tablets if tablet.shard != LEAVING)

    def work() -> None:
        with store.context.catalog.writing() as tx:  # as if nobody had heard of its owner for long
            move = move_of(tx, tablet)
            assert move is not None
            transition(tx, move, move.owner, Event.OWNER_DIED)
        renew(store)

    calls = once(monkeypatch, Mover, "_copy_round", work)
    with pytest.raises(InvalidTopologyChange, match=r"left the store.*plan the move again"):
        store.move(tablet, "c")
    assert calls
    check(store, table)


def test_a_write_goes_on_where_the_shard_has_gone(store: Store, table: Table) -> None:
    points = list[str]()

    def meanwhile(point: str) -> None:
        points.append(point)
        if points == ["rows staged"]:
            renew(store)

    store.context.checkpoint = meanwhile
    table.upsert(pa.table({"id": KEYS, "v": [2] * len(KEYS)}))
    assert points
    check(store, table)


def test_a_collection_leaves_out_what_has_gone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = once(
        monkeypatch, _Collection, "_manifests", lambda: renew(store), lambda _, at: at.shard.name == "a"
    )
    assert [shard for shard, _ in store.collect_garbage().skipped] == ["c"]
    assert calls


def test_a_check_of_a_store_leaves_out_what_has_gone(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = once(monkeypatch, Context, "check_root", lambda: renew(store), lambda _, shard: shard == LEAVING)
    assert store.verify() == []
    assert calls


def test_a_backup_looks_again_where_a_shard_has_gone(
    store: Store, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        renew(store)
        raise FragmentMissing("it was collected", path="t1/it.arrow")

    calls = once(monkeypatch, backup, "_copy", work, lambda _source, _target, file: file.shard == LEAVING)
    assert store.backup(tmp_path / "backups").files
    assert calls
    check(store, table)


def test_a_shard_that_is_still_there_is_not_left_out(store: Store, table: Table) -> None:
    with away(Path(store.uri) / "shards" / "c"):
        for work in (table.compact, lambda: table.create_index("by_v", ["v"])):
            with pytest.raises(ShardUnavailable):
                work()
        with pytest.raises(ShardUnavailable):
            store.contract("c")


@pytest.mark.parametrize("by", ["gc", "a keeper", "a writer"])
def test_a_removed_shard_whose_disk_was_taken_out_is_listed_until_nothing_needs_its_files(
    tmp_path: Path, by: str
) -> None:
    def collect() -> None:
        if by == "a writer":
            collect_dropped(store.context, 1, 512)
        elif by == "gc":
            assert store.collect_garbage().skipped == ()
        else:
            assert store.keep().problems == []

    clock = ManualClock(round(time.time()))
    roots = {name: str(tmp_path / name) for name in ("a", "c", "c2")}
    for root in roots.values():
        Path(root).mkdir()
    with Store.create(
        tmp_path / "store",
        {name: roots[name] for name in "ac"},
        tablets=4,
        slots=16,
        clock=clock,
        upkeep="off",
    ) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for number in range(25):
            table.upsert(pa.table({"id": KEYS, "v": [number] * len(KEYS)}))
        store.contract("c")
        left = {"name": "c", "root": roots["c"], "files": 25, "kept_until": clock.now() + GC_GRACE_SECONDS}
        assert store.status()["removed_shards"] == [left]
        Path(roots["c"]).rename(tmp_path / "taken out")
        store.expand({"c": roots["c2"]})
        collect()
        assert store.status()["removed_shards"] == [left], "scans under way may read them"
        clock.advance(GC_GRACE_SECONDS)
        collect()
        assert store.status()["removed_shards"] == []
        (tmp_path / "taken out").rename(roots["c"])
        for file in Path(roots["c"]).rglob("t1/*"):
            os.utime(file, (1, 1))
        assert store.collect_garbage().count(Action.TRASH) == 25, "it came back, and is not refused"
        assert table.scan().count() == len(KEYS) and store.verify() == []
