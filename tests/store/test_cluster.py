"""Scans of a store whose shards are asked over a wire: every request and answer goes through bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from elasticscan.base.limits import LOOK_SECONDS
from elasticscan.catalog import Catalog
from elasticscan.catalog.log import Log
from elasticscan.filters import KeySet
from elasticscan.filters.key_sets import Interval
from elasticscan.protocol import (
    ChangeSpan,
    Cluster,
    Cursor,
    IndexOrder,
    PageRequest,
    PageRows,
    RowAnswer,
    RowRequest,
    Shards,
)
from elasticscan.store import Store
from elasticscan.topology import SlotSet
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.string())])
COUNT = 2_000


def plain(value: Any) -> Any:
    """A value as nothing but numbers, texts, bytes, lists and maps."""
    if isinstance(value, SlotSet):
        return str(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple) else value


def request_from(content: dict[str, Any]) -> PageRequest:
    order, changes = content["order"], content["changes"]
    if order is not None:
        ranges = tuple((low, high) for low, high in order.pop("ranges"))
        order = IndexOrder(ranges=ranges, **order)
    key_sets = {
        name: KeySet(tuple(Interval(*each) for each in keys["intervals"]))
        for name, keys in content["key_sets"].items()
    }
    return PageRequest(
        **content
        | {
            "cursors": tuple(Cursor(SlotSet.parse(c["slots"]), c["position"]) for c in content["cursors"]),
            "columns": tuple(content["columns"]),
            "order": order,
            "changes": None if changes is None else ChangeSpan(**changes),
            "key_sets": key_sets,
        }
    )


class Wire:
    """Shards of another process, as far as bytes go."""

    def __init__(self, server: Shards) -> None:
        self._server = server
        self.requests: list[PageRequest] = []

    def read_page(self, request: PageRequest) -> PageRows:
        received = request_from(msgpack.unpackb(msgpack.packb(plain(request))))
        assert received == request
        self.requests.append(received)
        page = self._server.read_page(received)
        rows = pa.ipc.read_record_batch(page.rows.serialize(), page.rows.schema)
        return PageRows(rows, page.slots, page.after, page.scanned, page.skipped)

    def read_rows(self, request: RowRequest) -> RowAnswer:
        keys = pa.ipc.read_record_batch(request.keys.serialize(), request.keys.schema)
        slots = np.frombuffer(request.slots.tobytes(), dtype=np.uint16)
        numbers = (request.table, request.shard, request.snapshot)
        answer = self._server.read_rows(RowRequest(*numbers, request.columns, slots, keys, request.layout))
        rows = pa.ipc.read_record_batch(answer.rows.serialize(), answer.rows.schema)
        return RowAnswer(answer.places.copy(), rows)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=4, slots=16) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for begin in range(0, COUNT, COUNT // 4):
            ids = range(begin, begin + COUNT // 4)
            table.upsert(pa.table({"id": ids, "k": [n % 7 for n in ids], "v": [f"{n}" for n in ids]}, SCHEMA))
        table.create_index("by_k", ["k"])
    return tmp_path / "store"


@pytest.fixture
def wire(place: Path) -> Iterator[tuple[Store, Wire]]:
    with Store.open(place) as server, Store.open(place) as client:
        wire = Wire(server.context.cluster.shards)
        client.context.cluster = Cluster(client.context.cluster.placements, wire)
        yield client, wire


def test_a_direct_scan_prunes_by_what_the_request_says(wire: tuple[Store, Wire]) -> None:
    store, shards = wire
    assert store.table("t").scan(filter="id < 10", index="none").to_table().num_rows == 10
    scan = store.table("t").scan(filter=f"id >= {COUNT}", index="none")
    assert scan.to_table().num_rows == 0
    assert (scan.stats.scanned, scan.stats.skipped_rows) == (0, COUNT)
    assert all(set(request.key_sets) == {"id"} for request in shards.requests)


def test_an_index_scan_and_one_in_its_order_are_the_same_over_a_wire(wire: tuple[Store, Wire]) -> None:
    store, shards = wire
    expected = sorted((n % 7, n) for n in range(COUNT) if n % 7 in (2, 5))
    scan = store.table("t").scan(filter="k IN (2, 5)", index="by_k", page_rows=100)
    found = scan.to_table()
    assert sorted(zip(found["k"].to_pylist(), found["id"].to_pylist(), strict=True)) == expected
    assert all(request.order is not None for request in shards.requests)


def test_rows_by_key_are_the_same_over_a_wire_while_tablets_move(wire: tuple[Store, Wire]) -> None:
    store, _ = wire
    asked = [*range(COUNT + 5, 0, -3)]
    for tablet in store.topology.placement.tablets:
        assert store.table("t").get(asked)["v"].to_pylist() == [f"{n}" for n in asked if n < COUNT]
        store.move(tablet.id, "s1" if tablet.shard == 2 else "s2")


def test_changes_are_the_same_over_a_wire(wire: tuple[Store, Wire]) -> None:
    store, shards = wire
    commit = store.table("t").upsert(pa.table({"id": [1], "k": [1], "v": ["new"]}, SCHEMA))
    found = store.table("t").changes(commit - 1, commit).to_table()
    assert found["_change_type"].to_pylist() == ["update_preimage", "update_postimage"]
    assert {request.changes.upto for request in shards.requests if request.changes} == {commit}


def test_a_scan_that_meets_a_move_asks_the_other_shard(wire: tuple[Store, Wire]) -> None:
    store, shards = wire
    scan = store.table("t").scan(page_rows=50)
    ids = next(scan).rows["id"].to_pylist()
    for tablet in store.topology.placement.tablets:
        if tablet.shard == shards.requests[0].shard:
            store.move(tablet.id, "s2")
    assert sorted(ids + scan.to_table()["id"].to_pylist()) == list(range(COUNT))
    assert len({request.shard for request in shards.requests}) == 2


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each question whether anything changed."""
    asked, follow = list[int](), Log.follow
    monkeypatch.setattr(Log, "follow", lambda self: asked.append(1) or follow(self))
    return asked


def move_all(store: Store, target: str) -> None:
    number = {name: shard for shard, name in store.context.shard_names().items()}[target]
    for tablet in store.topology.placement.tablets:
        if tablet.shard != number:
            store.move(tablet.id, target)


def test_a_page_is_read_by_the_look_after_the_one_before(place: Path, looks: list[int]) -> None:
    with Store.open(place, clock=ManualClock(time.time())) as store:
        scan = store.table("t").scan(page_rows=50)
        looks.clear()
        pages = list(scan)
        assert sum(page.rows.num_rows for page in pages) == COUNT
        assert len(looks) <= len(pages) + 1, "the first one is read by the plan's look"


def test_a_page_of_slots_that_moved_since_the_look_is_read_again(place: Path) -> None:
    with Store.open(place, clock=ManualClock(time.time())) as store, Store.open(place) as other:
        scan = store.table("t").scan(page_rows=50)
        ids = next(scan).rows["id"].to_pylist()
        for target in ("s2", "s1"):
            move_all(other, target)
            ids += next(scan).rows["id"].to_pylist()
        assert scan.stats.moved_slots > 0, "nobody here knew of it"
        moved = scan.stats.moved_slots
        move_all(store, "s2")
        assert sorted(ids + scan.to_table()["id"].to_pylist()) == list(range(COUNT))
        assert scan.stats.moved_slots == moved, "what this process does it knows at once"


def test_whoever_pauses_between_pages_looks_anew(place: Path) -> None:
    clock = ManualClock(time.time())
    with Store.open(place, clock=clock) as store, Store.open(place, clock=clock) as other:
        scan = store.table("t").scan(page_rows=50)
        ids = next(scan).rows["id"].to_pylist()
        move_all(other, "s2")
        clock.advance(LOOK_SECONDS)
        ids += next(scan).rows["id"].to_pylist()
        assert scan.stats.moved_slots == 0
        resumed = store.resume(scan.key)
        assert sorted(ids + resumed.to_table()["id"].to_pylist()) == list(range(COUNT))


def test_the_roots_of_many_shards_are_known_by_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.create(tmp_path / "many", [f"s{n}" for n in range(16)], tablets=16, slots=16) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(
            pa.table({"id": range(COUNT), "k": [1] * COUNT, "v": ["v"] * COUNT}, SCHEMA)
        )
    transactions, reading = list[int](), Catalog.reading
    monkeypatch.setattr(Catalog, "reading", lambda *asked: transactions.append(1) or reading(*asked))
    with Store.open(tmp_path / "many") as store:
        assert store.table("t").scan().count() == COUNT
    assert len(transactions) < 16
