"""The order of page reads and placement checks: the next page is read while a check is awaited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from elasticscan.protocol import PageRequest, PageRows, PlacementLook
from elasticscan.topology import initial_placement
from tests.reader.memory import MemoryCluster
from tests.reader.simulation import SimulatedScan

ROWS = {key: key for key in range(40)}  # four pages at each of two shards


class ToldCluster(MemoryCluster):
    """One whose catalog is far away, and which notes what it is asked; some pages on it may fail."""

    def __init__(self) -> None:
        super().__init__(initial_placement(4, 2, [1, 2]))
        self.awaits = self.remembers = lambda: True
        self.calls: list[str] = []
        self.pages_left, self.error = 1_000, BaseException()
        self.write(ROWS)

    def read_page(self, request: PageRequest) -> PageRows:
        self.calls.append("page")
        if self.pages_left == 0:
            raise self.error
        self.pages_left -= 1
        return super().read_page(request)

    @contextmanager
    def look(self) -> Iterator[PlacementLook]:
        self.calls.append("look")
        with super().look() as look:
            yield look
        self.calls.append("looked")


@pytest.fixture
def cluster() -> ToldCluster:
    return ToldCluster()


@pytest.fixture
def scan(cluster: ToldCluster) -> SimulatedScan:
    return SimulatedScan.of(cluster, ROWS, page_rows=5)


def calls_of(cluster: ToldCluster) -> str:
    said = " ".join(cluster.calls)
    cluster.calls.clear()
    return said


def test_a_page_is_read_while_the_look_at_the_one_before_is_awaited_and_only_then(
    cluster: ToldCluster, scan: SimulatedScan
) -> None:
    pages = list[str]()
    while not scan.done:
        scan.step()
        pages.append(calls_of(cluster))
    assert pages == [
        *("page look looked", "page look page looked", "look page looked"),  # many scans have no second page
        "look looked",  # the next one is at a shard that may be away
        *("page look page looked", "look page looked", "look page looked"),
        "look looked",  # there is nothing beyond the last page
        "",
    ]
    scan.check()
    cluster.awaits = lambda: False
    scan = SimulatedScan.of(cluster, ROWS, page_rows=5)
    for _ in range(4):
        scan.step()
        assert calls_of(cluster) == "page look looked"


@pytest.mark.parametrize(("error", "steps"), [(OSError("gone"), 2), (KeyboardInterrupt(), 1)], ids=str)
def test_an_error_of_a_page_that_is_read_ahead_waits_until_it_is_asked_for_and_an_interruption_does_not(
    cluster: ToldCluster, scan: SimulatedScan, error: BaseException, steps: int
) -> None:
    cluster.pages_left, cluster.error = 2, error
    for _ in range(steps):
        scan.step()
    assert len(scan.got) == 5 * steps
    with pytest.raises(type(error)):
        scan.step()


def test_whoever_pauses_has_the_next_page_read_anew(cluster: ToldCluster, scan: SimulatedScan) -> None:
    for _ in range(2):
        scan.step()
    calls_of(cluster)
    cluster.remembers = lambda: False
    cluster.move(1, 2)
    cluster.move(1, 1)  # so that another placement is there, and another value for it
    scan.step()
    assert calls_of(cluster) == "page look page looked"
    while not scan.done:
        scan.step()
    scan.check()
