"""Shards, the placement of tablets, moves and steps under way, and the topology history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticscan.base.errors import (
    AlreadyExists,
    InvalidTopologyChange,
    NotFound,
    NotReady,
    SnapshotExpired,
    StoreDamaged,
)
from elasticscan.catalog import Catalog, OwnedMove, OwnedStep, StepsDone, Tx
from elasticscan.catalog.topology_history import (
    WHOLE_EVERY,
    PackedTopology,
    pack_topology,
    unpack_topologies,
)
from elasticscan.metadata import MoveSwitched
from elasticscan.topology import (
    Event,
    Move,
    Phase,
    Placement,
    Shard,
    Tablet,
    Topology,
    change_tablets,
    halves,
    initial_placement,
    join_tablets,
    split_tablet,
    whole,
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


def switch(tx: Tx, tablet: Tablet, target: int) -> None:
    tx.append(MoveSwitched(tablet, target, tx.state.number))


# ------------------------------------------------------------------------------- shards and placement


def test_a_new_store_has_its_placement_and_its_first_topology_from_its_first_record(
    catalog: Catalog, clock: ManualClock
) -> None:
    placement = initial_placement(SLOTS, 4, [1, 2])
    with catalog.reading() as tx:
        assert tx.state.number == 0
        assert tx.shards() == (Shard(1, "a", "shards/a"), Shard(2, "b", "shards/b"))
        assert tx.placement() == placement
        assert tx.newest_topology() == Topology(1, placement, ((1, "a"), (2, "b")), clock.now(), "created")
        assert tx.is_topology_published()
        assert tx.oldest_topology() == 1


def test_shards_are_added_drained_and_removed(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        (added,) = tx.add_shards([("c", "shards/c")])
        assert added.id == 3
        with pytest.raises(AlreadyExists, match="already has a shard 'c', with another root"):
            tx.add_shards([("d", "shards/d"), ("c", "shards/c2")])
        tx.set_draining(3, True)
        assert [shard.draining for shard in tx.shards()] == [False, False, True]
        before = tx.state.number
        tx.set_draining(3, True)
        assert tx.state.number == before, "what changes nothing appends nothing"
        with pytest.raises(InvalidTopologyChange, match="still holds 2 tablets"):
            tx.remove_shard(1)
        tx.remove_shard(3)
        with pytest.raises(NotFound, match="it has a, b"):
            tx.shard_named("c")
    with catalog.writing() as tx:
        roots = {1: "shards/a", 2: "shards/b", 3: "shards/c"}
        assert tx.shard_roots() == {shard.id: shard.root for shard in tx.shards(removed=True)} == roots
        assert tx.add_shards([("c", "shards/c")])[0].id == 4, "ids are never used twice"


def test_tablets_that_do_not_follow_one_another_change_in_one_record(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        before, number = tx.placement(), tx.state.number
        one, two, three, four = before.tablets
        ids = tx.new_tablet_ids(5)
        after = change_tablets(before, [halves(one, None, ids[:2]), halves(four, None, ids[2:4])])
        tx.replace_placement(before, after)
        assert tx.state.number == number + 1
        assert tx.placement() == after
        assert tx.new_tablet_ids(1) == (max(ids[:4]) + 1,)
        assert tx.tablet(two.id) == two
        assert tx.tablet(three.id) == three
        with pytest.raises(NotFound, match=f"the store has no tablet {four.id}"):
            tx.tablet(four.id)
    with catalog.reading() as tx:
        assert tx.placement() == after


def test_a_placement_that_is_not_that_of_now_is_refused(catalog: Catalog) -> None:
    with catalog.reading() as tx:
        before = tx.placement()
    with catalog.writing() as tx:
        tx.replace_placement(before, split_tablet(before, 1, None, tx.new_tablet_ids(2)))
    with (
        pytest.raises(InvalidTopologyChange, match="tablet 1 was changed meanwhile"),
        catalog.writing() as tx,
    ):
        tx.replace_placement(before, split_tablet(before, 1, None, tx.new_tablet_ids(2)))


# ------------------------------------------------------------------------------------------- topologies


@st.composite
def topologies(draw: st.DrawFn, number: int) -> Topology:
    cuts = [*sorted(draw(st.sets(st.integers(1, 65535), max_size=6))), 65536]
    tablets, at = [], 0
    for tablet, end in enumerate(cuts, draw(st.integers(1, 1 << 30))):
        shard, epoch = draw(st.integers(1, 1 << 31)), draw(st.integers(1, 1 << 62))
        tablets.append(Tablet(tablet, at, end, shard, epoch))
        at = end
    names = draw(st.dictionaries(st.integers(1, 1 << 31), st.text(max_size=9), max_size=4))
    return Topology(number, Placement(tuple(tablets)), tuple(names.items()), 5.0, "why", draw(st.booleans()))


@given(topologies(1), topologies(2))
def test_any_topology_comes_back_as_it_was_packed(first: Topology, second: Topology) -> None:
    packed = pack_topology(first, Placement(())), pack_topology(second, first.placement)
    rows = [PackedTopology(*msgpack.unpackb(row)) for row in packed]
    assert list(unpack_topologies(rows)) == [first, second]


def change_placement(catalog: Catalog, draw: Random) -> Topology:
    """Make a random move, split or join of tablets, now and then as one of several of a plan."""
    with catalog.writing() as tx:
        before = tx.placement()
        tablet = draw.choice(before.tablets)
        right = next((t for t in before.tablets if t.start == tablet.end), None)
        if right is not None and right.shard == tablet.shard and draw.random() < 0.5:
            joined = join_tablets(before, tablet.id, right.id, *tx.new_tablet_ids(1))
            tx.replace_placement(before, joined)
        elif tablet.end - tablet.start > 1 and draw.random() < 0.5:
            tx.replace_placement(before, split_tablet(before, tablet.id, None, tx.new_tablet_ids(2)))
        else:
            switch(tx, tablet, 3 - tablet.shard)
        return tx.append_topology("changed", published=draw.random() < 0.8)


def test_a_history_of_differences_has_every_topology_and_forgets_only_the_oldest(
    catalog: Catalog, clock: ManualClock
) -> None:
    draw, made = Random(1), dict[int, Topology]()
    for _ in range(220):
        clock.advance(1)
        topology = change_placement(catalog, draw)
        made[topology.number] = topology
    newest = max(made)
    with catalog.reading() as tx:
        made[1] = tx.topology(1)
        assert {number: tx.topology(number) for number in made} == made
        assert list(tx.newest_topologies(1_000)) == [made[number] for number in sorted(made)]
        assert tx.newest_topologies(3) == tuple(made[newest - 2 + n] for n in range(3))
        assert tx.topology_history() == tuple(made[number].entry for number in sorted(made))
        assert tx.topology_history(2) == (made[newest - 1].entry, made[newest].entry)
        assert tx.topology_history(0) == ()
        assert tx.newest_topology() == made[newest if made[newest].published else newest - 1]
        assert tx.first_topology_since(0) == 1
        since = made[110].created_at
        kept = tx.first_topology_since(since)
        assert 110 - 2 * WHOLE_EVERY < kept < 110
        assert tx.first_topology_since(clock.now() + 1) > newest - WHOLE_EVERY
        with pytest.raises(NotFound, match=f"no topology {newest + 1}"):
            tx.topology(newest + 1)
    with catalog.writing() as tx:
        assert tx.forget_topologies(kept) == kept - 1
        assert tx.forget_topologies(kept) == 0
    with catalog.reading() as tx:
        assert tx.oldest_topology() == tx.topology_history()[0].number == kept
        assert tx.newest_topologies(1_000)[0] == made[kept]
        assert all(tx.topology(number) == made[number] for number in range(kept, newest + 1))
        with pytest.raises(SnapshotExpired, match=f"the oldest is {kept}"):
            tx.topology(kept - 1)
        assert tx.base_topology(1) == made[kept]
        assert tx.first_topology_since(since) == kept
    change_placement(catalog, draw)


def test_of_a_plan_the_newest_topology_alone_is_replaced_until_it_is_published(catalog: Catalog) -> None:
    def move(tablet: int) -> Topology:
        with catalog.writing() as tx:
            switch(tx, tx.tablet(tablet), 2)
            return tx.append_topology(f"moved {tablet}", published=False)

    with catalog.reading() as tx:
        first = tx.newest_topology()
    assert [move(tablet).number for tablet in (1, 2)] == [2, 2]
    with catalog.reading() as tx:
        assert not tx.is_topology_published()
        assert tx.newest_topology() == first
        assert [(entry.number, entry.reason) for entry in tx.topology_history()] == [
            (1, "created"),
            (2, "moved 2"),
        ]
    with catalog.writing() as tx:
        published = tx.append_topology("balanced", last=first)
        assert published.number == 2
    with catalog.reading() as tx:
        assert tx.newest_topology() == published
        assert tx.newest_topology(published) is published
        assert tx.newest_topology(first) == published


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
            tx.append_topology(reason)
    reads: list[Callable[[Tx], object]] = [
        lambda tx: tx.newest_topology(),
        lambda tx: tx.topology(3),
        lambda tx: tx.topology_history(),
        lambda tx: tx.newest_topologies(9),
    ]
    with catalog._home.writing() as sql:
        sql.execute(DAMAGES[name])
    for read in reads:
        with pytest.raises(StoreDamaged), catalog.reading() as tx:
            read(tx)


def test_an_older_row_in_place_of_a_published_one_is_noticed(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        tx.append_topology("planned", published=False)
    (older,) = catalog._home.execute("SELECT record, bytes FROM topology_history WHERE number = 2")
    with catalog.writing() as tx:
        tx.append_topology("done")
    with catalog._home.writing() as sql:
        sql.execute(
            "UPDATE topology_history SET record = :record, bytes = :bytes WHERE number = 2",
            {"record": older[0], "bytes": older[1]},
        )
    with pytest.raises(StoreDamaged, match="each number from 1 to 2"), catalog.reading() as tx:
        tx.newest_topology()


# ------------------------------------------------------------------------------------------------ moves


def test_a_tablet_is_moved_by_one_owner_at_a_time(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        tx.plan_move(MOVE, "me")
    clock.advance(3)
    with catalog.writing() as tx:
        with pytest.raises(NotReady, match="by me"):
            tx.plan_move(MOVE, "you")
        assert tx.transition(MOVE, "you", Event.START_COPY) is None
        begun = tx.transition(MOVE, "me", Event.START_COPY)
        assert begun is not None and begun.phase is Phase.COPYING
        assert tx.transition(MOVE, "you", Event.OWNER_DIED) is None
        with pytest.raises(InvalidTopologyChange, match="cannot take switched"):
            tx.transition(MOVE, "me", Event.SWITCHED)
    with catalog.reading() as tx:
        (move,) = tx.moves()
        assert tx.move(1) == move == OwnedMove(1, 1, 2, Phase.COPYING, "me", 1_000.0, 1_003.0)
    with catalog.writing() as tx:
        undone = tx.transition(MOVE, "me", Event.FAILED)
        assert undone is not None and undone.phase is Phase.UNDONE
        assert tx.transition(MOVE, "me", Event.FAILED) is None
        assert tx.move(1) is None
        tx.plan_move(MOVE, "you")


def test_moves_are_planned_and_given_up_together(catalog: Catalog) -> None:
    plans = [MOVE, Move(2, 1, 2)]
    with catalog.writing() as tx:
        tx.plan_move(Move(3, 1, 2), "me")
        tx.plan_moves(plans, "me")
        tx.plan_moves([], "me")
        assert tx.transition(MOVE, "me", Event.START_COPY) is not None
        assert {move.tablet for move in tx.moves()} == {1, 2, 3}
        with pytest.raises(NotReady, match="tablet 2 is already being moved by me"):
            tx.plan_moves([Move(4, 1, 2), Move(2, 1, 2)], "you")
        with pytest.raises(AssertionError, match="begins with a plan"):
            tx.plan_moves([Move(4, 1, 2, Phase.CAUGHT_UP)], "me")
        tx.give_up_moves("you", plans)
        assert {move.tablet for move in tx.moves()} == {1, 2, 3}
        tx.give_up_moves("me", plans)
        assert [move.tablet for move in tx.moves()] == [3]
        tx.give_up_moves("me", plans)
    with catalog.reading() as tx:
        assert [move.tablet for move in tx.moves()] == [3]


def test_owners_of_moves_show_that_they_live(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        tx.plan_move(MOVE, "me")
        tx.plan_move(Move(2, 1, 2), "you")
    clock.advance(5)
    with catalog.writing() as tx:
        tx.heartbeat("me")
    with catalog.reading() as tx:
        assert [(move.owner, move.heartbeat_at) for move in tx.moves()] == [("me", 1_005.0), ("you", 1_000.0)]


def test_a_move_arrives_in_the_transaction_that_switches_the_placement(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        tx.plan_move(MOVE, "me")
        for event in (Event.START_COPY, Event.COPIED):
            tx.transition(MOVE, "me", event)
    with pytest.raises(AssertionError, match="placement differ"), catalog.writing() as tx:
        tx.transition(MOVE, "me", Event.SWITCHED)
    with catalog.writing() as tx:
        epoch = tx.tablet(1).epoch
        switch(tx, tx.tablet(1), 2)
        arrived = tx.transition(MOVE, "me", Event.SWITCHED)
        assert arrived is not None and arrived.server == 2
        assert tx.moves() == ()
    with catalog.reading() as tx:
        assert (tx.tablet(1).shard, tx.tablet(1).epoch) == (2, epoch + 1)
        assert tx.placement() is tx.state.placement


def test_moves_and_steps_leave_no_record(catalog: Catalog) -> None:
    with catalog.reading() as tx:
        before = tx.state
    with catalog.writing() as tx:
        tx.plan_move(MOVE, "me")
        tx.transition(MOVE, "me", Event.START_COPY)
        tx.enter_step("balance", "me")
        tx.add_done({"balance": (1, 0, 0)})
    with catalog.reading() as tx:
        assert tx.state == before


def test_a_damaged_move_is_noticed(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        tx.plan_move(MOVE, "me")
    with catalog._home.writing() as sql:
        sql.execute("UPDATE lease SET owner = 'you'")
    for read in (lambda tx: tx.moves(), lambda tx: tx.move(1)):
        with pytest.raises(StoreDamaged, match="lease move/1"), catalog.reading() as tx:
            read(tx)


# ------------------------------------------------------------------------------------ steps of upkeep


def test_a_step_has_one_owner_until_it_is_over(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        tx.enter_step("merge/1/2", "me")
    clock.advance(2)
    with catalog.writing() as tx:
        tx.enter_step("balance", "you")
        tx.beat_steps("me")
    with catalog.reading() as tx:
        first, second = OwnedStep("merge/1/2", "me", 1_000, 1_002), OwnedStep("balance", "you", 1_002, 1_002)
        assert tx.steps() == (first, second)
        assert tx.step("merge/1/2") == first
        assert tx.step("merge/1/1") is None
    with catalog.writing() as tx:
        tx.enter_step("merge/1/2", "you")
        assert not tx.end_steps({"merge/1/2": "me"}), "it was taken over"
        assert not tx.end_steps({"balance": "you", "merge/1/2": "me", "garbage": "me"})
        assert [step.target for step in tx.steps()] == ["merge/1/2"]
        assert tx.end_steps({"merge/1/2": "you"})
        assert tx.end_steps({})
        assert tx.steps() == ()


def test_what_was_done_is_counted_by_target(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        assert tx.done() == ()
        tx.add_done({"merge/1/2": (3, 10, 5), "merge/1/1": (1, 2, 3)})
        clock.advance(1)
    with catalog.writing() as tx:
        tx.add_done({"merge/1/2": (1, 2, 3)})
        tx.add_done({"garbage": (7, 0, 0)})
        tx.enter_step("balance", "me")
    garbage, one = StepsDone("garbage", 1, 7, 0, 0, 1_001), StepsDone("merge/1/1", 1, 1, 2, 3, 1_000)
    two = StepsDone("merge/1/2", 2, 4, 12, 8, 1_001)
    with catalog.reading() as tx:
        assert tx.done() == (garbage, one, two)
        assert tx.done(["merge/1/2", "merge/1/1", "merge/2/1"]) == (one, two)
        assert tx.done([]) == ()


def test_neighbours_are_joined(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        before = tx.placement()
        left, right = before.tablets[:2]
        after = change_tablets(before, [whole(left, right, *tx.new_tablet_ids(1))])
        tx.replace_placement(before, after)
        first = tx.placement().tablets[0]
        assert (first.start, first.end) == (left.start, right.end)
