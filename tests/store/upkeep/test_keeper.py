"""Keepers: what is due is done once, also while shards fail; random programs kill them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import DiskFull, ShardUnavailable
from elasticscan.store import Store
from elasticscan.store.moves.balancing import Balance
from elasticscan.store.moves.under_way import moves_in
from elasticscan.store.upkeep.keeper import Keeper, _Pace
from elasticscan.store.upkeep.planning import Policy, depth_of, parts_of
from elasticscan.store.upkeep.steps import steps_in
from tests.base.manual_clock import ManualClock

ROWS_IN_FILES = True

START = 4_000_000_000.0
HOURS = 3_600.0
POLICY = Policy(
    slot_fragments=3,
    small_bytes=2_000,
    step_bytes=30_000,
    garbage_files=1,
    balance=Balance(split_bytes=9_000, join_bytes=4_000, fewest_tablets=4, share=0.1, bytes=1_000),
)
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def make(place: Path) -> dict[int, int]:
    """Make a store with a lot to do: many fragments, uneven shards, tablets too large, garbage."""
    rows: dict[int, int] = {}
    with Store.create(
        place, ["s1", "s2"], tablets=6, slots=64, retention_seconds=0, clock=ManualClock(START), upkeep="off"
    ) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.create_index("by_v", ["v"])
        for number in range(10):
            ids = range(150 * number, 150 * number + 400)
            table.upsert(pa.table({"id": ids, "v": [number] * len(ids)}, schema=SCHEMA))
            rows |= dict.fromkeys(ids, number)
            if number == 4:
                table.compact()  # its sources are garbage two hours later
        table.delete([*range(100, 200)])
        for tablet in store.topology.placement.tablets[3:5]:
            store.move(tablet.id, "s1")
    return {key: value for key, value in rows.items() if key not in range(100, 200)}


def opened(place: Path, hours: float, checkpoint: Callable[[str], None] = lambda _: None) -> Store:
    return Store.open(place, clock=ManualClock(START + hours * HOURS), checkpoint=checkpoint, upkeep="off")


def check_kept(store: Store, rows: dict[int, int]) -> None:
    """Nothing is due, nothing runs, nothing is lost, and no file is left over."""
    assert Keeper(store.context, POLICY).keep().steps == 0
    read = store.table("t").scan().to_table()
    by_index = store.table("t").scan(["id"], "v >= 0", index="by_v").to_table()
    assert sorted(by_index["id"].to_pylist()) == sorted(read["id"].to_pylist()) == sorted(rows)
    assert dict(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True)) == rows
    with store.context.catalog.reading() as tx:
        assert (steps_in(tx), moves_in(tx)) == ((), ())
        for shard in tx.state.placement.shards:
            newest = [f for f in tx.state.fragments(table=1, shard=shard) if f.superseded_at is None]
            assert depth_of(parts_of(newest, tx.state.runs(1)), POLICY) <= POLICY.slot_fragments
    assert store.verify() == []
    for _ in range(2):
        store.collect_garbage(grace_seconds=0, trash_seconds=0, share=1)
    with store.context.catalog.reading() as tx:
        there = {
            (shard, path) for shard in tx.state.shards for path, _ in store.context.disk_of(shard).list()
        }
        assert {(shard, path) for shard, path in there if path.startswith("t1/")} == tx.state.known_paths()


@pytest.mark.parametrize("fails", [False, True])
def test_a_keeper_merges_splits_joins_moves_and_collects_until_nothing_is_due(
    tmp_path: Path, fails: bool
) -> None:
    rows, failed = make(tmp_path / "store"), list[str]()

    def fail_once(point: str) -> None:
        if point == "step begun" and fails and not failed:
            failed.append(point)
            raise DiskFull("no room")

    with opened(tmp_path / "store", 2, fail_once) as store:
        rounds = [Keeper(store.context, POLICY).keep() for _ in range(6)]
        for name in ("merges", "splits", "moves", "files_removed"):
            assert sum(getattr(kept, name) for kept in rounds) > 0, name
        assert rounds[0].merges > 0, "one that fails keeps no one from the rest"
        assert ["no room" in problem for kept in rounds for problem in kept.problems] == [True] * fails
        check_kept(store, rows)
        sizes = {shard["name"]: shard["bytes"] for shard in store.status()["shards"]}
        assert max(sizes.values()) < 2 * min(sizes.values())


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
