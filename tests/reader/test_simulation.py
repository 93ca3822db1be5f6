"""Thousands of random schedules of the cursor rule, on a cluster in memory.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-100000, to run others.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from elasticscan.reader import ContinuationKey, Cursor
from elasticscan.reader.memory import DIRECT, INDEX, MemoryCluster, Order
from elasticscan.topology import Placement, initial_placement
from tests.reader.simulation import SEALER, SimulatedScan, run_simulations

CHUNKS, SEEDS_OF_A_CHUNK = 8, 250


def chosen_seeds() -> list[range]:
    text = os.environ.get("ELASTICSCAN_SEEDS")
    if text:
        first, _, last = text.partition("-")
        return [range(int(first), int(last or first) + 1)]
    return [range(n * SEEDS_OF_A_CHUNK, (n + 1) * SEEDS_OF_A_CHUNK) for n in range(CHUNKS)]


@pytest.mark.parametrize("seeds", chosen_seeds(), ids=str)
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


def test_a_move_of_other_slots_in_every_page_does_not_slow_a_scan_down() -> None:
    cluster = cluster_of(rows=40, slots=8, tablets=8, shards=2)
    quiet = SimulatedScan.of(cluster, values_of(40), 1)
    while not quiet.done:
        quiet.step()
    noisy = SimulatedScan.of(cluster, values_of(40), 1)
    last = cluster.current().tablets[-1]  # read at the very end

    def out_and_back() -> None:
        if not noisy.cursors or 7 in noisy.cursors[-1].slots and len(noisy.got) < 30:
            cluster.move(last.id, 3 - last.shard)
            cluster.move(last.id, last.shard)

    cluster.during = out_and_back
    while not noisy.done:
        noisy.step()
    noisy.check()
    assert noisy.stats.pages == quiet.stats.pages


def largest_key(order: Order, seed: int) -> tuple[int, int]:
    """(characters of the largest key, moves) of one scan of 64 tablets while they move 1,000 times."""
    rng = random.Random(seed)
    cluster = cluster_of(rows=6_000, slots=4_096, tablets=64, shards=4, order=order)
    scan = SimulatedScan.of(cluster, values_of(6_000), 20)
    largest = moves = 0
    while not scan.done and moves < 1_000:
        scan.step()
        for _ in range(4):
            tablet = rng.choice(cluster.current().tablets)
            cluster.move(tablet.id, rng.choice([s for s in (1, 2, 3, 4) if s != tablet.shard]))
            moves += 1
        largest = max(largest, len(scan.key))
    while not scan.done:
        scan.step()
        largest = max(largest, len(scan.key))
    scan.check()
    return largest, moves


@pytest.mark.parametrize("seed", range(3))
def test_the_key_of_a_direct_scan_stays_below_a_kilobyte_through_1000_moves(seed: int) -> None:
    largest, moves = largest_key(DIRECT, seed)
    assert moves >= 1_000
    assert largest <= 1_024


def test_the_key_of_an_index_scan_holds_at_most_one_position_for_each_tablet() -> None:
    largest, moves = largest_key(INDEX, 1)
    assert moves >= 1_000
    assert largest <= 64 * 40


def test_a_simulated_key_opens_to_the_cursors_that_were_sealed() -> None:
    cluster = cluster_of(rows=9, slots=4, tablets=2, shards=2)
    scan = SimulatedScan.of(cluster, values_of(9), 1)
    scan.step()
    opened: ContinuationKey = SEALER.open(scan.key)
    assert opened.cursors == scan.cursors
    assert any(isinstance(c, Cursor) and c.position is not None for c in opened.cursors)


def test_the_twin_keeps_what_it_was_given() -> None:
    cluster = cluster_of(rows=9, slots=4, tablets=2, shards=2)
    placement: Placement = cluster.current()
    assert [t.shard for t in placement.tablets] == [1, 2]
