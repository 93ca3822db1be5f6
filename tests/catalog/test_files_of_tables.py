"""Transactions over the files of tables: fragments, runs of indexes, dropped and condemned files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import AlreadyExists, NotFound, TableChanged, WriteConflict
from elasticscan.catalog.fragments import DroppedFile, FragmentTx
from elasticscan.catalog.log import Log
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.metadata import (
    Fragment,
    FragmentStatistics,
    IndexEvent,
    IndexInfo,
    IndexPhase,
    RowsCommitted,
    ShardDefined,
    StagedFragment,
    StagedRun,
    StoreCreated,
    TableDefined,
    TableDropped,
    TableInfo,
    TabletsChanged,
    pack_statistics,
)
from elasticscan.metadata.statistics import KeyHistogram, pack_histogram
from elasticscan.topology import Shard, SlotSet, Tablet
from tests.base.manual_clock import ManualClock

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
        self.log = Log.create(home, StoreCreated("s", 8, "spark", 60.0, (A, B), (LEFT, RIGHT)))
        with self.writing() as tx:
            define_table(tx, T, "t")

    def reading(self) -> FragmentTx:
        return FragmentTx(self.log, self.log.follow(), self.clock.now())

    @contextmanager
    def writing(self) -> Iterator[FragmentTx]:
        with self.log.writing() as writing:
            yield FragmentTx(self.log, writing.state, self.clock.now(), writing)

    def commit(self, *staged: StagedFragment) -> tuple[Fragment, ...]:
        """Commit fragments, and return them as the catalog knows them."""
        with self.writing() as tx:
            number = commit(tx, *staged)
        return tuple(f for f in self.reading().fragments(T) if f.min_commit == number)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "log.db")
    yield made
    made.log.home.close()


def define_table(tx: FragmentTx, number: int, name: str) -> None:
    tx.append(TableDefined(TableInfo(number, name, SCHEMA, ("key",), ("key",), None, 0, 0), 0, "create"))


def commit(tx: FragmentTx, *staged: StagedFragment, table: int = T) -> int:
    files = tx.commit_files(staged)
    return tx.append(RowsCommitted(table, "write", 1, 1, 1, files=files)).number


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
        return tx.create_index(IndexInfo(0, T, name, "sorted", ("key",), ()))


# Fragments


def test_a_fragment_comes_back_as_it_was_committed(store: Store) -> None:
    one, other = staged("one"), staged("other", 2)
    (found, _) = store.commit(one, other)
    tx = store.reading()
    assert [f.path for f in tx.fragments()] == ["one", "other"]
    assert tx.fragments(shard=1) == tx.fragments(T, 1) == (found,)
    assert tx.fragments(table=99) == ()
    assert tx.fragment_counts(T) == {1: 1, 2: 1}
    assert found == one.entered(found.id, T, found.min_commit, found.min_commit)


def test_fragments_of_before_stay_the_same_objects_however_many_commits_follow(store: Store) -> None:
    store.commit(*(staged(f"first{n}") for n in range(50)))
    first = store.reading().fragments(T)
    for number in range(100):
        store.commit(staged(f"next{number}"))
        store.reading().fragments(T)
    now = store.reading().fragments(T)
    assert len(now) == 150
    assert all(before is after for before, after in zip(first, now, strict=False))
    assert [f.id for f in now] == sorted(f.id for f in now)


def test_a_transaction_knows_the_shards_at_which_it_entered_files(store: Store) -> None:
    with store.writing() as tx:
        commit(tx, staged("a"))
        assert tx.files_at == {1}
        commit(tx, staged("b", 2))
        assert tx.files_at == {1, 2}


def test_a_merge_takes_the_place_of_its_sources_for_what_they_serve(store: Store) -> None:
    whole, part = store.commit(staged("whole"), staged("part"))
    left = {whole.id: SlotSet(), part.id: SlotSet.span(3, 4)}
    with store.writing() as tx:
        tx.replace_fragments(T, left, [(staged("merged", slots=SlotSet.span(0, 3)), 1, 2)], "compact")
    tx = store.reading()
    assert {f.path: str(f.slots) for f in tx.fragments(T)} == {"part": "3-4", "merged": "0-3"}
    merged = tx.fragments(T)[1]
    assert (merged.min_commit, merged.max_commit) == (1, 2)
    assert tx.dropped_files() == (DroppedFile(1, "whole", T, whole.id, START),)
    assert tx.dropped_bytes() == {T: 100}
    assert tx.versions()[1] == whole.min_commit, "it is no commit"


def test_a_merge_of_a_fragment_that_is_gone_is_refused(store: Store) -> None:
    (gone,) = store.commit(staged("gone"))
    with store.writing() as tx:
        tx.replace_fragments(T, {gone.id: SlotSet()}, [], "compact")
    with pytest.raises(WriteConflict, match="replaced meanwhile"), store.writing() as tx:
        tx.replace_fragments(T, {gone.id: SlotSet()}, [(staged("late"), 1, 1)], "compact")
    assert store.reading().fragments() == ()


def test_a_tablet_that_moved_is_served_by_the_copies_at_its_target_alone(store: Store) -> None:
    store.commit(staged("here"), staged("there", 2))
    with store.writing() as tx:
        copy = staged("copy", 2, slots=LEFT.slots)
        tx.switch_tablet(LEFT, 2, {T: [(copy, 2, 2)]})
        assert tx.files_at == {2}
    tx = store.reading()
    assert {f.path: f.shard for f in tx.fragments(T)} == {"there": 2, "copy": 2}
    assert [file.path for file in tx.dropped_files()] == ["here"]
    assert tx.state.placement.at(2) == SlotSet.span(0, 8)
    assert tx.state.placement.tablet(1) == Tablet(1, 0, 4, 2, 2)


def test_fragments_keep_the_slots_of_other_tablets_when_one_moves(store: Store) -> None:
    with store.writing() as tx:
        halves = Tablet(3, 0, 2, 1, 2), Tablet(4, 2, 4, 1, 2)
        tx.append(TabletsChanged((LEFT,), halves))
    store.commit(staged("here"))
    with store.writing() as tx:
        tx.switch_tablet(halves[1], 2, {})
    tx = store.reading()
    assert [str(f.slots) for f in tx.fragments()] == ["0-2"]
    assert tx.dropped_files() == ()


# Dropped files


def test_dropped_files_are_known_until_they_are_forgotten(store: Store) -> None:
    (one,) = store.commit(staged("one"))
    with store.writing() as tx:
        tx.replace_fragments(T, {one.id: SlotSet()}, [], "compact")
    dropped = store.reading().dropped_files()
    assert store.reading().known_paths() == {(1, "one")}
    with store.writing() as tx:
        tx.forget_dropped([*dropped, DroppedFile(1, "unknown", 99, 1, 0.0)])
    tx = store.reading()
    assert (tx.dropped_files(), tx.known_paths(), tx.dropped_bytes()) == ((), frozenset(), {})


def test_files_of_a_dropped_table_are_dropped_with_it(store: Store) -> None:
    store.commit(staged("one"))
    with store.writing() as tx:
        tx.append(TableDropped(T))
    dropped = store.reading().dropped_files()
    assert [(file.table, file.path) for file in dropped] == [(T, "one")]
    assert store.reading().dropped_bytes() == {T: 100}
    store.clock.advance(5)
    assert store.reading().dropped_before(T, 5, 10) == dropped
    with store.writing() as tx:
        tx.forget_dropped(dropped)
    assert store.reading().dropped_files() == ()


def test_the_files_that_were_dropped_first_are_collected_first_together_with_their_runs(store: Store) -> None:
    index = enter_index(store)
    fragments = store.commit(*(staged(f"f{n}", index=index.id) for n in range(3)))
    for at in (2, 0, 1):
        store.clock.advance(10)
        with store.writing() as tx:
            tx.replace_fragments(T, {fragments[at].id: SlotSet()}, [], "compact")
    store.clock.advance(10)

    def paths(seconds: float, most: int) -> set[str]:
        return {file.path for file in store.reading().dropped_before(T, seconds, most)}

    assert paths(0, 1) == {"f2", "f2.run"}
    assert paths(0, 2) == {"f2", "f2.run", "f0", "f0.run"}
    assert paths(20, 9) == {"f2", "f2.run", "f0", "f0.run"}
    assert paths(31, 9) == set()


def test_a_clock_that_was_ahead_does_not_keep_what_is_dropped_later(store: Store) -> None:
    one, other = store.commit(staged("one"), staged("other"))
    store.clock.advance(300 * 86_400)
    with store.writing() as tx:
        tx.replace_fragments(T, {one.id: SlotSet()}, [], "compact")
    store.clock._now = START + 10
    with store.writing() as tx:
        tx.replace_fragments(T, {other.id: SlotSet()}, [], "compact")
    dropped = {file.path: file.dropped_at for file in store.reading().dropped_files()}
    assert dropped == {"one": START + 300 * 86_400, "other": START + 10}


def test_files_of_a_removed_shard_are_known_where_a_new_one_took_its_place(store: Store) -> None:
    again = Shard(4, "c", "/c")
    with store.writing() as tx:
        tx.append(ShardDefined(C))
        tx.switch_tablet(LEFT, 3, {T: [(staged("x", 3, slots=LEFT.slots), 1, 1)]})
        tx.switch_tablet(Tablet(1, 0, 4, 3, 2), 1, {})
        tx.append(ShardDefined(C, removed=True))
        tx.append(ShardDefined(again))
    assert store.reading().known_paths() == {(3, "x"), (4, "x")}


# Condemned files


def test_condemned_files_can_be_entered_by_nothing_until_they_are_pardoned(store: Store) -> None:
    index = enter_index(store)
    (one,) = store.commit(staged("one", index=index.id))
    gone = staged("gone", index=index.id)
    moved = staged("gone", 2, slots=LEFT.slots, index=index.id)
    files = {(1, "one"), (1, "gone"), (2, "gone.run")}
    layout = store.log.follow().layout
    with store.writing() as tx:
        assert tx.condemn(files) == {(1, "gone"), (2, "gone.run")}, "a file that is known is spared"
    assert store.log.follow().layout > layout
    assert store.reading().condemned() == ((1, "gone"), (2, "gone.run"))
    with pytest.raises(WriteConflict, match="longer grace") as raised, store.writing() as tx:
        commit(tx, gone)
    assert raised.value.fields["path"] == "gone"
    with pytest.raises(WriteConflict, match="longer grace"), store.writing() as tx:
        tx.replace_fragments(T, {one.id: SlotSet()}, [(gone, 1, 1)], "compact")
    with pytest.raises(WriteConflict, match="longer grace"), store.writing() as tx:
        tx.switch_tablet(LEFT, 2, {T: [(moved, 1, 1)]})
    with store.writing() as tx:
        tx.pardon([*files, (1, "never condemned")])
    assert store.reading().condemned() == ()
    store.commit(gone)


def test_condemning_known_files_and_pardoning_others_adds_no_record(store: Store) -> None:
    store.commit(staged("one"))
    number = store.log.follow().number
    with store.writing() as tx:
        assert tx.condemn([(1, "one")]) == frozenset()
        tx.pardon([(1, "other")])
        tx.forget_dropped([])
    assert store.log.follow().number == number


# Statistics


def test_statistics_are_found_before_and_after_a_checkpoint_and_for_copies(store: Store) -> None:
    index = enter_index(store)
    (one,) = store.commit(staged("one", index=index.id))
    with store.writing() as tx:
        tx.switch_tablet(RIGHT, 1, {T: [(staged("other", slots=RIGHT.slots, index=index.id), 1, 1)]})
    other = next(f for f in store.reading().fragments() if f.path == "other")

    def check() -> None:
        tx = store.reading()
        found = tx.statistics(T, {one.id, other.id, 12345})
        assert {of: body.block_rows for of, body in found.items()} == {one.id: (3,), other.id: (5,)}
        runs = {run.id: histogram(run.path) for run in tx.runs(T)}
        assert len(runs) == 2
        assert tx.histograms(T, runs.keys()) == runs
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


def test_an_index_is_entered_found_and_dropped(store: Store) -> None:
    index = enter_index(store)
    tx = store.reading()
    assert tx.indexes() == tx.indexes(T) == (index,)
    assert tx.index(T, "by_key") == index
    assert tx.indexes(99) == ()
    with pytest.raises(AlreadyExists, match="already has an index 'by_key'"):
        enter_index(store)
    with pytest.raises(NotFound, match=r"no index 'by_kay'.*by_key"):
        tx.index(T, "by_kay")
    other = enter_index(store, "other")
    with store.writing() as tx:
        gone = tx.transition_index(index, IndexEvent.DROPPED)
        assert gone.is_over
        assert tx.transition_index(index, IndexEvent.COMPLETED) == gone, "it stays so"
        assert tx.indexes() == (other,)


def test_an_index_of_a_table_that_is_gone_is_refused(store: Store) -> None:
    with store.writing() as tx:
        tx.append(TableDropped(T))
    with pytest.raises(TableChanged):
        enter_index(store)


def test_a_commit_and_a_merge_bring_runs_of_every_index_that_was_entered(store: Store) -> None:
    (old,) = store.commit(staged("old"))
    index = enter_index(store)
    with pytest.raises(WriteConflict, match="came or went"):
        store.commit(staged("late"))
    with pytest.raises(WriteConflict, match="came or went"), store.writing() as tx:
        tx.replace_fragments(T, {old.id: SlotSet()}, [(staged("merged"), 1, 1)], "compact")
    store.commit(staged("new", index=index.id))
    assert store.reading().without_runs(index) == (old,)
    assert [run.path for run in store.reading().runs(T)] == ["new.run"]


def test_an_index_is_ready_once_every_fragment_has_its_runs(store: Store) -> None:
    old, older = store.commit(staged("old"), staged("older", 2))
    index = enter_index(store)
    with store.writing() as tx:
        index = tx.transition_index(index, IndexEvent.RUNS_MISSING)
    assert index.phase is IndexPhase.BUILDING
    with pytest.raises(WriteConflict, match="without a run"), store.writing() as tx:
        tx.transition_index(index, IndexEvent.COMPLETED)
    with store.writing() as tx:
        built = {old.id: [run(index.id, "r1")], 12345: [run(index.id, "r2")]}
        assert tx.add_runs(index, built) == {old.id}, "the other fragment is gone"
        assert tx.add_runs(index, built) == set(), "it has them already"
        assert tx.without_runs(index) == (older,)
        tx.condemn([(2, "r3")])
        assert tx.add_runs(index, {older.id: [run(index.id, "r3")]}) == set(), "taken for garbage"
        assert tx.add_runs(index, {older.id: [run(index.id, "r4")]}) == {older.id}
        assert tx.files_at == {1, 2}
        assert tx.transition_index(index, IndexEvent.COMPLETED).ready
    assert {run.fragment: run.path for run in store.reading().runs()} == {old.id: "r1", older.id: "r4"}
    assert store.reading().known_paths() == {(1, "old"), (2, "older"), (1, "r1"), (2, "r4")}


def test_runs_go_with_their_index_and_come_back_with_no_file(store: Store) -> None:
    index = enter_index(store)
    (one,) = store.commit(staged("one", index=index.id))
    with store.writing() as tx:
        tx.transition_index(index, IndexEvent.DROPPED)
    tx = store.reading()
    assert tx.runs(T) == ()
    assert tx.dropped_files() == (DroppedFile(1, "one.run", T, one.id, START),)
    assert tx.dropped_before(T, 0, 10) == (), "its fragment is not dropped"
    (other,) = store.commit(staged("other", index=index.id))
    assert store.reading().runs() == (), "a run of an index that is gone is left out"
    with store.writing() as tx:
        assert tx.add_runs(index, {other.id: [run(index.id, "late")]}) == set()
