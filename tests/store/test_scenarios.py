"""Named scenarios that need the real store: its catalog, its files, its movers and its leases.

Those that a cluster in memory can play are in `tests/reader/test_scenarios.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    CatalogUnavailable,
    SnapshotExpired,
)
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.catalog import Tx
from elasticscan.store import Scan, Store
from elasticscan.store.context import leases
from elasticscan.store.moves.mover import Mover
from elasticscan.store.moves.owners import new_owner
from elasticscan.store.moves.under_way import enter_moves
from elasticscan.store.upkeep import compaction
from elasticscan.topology import Move
from tests.base.manual_clock import ManualClock
from tests.simulation.elasticity import POINTS, MoverStoppedError
from tests.simulation.world import DEAD_OWNER

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
COUNT = 200
START = 4_000_000_000.0  # later than any file is made, so that no file is too young to be garbage


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Sixteen slots, eight tablets, two shards, 200 rows of a table, no retention without a lease."""
    made = Store.create(
        tmp_path / "store", ["s1", "s2"], tablets=8, slots=16, retention_seconds=0, clock=ManualClock(START)
    )
    with made:
        made.create_table("t", SCHEMA, ["id"])
        made.table("t").upsert(rows_of(range(COUNT)))
        yield made


def rows_of(ids: Any, value: int = 0) -> pa.Table:
    ids = list(ids)
    return pa.table({"id": ids, "v": [value] * len(ids)}, schema=SCHEMA)


def keys_of(ids: Any) -> pa.Table:
    return pa.table({"id": pa.array(list(ids), pa.int64())})


def read(scan: Scan) -> list[tuple[int, int]]:
    """All rows that are left, in the order of their ids, so that a row too many is seen."""
    table = scan.to_table()
    return sorted(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


def with_value(ids: Any, value: int = 0) -> list[tuple[int, int]]:
    return [(i, value) for i in ids]


EVERYTHING = with_value(range(COUNT))


def some_pages(scan: Scan, count: int) -> tuple[list[tuple[int, int]], str]:
    """Rows of some pages, and the key after them."""
    pages = iter(scan)
    got: list[tuple[int, int]] = []
    key: str | None = None
    for _ in range(count):
        page = next(pages)
        got += list(zip(page.rows["id"].to_pylist(), page.rows["v"].to_pylist(), strict=True))
        key = page.key
    assert key is not None
    return got, key


def clock_of(store: Store) -> ManualClock:
    clock = store.context.clock
    assert isinstance(clock, ManualClock)
    return clock


def tablets_at(store: Store, shard: str) -> list[int]:
    ids = {name: number for number, name in store.context.shard_names().items()}
    return [t.id for t in store.context.placement().tablets if t.shard == ids[shard]]


def suspended_move(
    store: Store, tablet: int, target: str, at: Callable[[str], None], owner: str | None = None
) -> None:
    """Move a tablet with something happening at each point; errors of the mover come out."""
    found = store.context.placement().tablet(tablet)
    assert found is not None
    ids = {name: number for number, name in store.context.shard_names().items()}
    plan = Move(tablet, found.shard, ids[target])
    owner = owner or new_owner()
    with store.context.catalog.writing() as tx:
        enter_moves(tx, [plan], owner)
    Mover(store.context, owner, checkpoint=at).carry_out(plan)


def while_reading(store: Store, happens: Callable[[], object], after: bool = True) -> None:
    """Let something happen after (or before) the next page's rows are read, before the second look."""
    quiet = store.context.checkpoint

    def interrupt(point: str) -> None:
        if point == ("page read" if after else "page asked for"):
            store.context.checkpoint = quiet
            happens()

    store.context.checkpoint = interrupt


# ------------------------------------------------------------------------------- moves and failures


def test_limit_reached_on_aborted_batch(store: Store) -> None:
    """All rows of a page are dropped: it is empty, but has a key and is not the end."""

    def all_leave() -> None:
        for tablet in tablets_at(store, "s1"):
            store.move(tablet, "s2")

    while_reading(store, all_leave)
    page = next(iter(store.table("t").scan(page_rows=7)))
    assert page.rows.num_rows == 0
    assert page.key is not None
    assert read(store.resume(page.key)) == EVERYTHING


@pytest.mark.parametrize("fate", ["fails", "dies"])
@pytest.mark.parametrize("point", POINTS)
def test_migration_aborted_at_each_stage(
    store: Store, monkeypatch: pytest.MonkeyPatch, point: str, fate: str
) -> None:
    """The tablet is served from one place, whoever stops the mover and wherever; resuming finishes."""
    got, key = some_pages(store.table("t").scan(page_rows=7), 2)

    def stop(at: str) -> None:
        if at == point:
            raise MoverStoppedError

    if fate == "dies":
        monkeypatch.setattr(Mover, "_undo", lambda self, move: None)
    with pytest.raises(MoverStoppedError):
        suspended_move(store, 1, "s2", stop, owner=DEAD_OWNER if fate == "dies" else None)
    monkeypatch.undo()
    arrived = point == "target_serves"
    assert (1 in tablets_at(store, "s2")) == arrived
    assert sorted(got + read(store.resume(key))) == EVERYTHING
    store.table("t").upsert(rows_of(range(COUNT), 1))
    left_behind = 1 if fate == "dies" and not arrived else 0
    assert store.resume_moves() == left_behind
    assert (1 in tablets_at(store, "s2")) == (arrived or left_behind == 1)
    store.collect_garbage(grace_seconds=0)
    assert read(store.table("t").scan()) == with_value(range(COUNT), 1)
    assert store.verify() == []


def test_crash_between_the_switch_and_the_history(store: Store) -> None:
    """The placement is ahead of the newest topology for ever: scans start from that one all the same."""
    got, key = some_pages(store.table("t").scan(page_rows=7), 2)
    number = store.topology.number

    def die(at: str) -> None:
        if at == "target_serves":
            raise MoverStoppedError

    with pytest.raises(MoverStoppedError):
        suspended_move(store, 1, "s2", die)
    assert store.topology.number == number
    scan = store.table("t").scan()
    assert scan.explain()["base_topology"] == number
    assert read(scan) == EVERYTHING
    assert scan.stats.virtual_reads > 0
    assert sorted(got + read(store.resume(key))) == EVERYTHING


# ------------------------------------------------------------------------------------ shards


def test_empty_shard(store: Store) -> None:
    """A shard without tablets is never asked."""
    for tablet in tablets_at(store, "s1"):
        store.move(tablet, "s2")
    scan = store.table("t").scan()
    assert read(scan) == EVERYTHING
    assert len(scan.stats.shards) == 1


def test_empty_partition_and_empty_table(store: Store) -> None:
    store.create_table("empty", SCHEMA, ["id"])
    assert read(store.table("empty").scan()) == []
    store.table("empty").upsert(rows_of([1]))
    assert read(store.table("empty").scan()) == [(1, 0)]
    store.table("empty").delete(keys_of([1]))
    assert read(store.table("empty").scan()) == []
    store.table("empty").compact()
    assert read(store.table("empty").scan()) == []


# --------------------------------------------------------------------------------- pages and keys


@pytest.mark.long
def test_key_size_after_many_moves(store: Store) -> None:
    largest = 0
    for number, page in enumerate(store.table("t").scan(page_rows=2)):
        names = store.context.shard_names()
        tablet = store.context.placement().tablets[number % 8]
        store.move(tablet.id, next(name for shard, name in names.items() if shard != tablet.shard))
        largest = max(largest, len(page.key or ""))
    assert 0 < largest <= 1_024


# ----------------------------------------------------------------------------- history and leases


def test_lease_lost_by_client_crash(store: Store) -> None:
    """Nobody comes back for the lease: its time ends it, and the old versions go."""
    _, key = some_pages(store.table("t").scan(page_rows=7), 1)
    store.table("t").upsert(rows_of(range(COUNT), 1))
    store.compact()
    with store.context.catalog.reading() as tx:
        assert sum(f.rows for f in tx.state.fragments()) == 2 * COUNT
    clock_of(store).advance(LEASE_SECONDS + 1)
    store.compact()
    with store.context.catalog.reading() as tx:
        assert sum(f.rows for f in tx.state.fragments()) == COUNT
    with pytest.raises(SnapshotExpired):
        store.resume(key)


def test_the_oldest_snapshot_never_goes_back(store: Store) -> None:
    """A compaction that began with an old idea of the table ends after a newer one."""
    stale = store.table("t").definition
    store.table("t").upsert(rows_of(range(COUNT), 1))
    store.table("t").upsert(rows_of(range(COUNT), 2))
    store.compact()
    oldest = store.table("t").definition.oldest_snapshot
    assert oldest == store.context.catalog.versions()[1]
    old_lease = store.context.catalog.versions()[1]
    store.table("t").upsert(rows_of(range(0, COUNT, 2), 3))
    held = store.table("t").scan(snapshot=old_lease)
    store.table("t").upsert(rows_of(range(0, COUNT, 2), 4))
    compaction.compact(store.context, stale)
    assert store.table("t").definition.oldest_snapshot == oldest
    assert read(held) == with_value(range(COUNT), 2)


# ---------------------------------------------------------- moves, compaction, garbage collection


def test_a_page_whose_lease_cannot_be_renewed_is_read_again_not_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog fails between reading a page and giving it out: the scan stands before that page."""
    scan = store.table("t").scan(page_rows=7)
    pages = iter(scan)
    got = next(pages).rows["id"].to_pylist()
    clock_of(store).advance(LEASE_SECONDS / 2)

    def unavailable(tx: Tx, lease: str, seconds: float) -> bool:
        raise CatalogUnavailable("the catalog is away for a moment")

    with monkeypatch.context() as patch:
        patch.setattr(leases, "renew_lease", unavailable)
        with pytest.raises(CatalogUnavailable):
            next(pages)
    assert scan.key is not None
    got += [i for i, _ in read(store.resume(scan.key))]
    assert sorted(got) == list(range(COUNT))
