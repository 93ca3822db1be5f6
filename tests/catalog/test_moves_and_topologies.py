"""Shards, the placement of tablets, moves and steps under way, and the topology history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from elasticscan.base.errors import (
    InvalidTopologyChange,
    NotFound,
    NotReady,
    SnapshotExpired,
    StoreDamaged,
)
from elasticscan.catalog import (
    Catalog,
    Tx,
    append_topology,
    base_topology,
    forget_topologies,
    newest_topology,
    oldest_topology,
    topologies,
    topology,
    topology_at,
)
from elasticscan.metadata import MoveSwitched, TabletsChanged
from elasticscan.store.moves.owners import OwnedMove, OwnedStep, beat
from elasticscan.store.moves.under_way import enter_moves, give_up_moves, move_of, moves_in, transition
from elasticscan.store.upkeep.steps import claim, end_step, steps_in
from elasticscan.topology import (
    Event,
    Move,
    Phase,
    Placement,
    Shard,
    Tablet,
    Topology,
    initial_placement,
    join_tablets,
    split_tablet,
)
from tests.base.manual_clock import ManualClock
from tests.catalog.small_store import SLOTS, make

MOVE = Move(1, 1, 2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def catalog(catalog_url: Path | str, clock: ManualClock) -> Iterator[Catalog]:
    made = make(catalog_url, clock)
    yield made
    made.close()


def new_tablet_ids(tx: Tx, count: int) -> tuple[int, ...]:
    first = tx.state.newest_ids["tablet"] + 1
    return tuple(range(first, first + count))


def replace_placement(tx: Tx, before: Placement, after: Placement) -> None:
    tx.append(TabletsChanged(*after.difference(before)))


def switch(tx: Tx, tablet: Tablet, target: int) -> None:
    tx.append(MoveSwitched(tablet, target, tx.state.number))


# ------------------------------------------------------------------------------- shards and placement


def test_a_new_store_has_its_placement_and_its_first_topology_from_its_first_record(
    catalog: Catalog, clock: ManualClock
) -> None:
    placement = initial_placement(SLOTS, 4, [1, 2])
    with catalog.reading() as tx:
        assert tx.state.number == 0
        assert tuple(tx.state.shards.values()) == (Shard(1, "a", "shards/a"), Shard(2, "b", "shards/b"))
        assert tx.state.placement == placement
        assert newest_topology(tx) == Topology(1, placement, ((1, "a"), (2, "b")), clock.now(), "created")
        assert tx.state.topology[1]
        assert oldest_topology(tx) == 1


# ------------------------------------------------------------------------------------------- topologies


def change_placement(catalog: Catalog, draw: Random) -> Topology:
    """Make a random move, split or join of tablets, now and then as one of several of a plan."""
    with catalog.writing() as tx:
        before = tx.state.placement
        tablet = draw.choice(before.tablets)
        right = next((t for t in before.tablets if t.start == tablet.end), None)
        if right is not None and right.shard == tablet.shard and draw.random() < 0.5:
            joined = join_tablets(before, tablet.id, right.id, *new_tablet_ids(tx, 1))
            replace_placement(tx, before, joined)
        elif tablet.end - tablet.start > 1 and draw.random() < 0.5:
            replace_placement(tx, before, split_tablet(before, tablet.id, None, new_tablet_ids(tx, 2)))
        else:
            switch(tx, tablet, 3 - tablet.shard)
        return append_topology(tx, "changed", published=draw.random() < 0.8)


def test_a_history_has_every_topology_and_forgets_only_the_oldest(
    catalog: Catalog, clock: ManualClock
) -> None:
    draw, made = Random(1), dict[int, Topology]()
    for _ in range(120):
        clock.advance(1)
        changed = change_placement(catalog, draw)
        made[changed.number] = changed
    newest = max(made)
    with catalog.reading() as tx:
        made[1] = topology(tx, 1)
        assert {number: topology(tx, number) for number in made} == made
        assert topologies(tx) == topologies(tx, 1_000) == [made[number] for number in sorted(made)]
        assert topologies(tx, 3) == [made[newest - 2 + n] for n in range(3)]
        assert topologies(tx, 0) == []
        assert newest_topology(tx) == made[newest if made[newest].published else newest - 1]
        assert topology_at(tx, 0) == 1
        since = made[50].created_at + 0.5
        kept = topology_at(tx, since)
        assert kept == 50
        assert topology_at(tx, clock.now() + 1) == (newest if made[newest].published else newest - 1)
        with pytest.raises(NotFound, match=f"no topology {newest + 1}"):
            topology(tx, newest + 1)
    with catalog.writing() as tx:
        forget_topologies(tx, kept)
    with catalog.reading() as tx:
        assert oldest_topology(tx) == kept
        assert topologies(tx, 1_000)[0] == made[kept]
        assert all(topology(tx, number) == made[number] for number in range(kept, newest + 1))
        with pytest.raises(SnapshotExpired, match=f"the oldest is {kept}"):
            topology(tx, kept - 1)
        assert base_topology(tx, 1) == made[kept]
        assert topology_at(tx, since) == topology_at(tx, 0) == kept
    change_placement(catalog, draw)


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


# ------------------------------------------------------------------------------------------------ moves


def test_a_tablet_is_moved_by_one_owner_at_a_time(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        enter_moves(tx, [MOVE], "me")
    clock.advance(3)
    with catalog.writing() as tx:
        with pytest.raises(NotReady, match="by me"):
            enter_moves(tx, [MOVE], "you")
        assert transition(tx, MOVE, "you", Event.START_COPY) is None
        begun = transition(tx, MOVE, "me", Event.START_COPY)
        assert begun is not None and begun.phase is Phase.COPYING
        assert transition(tx, MOVE, "you", Event.OWNER_DIED) is None
        with pytest.raises(InvalidTopologyChange, match="cannot take switched"):
            transition(tx, MOVE, "me", Event.SWITCHED)
    with catalog.reading() as tx:
        (move,) = moves_in(tx)
        assert move_of(tx, 1) == move == OwnedMove(1, 1, 2, Phase.COPYING, "me", 1_000.0, 1_003.0)
    with catalog.writing() as tx:
        undone = transition(tx, MOVE, "me", Event.FAILED)
        assert undone is not None and undone.phase is Phase.UNDONE
        assert transition(tx, MOVE, "me", Event.FAILED) is None
        assert move_of(tx, 1) is None
        enter_moves(tx, [MOVE], "you")


def test_moves_are_planned_and_given_up_together(catalog: Catalog) -> None:
    plans = [MOVE, Move(2, 1, 2)]
    with catalog.writing() as tx:
        enter_moves(tx, [Move(3, 1, 2)], "me")
        enter_moves(tx, plans, "me")
        enter_moves(tx, [], "me")
        assert transition(tx, MOVE, "me", Event.START_COPY) is not None
        assert {move.tablet for move in moves_in(tx)} == {1, 2, 3}
        with pytest.raises(NotReady, match="tablet 2 is already being moved by me"):
            enter_moves(tx, [Move(4, 1, 2), Move(2, 1, 2)], "you")
        with pytest.raises(AssertionError, match="begins with a plan"):
            enter_moves(tx, [Move(4, 1, 2, Phase.CAUGHT_UP)], "me")
        give_up_moves(tx, "you", plans)
        assert {move.tablet for move in moves_in(tx)} == {1, 2, 3}
        give_up_moves(tx, "me", plans)
        assert [move.tablet for move in moves_in(tx)] == [3]
        give_up_moves(tx, "me", plans)
    with catalog.reading() as tx:
        assert [move.tablet for move in moves_in(tx)] == [3]


def test_owners_of_moves_show_that_they_live(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        enter_moves(tx, [MOVE], "me")
        enter_moves(tx, [Move(2, 1, 2)], "you")
    clock.advance(5)
    with catalog.writing() as tx:
        beat(tx, "me")
    with catalog.reading() as tx:
        assert [(move.owner, move.heartbeat_at) for move in moves_in(tx)] == [
            ("me", 1_005.0),
            ("you", 1_000.0),
        ]


def test_a_move_arrives_in_the_transaction_that_switches_the_placement(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        enter_moves(tx, [MOVE], "me")
        for event in (Event.START_COPY, Event.COPIED):
            transition(tx, MOVE, "me", event)
    with pytest.raises(AssertionError, match="placement differ"), catalog.writing() as tx:
        transition(tx, MOVE, "me", Event.SWITCHED)
    with catalog.writing() as tx:
        epoch = tx.state.tablet(1).epoch
        switch(tx, tx.state.tablet(1), 2)
        arrived = transition(tx, MOVE, "me", Event.SWITCHED)
        assert arrived is not None and arrived.server == 2
        assert moves_in(tx) == ()
    with catalog.reading() as tx:
        assert (tx.state.tablet(1).shard, tx.state.tablet(1).epoch) == (2, epoch + 1)
        assert tx.state.placement is tx.state.placement


# ------------------------------------------------------------------------------------ steps of upkeep


def test_a_step_has_one_owner_until_it_is_over(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        claim(tx, "merge/1/2", "me")
    clock.advance(2)
    with catalog.writing() as tx:
        claim(tx, "balance", "you")
        beat(tx, "me")
    with catalog.reading() as tx:
        first, second = OwnedStep("merge/1/2", "me", 1_000, 1_002), OwnedStep("balance", "you", 1_002, 1_002)
        assert steps_in(tx) == (first, second)
    with catalog.writing() as tx:
        tx.put_lease("merge/1/2", replace(first, owner="you"))
        for target, owner in (("balance", "you"), ("merge/1/2", "me"), ("garbage", "me")):
            end_step(tx, target, owner)
        assert [step.target for step in steps_in(tx)] == ["merge/1/2"], "it was taken over"
        end_step(tx, "merge/1/2", "you")
        assert steps_in(tx) == ()
