"""Transactions of a catalog: times of commits, leases, secrets, files, moves and steps with their owners.

What programs of the log (`programs.py`) compare with their model is not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elasticscan.base.errors import (
    InvalidTopologyChange,
    NotFound,
    NotReady,
    StoreDamaged,
    TableChanged,
    WriteConflict,
)
from elasticscan.base.limits import KEY_SECONDS, SECRETS_SECONDS, STREAM_LEASE_SECONDS, TRUSTED_JUMP_SECONDS
from elasticscan.catalog import (
    KEYS,
    OFFSETS,
    Catalog,
    Tx,
    add_secrets,
    append_topology,
    forget_secrets,
    key_seconds,
    newest_topology,
    offset_keys,
    seal_keys,
    take_incarnation,
    topologies,
    topology,
)
from elasticscan.catalog.table_state import RemovedFile
from elasticscan.metadata import (
    FilesCondemned,
    HorizonRaised,
    IndexDefined,
    IndexEvent,
    IndexInfo,
    IndexPhase,
    MoveSwitched,
    ShardDefined,
    StagedRun,
    TableDefined,
)
from elasticscan.store.context.leases import kept_seconds, lease_end, leases_in, renew_lease, take_lease
from elasticscan.store.moves.owners import OwnedMove, OwnedStep, beat
from elasticscan.store.moves.under_way import enter_moves, move_of, moves_in, transition
from elasticscan.store.upkeep.collector import _first_dropped
from elasticscan.store.upkeep.executor import claim, end_step, steps_in
from elasticscan.store.upkeep.horizons import horizon_of
from elasticscan.store.writing.indexing import add_runs, transition_index, without_runs
from elasticscan.topology import Event, Move, Phase, Shard
from tests.base.manual_clock import ManualClock
from tests.catalog.small_store import add_commit, add_table, drop_table, make, staged

MOVE = Move(1, 1, 2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def catalog(catalog_url: Path | str, clock: ManualClock) -> Iterator[Catalog]:
    made = make(catalog_url, clock)
    yield made
    made.close()


def test_a_snapshot_is_named_by_a_past_time_and_kept_since_the_next_commit(
    catalog: Catalog, clock: ManualClock
) -> None:
    table = add_table(catalog)
    for _ in range(2):
        clock.advance(10)
        add_commit(catalog, table)  # 2 and 3, at 1,010 and 1,020 s
    with catalog.writing() as tx:
        take_incarnation(tx, "f" * 32, (0, 5))  # 4 and 5 were lost
    clock.advance(10)
    with catalog.reading() as tx:
        assert [tx.commit_at(at) for at in (0, 1_011, 1_021)] == [0, 2, 3]
        with pytest.raises(NotFound, match="is still to come"):
            tx.commit_at(clock.now() + 1_000)
        assert [tx.made_at(number) for number in (0, 2, 3, 5)] == [None, 1_010, 1_020, 1_020]
        assert [kept_seconds(tx, number, 15) for number in (2, 3, 5)] == [5, 15, 15]
    newest = add_commit(catalog, table)
    clock.advance(10)
    with catalog.reading() as tx:
        assert newest > 5
        assert kept_seconds(tx, 3, 15) == pytest.approx(5)


def test_who_takes_leases_alone_lets_the_store_know_the_time(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    for hours in (20, 20, 20, 0.5):
        clock.advance(3_600 * hours)
        with catalog.leasing() as tx:
            take_lease(tx, "l", table, 1, "scan", 60)
    with catalog.reading() as tx:
        assert tx.times.agreed, "three days at once would not be believed"
        assert tx.state.number == 4, "each time that changes it by more than an hour is a record"


def test_a_lease_by_a_clock_far_ahead_is_cut_once_the_time_is_beyond_doubt(
    catalog: Catalog, clock: ManualClock
) -> None:
    table, ahead = add_table(catalog), 300 * 86_400.0
    clock.advance(ahead)
    with catalog.leasing() as tx:
        take_lease(tx, "l", table, 1, "scan", 60)
    clock._now -= ahead
    with catalog.leasing() as tx:
        assert lease_end(tx, "l") == 1_060 + ahead
        assert tx.end_expired_leases() == 0
        assert lease_end(tx, "l") == 1_000 + STREAM_LEASE_SECONDS + TRUSTED_JUMP_SECONDS


def test_a_dropped_table_takes_no_leases_and_is_named_while_it_has_some(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.writing() as tx:
        take_lease(tx, "l", table, 1, "scan", 60)
        drop_table(tx, "t")
        with pytest.raises(TableChanged):
            take_lease(tx, "m", table, 1, "scan", 60)
        assert [lease["table"] for lease in leases_in(tx)] == ["t"]


def test_commits_of_other_tables_take_no_snapshot_away(catalog: Catalog, clock: ManualClock) -> None:
    table, other = add_table(catalog), add_table(catalog, "other")  # commits 1 and 2, at 1,000 s
    for of in (table, other, table, other, other):  # commits 3 to 7, at 1,010 s and so on
        clock.advance(10)
        add_commit(catalog, of)
    with catalog.writing() as tx:
        assert [horizon_of(tx, table.id, seconds) for seconds in (0, 15, 25, 35, 45)] == [5, 5, 3, 3, 1]
        assert [horizon_of(tx, other.id, seconds) for seconds in (0, 15, 25, 35, 45)] == [7, 4, 4, 2, 2]
        take_lease(tx, "l", table, 4, "scan", 60)
        assert horizon_of(tx, table.id, 0) == 3
        tx.append(HorizonRaised(table.id, 4))
        assert horizon_of(tx, table.id, 35) == 4, "what is gone stays gone"


def test_while_a_lease_is_damaged_no_horizon_is_given(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.leasing() as tx:
        take_lease(tx, "l", table, 1, "scan", 60)
        take_lease(tx, "whole", table, 1, "scan", 60)
        tx.execute("UPDATE lease SET kind = 'OwnedStep' WHERE id = 'Hold/l'")
    with catalog.leasing() as tx:
        for look in (lambda: horizon_of(tx, table.id, 0), tx.end_expired_leases, lambda: leases_in(tx)):
            with pytest.raises(StoreDamaged, match="lease Hold/l is not what was written"):
                look()
        assert renew_lease(tx, "whole", 60)


# ------------------------------------------------------------------------------------------- secrets


def retain(tx: Tx, seconds: float | None) -> None:
    table = tx.state.table_named("t")
    tx.append(TableDefined(replace(table, retention_seconds=seconds), table.definition))


def test_a_key_opens_until_none_in_use_can_have_its_secret(catalog: Catalog, clock: ManualClock) -> None:
    add_table(catalog)
    with catalog.writing() as tx:
        ((first, secret),) = seal_keys(tx.state, tx.now).items()
        assert len(secret) == 32
        assert key_seconds(tx.state) == KEY_SECONDS
        assert offset_keys(tx.state).keys() == {1}
        retain(tx, 2.0 * KEY_SECONDS)
        assert key_seconds(tx.state) == 2 * KEY_SECONDS
        retain(tx, None)
        newest = add_secrets(tx, OFFSETS, KEYS)
        assert seal_keys(tx.state, tx.now).keys() == {first, newest}
        assert seal_keys(tx.state, tx.now)[newest] != secret
        assert forget_secrets(tx) == 0
    for _ in range(2):  # the store believes a far time when it was seen twice
        clock.advance(KEY_SECONDS + 2 * SECRETS_SECONDS)
        with catalog.leasing() as tx:
            assert seal_keys(tx.state, tx.now).keys() == {newest}
    with catalog.writing() as tx:
        assert forget_secrets(tx) == 1
        assert offset_keys(tx.state).keys() == {1, newest - 1}, "a checkpoint may be picked up after years"
        assert forget_secrets(tx, revoke=True) == 1
        assert offset_keys(tx.state).keys() == {newest - 1}


def test_a_new_incarnation_has_one_secret_of_its_own(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        before, secrets = tx.identity(), seal_keys(tx.state, tx.now)
        take_incarnation(tx, "f" * 32, (before.layout + 9, before.last_commit + 7))
        after = tx.identity()
        assert (after.incarnation, after.store_id) == ("f" * 32, before.store_id)
        assert after.layout > before.layout + 9
        assert after.last_commit == before.last_commit + 7
        (number,) = seal_keys(tx.state, tx.now)
        assert number not in secrets
        assert seal_keys(tx.state, tx.now)[number] not in secrets.values()
        assert len(offset_keys(tx.state)) == 1


# --------------------------------------------------------------------------------------------- files


def test_the_files_that_were_dropped_first_are_collected_first_together_with_their_runs() -> None:
    def removed(number: int, fragment: int, seconds: int) -> RemovedFile:
        return RemovedFile(number, 1, fragment, 1, f"{number}", 1, seconds * 1_000_000, 1, 1, 1)

    files = [removed(n, n // 2 * 2, at) for n, at in enumerate((30, 30, 10, 10, 20, 20))]
    cases: dict[tuple[float, int], set[int]] = {
        (40, 1): {2, 3}, (40, 2): {2, 3, 4, 5}, (20, 9): {2, 3, 4, 5}, (9, 9): set(),
    }  # fmt: skip
    for (upto, most), expected in cases.items():
        assert {file.id for file in _first_dropped(files, upto, most)} == expected


def test_files_of_a_removed_shard_are_known_where_a_new_one_took_its_place(catalog: Catalog) -> None:
    table = add_table(catalog)
    add_commit(catalog, table, replace(staged("x"), slots=catalog.at().state.tablet(1).slots))
    with catalog.writing() as tx:
        for tablet in tx.state.placement.tablets:
            if tablet.shard == 1:
                tx.append(MoveSwitched(tablet, 2, tx.state.number))
        shard = tx.state.shards[1]
        tx.append(ShardDefined(shard, removed=True))
        tx.append(ShardDefined(Shard(3, "c", shard.root)))
        assert tx.state.known_paths() == {(1, "x"), (3, "x")}


def test_an_index_is_ready_once_every_fragment_has_its_runs(catalog: Catalog) -> None:
    table = add_table(catalog)
    for path in ("old", "older"):
        add_commit(catalog, table, staged(path))
    old, older = catalog.at().state.fragments(table.id)

    def run(path: str) -> StagedRun:
        return StagedRun(1, path, 3, 10, 60, 7, b"h")

    with catalog.writing() as tx:
        tx.append(IndexDefined(IndexInfo(1, table.id, "i", "sorted", ("k",), ())))
        index = transition_index(tx, tx.state.index_named(table.id, "i"), IndexEvent.RUNS_MISSING)
        assert index.phase is IndexPhase.BUILDING
        with pytest.raises(WriteConflict, match="without a run"):
            transition_index(tx, index, IndexEvent.COMPLETED)
        built = {old.id: [run("r1")], 12_345: [run("r2")]}
        assert add_runs(tx, index, built) == {old.id}, "the other fragment is gone"
        assert add_runs(tx, index, built) == set(), "it has them already"
        assert without_runs(tx.state, index) == [older]
        tx.append(FilesCondemned(((1, "r3"),)))
        assert add_runs(tx, index, {older.id: [run("r3")]}) == set(), "taken for garbage"
        assert add_runs(tx, index, {older.id: [run("r4")]}) == {older.id}
        assert transition_index(tx, index, IndexEvent.COMPLETED).ready


DAMAGES: dict[str, str] = {
    "altered": "UPDATE topology_history SET bytes = (SELECT bytes FROM topology_history WHERE number = 2)",
    "lost": "DELETE FROM topology_history WHERE number = 3",
    "all lost": "DELETE FROM topology_history",
    "renumbered": "UPDATE topology_history SET number = 30 WHERE number = 3",
    "of another record": "UPDATE topology_history SET record = record + 1 WHERE number = 3",
    "of no record": "UPDATE topology_history SET record = 1000 WHERE number = 3",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_history_is_noticed(catalog: Catalog, name: str) -> None:
    for reason in ("once", "again", "thrice"):
        with catalog.writing() as tx:
            append_topology(tx, reason)
    reads: list[Callable[[Tx], object]] = [lambda tx: topology(tx, 3), lambda tx: topologies(tx, 9)]
    reads += [newest_topology] if name in ("altered", "all lost") else []
    with catalog._home.writing() as sql:
        sql.execute(DAMAGES[name])
    for read in reads:
        with pytest.raises(StoreDamaged), catalog.reading() as tx:
            read(tx)


def test_an_older_row_in_place_of_a_published_one_is_noticed(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        append_topology(tx, "planned", published=False)
    (older,) = catalog._home.execute("SELECT record, bytes FROM topology_history WHERE number = 2")
    with catalog.writing() as tx:
        append_topology(tx, "done")
    with catalog._home.writing() as sql:
        sql.execute(
            "UPDATE topology_history SET record = :record, bytes = :bytes WHERE number = 2",
            {"record": older[0], "bytes": older[1]},
        )
    with pytest.raises(StoreDamaged, match="each number from 2 to 2"), catalog.reading() as tx:
        newest_topology(tx)


# ------------------------------------------------------------------------------------ moves and steps


def test_a_tablet_is_moved_by_one_owner_at_a_time(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        enter_moves(tx, [MOVE], "me")
    clock.advance(3)
    with catalog.writing() as tx:
        with pytest.raises(NotReady, match="by me"):
            enter_moves(tx, [Move(4, 1, 2), MOVE], "you")
        assert transition(tx, MOVE, "you", Event.START_COPY) is None
        begun = transition(tx, MOVE, "me", Event.START_COPY)
        assert begun is not None and begun.phase is Phase.COPYING
        with pytest.raises(InvalidTopologyChange, match="cannot take switched"):
            transition(tx, MOVE, "me", Event.SWITCHED)
        assert moves_in(tx) == (OwnedMove(1, 1, 2, Phase.COPYING, "me", 1_000.0, 1_003.0),)
        transition(tx, MOVE, "me", Event.COPIED)
    with pytest.raises(AssertionError, match="placement differ"), catalog.writing() as tx:
        transition(tx, MOVE, "me", Event.SWITCHED)
    with catalog.writing() as tx:
        tx.append(MoveSwitched(tx.state.tablet(1), 2, tx.state.number))
        arrived = transition(tx, MOVE, "me", Event.SWITCHED)
        assert arrived is not None and arrived.server == 2
        assert transition(tx, MOVE, "me", Event.FAILED) is None
        assert move_of(tx, 1) is None


def test_moves_are_planned_and_given_up_together(catalog: Catalog) -> None:
    plans = [MOVE, Move(2, 1, 2)]
    with catalog.writing() as tx:
        enter_moves(tx, [Move(3, 1, 2)], "me")
        enter_moves(tx, plans, "me")
        assert transition(tx, MOVE, "me", Event.START_COPY) is not None
        with pytest.raises(AssertionError, match="begins with a plan"):
            enter_moves(tx, [Move(4, 1, 2, Phase.CAUGHT_UP)], "me")
        for owner, left in (("you", {1, 2, 3}), ("me", {3}), ("me", {3})):
            for plan in plans:
                transition(tx, plan, owner, Event.FAILED)
            assert {move.tablet for move in moves_in(tx)} == left


def test_a_step_has_one_owner_until_it_is_over(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        claim(tx, "merge/1/2", "me")
        enter_moves(tx, [MOVE], "me")
        enter_moves(tx, [Move(2, 1, 2)], "you")
    clock.advance(2)
    with catalog.writing() as tx:
        claim(tx, "balance", "you")
        beat(tx, "me")
    with catalog.reading() as tx:
        first, second = OwnedStep("merge/1/2", "me", 1_000, 1_002), OwnedStep("balance", "you", 1_002, 1_002)
        assert steps_in(tx) == (first, second)
        assert [move.heartbeat_at for move in moves_in(tx)] == [1_002, 1_000]
    with catalog.writing() as tx:
        tx.put_lease("merge/1/2", replace(first, owner="you"))
        for target, owner in (("balance", "you"), ("merge/1/2", "me"), ("garbage", "me")):
            end_step(tx, target, owner)
        assert [step.target for step in steps_in(tx)] == ["merge/1/2"], "it was taken over"
        end_step(tx, "merge/1/2", "you")
        assert steps_in(tx) == ()
