"""How long the topology history stays: for as long as snapshots do; keys go on without it."""

from __future__ import annotations

from pathlib import Path

from elasticscan.store import Store
from tests.base.manual_clock import ManualClock

HOUR = 3_600.0


def test_topologies_are_kept_as_long_as_retention_and_keys_go_on_without_them(tmp_path: Path) -> None:
    clock = ManualClock(1_000.0)
    with Store.create(tmp_path / "s", ["a"], tablets=4, retention_seconds=24 * HOUR, clock=clock) as store:
        store.create_table("t", {"id": range(100)}, "id")
        store.split(1)
        page = next(store.table("t").scan(page_rows=10))
        oldest = list[int]()
        for hours in (12, 13, 24):  # the topology of the split was replaced after the first 12
            clock.advance(hours * HOUR)
            if hours == 12:
                store.split(2)
            store.collect_garbage()
            oldest.append(store.topology_history()[0].number)
        assert oldest == [1, 2, 3]
        with Store.open(store.uri, clock=clock) as fresh:
            rest = fresh.resume(page.key or "")  # no one has changed what it reads
            assert (rest.standing.base_topology, rest.base.number) == (2, 3), "the nearest that is kept"
            assert page.rows.num_rows + rest.count() == 100
