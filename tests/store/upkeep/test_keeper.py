"""Keepers: what is due is done once, alongside each other and alongside writers, and kills change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import DiskFull, ReadOnlyStore, ShardUnavailable
from elasticscan.store import Store
from elasticscan.store.moves.owners import owning
from elasticscan.store.moves.under_way import moves_in
from elasticscan.store.upkeep.executor import Executor, Kept
from elasticscan.store.upkeep.keeper import Keeper, _Pace
from elasticscan.store.upkeep.planning import depth_of, parts_of
from elasticscan.store.upkeep.steps import steps_in
from tests.base.manual_clock import ManualClock
from tests.store.copies_of_stores import copied_store
from tests.store.keeper_kills import POLICY, SCHEMA, START, keep, make, opened

ROWS_IN_FILES = True

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, int]]:
    place = tmp_path_factory.mktemp("keeper") / "store"
    return place, make(place)


def rows_of(store: Store) -> dict[int, int]:
    rows = store.table("t").scan().to_table()
    by_index = store.table("t").scan(["id"], "v >= 0", index="by_v").to_table()
    assert sorted(by_index["id"].to_pylist()) == sorted(rows["id"].to_pylist())
    assert len(set(rows["id"].to_pylist())) == rows.num_rows
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


def files_of(store: Store) -> set[tuple[int, str]]:
    shards = [shard for shard, _ in store.topology.shard_names]
    return {
        (shard, path)
        for shard in shards
        for path, _ in store.context.disk_of(shard).list()
        if path.startswith("t1/")
    }


def check_kept(store: Store, rows: dict[int, int]) -> None:
    """Nothing is due, nothing runs, nothing is lost, and no file is left over."""
    assert rows_of(store) == rows
    with store.context.catalog.reading() as tx:
        assert (steps_in(tx), moves_in(tx)) == ((), ())
        for shard in tx.state.placement.shards:
            newest = [f for f in tx.state.fragments(table=1, shard=shard) if f.superseded_at is None]
            parts = parts_of(newest, tx.state.runs(1))
            assert depth_of(parts, POLICY) <= POLICY.slot_fragments
    assert store.verify() == []
    store.collect_garbage(grace_seconds=0, trash_seconds=0, share=1)
    store.collect_garbage(grace_seconds=0, trash_seconds=0, share=1)
    with store.context.catalog.reading() as tx:
        assert files_of(store) == tx.state.known_paths()


def test_a_keeper_merges_splits_joins_moves_and_collects_until_nothing_is_due(
    template: tuple[Path, dict[int, int]], tmp_path: Path
) -> None:
    place = make_copy(template[0], tmp_path)
    with opened(place, 2) as store:
        total = Kept()
        for _ in range(6):
            kept = Keeper(store.context, POLICY).keep()
            for name in ("merges", "fragments_gone", "splits", "moves", "files_removed"):
                setattr(total, name, getattr(total, name) + getattr(kept, name))
        assert total.merges > 1
        assert total.fragments_gone > 5
        assert total.splits > 1
        assert total.moves > 0
        assert total.files_removed > 2
        assert Keeper(store.context, POLICY).keep().steps == 0
        check_kept(store, template[1])
        sizes = {shard["name"]: shard["bytes"] for shard in store.status()["shards"]}
        assert max(sizes.values()) < 2 * min(sizes.values())


def make_copy(template: Path, tmp_path: Path) -> Path:
    return copied_store(template, tmp_path / "copy", ManualClock(START))


@pytest.mark.long
def test_a_keeper_that_is_killed_anywhere_leaves_nothing_that_the_next_one_does_not_finish_or_undo(
    template: tuple[Path, dict[int, int]], tmp_path: Path
) -> None:
    step = int(os.environ.get("ELASTICSCAN_KEEPER_KILLS", "151"))
    points = [str(point) for point in range(3, 900, step)]
    program = [sys.executable, "-m", "tests.store.keeper_kills", str(template[0]), str(tmp_path), *points]
    said = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    ended = dict(line.split() for line in said.stdout.splitlines())
    assert [*ended.values()].count("-9") > 2, ended
    for point in points:
        with opened(tmp_path / point, 4) as store:
            assert rows_of(store) == template[1]
            keep(store)
            check_kept(store, template[1])


def test_one_shard_that_fails_keeps_nobody_from_the_rest(
    template: tuple[Path, dict[int, int]], tmp_path: Path
) -> None:
    failed = list[str]()

    def fail_once(point: str) -> None:
        if point == "step begun" and not failed:
            failed.append(point)
            raise DiskFull("no room")

    with opened(make_copy(template[0], tmp_path), 2, fail_once) as store:
        kept = Keeper(store.context, POLICY).keep()
        assert len(kept.problems) == 1
        assert "no room" in kept.problems[0]
        assert kept.merges > 0
        keep(store)
        check_kept(store, template[1])


def tablets_by_shard(store: Store) -> dict[str, int]:
    return {shard["name"]: shard["tablets"] for shard in store.status()["shards"]}


def uneven(place: Path) -> Store:
    """A store of three shards, `c` of which has no tablets, and `b` twice as many as `a`."""
    store = Store.create(place, ["a", "b", "c"], tablets=24, upkeep="off")
    rows = pa.table({"id": range(9_000), "v": range(9_000)}, schema=SCHEMA)
    store.create_table("t", SCHEMA, ["id"]).upsert(rows)
    for tablet in store.topology.placement.tablets:
        if tablet.shard == 3:
            store.move(tablet.id, "b")
    assert tablets_by_shard(store) == {"a": 8, "b": 16, "c": 0}
    return store


def test_a_keeper_balances_the_other_shards_while_the_fullest_is_away(tmp_path: Path) -> None:
    with uneven(tmp_path / "s") as store:
        (tmp_path / "s" / "shards" / "b").rename(tmp_path / "away")
        kept = Keeper(store.context, POLICY).keep()
        assert tablets_by_shard(store) == {"a": 4, "b": 16, "c": 4}
        assert kept.moves == 4
        assert sum("balancing" in problem for problem in kept.problems) == 1
        (tmp_path / "away").rename(tmp_path / "s" / "shards" / "b")
        Keeper(store.context, POLICY).keep()
        assert tablets_by_shard(store) == {"a": 8, "b": 8, "c": 8}
        assert store.table("t").scan().count() == 9_000


def test_a_keeper_finishes_a_contraction_that_gave_up_and_balances_the_others_until_it_can(
    tmp_path: Path,
) -> None:
    with uneven(tmp_path / "s") as store:
        (tmp_path / "s" / "shards" / "a").rename(tmp_path / "away")
        with pytest.raises(ShardUnavailable):
            store.contract("a")
        topologies = len(store.topology_history())
        kept = Keeper(store.context, POLICY).keep()
        assert "resuming moves that were interrupted: [ES_SHARD_UNAVAILABLE]" in "".join(kept.problems)
        tablets = tablets_by_shard(store)
        assert tablets["a"] == 8
        assert min(tablets["b"], tablets["c"]) > 6, "they share what both have"
        assert len(store.topology_history()) == topologies + kept.moves
        again = Keeper(store.context, POLICY).keep()
        assert len(store.topology_history()) == topologies + kept.moves + again.moves, "failures say nothing"
        (tmp_path / "away").rename(tmp_path / "s" / "shards" / "a")
        kept = Keeper(store.context, POLICY).keep()
        assert (kept.moves, kept.problems) == (8, [])
        assert tablets_by_shard(store).keys() == {"b", "c"}
        assert store.table("t").scan().count() == 9_000


def test_a_shard_that_cannot_be_emptied_keeps_no_other_from_being_emptied(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", ["a", "b", "c", "d"], tablets=8, upkeep="off") as store:
        rows = pa.table({"id": range(90), "v": range(90)}, schema=SCHEMA)
        store.create_table("t", SCHEMA, ["id"]).upsert(rows)
        for name in ("a", "b"):
            (tmp_path / "s" / "shards" / name).rename(tmp_path / name)
            with pytest.raises(ShardUnavailable):
                store.contract(name)
        (tmp_path / "b").rename(tmp_path / "s" / "shards" / "b")
        with pytest.raises(ShardUnavailable):
            store.resume_moves()
        assert tablets_by_shard(store).keys() == {"a", "c", "d"}
        (tmp_path / "a").rename(tmp_path / "s" / "shards" / "a")
        assert store.resume_moves() == 2
        assert tablets_by_shard(store).keys() == {"c", "d"}


def test_a_keeper_tells_which_shards_it_could_not_collect_at(
    template: tuple[Path, dict[int, int]], tmp_path: Path
) -> None:
    place = make_copy(template[0], tmp_path)
    with opened(place, 2) as store:
        (place / "shards" / "s2").rename(tmp_path / "away")
        kept = Kept()
        with owning() as owner:
            Keeper(store.context, POLICY)._collect(Executor(store.context, owner, kept))
        assert kept.files_removed > 0
        assert ["collecting garbage at shard 's2'" in problem for problem in kept.problems] == [True]


def test_a_keeper_keeps_to_its_speed_and_rests_while_others_commit(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with Store.create(tmp_path / "s", ["a"], clock=clock) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        pace = _Pace(store.context, 1_000)
        pace(5_000)
        assert clock.now() == START + 5
        unbounded = _Pace(store.context, None)
        clock.advance(0.25)
        unbounded(1 << 30)
        assert clock.now() == START + 5.25
        table.upsert(pa.table({"id": [1], "v": [1]}, schema=SCHEMA))
        clock.advance(0.25)
        unbounded(1)
        assert clock.now() > START + 5.5


def test_a_store_that_can_only_be_read_is_not_kept(template: tuple[Path, dict[int, int]]) -> None:
    with Store.open(template[0], read_only=True) as store, pytest.raises(ReadOnlyStore):
        store.keep()
