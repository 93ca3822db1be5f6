"""Every partition of every read: a base-shard scan or a virtual scan, with a continuation key of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from elasticscan.base.errors import ContinuationKeyError
from elasticscan.connector.partitions import ScanPartition
from elasticscan.connector.splits import BASE, VIRTUAL
from elasticscan.store import Store
from elasticscan.store.moves import mover, owners
from elasticscan.store.moves.owners import enter_moves
from elasticscan.topology import Move, SlotSet
from tests.connector.conftest import SCHEMA
from tests.connector.stream_query import History, Row, carried, read_all, rows
from tests.connector.test_reading import source

SLOTS = 64
CHANGES = {"readChangeFeed": "true", "startingVersion": "1"}


def plan(
    history: History, streams: bool, options: dict[str, str]
) -> tuple[Any, Callable[[], list[ScanPartition]]]:
    """A reader, and its partitions, which are planned again at each call."""
    made = source(history.store, **options)
    reader: Any = made.streamReader(made.schema()) if streams else made.reader(made.schema())
    if not streams:
        return reader, lambda: list(reader.partitions())
    start = carried(reader.initialOffset())
    end = carried(reader.latestOffset(start, ReadAllAvailable()))
    return reader, lambda: list(reader.partitions(start, end))


def switch(store: Store, tablet_id: int) -> SlotSet:
    """Move a tablet as a plan of several moves does that has not come to its end; its slots."""
    tablet = store.context.placement().tablet(tablet_id)
    assert tablet is not None
    target = next(s for s in sorted(store.context.shard_names()) if s != tablet.shard)
    owner = owners.new_owner()
    with store.context.catalog.writing() as tx:
        enter_moves(tx, [move := Move(tablet.id, tablet.shard, target)], owner)
    mover.Mover(store.context, owner, move).carry_out()
    return tablet.slots


def check(store: Store, partitions: list[ScanPartition], moved: SlotSet) -> None:
    """Each slot is in one partition, with a key that opens, and is of the kind that it says."""
    seen = SlotSet()
    for part in partitions:
        assert type(part) is ScanPartition
        key = store.context.sealer.open(part.key)
        assert key.slots and not key.slots & seen
        assert key.base_topology == store.topology.number
        assert part.kind == (VIRTUAL if key.slots & moved else BASE)
        assert part.kind == BASE or key.slots <= moved
        seen |= key.slots
    assert seen == SlotSet.span(0, SLOTS)


@pytest.mark.parametrize("options", [{}, CHANGES], ids=["table", "changes"])
@pytest.mark.parametrize("streams", [False, True], ids=["batch", "stream"])
def test_partitions_are_base_shard_scans_and_virtual_scans_with_keys(
    history: History, streams: bool, options: dict[str, str]
) -> None:
    # Commits of every kind, so that changes are read in several segments and spans.
    history.write(rows(100, 600, v=1.5))
    history.delete(list(range(50)))
    history.write(rows(300, 700, v=2.5), overwrite=True)
    history.write(rows(0, 400, v=3.5))
    expected = Counter(row[:3] for row in history.after(0)) if options else Counter(history.state.values())
    store, published = history.store, history.store.topology
    reader, planned = plan(history, streams, options)

    def read(partitions: list[ScanPartition]) -> Counter[Row]:
        return Counter(row[:3] for row in read_all(reader, partitions))

    check(store, planned(), SlotSet())
    moved = switch(store, 1) | switch(store, 2)
    assert store.topology == published, "the tablets are switched, and the topology is not published"
    partitions = planned()
    check(store, partitions, moved)
    assert [part.kind for part in partitions].count(VIRTUAL) == 1, "both tablets are at one shard now"
    assert read(partitions) == expected
    store.move(3, "s2")  # publishes all that was moved
    check(store, planned(), SlotSet())
    store.expand(["s3"])
    store.contract("s1")
    assert read(partitions) == read(planned()) == expected
    history.write(rows(0, 1_000, v=9.0))
    store.table("t").compact()
    assert read(partitions) == expected


def test_a_partition_is_read_by_its_own_read_alone(history: History) -> None:
    store = history.store
    store.create_table("u", SCHEMA, ["id"]).upsert([{"id": 1, "name": "other", "v": 0.0}])
    given = [{}, {"table": "u"}, {"filter": "id < 3"}]
    table, _, filtered = readers = [
        made.reader(made.schema()) for made in (source(store, **options) for options in given)
    ]
    (whole, *_), (other, *_), (some, *_) = [list(reader.partitions()) for reader in readers]
    key = next(iter(store.table("t").scan(limit=30, page_rows=10))).key
    limited = ScanPartition(str(key), store.backend.identity, BASE)
    pairs = [*((table, part) for part in (other, some, limited)), (filtered, whole)]
    for reader, foreign in pairs:
        with pytest.raises(ContinuationKeyError):
            list(reader.read(foreign))
