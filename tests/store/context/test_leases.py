"""When a scan's snapshot needs a lease, and when the retention period is promise enough."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from elasticscan.base.limits import LEASE_SECONDS
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


def test_topologies_that_a_key_may_name_stay_and_others_are_forgotten(tmp_path: Path) -> None:
    clock = ManualClock(1_000.0)
    store = made(tmp_path / "s", clock, 24 * HOUR)
    change_topology(store, 140)
    first = store.topology.number
    other = store.create_table("other", {"id": range(100)}, primary_key="id")
    with closing(other.scan(page_rows=10)) as scan:
        kept = str(next(scan).key)
    key = next(store.table("t").scan(page_rows=10)).key
    assert key is not None
    clock.advance(48 * HOUR)
    change_topology(store, 140)
    store.collect_garbage()
    assert len(store.topology_history()) == first + 140, "the newest snapshot may be as old as all of them"

    clock.advance(HOUR)
    store.table("t").upsert({"id": [1]})
    clock.advance(23 * HOUR)
    store.collect_garbage()
    assert len(store.topology_history()) == first + 140
    pages = store.resume(key)
    read = next(pages).rows.num_rows
    assert len(store.status()["leases"]) == 1
    clock.advance(0.9 * LEASE_SECONDS)
    store.collect_garbage()
    assert topology_at(store, first).number == first, "a lease holds it"
    clock.advance(LEASE_SECONDS / 10)
    assert 10 + read + sum(page.rows.num_rows for page in pages) == 100

    clock.advance(2 * HOUR)
    store.collect_garbage()
    history = store.topology_history()
    assert first < history[0].number <= first + 140
    assert history[-1] == store.topology.entry
    with Store.open(store.uri, clock=clock) as fresh:
        assert topology_at(fresh, first).number == history[0].number, "the nearest that is kept"
        rest = fresh.resume(kept)  # no one has changed what it reads
        assert rest.standing.base_topology == first
        assert 10 + rest.count() == 100
    assert (store.table("t").scan().count(), store.verify()) == (100, [])
