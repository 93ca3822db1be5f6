"""Named schedules of moves against a scan, on a cluster in memory: which shards it asks, and what it counts.

That each row comes once, whatever moves, is for `test_simulation.py`; schedules that need a real store, or
say more on one, are in `tests/store/test_scenarios.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

import pytest

from elasticscan.topology import initial_placement
from tests.reader.memory import DIRECT, INDEX, MemoryCluster, Order
from tests.reader.simulation import SimulatedScan

ROWS = {key: key * 5 % 7 for key in range(40)}  # seven values only: ties in the index

# A moment within the first page is the number of its slots that were read until then.
BEFORE, AFTER_ITS_LAST, BETWEEN = "before the first page", 4, "before the second page"
Moment = str | int
Change = Callable[[MemoryCluster], None]


def moves(*steps: tuple[int, int]) -> Change:
    def happen(cluster: MemoryCluster) -> None:
        for tablet, shard in steps:
            cluster.move(tablet, shard)

    return happen


@pytest.mark.parametrize("order", [DIRECT, INDEX], ids=["direct", "index"])
@pytest.mark.parametrize(
    ("moment", "change", "pages", "virtual", "moved", "dropped", "shards"),
    [
        (BEFORE, moves(), 2, 0, 0, 0, {1, 2}),
        (BEFORE, moves((1, 3)), 3, 1, 0, 0, {1, 2, 3}),
        (BEFORE, moves((1, 3), (1, 4)), 3, 1, 0, 0, {1, 2, 4}),  # where it was in between is not asked
        (BEFORE, moves((1, 3), (1, 1)), 2, 0, 0, 0, {1, 2}),
        (0, moves((1, 3)), 3, 1, 2, 0, {1, 2, 3}),  # it left before any of its rows were read
        (1, moves((1, 3)), 3, 1, 2, 5, {1, 2, 3}),
        (AFTER_ITS_LAST, moves((1, 3)), 3, 1, 2, 10, {1, 2, 3}),
        (AFTER_ITS_LAST, moves((1, 3), (1, 1)), 3, 0, 2, 10, {1, 2}),  # its place is the same, not its epoch
        (2, moves((1, 3), (2, 4)), 4, 2, 4, 10, {1, 2, 3, 4}),  # an empty page is not the end
        (2, moves((4, 3)), 3, 1, 0, 0, {1, 2, 3}),  # one that the page does not read
        (2, moves((3, 1)), 3, 1, 0, 0, {1, 2}),  # what arrives was not asked for
        (2, lambda cluster: cluster.split(1), 3, 0, 2, 10, {1, 2}),  # nothing moved, yet bounds changed
        (2, lambda cluster: cluster.join(1, 2), 3, 0, 4, 20, {1, 2}),
        (BETWEEN, moves((1, 3), (2, 2)), 2, 0, 0, 0, {1, 2}),  # what is finished is not read again
        (BETWEEN, moves((3, 1)), 3, 1, 0, 0, {1, 2}),
    ],
)
def test_a_scan_asks_only_where_something_is_left_and_counts_what_moved(
    order: Order,
    moment: Moment,
    change: Change,
    pages: int,
    virtual: int,
    moved: int,
    dropped: int,
    shards: set[int],
) -> None:
    """Eight slots of five rows; tablets 1 and 2 are at shard 1, tablets 3 and 4 at shard 2."""
    cluster, read = MemoryCluster(initial_placement(8, 4, [1, 2]), order), 0
    cluster.write(ROWS)
    scan = SimulatedScan.of(cluster, ROWS, page_rows=20)

    def during() -> None:
        nonlocal read
        if read == moment:
            change(cluster)
        read += 1

    cluster.during = during
    if moment == BEFORE:
        change(cluster)
    scan.step()
    if moment == BETWEEN:
        change(cluster)
    for _ in range(pages):
        scan.step()
    assert scan.done
    scan.check()
    assert astuple(scan.stats)[:5] == (pages, len(ROWS), virtual, moved, dropped)
    assert scan.stats.shards == shards
