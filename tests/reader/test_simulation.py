"""Thousands of random schedules of the cursor rule, on a cluster in memory.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-100000, to run others.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from elasticscan.topology import initial_placement
from tests.reader.memory import DIRECT, INDEX, MemoryCluster, Order
from tests.reader.simulation import SimulatedScan, run_simulations
from tests.seeds import ranges_of_seeds


@pytest.mark.parametrize("seeds", ranges_of_seeds(20, 100, short=5), ids=str)
def test_scans_return_their_snapshot_exactly_once_whatever_moves(seeds: range) -> None:
    run_simulations(seeds)


def cluster_of(rows: int, slots: int, tablets: int, shards: int, order: Order = DIRECT) -> MemoryCluster:
    cluster = MemoryCluster(initial_placement(slots, tablets, range(1, shards + 1)), order)
    cluster.write({key: key * 7 % 11 for key in range(rows)})
    return cluster


def values_of(rows: int) -> dict[int, int]:
    return {key: key * 7 % 11 for key in range(rows)}


@pytest.mark.parametrize("order", [DIRECT, INDEX], ids=["direct", "index"])
@pytest.mark.parametrize("page_rows", [1, 2, 5, 1_000])
def test_a_scan_without_moves_takes_no_more_pages_than_the_rows_of_each_shard_fill(
    page_rows: int, order: Order
) -> None:
    cluster = cluster_of(rows=57, slots=12, tablets=6, shards=3, order=order)
    scan = SimulatedScan.of(cluster, values_of(57), page_rows)
    while not scan.done:
        scan.step()
    scan.check()
    held = Counter(cluster.current().tablet_of(key % 12).shard for key in range(57))
    assert scan.stats.pages == sum(-(-rows // page_rows) for rows in held.values())
    assert (scan.stats.dropped_rows, scan.stats.virtual_reads) == (0, 0)


@pytest.mark.parametrize("order", [DIRECT, INDEX], ids=["direct", "index"])
@pytest.mark.parametrize("page_rows", [1, 3, 1_000])
def test_a_scan_ends_within_its_bound_once_the_moves_in_every_page_stop(page_rows: int, order: Order) -> None:
    cluster = cluster_of(rows=40, slots=8, tablets=8, shards=2, order=order)
    rng = random.Random(page_rows)

    def move_something() -> None:
        tablet = rng.choice(cluster.current().tablets)
        cluster.move(tablet.id, 3 - tablet.shard)

    scan = SimulatedScan.of(cluster, values_of(40), page_rows)
    cluster.during = move_something
    for _ in range(50):
        if not scan.done:
            scan.step()
    cluster.during = lambda: None
    pages = scan.stats.pages
    bound = scan.most_pages_left()
    while not scan.done:
        scan.step()
    scan.check()
    assert scan.stats.pages - pages < bound
    assert scan.stats.moved_slots > 0


def test_moves_of_slots_that_a_page_does_not_touch_cost_no_page() -> None:
    cluster = cluster_of(rows=40, slots=8, tablets=8, shards=2)
    scan = SimulatedScan.of(cluster, values_of(40), page_rows=1)
    last = cluster.current().tablets[-1]  # the last to be read

    def out_and_back() -> None:
        cluster.move(last.id, 1)
        cluster.move(last.id, 2)

    cluster.during = out_and_back
    while len(scan.got) < 20:
        scan.step()
    assert scan.stats.pages == 20
    cluster.during = lambda: None
    while not scan.done:
        scan.step()
    scan.check()
    assert scan.stats.pages == 40


@dataclass(frozen=True, slots=True)
class Largest:
    """What a scan of 64 tablets carried at most while they moved 1,000 times."""

    characters: int
    cursors: int
    moves: int


def largest_key(order: Order, slots: int, moves_of_half_read_slots: bool) -> Largest:
    rng = random.Random(slots)
    cluster = cluster_of(rows=6_000, slots=slots, tablets=64, shards=4, order=order)
    scan = SimulatedScan.of(cluster, values_of(6_000), page_rows=5)
    moves = moves_of_this_page = 0

    def move() -> None:
        nonlocal moves, moves_of_this_page
        if moves_of_this_page == 4 or moves == 1_000:
            return
        tablet = rng.choice(cluster.current().tablets)
        begun = [c.slots for c in scan.cursors if c.position is not None]
        if moves_of_half_read_slots and begun:
            tablet = cluster.current().tablet_of(rng.choice(begun).ranges[0][0])
        cluster.move(tablet.id, rng.choice([shard for shard in (1, 2, 3, 4) if shard != tablet.shard]))
        moves, moves_of_this_page = moves + 1, moves_of_this_page + 1

    if moves_of_half_read_slots:
        cluster.during = move
    characters = cursors = 0
    while not scan.done:
        scan.step()
        for _ in range(4):
            move()
        moves_of_this_page = 0
        characters, cursors = max(characters, len(scan.key)), max(cursors, len(scan.cursors))
    scan.check()
    return Largest(characters, cursors, moves)


@pytest.mark.long
@pytest.mark.parametrize("slots", [64, 4_096])
@pytest.mark.parametrize("moves_of_half_read_slots", [False, True], ids=["between pages", "within pages"])
def test_the_key_of_a_direct_scan_stays_below_a_kilobyte_through_1000_moves(
    slots: int, moves_of_half_read_slots: bool
) -> None:
    largest = largest_key(DIRECT, slots, moves_of_half_read_slots)
    assert largest.moves == 1_000
    assert largest.characters <= 1_024


@pytest.mark.long
@pytest.mark.parametrize("slots", [64, 4_096])
def test_the_key_of_an_index_scan_holds_no_more_positions_than_there_are_tablets(slots: int) -> None:
    largest = largest_key(INDEX, slots, moves_of_half_read_slots=False)
    assert largest.moves == 1_000
    assert largest.cursors <= 64
    assert largest.characters <= 4_096
