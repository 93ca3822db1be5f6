"""Every partition of every read: a base-shard scan or a virtual scan, with a continuation key of its own."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from elasticscan.base.errors import ContinuationKeyError, StoreDamaged
from elasticscan.catalog import Catalog, topology
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.partitions import ScanPartition
from elasticscan.connector.splits import BASE, VIRTUAL
from elasticscan.connector.streams.reader import ElasticScanStreamReader
from elasticscan.store import Store
from elasticscan.store.moves import mover, owners
from elasticscan.store.moves.under_way import enter_moves
from elasticscan.topology import Move, SlotSet
from tests.connector.conftest import SCHEMA
from tests.connector.stream_query import History, Row, carried, read_all, rows

SLOTS = 64


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """Two shards, eight tablets; what is written, overwritten, deleted."""
    with Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=8, slots=SLOTS) as store:
        store.create_table("t", SCHEMA, ["id"])
        made = History(store)
        made.write(rows(0, 500))
        yield made


@dataclass
class Read:
    """One kind of read: its partitions, planned again at each call, and what they must give."""

    reader: Any
    plan: Callable[[], list[InputPartition]]
    expected: Counter[Row]

    def partitions(self) -> list[ScanPartition]:
        planned = self.plan()
        assert all(type(part) is ScanPartition for part in planned)
        return planned  # type: ignore[return-value]

    def rows(self, partitions: list[ScanPartition]) -> Counter[Row]:
        return Counter(row[:3] for row in read_all(self.reader, partitions)[0])


def a_table(history: History) -> Read:
    source = ElasticScanSource({"store": history.store.uri, "table": "t"})
    reader: Any = source.reader(source.schema())
    return Read(reader, lambda: list(reader.partitions()), Counter(history.state.values()))


def stream(history: History, **options: str) -> ElasticScanStreamReader:
    source = ElasticScanSource({"store": history.store.uri, "table": "t", **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, ElasticScanStreamReader)
    return reader


def a_micro_batch(reader: ElasticScanStreamReader, expected: Counter[Row]) -> Read:
    start = carried(reader.initialOffset())
    end = carried(reader.latestOffset(start, ReadAllAvailable()))
    return Read(reader, lambda: list(reader.partitions(start, end)), expected)


def a_streams_snapshot(history: History) -> Read:
    return a_micro_batch(stream(history), Counter(history.state.values()))


def a_streams_changes(history: History) -> Read:
    reader = stream(history, startingVersion="1", readChangeFeed="true")
    return a_micro_batch(reader, Counter(row[:3] for row in history.feed_after(0)))


def a_batch_of_changes(history: History) -> Read:
    source = ElasticScanSource(
        {"store": history.store.uri, "table": "t", "readChangeFeed": "true", "startingVersion": "1"}
    )
    reader: Any = source.reader(source.schema())
    expected = Counter(row[:3] for row in history.feed_after(0))
    return Read(reader, lambda: list(reader.partitions()), expected)


READS = [a_table, a_streams_snapshot, a_streams_changes, a_batch_of_changes]
every_read = pytest.mark.parametrize("kind", READS, ids=lambda kind: kind.__name__)


def much_happens(history: History) -> None:
    """Commits of every kind, so that changes are read in several segments and spans."""
    history.write(rows(100, 600, v=1.5))
    history.delete(list(range(50)))
    history.write(rows(300, 700, v=2.5), overwrite=True)
    history.write(rows(0, 400, v=3.5))


def switch(store: Store, tablet_id: int) -> SlotSet:
    """Move a tablet as a plan of several moves does that has not come to its end; its slots."""
    tablet = store.context.placement().tablet(tablet_id)
    assert tablet is not None
    target = next(s for s in sorted(store.context.shard_names()) if s != tablet.shard)
    owner = owners.new_owner()
    with store.context.catalog.writing() as tx:
        enter_moves(tx, [Move(tablet.id, tablet.shard, target)], owner)
    mover.Mover(store.context, owner).carry_out(Move(tablet.id, tablet.shard, target))
    return tablet.slots


def check(store: Store, partitions: list[ScanPartition], moved: SlotSet, snapshot: int | None = None) -> None:
    """Each slot is in one partition, with a key that opens, and is of the kind that it says."""
    seen = SlotSet()
    for part in partitions:
        key = store.context.sealer.open(part.key)
        assert str(key.slots) == part.slots
        assert key.slots
        assert not key.slots & seen
        assert key.base_topology == store.topology.number
        assert part.kind == (VIRTUAL if key.slots & moved else BASE)
        assert part.kind == BASE or key.slots <= moved
        seen |= key.slots
    assert seen == SlotSet.span(0, SLOTS)


@every_read
def test_partitions_are_base_shard_scans_and_virtual_scans_with_keys(
    history: History, kind: Callable[[History], Read]
) -> None:
    much_happens(history)
    read = kind(history)
    published = history.store.topology
    check(history.store, read.partitions(), SlotSet())
    moved = switch(history.store, 1) | switch(history.store, 2)
    assert history.store.topology == published, "the tablets are switched, and the topology is not published"
    partitions = read.partitions()
    check(history.store, partitions, moved)
    assert {part.kind for part in partitions} == {BASE, VIRTUAL}
    assert sum(part.kind == VIRTUAL for part in partitions) == 1, "both tablets are at one shard now"
    assert read.rows(partitions) == read.expected
    history.store.move(3, "s2")  # publishes all that was moved
    check(history.store, read.partitions(), SlotSet())
    assert read.rows(partitions) == read.rows(read.partitions()) == read.expected


@every_read
def test_partitions_are_exact_and_the_same_again_beside_moves(
    history: History, kind: Callable[[History], Read]
) -> None:
    much_happens(history)
    read = kind(history)
    partitions = read.partitions()
    store = history.store
    store.expand(["s3"])
    assert read.rows(partitions) == read.expected
    store.contract("s1")
    store.split(store.context.placement().tablets[0].id)
    assert read.rows(partitions) == read.expected
    store.expand(["s1"])
    assert read.rows(partitions) == read.rows(read.partitions()) == read.expected


# What is wrong with the history


EMPTIED = "DELETE FROM topology_history"
ALTERED = "UPDATE topology_history SET bytes = x'9190'"


def damage(store: Store, statements: str) -> None:
    with closing(sqlite3.connect(Path(store.uri) / "catalog.db")) as catalog:
        catalog.executescript(statements)


@pytest.mark.parametrize("statements", [EMPTIED, ALTERED], ids=["emptied", "altered"])
def test_without_a_topology_history_nothing_is_planned(history: History, statements: str) -> None:
    table, reader = history.store.table("t"), stream(history)
    begun, planned = carried(reader.initialOffset()), a_table(history).reader
    damage(history.store, statements)
    asked: dict[str, Callable[[], object]] = {
        "scan": table.scan,
        "batch read": planned.partitions,
        "changes": lambda: table.changes(1),
        "initial offset": lambda: stream(history).initialOffset(),
        "latest offset": lambda: reader.latestOffset(begun, ReadAllAvailable()),
    }
    for what, ask in asked.items():
        with pytest.raises(StoreDamaged):
            raise AssertionError(f"{what}: {ask()!r}")


def test_a_switch_writes_the_topology_that_follows_from_it(history: History) -> None:
    store = history.store
    first = store.topology
    for tablet in (1, 2, 1):
        switch(store, tablet)
        with store.context.catalog.reading() as tx:
            newest = topology(tx, store.topology_history()[-1].number)
        assert (newest.number, newest.published) == (first.number + 1, False)
        assert newest.placement == store.context.placement()
        assert store.topology == first
    assert store.resume_moves() == 0
    assert store.topology.entry == store.topology_history()[-1]
    assert store.topology.placement == store.context.placement()
    assert store.topology.number == first.number + 1


# One look


def test_a_micro_batch_is_planned_from_one_look_at_the_catalog(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    reading = Catalog.reading

    def counted(catalog: Catalog) -> Any:
        nonlocal looks
        looks += 1
        return reading(catalog)

    reader = stream(history, startingVersion="1")
    begun = carried(reader.initialOffset())
    much_happens(history)
    switch(history.store, 1)
    first = carried(reader.latestOffset(begun, ReadAllAvailable()))
    assert reader.partitions(begun, first)
    history.write(rows(0, 50, v=4.5))
    monkeypatch.setattr(Catalog, "reading", counted)
    end = carried(reader.latestOffset(first, ReadAllAvailable()))
    assert looks == 1
    assert reader.partitions(first, end)
    assert looks == 2


def test_a_partition_is_read_by_its_own_read_alone(history: History) -> None:
    store = history.store
    store.create_table("u", SCHEMA, ["id"]).upsert([{"id": 1, "name": "other", "v": 0.0}])
    readers = [
        ElasticScanSource({"store": store.uri, **options}).reader(
            ElasticScanSource({"store": store.uri, **options}).schema()
        )
        for options in (
            {"table": "t"},
            {"table": "u"},
            {"table": "t", "filter": "id < 3"},
            {"table": "t", "columns": "id"},
            {"table": "t", "readChangeFeed": "true", "startingVersion": "earliest"},
        )
    ]
    (whole, *_), (other, *_), (filtered, *_), (narrow, *_), _ = [
        list(reader.partitions()) for reader in readers
    ]
    key = next(iter(store.table("t").scan(limit=30, page_rows=10))).key
    limited = ScanPartition(str(key), whole.store_id, BASE, "s1", "")  # type: ignore[attr-defined]
    for reader, foreign in [
        (readers[0], other),
        (readers[0], filtered),
        (readers[0], narrow),
        (readers[0], limited),
        (readers[2], whole),
        (readers[4], narrow),
    ]:
        with pytest.raises(ContinuationKeyError):
            list(reader.read(foreign))
