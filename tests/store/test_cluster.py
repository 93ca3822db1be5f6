"""Scans of a store whose shards are asked over a wire: every request and answer goes through bytes."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.limits import LOOK_SECONDS
from elasticscan.protocol import Cluster, PageRequest, PageRows, RowAnswer, RowRequest, Shards
from elasticscan.store import Scan, Store, Table
from tests.base.connections import call_at_statements
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.string())])
COUNT = 2_000


def sent(value: Any) -> Any:
    """A value as another process gets it."""
    received = pickle.loads(pickle.dumps(value))
    assert not isinstance(value, PageRequest) or received == value
    return received


class Wire:
    """Shards of another process, as far as bytes go."""

    def __init__(self, server: Shards) -> None:
        self._server = server
        self.shards = set[int]()  # of which pages were asked for

    def read_page(self, request: PageRequest) -> PageRows:
        self.shards.add(request.shard)
        answer: PageRows = sent(self._server.read_page(sent(request)))
        return answer

    def read_rows(self, request: RowRequest) -> RowAnswer:
        answer: RowAnswer = sent(self._server.read_rows(sent(request)))
        return answer


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=4, slots=16) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for begin in range(0, COUNT, COUNT // 4):
            ids = range(begin, begin + COUNT // 4)
            table.upsert(pa.table({"id": ids, "k": [n % 7 for n in ids], "v": [f"{n}" for n in ids]}, SCHEMA))
        table.create_index("by_k", ["k"])
    return tmp_path / "store"


READS: dict[str, Callable[[Table], Scan]] = {
    "direct": lambda table: table.scan(index="none", page_rows=100),
    "a condition": lambda table: table.scan(filter="id < 300", index="none", page_rows=20),
    "index": lambda table: table.scan(filter="k IN (2, 5)", index="by_k", page_rows=100),
    "one order": lambda table: table.scan(index="by_k", order_by="k DESC", page_rows=100),
    "changes": lambda table: table.changes(2, page_rows=100),
}


@pytest.mark.parametrize("what", READS)
def test_reads_are_the_same_over_a_wire_while_tablets_move(place: Path, what: str) -> None:
    with Store.open(place) as server, Store.open(place) as client:
        wire, tablets = Wire(server.context.cluster.shards), iter(client.topology.placement.tablets)
        expected = READS[what](client.table("t")).to_table().to_pylist()
        client.context.cluster = Cluster(client.context.cluster.placements, wire)
        nothing = client.table("t").scan(filter=f"id >= {COUNT}", index="none")
        assert (nothing.count(), nothing.stats.skipped_rows) == (0, COUNT), "blocks are skipped there"
        found = list[dict[str, Any]]()
        for page in READS[what](client.table("t")):
            found += page.rows.to_pylist()
            if (tablet := next(tablets, None)) is not None:
                client.move(tablet.id, "s1" if tablet.shard == 2 else "s2")
        in_order = what == "one order"
        by_content = partial(sorted, key=repr)
        assert found == expected if in_order else by_content(found) == by_content(expected)
        assert len(wire.shards) == 2
        for tablet in client.topology.placement.tablets:
            asked = [*range(COUNT + 5, 0, -3)]
            rows = client.table("t").get(asked)["v"].to_pylist()
            assert rows == [f"{n}" for n in asked if n < COUNT]
            client.move(tablet.id, "s1" if tablet.shard == 2 else "s2")


def move_all(store: Store, target: str) -> None:
    number = {name: shard for shard, name in store.context.shard_names().items()}[target]
    for tablet in store.topology.placement.tablets:
        if tablet.shard != number:
            store.move(tablet.id, target)


def test_a_page_is_read_by_the_look_after_the_one_before_unless_slots_moved_or_time_passed(
    place: Path,
) -> None:
    clock, statements = ManualClock(time.time()), list[str]()
    with Store.open(place, clock=clock) as store, Store.open(place, clock=clock) as other:
        call_at_statements(store.context.catalog, statements.append)
        scan = store.table("t").scan(page_rows=50)
        statements.clear()
        ids = [key for _ in range(4) for key in next(scan).rows["id"].to_pylist()]
        assert sum(statement.startswith("SELECT") for statement in statements) <= 6
        for target in ("s2", "s1"):
            move_all(other, target)
            ids += next(scan).rows["id"].to_pylist()
        moved = scan.stats.moved_slots
        assert moved > 0, "no one here knew of it"
        move_all(store, "s2")
        ids += next(scan).rows["id"].to_pylist()
        move_all(other, "s1")
        clock.advance(LOOK_SECONDS)
        ids += next(scan).rows["id"].to_pylist()
        assert scan.stats.moved_slots == moved, "what this process does it knows, and after a pause it looks"
        assert sorted(ids + scan.to_table()["id"].to_pylist()) == list(range(COUNT))
