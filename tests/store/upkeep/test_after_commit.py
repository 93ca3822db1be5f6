"""Upkeep by whoever writes: bounded work after a commit, by one writer at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import DiskFull
from elasticscan.base.limits import BEAT_SECONDS, SILENT_SECONDS
from elasticscan.store import Store
from elasticscan.store.moves.owners import machine
from elasticscan.store.moves.under_way import enter_moves, transition
from elasticscan.store.upkeep import after_commit
from elasticscan.store.upkeep.planning import Policy, depth_of, parts_of
from elasticscan.store.upkeep.steps import steps_in
from elasticscan.topology import Event, Move
from tests.base.manual_clock import ManualClock

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
START = 4_000_000_000.0


class Points:
    """Lets a test do something at a point of a store."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.act = lambda _point: None

    def __call__(self, point: str) -> None:
        self.seen.append(point)
        self.act(point)


@pytest.fixture
def points() -> Points:
    return Points()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store(tmp_path: Path, points: Points, clock: ManualClock) -> Iterator[Store]:
    place = tmp_path / "store"
    Store.create(place, ["s1", "s2"], tablets=4, slots=64, retention_seconds=60, clock=clock).close()
    with Store.open(place, clock=clock, checkpoint=points) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.create_index("by_v", ["v"])
        yield store


def write(store: Store, ids: range, value: int) -> int:
    return store.table("t").upsert(pa.table({"id": ids, "v": [value] * len(ids)}, schema=SCHEMA))


def depth(store: Store) -> int:
    with store.context.catalog.reading() as tx:
        assert steps_in(tx) == ()
        newest = [f for f in tx.state.fragments(table=1) if f.superseded_at is None]
        by_shard = ([f for f in newest if f.shard == shard] for shard in tx.state.placement.shards)
        return max(depth_of(parts_of(here, tx.state.runs(1)), Policy()) for here in by_shard)


def merges(points: Points) -> int:
    return points.seen.count("fragments merged")


def test_after_any_number_of_commits_a_slot_has_few_fragments_and_every_snapshot_its_rows(
    store: Store, points: Points
) -> None:
    chance, rows, history = random.Random(3), dict[int, int](), {}
    for number in range(40):
        first = chance.randrange(300)
        ids = range(first, first + chance.choice([1, 5, 40]))
        if number % 7 == 6:
            commit = store.table("t").delete([*ids])
            rows = {key: value for key, value in rows.items() if key not in ids}
        else:
            commit = write(store, ids, number)
            rows = rows | dict.fromkeys(ids, number)
        history[commit] = rows
        assert depth(store) <= Policy().slot_fragments
    assert merges(points) > 4
    for commit, then in history.items():
        table = store.table("t").scan(snapshot=commit).to_table()
        assert dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True)) == then
    costs = store.status()["tables"][0]["upkeep"]
    assert costs["slot_fragments"] <= Policy().slot_fragments
    assert store.verify() == []


def test_without_upkeep_every_commit_leaves_its_fragments(store: Store) -> None:
    with Store.open(store.uri, upkeep="off") as other:
        for number in range(12):
            write(other, range(100), number)
        assert depth(other) == 12
    write(store, range(100), 13)
    assert depth(store) == 1


def test_after_a_plan_of_moves_the_small_fragments_that_it_left_are_merged(store: Store) -> None:
    def count() -> int:
        with store.context.catalog.reading() as tx:
            newest = [f.shard for f in tx.state.fragments(1) if f.superseded_at is None]
            return max(newest.count(shard) for shard in tx.state.placement.shards)

    snapshot = write(store, range(300), 1)
    write(store, range(100), 2)
    for tablet in store.status()["tablets"]:
        store.move(tablet["id"], "s2" if tablet["shard"] == "s1" else "s1")
    store.split(1)
    store.expand(["s3"])
    assert count() <= Policy().scattered_fragments
    with Store.open(store.uri, clock=store.context.clock, upkeep="off") as other:
        for tablet in other.status()["tablets"]:
            other.move(tablet["id"], "s1" if tablet["shard"] != "s1" else "s2")
        assert count() > Policy().scattered_fragments
    store.keep()
    assert count() <= Policy().scattered_fragments
    assert store.table("t").scan(filter="v = 1").count() == 200
    assert store.table("t").scan(snapshot=snapshot, filter="v = 1").count() == 300


def test_of_two_writers_one_merges(store: Store, points: Points) -> None:
    others = Points()
    with Store.open(store.uri, checkpoint=others) as other:

        def let_other_write(point: str) -> None:
            if point == "fragments merged":
                points.act = lambda _point: None
                write(other, range(200, 300), 99)
                assert merges(others) == 1, "at the other shard"

        points.act = let_other_write
        for number in range(9):
            write(store, range(100), number)
    assert merges(points) == 1
    assert depth(store) <= Policy().slot_fragments


@pytest.mark.parametrize("error", [DiskFull("no room"), MemoryError("no room"), pa.ArrowException("no room")])
def test_a_merge_that_fails_is_none_of_the_commit(store: Store, points: Points, error: Exception) -> None:
    def fail(point: str) -> None:
        if point == "step begun":
            raise error

    points.act = fail
    commits = [write(store, range(100), number) for number in range(10)]
    assert commits == sorted(set(commits))
    assert "no room" in str(store.status()["upkeep"]["problem"])
    points.act = lambda _point: None
    for number in range(after_commit.RETRY_EVERY):
        write(store, range(100), number)
    assert store.status()["upkeep"]["problem"] is None
    assert depth(store) <= Policy().slot_fragments


def test_work_beyond_the_allowance_is_left_until_it_is_overdue(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_commit, "COMMIT_BYTES", 0)
    monkeypatch.setattr(after_commit, "COMMIT_SHARE", 0)
    monkeypatch.setattr(store.context.upkeep, "_allowance", 0)
    for number in range(16):
        write(store, range(100), number)
    assert depth(store) == 16
    for number in range(after_commit.RETRY_EVERY + 1):
        write(store, range(100), number)
    assert depth(store) <= Policy().slot_fragments


def test_files_whose_time_is_over_are_removed(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_commit, "GARBAGE_EVERY", 8)
    for number in range(12):
        write(store, range(100), number)
    with store.context.catalog.reading() as tx:
        dropped = {(file.shard, file.path) for file in tx.state.removed_files()}
    assert len(dropped) == 2 * 2 * 9
    clock.advance(2 * 3_600)
    for number in range(10):
        write(store, range(100), number)
    assert not dropped & {(s, path) for s in (1, 2) for path, _ in store.context.disk_of(s).list()}
    assert store.verify() == []


@pytest.mark.parametrize("by", ["a writer", "a keeper", "a resumption"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_move_whose_process_died_is_taken_over_and_status_says_from_when(
    store: Store, clock: ManualClock, elsewhere: bool, by: str
) -> None:
    def maintain() -> None:
        if by == "a writer":
            for number in range(after_commit.LOOK_EVERY):
                write(store, range(5), number)
        else:
            store.keep() if by == "a keeper" else store.resume_moves()

    write(store, range(50), 0)
    move, owner = Move(1, 1, 2), f"{'elsewhere' if elsewhere else machine()}:{2**22 + 1}:1:x"
    with store.context.catalog.writing() as tx:
        enter_moves(tx, [move], owner)
        transition(tx, move, owner, Event.START_COPY)
    began = clock.now()
    if elsewhere:
        clock.advance(BEAT_SECONDS)
        maintain()
        (seen,) = store.status()["moves"]
        assert (seen["phase"], seen["silent_since"], seen["taken_over_from"]) == ("copying", None, None)
        clock.advance(2 * BEAT_SECONDS)
    (seen,) = store.status()["moves"]
    silence = (seen["silent_since"], seen["taken_over_from"])
    assert silence == (began, began + SILENT_SECONDS if elsewhere else clock.now())
    clock.advance(SILENT_SECONDS - 3 * BEAT_SECONDS + 1 if elsewhere else 0)
    maintain()
    status = store.status()
    assert (status["moves"], status["tablets"][0]["shard"], status["upkeep"]["problem"]) == ([], "s2", None)
    assert store.table("t").scan().count() == 50
