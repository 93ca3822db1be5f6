"""When a scan's snapshot needs a lease, and when the retention period is promise enough."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from elasticscan.catalog import base_topology
from elasticscan.store import Store
from elasticscan.topology import Topology
from tests.base.manual_clock import ManualClock

HOUR = 3_600.0


def made(place: Path, clock: ManualClock, retention_seconds: float) -> Store:
    store = Store.create(place, ["a", "b"], tablets=4, retention_seconds=retention_seconds, clock=clock)
    store.create_table("t", {"id": range(100)}, "id")
    return store


def topology_at(store: Store, number: int) -> Topology:
    return base_topology(store.context.catalog.newest(), number)


def change_topology(store: Store, times: int) -> None:
    for _ in range(times // 2):
        left, right = store.split(store.topology.placement.tablets[0].id).placement.tablets[:2]
        store.join(left.id, right.id)


def test_topologies_are_kept_as_long_as_retention_and_keys_go_on_without_them(tmp_path: Path) -> None:
    clock = ManualClock(1_000.0)
    store = made(tmp_path / "s", clock, 24 * HOUR)
    change_topology(store, 140)
    first = store.topology.number
    with closing(store.table("t").scan(page_rows=10)) as scan:
        key = str(next(scan).key)
    clock.advance(12 * HOUR)
    change_topology(store, 140)
    store.collect_garbage()
    assert len(store.topology_history()) == first + 140
    clock.advance(13 * HOUR)
    store.collect_garbage()
    history = store.topology_history()
    assert (history[0].number, history[-1]) == (first, store.topology.entry), "it was replaced later"
    clock.advance(24 * HOUR)
    store.collect_garbage()
    (last,) = store.topology_history()
    with Store.open(store.uri, clock=clock) as fresh:
        assert topology_at(fresh, first).number == last.number, "the nearest that is kept"
        rest = fresh.resume(key)  # no one has changed what it reads
        assert rest.standing.base_topology == first
        assert 10 + rest.count() == 100
    assert (store.table("t").scan().count(), store.verify()) == (100, [])
