"""Thousands of random schedules of the cursor rule, on a cluster in memory.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-100000, to run others.
"""

from __future__ import annotations

import random
from collections import Counter

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


@pytest.mark.long
@pytest.mark.parametrize("slots", [64, 4_096])
@pytest.mark.parametrize(
    ("order", "of_half_read_slots", "most_characters", "most_cursors"),
    [(DIRECT, False, 1_024, 64), (DIRECT, True, 1_024, 64), (INDEX, False, 4_096, 64)],
    ids=["direct, between pages", "direct, within pages", "index"],
)
def test_the_key_of_a_scan_of_64_tablets_stays_small_through_1000_moves(
    order: Order, of_half_read_slots: bool, most_characters: int, most_cursors: int, slots: int
) -> None:
    rng, moves, within = random.Random(slots), 0, 0
    cluster = cluster_of(rows=6_000, slots=slots, tablets=64, shards=4, order=order)
    scan = SimulatedScan.of(cluster, values_of(6_000), page_rows=5)

    def move() -> None:
        nonlocal moves, within
        if within == 4 or moves == 1_000:
            return
        tablet = rng.choice(cluster.current().tablets)
        begun = [c.slots for c in scan.cursors if c.position is not None]
        if of_half_read_slots and begun:
            tablet = cluster.current().tablet_of(rng.choice(begun).ranges[0][0])
        cluster.move(tablet.id, rng.choice([shard for shard in (1, 2, 3, 4) if shard != tablet.shard]))
        moves, within = moves + 1, within + 1

    if of_half_read_slots:
        cluster.during = move
    while not scan.done:
        scan.step()
        for _ in range(4):
            move()
        within = 0
        assert len(scan.key) <= most_characters
        assert len(scan.cursors) <= most_cursors
    scan.check()
    assert moves == 1_000
