"""Named schedules of moves against a scan, each as small as it can be, on a cluster in memory.

Eight slots of five rows; tablets 1 and 2 begin at shard 1, tablets 3 and 4 at shard 2; shards 3
and 4 are empty. Every scenario runs in both orders, direct and index, and must be exact. Scenarios that need
a real store, or say more on one, are in `tests/store/test_scenarios.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest

from elasticscan.protocol import PageRequest, PageRows
from elasticscan.reader import plan_read
from elasticscan.topology import SlotSet, initial_placement
from tests.reader.memory import DIRECT, INDEX, MemoryCluster, Order
from tests.reader.simulation import Row, SimulatedScan

ROWS = {key: key * 5 % 7 for key in range(40)}  # seven values only: ties in the index
AT_THE_END = 1_000


class Play:
    """A cluster, a scan of it, and what happens in the middle of a page."""

    def __init__(self, order: Order, page_rows: int = 3) -> None:
        self.cluster = MemoryCluster(initial_placement(8, 4, [1, 2]), order)
        self.cluster.write(ROWS)
        self.scan = SimulatedScan.of(self.cluster, ROWS, page_rows)
        self.move = self.cluster.move

    def pages(self, count: int) -> list[Row]:
        before = len(self.scan.got)
        for _ in range(count):
            self.scan.step()
        return self.scan.got[before:]

    def page(self, before_slot: int, happens: Callable[[], None]) -> list[Row]:
        """A page in which something happens before its n-th slot is read, or after the last.

        Returns the rows that left with it.
        """
        read = plan_read(self.scan.cursors, self.cluster.current())
        assert read is not None
        at, calls = min(before_slot, len(read.slots)), 0

        def during() -> None:
            nonlocal calls
            if calls == at:
                happens()
            calls += 1

        self.cluster.during = during
        rows = self.pages(1)
        self.cluster.during = lambda: None
        assert calls == len(read.slots) + 1
        return rows

    def slots_of(self, tablet_id: int) -> SlotSet:
        tablet = self.cluster.current().tablet(tablet_id)
        assert tablet is not None
        return tablet.slots

    def finish(self) -> None:
        for _ in range(self.scan.most_pages_left()):
            if not self.scan.done:
                self.scan.step()
        assert self.scan.done
        self.scan.check()

    @property
    def dropped(self) -> int:
        return self.scan.stats.dropped_rows


@pytest.fixture(params=[DIRECT, INDEX], ids=["direct", "index"])
def play(request: pytest.FixtureRequest) -> Play:
    return Play(request.param)


# ----------------------------------------------------------------------- moves and the base shard


def test_move_before_first_batch(play: Play) -> None:
    play.move(1, 3)
    play.finish()
    assert play.scan.stats.virtual_reads > 0


def test_move_between_batches(play: Play) -> None:
    """The tablet goes on at its new shard from the position that it had."""
    play.pages(2)
    play.move(1, 3)
    play.finish()
    assert len(play.scan.got) == len(ROWS)
    assert play.scan.stats.rows == len(ROWS), "rows were read again"


@pytest.mark.parametrize("before_slot", range(5))
def test_move_during_batch(play: Play, before_slot: int) -> None:
    """Whether its rows were read before the move or not: they are dropped, and its position stays."""
    rows = play.page(before_slot, lambda: play.move(1, 3))
    assert not [key for key, _ in rows if key % 8 in play.slots_of(1)]
    play.finish()


@pytest.mark.parametrize("before_slot", range(5))
def test_move_during_last_batch_of_shard(play: Play, before_slot: int) -> None:
    """That the shard has no more rows says nothing about slots that just left it."""
    play.scan = SimulatedScan.of(play.cluster, ROWS, page_rows=20)
    play.page(before_slot, lambda: play.move(2, 3))
    assert not play.scan.done
    play.finish()


def test_move_after_shard_done(play: Play) -> None:
    """Slots that are finished are never read again, wherever they go."""
    play.scan = SimulatedScan.of(play.cluster, ROWS, page_rows=20)
    play.pages(1)
    play.move(1, 3)
    play.move(2, 2)
    play.finish()
    assert play.scan.stats.pages == 2
    assert play.scan.stats.shards == {1, 2}


def test_move_to_base_shard_not_yet_scanned(play: Play) -> None:
    play.pages(1)
    play.move(1, 2)
    play.finish()


def test_move_to_base_shard_already_scanned(play: Play) -> None:
    play.scan = SimulatedScan.of(play.cluster, ROWS, page_rows=20)
    play.pages(1)
    play.move(3, 1)
    play.finish()
    assert play.scan.stats.virtual_reads == 1


@pytest.mark.parametrize("before_slot", [0, 2, AT_THE_END])
def test_move_to_base_shard_being_scanned_now(play: Play, before_slot: int) -> None:
    """What arrives in the middle of a page was not asked for by it."""
    rows = play.page(before_slot, lambda: play.move(3, 1))
    assert not [key for key, _ in rows if key % 8 in play.slots_of(3)]
    assert play.dropped == 0
    play.finish()


def test_move_of_other_partition_in_batch(play: Play) -> None:
    """A tablet that the page does not read leaves: nothing is dropped."""
    play.page(1, lambda: play.move(4, 3))
    assert play.dropped == 0
    play.finish()


def test_move_between_register_and_topology_read(play: Play) -> None:
    """After the placement was looked up and before the first slot is read."""
    assert not [key for key, _ in play.page(0, lambda: play.move(1, 3)) if key % 8 in play.slots_of(1)]
    assert play.dropped == 0, "nothing of the tablet was there to be read"
    play.finish()


def test_notify_after_unregister(play: Play) -> None:
    """All its rows were read before it moved: they are read once more, and leave once."""
    play.page(AT_THE_END, lambda: play.move(1, 3))
    assert play.dropped > 0
    play.finish()


def test_resume_key_belongs_to_moved_partition(play: Play) -> None:
    """The tablet of the last returned row moves; the scan goes on behind that row, elsewhere."""
    play.pages(2)
    last = play.scan.got[-1][0]
    play.move(play.cluster.current().tablet_of(last % 8).id, 4)
    play.scan = play.scan.resumed(play.scan.key, len(play.scan.got))
    play.finish()


def test_equal_secondary_keys_across_partitions() -> None:
    """The page ends among rows of one index key that belong to several tablets."""
    for page_rows in range(1, 12):
        play = Play(INDEX, page_rows)
        play.pages(1)
        play.move(1, 3)
        play.page(1, partial(play.move, 2, 3))
        play.finish()


def test_many_partitions_move_at_once(play: Play) -> None:
    """All that a shard has leaves it in the middle of a page: the page is empty, and not the end."""

    def contract() -> None:
        play.move(1, 3)
        play.move(2, 4)

    assert play.page(2, contract) == []
    assert not play.scan.done
    play.finish()


def test_saved_key_not_aliased(play: Play) -> None:
    """A key that was given out stays what it was, whatever the scan does afterwards."""
    play.pages(2)
    key, returned = play.scan.key, len(play.scan.got)
    cursors = play.scan.cursors
    play.page(2, lambda: play.move(1, 3))
    assert play.scan.resumed(key, returned).cursors == cursors
    with pytest.raises(dataclasses.FrozenInstanceError):
        cursors[0].position = b""  # type: ignore[misc]
    play.scan = play.scan.resumed(key, returned)
    play.finish()


def test_moved_slots_rows_never_leave(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard put rows of the tablet into the page; none is in what the scan gives out."""
    answers: list[PageRows] = []
    read_page = play.cluster.read_page

    def listening(request: PageRequest) -> PageRows:
        answers.append(read_page(request))
        return answers[-1]

    monkeypatch.setattr(play.cluster, "read_page", listening)
    rows = play.page(AT_THE_END, lambda: play.move(1, 3))
    answered = [slot for slot in answers[0].slots.to_pylist() if slot in play.slots_of(1)]
    assert answered
    assert not [key for key, _ in rows if key % 8 in play.slots_of(1)]
    play.finish()


# ----------------------------------------------------------------------------- twice, back, failed


def test_twice_before_virtual_scan(play: Play) -> None:
    play.pages(1)
    play.move(1, 3)
    play.move(1, 4)
    play.finish()
    assert 3 not in play.scan.stats.shards


def test_twice_during_virtual_scan(play: Play) -> None:
    play.move(1, 3)
    while 3 not in play.scan.stats.shards:
        play.pages(1)
    play.page(1, lambda: play.move(1, 4))
    play.finish()
    assert {3, 4} <= play.scan.stats.shards


def test_back_home_before_virtual_scan(play: Play) -> None:
    play.pages(1)
    play.move(1, 3)
    play.move(1, 1)
    play.finish()
    assert play.scan.stats.shards == {1, 2}


def test_back_home_while_home_still_scanned(play: Play) -> None:
    play.pages(1)
    play.move(1, 3)
    play.pages(1)
    play.page(1, lambda: play.move(1, 1))
    play.finish()


@pytest.mark.parametrize("times", [1, 2, 25])
def test_ping_pong_n_times(play: Play, times: int) -> None:
    """However often: when it ends, the scan ends within its bound."""
    for _ in range(times):
        if not play.scan.done:
            play.page(1, lambda: play.move(1, 3 if play.cluster.current().tablet_of(0).shard == 1 else 1))
    play.finish()


@pytest.mark.parametrize("before_slot", range(5))
def test_out_and_back_within_one_batch(play: Play, before_slot: int) -> None:
    """Its place is the same before and after the page; its epoch is not."""

    def out_and_back() -> None:
        play.move(1, 3)
        play.move(1, 1)

    rows = play.page(before_slot, out_and_back)
    assert not [key for key, _ in rows if key % 8 in play.slots_of(1)]
    play.finish()


def test_target_fails_after_it_served_virtual_batches(play: Play) -> None:
    """The tablet goes back to its source; the position reached at the target holds there too."""
    play.move(1, 3)
    while 3 not in play.scan.stats.shards:
        play.pages(1)
    play.move(1, 1)
    play.finish()
    assert play.dropped == 0


# --------------------------------------------------------------------------------- splits, joins


def test_split_during_batch(play: Play) -> None:
    """Nothing moved, yet the bounds changed: the page's rows of the tablet are read again."""
    play.page(2, lambda: play.cluster.split(1))
    play.finish()
    assert play.scan.stats.virtual_reads == 0


def test_join_during_batch(play: Play) -> None:
    play.page(2, lambda: play.cluster.join(1, 2))
    play.finish()
    assert play.scan.stats.virtual_reads == 0


def test_empty_partition() -> None:
    """Tablets without a row are finished like any other."""
    for order in (DIRECT, INDEX):
        play = Play(order)
        few = dict.fromkeys((0, 8, 5), 1)
        cluster = MemoryCluster(initial_placement(8, 8, [1, 2]), order)
        cluster.write(few)
        play.cluster, play.scan = cluster, SimulatedScan.of(cluster, few, 1)
        play.finish()


# ---------------------------------------------------------------------------------- pages and keys


@pytest.mark.parametrize("page_rows", [20, 10, 40])
def test_limit_reached_exactly_at_end(play: Play, page_rows: int) -> None:
    """The last row fills the page: no further page is needed to learn that there is none."""
    play.scan = SimulatedScan.of(play.cluster, ROWS, page_rows)
    play.finish()
    assert play.scan.stats.pages == max(2, 40 // page_rows)


def test_batch_size_one(play: Play) -> None:
    play.scan = SimulatedScan.of(play.cluster, ROWS, page_rows=1)
    for target in (3, 4, 1, 2):
        play.pages(1)
        play.page(1, partial(play.move, 1, target))
    play.finish()


def test_empty_last_page(play: Play) -> None:
    """A shard that has nothing for the scan gives an empty page, and the scan still ends."""
    cluster = MemoryCluster(initial_placement(8, 4, [1, 2]))
    few = {0: 1, 1: 2}
    cluster.write(few)
    play.cluster, play.scan = cluster, SimulatedScan.of(cluster, few, 5)
    assert play.pages(1) == [(0, 1), (1, 2)]
    assert play.pages(1) == []
    assert play.scan.cursors == ()
    play.finish()


def test_starvation(play: Play) -> None:
    """With a move in every page the scan gets nowhere, fails never, and ends once they stop."""
    for turn in range(40):
        target = 3 + turn % 2

        def all_leave(target: int = target) -> None:
            for tablet in play.cluster.current().tablets:
                play.move(tablet.id, target)

        assert play.page(1, all_leave) == []
    play.finish()
    assert play.scan.stats.rows == len(ROWS)


def test_delete_then_insert_same_key_while_its_tablet_moves(play: Play) -> None:
    """The row as it was at the snapshot: once, and not its later self at the new shard."""
    play.pages(1)
    play.cluster.write({16: None})
    play.move(1, 3)
    play.cluster.write({16: 99})
    play.finish()


def test_index_key_updated_ahead_of_and_behind_the_cursor() -> None:
    """A row that jumps forward in the index is not seen twice, one that jumps back is not missed."""
    play = Play(INDEX, 4)
    play.pages(4)
    play.cluster.write({key: 6 - value for key, value in ROWS.items()})
    play.move(1, 3)
    play.finish()
