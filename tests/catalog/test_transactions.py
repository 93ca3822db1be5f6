"""Transactions of a catalog: times of commits, secrets, files, moves and steps with their owners.

What programs of the log (`programs.py`) compare with their model, and stories (`tests/transcripts`) tell, is
not repeated here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import Busy, NotFound
from elasticscan.base.limits import KEY_SECONDS, SECRETS_SECONDS
from elasticscan.catalog import (
    Catalog,
    add_secrets,
    create_catalog,
    forget_secrets,
    offset_keys,
    open_catalog,
    seal_keys,
    take_incarnation,
)
from elasticscan.metadata import MoveSwitched, ShardDefined, StagedFragment, StoreCreated, TableInfo
from elasticscan.store.context.leases import kept_seconds, take_lease
from elasticscan.store.moves.owners import (
    OwnedMove,
    OwnedStep,
    beat,
    claim,
    end_step,
    enter_moves,
    move_of,
    moves_in,
    steps_in,
    transition,
)
from elasticscan.store.writing.definitions import enter
from elasticscan.store.writing.publishing import CommitRequest, commit_of
from elasticscan.topology import Event, Move, Phase, Shard, initial_placement
from tests.base.manual_clock import ManualClock

MOVE = Move(1, 1, 2)
SHARDS = Shard(1, "a", "shards/a"), Shard(2, "b", "shards/b")
NEW = StoreCreated("s", "spark", 100.0, SHARDS, initial_placement(16, 4, [1, 2]).tablets)
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("Ä b", pa.list_(pa.string()))])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def catalog(catalog_url: Path | str, clock: ManualClock) -> Iterator[Catalog]:
    create_catalog(catalog_url, clock, NEW)
    with closing(open_catalog(catalog_url, clock, "here")) as made:
        yield made


def add_table(catalog: Catalog) -> TableInfo:
    with catalog.writing() as tx:
        return enter(tx, TableInfo(0, "t", SCHEMA, ("k",), ("k",), "lz4", 0, 0))


def add_commit(catalog: Catalog, table: TableInfo, *fragments: StagedFragment) -> int:
    with catalog.writing() as tx:
        return tx.append(commit_of(tx.state, table.id, fragments, CommitRequest()))


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
    tx = catalog.newest()
    assert [tx.commit_at(at) for at in (0, 1_011, 1_021)] == [0, 2, 3]
    with pytest.raises(NotFound, match="is still to come"):
        tx.commit_at(clock.now() + 1_000)
    assert [tx.made_at(number) for number in (0, 2, 3, 5)] == [None, 1_010, 1_020, 1_020]
    assert [kept_seconds(tx, number, 15) for number in (2, 3, 5)] == [5, 15, 15]
    newest = add_commit(catalog, table)
    clock.advance(10)
    tx = catalog.newest()
    assert newest > 5
    assert kept_seconds(tx, 3, 15) == pytest.approx(5)


def test_a_sign_of_life_of_a_process_behind_is_no_old_one(
    catalog: Catalog, catalog_url: Path | str, clock: ManualClock
) -> None:
    late = ManualClock(clock.now() - 2 * 86_400)
    with closing(open_catalog(catalog_url, late, "here")) as behind, behind.writing() as tx:
        enter_moves(tx, [MOVE], "other/machine:1:1:1")
        beat(tx, "other/machine:1:1:1")
    tx = catalog.newest()
    assert moves_in(tx)[0].heartbeat_at == tx.times.expiry


def test_who_takes_leases_alone_lets_the_store_know_the_time(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    for hours in (20, 20, 20, 0.5):
        clock.advance(3_600 * hours)
        with catalog.leasing() as tx:
            take_lease(tx, "l", table, 1, "scan", 60)
    tx = catalog.newest()
    assert tx.times.agreed, "three days at once would not be believed"
    assert tx.state.number == 4, "each time that changes it by more than an hour is a record"


def test_a_secret_is_deleted_once_no_key_in_use_can_have_it(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        (first,) = seal_keys(tx.state, tx.now)
        newest = add_secrets(tx)
        assert seal_keys(tx.state, tx.now).keys() == {first, newest}
        assert forget_secrets(tx) == 0
    for _ in range(2):  # the store believes a far time when it was seen twice
        clock.advance(KEY_SECONDS + 2 * SECRETS_SECONDS)
        with catalog.leasing() as tx:
            assert seal_keys(tx.state, tx.now).keys() == {newest}
    with catalog.writing() as tx:
        assert forget_secrets(tx) == 1
        assert offset_keys(tx.state).keys() == {1, newest - 1}, "a checkpoint may be picked up after years"
        before = seal_keys(tx.state, tx.now).keys() | offset_keys(tx.state).keys()
        take_incarnation(tx, "f" * 32, (0, 0))
        assert before.isdisjoint(tx.state.secrets), "another copy of a store opens nothing of this one"


def test_files_of_a_removed_shard_are_known_where_a_new_one_took_its_place(catalog: Catalog) -> None:
    table = add_table(catalog)
    slots = catalog.newest().state.tablet(1).slots
    add_commit(catalog, table, StagedFragment(1, "x", slots, 5, 100, True, 0, False, 60, -(1 << 63)))
    with catalog.writing() as tx:
        for tablet in tx.state.placement.tablets:
            if tablet.shard == 1:
                tx.append(MoveSwitched(tablet, 2))
        shard = tx.state.shards[1]
        tx.append(ShardDefined(shard, removed=True))
        tx.append(ShardDefined(Shard(3, "c", shard.root)))
        assert tx.state.known_paths() == {(1, "x"), (3, "x")}


def test_moves_and_steps_belong_to_one_owner_until_they_are_over(
    catalog: Catalog, clock: ManualClock
) -> None:
    with catalog.writing() as tx:
        enter_moves(tx, [MOVE, Move(3, 1, 2)], "me")
        enter_moves(tx, [Move(2, 1, 2)], "you")
    claim(catalog, "merge/1/2", "me")
    clock.advance(2)
    claim(catalog, "balance", "you")
    with catalog.writing() as tx:
        beat(tx, "me")
        with pytest.raises(Busy, match="by me"):
            enter_moves(tx, [Move(4, 1, 2), MOVE], "you")
        assert transition(tx, MOVE, "you", Event.START_COPY) is None
        assert transition(tx, MOVE, "me", Event.START_COPY) is not None
        with pytest.raises(AssertionError, match="cannot take switched"):
            transition(tx, MOVE, "me", Event.SWITCHED)
        assert moves_in(tx)[0] == OwnedMove(1, 1, 2, Phase.COPYING, "me", 1_000.0, 1_002.0)
        assert [move.heartbeat_at for move in moves_in(tx)] == [1_002, 1_000, 1_002]
        for owner, left in (("you", {1, 2, 3}), ("me", {2, 3}), ("me", {2, 3})):
            transition(tx, MOVE, owner, Event.FAILED)
            assert {move.tablet for move in moves_in(tx)} == left
        assert move_of(tx, 1) is None
        first, second = OwnedStep("merge/1/2", "me", 1_000, 1_002), OwnedStep("balance", "you", 1_002, 1_002)
        assert steps_in(tx) == [first, second]
        tx.put_lease("merge/1/2", replace(first, owner="you"))
    for target, owner in (("balance", "you"), ("merge/1/2", "me"), ("garbage", "me")):
        end_step(catalog, target, owner)
    assert [step.target for step in steps_in(catalog.newest())] == ["merge/1/2"], "it was taken over"
