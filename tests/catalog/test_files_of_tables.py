"""Transactions over the files of tables: fragments, runs of indexes, dropped and condemned files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import WriteConflict
from elasticscan.catalog import Tx
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.metadata import (
    FileChanges,
    FilesCondemned,
    Fragment,
    FragmentStatistics,
    IndexDefined,
    IndexEvent,
    IndexInfo,
    IndexPhase,
    MoveSwitched,
    RowsCommitted,
    ShardDefined,
    StagedFragment,
    StagedRun,
    StoreCreated,
    TableDefined,
    TableInfo,
    pack_statistics,
    unpack_statistics,
)
from elasticscan.metadata.statistics import KeyHistogram, pack_histogram, unpack_histogram
from elasticscan.store.upkeep.collector import _first_dropped
from elasticscan.store.writing.entering import added, replace_fragments
from elasticscan.store.writing.indexing import add_runs, transition_index, without_runs
from elasticscan.topology import Shard, SlotSet, Tablet
from tests.base.manual_clock import ManualClock
from tests.catalog.logs import begin

START = 1_700_000_000.0
A, B, C = Shard(1, "a", "/a"), Shard(2, "b", "/b"), Shard(3, "c", "/c")
LEFT, RIGHT = Tablet(1, 0, 4, 1, 1), Tablet(2, 4, 8, 2, 1)
SCHEMA = pa.schema([("key", pa.int64())])
T = 1


class Store:
    """A log with two shards, a tablet at each, and one table."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(START)
        home = SqliteHome.create(path, self.clock)
        self.log = begin(home, StoreCreated("s", 8, "spark", 60.0, (A, B), (LEFT, RIGHT)))
        with self.writing() as tx:
            define_table(tx, T, "t")

    def reading(self) -> Tx:
        return self.log.at(self.log.follow())

    def writing(self) -> AbstractContextManager[Tx]:
        return self.log.writing()

    def commit(self, *staged: StagedFragment) -> tuple[Fragment, ...]:
        """Commit fragments, and return them as the catalog knows them."""
        with self.writing() as tx:
            number = commit(tx, *staged)
        return tuple(f for f in self.reading().state.fragments(T) if f.min_commit == number)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "log.db")
    yield made
    made.log.home.close()


def define_table(tx: Tx, number: int, name: str) -> None:
    tx.append(TableDefined(TableInfo(number, name, SCHEMA, ("key",), ("key",), None, 0, 0), 0, "create"))


def commit(tx: Tx, *staged: StagedFragment, table: int = T) -> int:
    files = FileChanges(added(tx.state, ((fragment, 0, 0) for fragment in staged)))
    return tx.append(RowsCommitted(table, "write", 1, 1, 1, files=files))


def staged(
    path: str, shard: int = 1, *, slots: SlotSet | None = None, index: int | None = None
) -> StagedFragment:
    slots = slots or (LEFT, RIGHT)[shard - 1].slots
    runs = () if index is None else (run(index, f"{path}.run"),)
    statistics = pack_statistics(FragmentStatistics((len(path),), {}))
    return StagedFragment(shard, path, slots, 3, 100, True, 0, False, 60, -(1 << 63), None, statistics, runs)


def run(index: int, path: str) -> StagedRun:
    return StagedRun(index, path, 3, 10, 60, 7, pack_histogram(histogram(path)))


def histogram(path: str) -> KeyHistogram:
    return KeyHistogram(len(path), (), ())


def enter_index(store: Store, name: str = "by_key") -> IndexInfo:
    with store.writing() as tx:
        index = IndexInfo(tx.state.newest_ids.get("index", 0) + 1, T, name, "sorted", ("key",), ())
        tx.append(IndexDefined(index))
        return index


def switch(tx: Tx, tablet: Tablet, target: int, *copies: StagedFragment) -> None:
    files = {T: FileChanges(added(tx.state, ((copy, 1, 1) for copy in copies)))} if copies else {}
    tx.append(MoveSwitched(tablet, target, tx.state.number, files))


# Fragments


def test_fragments_of_before_stay_the_same_objects_however_many_commits_follow(store: Store) -> None:
    store.commit(*(staged(f"first{n}") for n in range(50)))
    first = store.reading().state.fragments(T)
    for number in range(100):
        store.commit(staged(f"next{number}"))
        store.reading().state.fragments(T)
    now = store.reading().state.fragments(T)
    assert len(now) == 150
    assert all(before is after for before, after in zip(first, now, strict=False))
    assert [f.id for f in now] == sorted(f.id for f in now)


# Dropped files


def test_the_files_that_were_dropped_first_are_collected_first_together_with_their_runs(store: Store) -> None:
    index = enter_index(store)
    fragments = store.commit(*(staged(f"f{n}", index=index.id) for n in range(3)))
    for at in (2, 0, 1):
        store.clock.advance(10)
        with store.writing() as tx:
            replace_fragments(tx, T, {fragments[at].id: SlotSet()}, [], "compact")
    store.clock.advance(10)

    def paths(seconds: float, most: int) -> set[str]:
        tx = store.reading()
        removed = tx.state.removed_files(T)
        return {file.path for file in _first_dropped(removed, tx.times.expiry - seconds, most)}

    assert paths(0, 1) == {"f2", "f2.run"}
    assert paths(0, 2) == {"f2", "f2.run", "f0", "f0.run"}
    assert paths(20, 9) == {"f2", "f2.run", "f0", "f0.run"}
    assert paths(31, 9) == set()


def test_a_clock_that_was_ahead_does_not_keep_what_is_dropped_later(store: Store) -> None:
    one, other = store.commit(staged("one"), staged("other"))
    store.clock.advance(300 * 86_400)
    with store.writing() as tx:
        replace_fragments(tx, T, {one.id: SlotSet()}, [], "compact")
    store.clock._now = START + 10
    with store.writing() as tx:
        replace_fragments(tx, T, {other.id: SlotSet()}, [], "compact")
    dropped = {file.path: file.dropped_at for file in store.reading().state.removed_files()}
    assert dropped == {"one": START + 300 * 86_400, "other": START + 10}


def test_files_of_a_removed_shard_are_known_where_a_new_one_took_its_place(store: Store) -> None:
    again = Shard(4, "c", "/c")
    with store.writing() as tx:
        tx.append(ShardDefined(C))
        switch(tx, LEFT, 3, staged("x", 3, slots=LEFT.slots))
        switch(tx, Tablet(1, 0, 4, 3, 2), 1)
        tx.append(ShardDefined(C, removed=True))
        tx.append(ShardDefined(again))
    assert store.reading().state.known_paths() == {(3, "x"), (4, "x")}


# Statistics


def test_statistics_are_found_before_and_after_a_checkpoint_and_for_copies(store: Store) -> None:
    index = enter_index(store)
    (one,) = store.commit(staged("one", index=index.id))
    with store.writing() as tx:
        switch(tx, RIGHT, 1, staged("other", slots=RIGHT.slots, index=index.id))
    other = next(f for f in store.reading().state.fragments() if f.path == "other")

    def check() -> None:
        tx = store.reading()
        found = tx.statistics(T, {one.id, other.id, 12345})
        assert {of: unpack_statistics(body).block_rows for of, body in found.items()} == {
            one.id: (3,),
            other.id: (5,),
        }
        runs = {run.id: histogram(run.path) for run in tx.state.runs(T)}
        assert len(runs) == 2
        packed = tx.statistics(T, runs.keys())
        assert {run: unpack_histogram(body) for run, body in packed.items()} == runs
        assert tx.statistics(T, ()) == {}

    check()
    assert store.log.write_checkpoint()
    check()


def test_damaged_statistics_are_left_out(store: Store) -> None:
    one, other = (*store.commit(staged("one")), *store.commit(staged("other")))
    with store.log.home.writing() as sql:
        values = {"number": one.min_commit}
        sql.execute("UPDATE payload SET bytes = x'00' WHERE number = :number AND part = 'statistics'", values)
    assert store.reading().statistics(T, {one.id, other.id}).keys() == {other.id}


# Indexes


def test_an_index_is_ready_once_every_fragment_has_its_runs(store: Store) -> None:
    old, older = store.commit(staged("old"), staged("older", 2))
    index = enter_index(store)
    with store.writing() as tx:
        index = transition_index(tx, index, IndexEvent.RUNS_MISSING)
    assert index.phase is IndexPhase.BUILDING
    with pytest.raises(WriteConflict, match="without a run"), store.writing() as tx:
        transition_index(tx, index, IndexEvent.COMPLETED)
    with store.writing() as tx:
        built = {old.id: [run(index.id, "r1")], 12345: [run(index.id, "r2")]}
        assert add_runs(tx, index, built) == {old.id}, "the other fragment is gone"
        assert add_runs(tx, index, built) == set(), "it has them already"
        assert without_runs(tx.state, index) == [older]
        tx.append(FilesCondemned(((2, "r3"),)))
        assert add_runs(tx, index, {older.id: [run(index.id, "r3")]}) == set(), "taken for garbage"
        assert add_runs(tx, index, {older.id: [run(index.id, "r4")]}) == {older.id}
        assert tx.files_at == {1, 2}
        assert transition_index(tx, index, IndexEvent.COMPLETED).ready
    assert {run.fragment: run.path for run in store.reading().state.runs()} == {old.id: "r1", older.id: "r4"}
    assert store.reading().state.known_paths() == {(1, "old"), (2, "older"), (1, "r1"), (2, "r4")}
