"""The reader as Spark calls it: planned once, pickled, read by tasks, while tablets move."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from elasticscan.base.errors import (
    ContinuationKeyError,
    FilterError,
    InvalidOption,
    NotFound,
    SchemaMismatch,
    SnapshotExpired,
    StoreNotFound,
    TableChanged,
)
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.partitions import ScanPartition
from elasticscan.connector.reading import ElasticScanReader
from elasticscan.connector.splits import BASE, VIRTUAL
from elasticscan.optimizer import KeyCondition
from elasticscan.store import Store
from elasticscan.store.moves import mover, owners
from elasticscan.store.moves.under_way import enter_moves
from elasticscan.store.reading.access_paths import bind_to_key
from elasticscan.topology import Move, SlotSet
from tests.base.manual_clock import ManualClock
from tests.connector.conftest import SCHEMA, rows


def source(made: Store, **options: str) -> ElasticScanSource:
    return ElasticScanSource({"store": made.uri, "table": "t", **options})


def planned(
    store: Store, schema: StructType | None = None, **options: str
) -> tuple[DataSourceReader, Sequence[InputPartition]]:
    """A reader and its partitions, both carried to other processes and back."""
    made = source(store, **options)
    reader = made.reader(schema or made.schema())
    carried: DataSourceReader = pickle.loads(CPickleSerializer().dumps(reader))
    return carried, pickle.loads(pickle.dumps(reader.partitions()))


def ids(reader: DataSourceReader, partitions: Sequence[InputPartition]) -> list[int]:
    return [i for part in partitions for batch in batches(reader, part) for i in batch.column(0).to_pylist()]


def batches(reader: DataSourceReader, part: InputPartition) -> Iterator[pa.RecordBatch]:
    for batch in reader.read(part):
        assert isinstance(batch, pa.RecordBatch)
        yield batch


def test_every_row_is_read_once_over_all_partitions(store: Store) -> None:
    reader, partitions = planned(store)
    assert [part.kind for part in partitions if isinstance(part, ScanPartition)] == [BASE, BASE]
    assert sorted(ids(reader, partitions)) == list(range(1_000))


def test_small_splits_make_many_partitions_and_a_bound_makes_few(store: Store) -> None:
    reader, many = planned(store, splitSize="1k")
    assert len(many) > 8
    assert sorted(ids(reader, many)) == list(range(1_000))
    for bound in ("1", "3"):
        reader, few = planned(store, splitSize="1k", numPartitions=bound)
        assert len(few) == int(bound)
        assert sorted(ids(reader, few)) == list(range(1_000))


def test_batches_are_bounded_and_never_empty(store: Store) -> None:
    reader, partitions = planned(store, batchSize="100", filter="id < 500")
    sizes = [batch.num_rows for part in partitions for batch in batches(reader, part)]
    assert sum(sizes) == 500
    assert min(sizes) > 0
    assert max(sizes) <= 100


def test_an_empty_table_has_partitions_without_rows(store: Store) -> None:
    store.create_table("empty", SCHEMA, ["id"])
    reader, partitions = planned(store, table="empty")
    assert partitions
    assert ids(reader, partitions) == []


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"maxRowsPerTask": "30"}, 60),
        ({"maxRowsPerTask": "30", "includeMetadata": "true"}, 60),
        ({"maxRowsPerTask": "0"}, 0),
        ({"maxRowsPerTask": "30", "filter": "id < 10"}, 10),
    ],
)
def test_tasks_give_no_more_rows_than_they_are_asked_for(
    store: Store, asked: dict[str, str], count: int
) -> None:
    assert len(ids(*planned(store, numPartitions="2", **asked))) == count


def test_each_task_keeps_the_first_rows_of_an_order(store: Store) -> None:
    order = {"maxRowsPerTask": "3", "taskOrder": "name DESC, id", "filter": "id > 5"}
    found = ids(*planned(store, numPartitions="2", **order))
    assert len(found) == 6
    assert {6, 13, 20} <= {*found}  # of which the name is n6


def test_columns_and_filter_are_applied_while_scanning(store: Store) -> None:
    assert source(store, columns="V, id").schema().names == ["v", "id"]
    reader, partitions = planned(store, columns="V, id", filter="name = 'n3' AND id < 50")
    found = pa.Table.from_batches([b for part in partitions for b in batches(reader, part)])
    assert found.schema.names == ["v", "id"]
    assert sorted(found["id"].to_pylist()) == list(range(3, 50, 7))


def test_a_schema_of_some_columns_is_honoured(store: Store) -> None:
    wanted = StructType([StructField("ID", LongType())])
    reader, (first, *_) = planned(store, wanted)
    batch = next(batches(reader, first))
    assert batch.schema == pa.schema([pa.field("ID", pa.int64())])


def test_the_reader_takes_no_filters_from_a_plan_that_queries_share(store: Store) -> None:
    made = source(store)
    assert type(made.reader(made.schema())).pushFilters is DataSourceReader.pushFilters


def test_a_plan_is_a_snapshot(store: Store) -> None:
    reader, partitions = planned(store)
    store.table("t").upsert(rows(500, 2_000, v=9.0))
    store.table("t").delete(pa.table({"id": [1, 2, 3]}))
    store.table("t").compact()
    found = pa.Table.from_batches([b for part in partitions for b in batches(reader, part)])
    assert sorted(found["id"].to_pylist()) == list(range(1_000))
    assert set(found["v"].to_pylist()) == {0.5}


def test_versions_and_timestamps_choose_the_snapshot(tmp_path: Path) -> None:
    clock = ManualClock(1_000.0)
    made = Store.create(tmp_path / "s", ["s1"], tablets=2, slots=16, clock=clock)
    clock.advance(10)
    made.create_table("t", SCHEMA, ["id"])
    first = made.table("t").upsert(rows(0, 10))
    clock.advance(10)
    second = made.table("t").upsert(rows(10, 20))
    assert len(ids(*planned(made, versionAsOf=str(first)))) == 10
    assert len(ids(*planned(made, versionAsOf=str(second)))) == 20
    made.table("t").tag("early", first)
    assert len(ids(*planned(made, versionAsOf="early"))) == 10
    assert len(ids(*planned(made, timestampAsOf="1019.9"))) == 10
    assert len(ids(*planned(made, timestampAsOf="1970-01-01T00:17:00Z"))) == 20
    with pytest.raises(NotFound, match="was made after 1970-01-01T00:16:49"):
        planned(made, timestampAsOf="1009")
    with pytest.raises(NotFound, match="with its zone"):
        planned(made, timestampAsOf="2099-01-01")
    with pytest.raises(NotFound, match="not 99"):
        planned(made, versionAsOf="99")
    with pytest.raises(NotFound, match="did you mean 'early'"):
        planned(made, versionAsOf="earlier")


# Tablets that move


def test_slots_that_left_since_the_newest_topology_are_virtual_scans(store: Store) -> None:
    tablet = store.topology.placement.tablets[0]
    target = next(s for s in store.topology.placement.shards if s != tablet.shard)
    owner = owners.new_owner()
    with store.context.catalog.writing() as tx:
        enter_moves(tx, [Move(tablet.id, tablet.shard, target)], owner)
    # Without a published topology, as in the middle of an expansion.
    mover.Mover(store.context, owner).carry_out(Move(tablet.id, tablet.shard, target))
    reader, partitions = planned(store)
    kinds = [part.kind for part in partitions if isinstance(part, ScanPartition)]
    assert sorted(kinds) == [BASE, BASE, VIRTUAL]
    assert sorted(ids(reader, partitions)) == list(range(1_000))


def test_a_tablet_that_moves_while_a_scan_is_planned_is_read_by_a_virtual_scan(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bind(*given: Any) -> KeyCondition:
        tablet = store.topology.placement.tablets[0]
        names = dict(store.topology.shard_names)
        store.move(tablet.id, next(name for shard, name in names.items() if shard != tablet.shard))
        return bind_to_key(*given)

    monkeypatch.setattr("elasticscan.store.reading.scan.bind_to_key", bind)
    reader, partitions = planned(store)
    assert {part.kind for part in partitions if isinstance(part, ScanPartition)} == {BASE, VIRTUAL}
    assert sorted(ids(reader, partitions)) == list(range(1_000))


def test_a_reader_that_is_left_early_disturbs_no_other(store: Store) -> None:
    reader, partitions = planned(store, batchSize="10")
    left = iter(reader.read(partitions[0]))
    next(left)
    left.close()  # type: ignore[union-attr]
    assert sorted(ids(reader, partitions)) == list(range(1_000))


# Indexes


@pytest.fixture
def indexed(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    # With the real weights a table this small is read directly whatever the filter.
    monkeypatch.setattr("elasticscan.optimizer.choice.SEEK", 20.0)
    monkeypatch.setattr("elasticscan.optimizer.choice.SORTED_ENTRY", 3.0)
    monkeypatch.setattr("elasticscan.optimizer.choice.HASH_ENTRY", 2.0)
    store.table("t").create_index("by_id", ["id"], include=["name"])
    store.table("t").create_index("by_name", ["name"], kind="hash")
    return store


def test_an_index_scan_is_one_small_task(indexed: Store) -> None:
    options = {"filter": "id < 1", "splitSize": "1k"}
    _, many = planned(indexed, index="none", **options)
    reader, (one,) = planned(indexed, **options)
    assert len(many) > 8
    assert indexed.context.sealer.open(one.key).index is not None  # type: ignore[attr-defined]
    assert ids(reader, [one]) == [0]


def test_a_large_index_scan_has_a_task_for_each_shard(
    indexed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticscan.connector.splits.ENTRIES_PER_TASK", 100)
    reader, partitions = planned(indexed, index="by_id")
    assert [part.kind for part in partitions if isinstance(part, ScanPartition)] == [BASE, BASE]
    assert sorted(ids(reader, partitions)) == list(range(1_000))
    reader, partitions = planned(indexed, index="by_id", numPartitions="1")
    assert len(partitions) == 1
    assert sorted(ids(reader, partitions)) == list(range(1_000))


def test_a_planned_index_scan_ends_when_its_index_is_dropped(indexed: Store) -> None:
    reader, partitions = planned(indexed, index="by_id")
    indexed.table("t").drop_index("by_id")
    with pytest.raises(TableChanged):
        ids(reader, partitions)


def test_an_index_that_there_is_not_is_reported_at_planning(indexed: Store) -> None:
    with pytest.raises(NotFound, match="did you mean 'by_name'"):
        planned(indexed, index="by_names")


def test_metadata_comes_with_rows_of_an_index_too(indexed: Store) -> None:
    options = {"index": "by_name", "filter": "name = 'n1'", "columns": "name", "includeMetadata": "true"}
    reader, partitions = planned(indexed, **options)
    found = pa.Table.from_batches([b for part in partitions for b in batches(reader, part)])
    assert found.schema.names == ["name", "_shard", "_slot"]
    assert set(found["name"].to_pylist()) == {"n1"}
    assert set(found["_shard"].to_pylist()) == {"s1", "s2"}


# Explanations


def explained(store: Store, schema: StructType | None = None, **options: str) -> list[dict[str, Any]]:
    reader, (part,) = planned(store, schema, explain="true", **options)
    return [row for batch in batches(reader, part) for row in batch.to_pylist()]


def test_an_explanation_has_one_row_for_each_way_to_read(indexed: Store) -> None:
    direct, by_key, by_id, by_name = explained(indexed, filter="id < 10", columns="name")
    assert source(indexed, explain="true").schema().names == list(direct)
    ways = direct, by_key, by_id, by_name
    assert [row["access"] for row in ways] == ["direct", "key", "by_id", "by_name"]
    assert [row["chosen"] for row in ways] == [False, False, True, False]
    assert (by_id["kind"], by_id["condition"], by_id["remainder"]) == ("sorted", "id < 10", None)
    assert 0 < by_id["rows_scanned"] < 100 <= direct["rows_scanned"] == 1_000
    assert by_id["cost"] < direct["cost"]
    assert (by_name["cost"], by_name["rows_scanned"]) == (None, None)
    assert "needs the values of all its columns" in by_name["reason"]


def test_an_explanation_is_of_the_read_that_the_other_options_describe(indexed: Store) -> None:
    chosen = [row["access"] for row in explained(indexed, index="by_id") if row["chosen"]]
    assert chosen == ["by_id"]
    wanted = StructType([StructField("access", StringType()), StructField("cost", DoubleType())])
    assert [list(row) for row in explained(indexed, wanted)] == [["access", "cost"]] * 3
    covered = explained(indexed, columns="name", filter="id < 300")[2]["cost"]
    fetching = explained(indexed, columns="v", filter="id < 300")[2]["cost"]
    assert covered < fetching
    with pytest.raises(NotFound):
        source(indexed, explain="true", columns="nope").schema()


def test_an_explanation_keeps_no_lease(tmp_path: Path) -> None:
    made = Store.create(tmp_path / "s", ["s1"], tablets=2, slots=16, retention_seconds=0)
    made.create_table("t", SCHEMA, ["id"])
    assert len(explained(made)) == 1
    assert made.status()["leases"] == []
    planned(made)
    assert len(made.status()["leases"]) == 1


# How long a plan lasts


def test_planning_takes_a_lease_and_reading_does_not_end_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Retention is too short.
    monkeypatch.setattr("elasticscan.store.context.leases.is_kept", lambda *_: False)
    reader, partitions = planned(store)
    (lease,) = store.status()["leases"]
    now = store.context.clock.now()
    assert lease["expires_at"] > now + LEASE_SECONDS - 60
    ids(reader, partitions)
    assert len(store.status()["leases"]) == 1


def test_after_lease_and_compaction_the_error_says_to_load_again(tmp_path: Path) -> None:
    made = Store.create(tmp_path / "s", ["s1"], tablets=2, slots=16, retention_seconds=0)
    made.create_table("t", SCHEMA, ["id"])
    made.table("t").upsert(rows(0, 10))
    reader, partitions = planned(made)
    made.table("t").upsert(rows(0, 10, v=1.0))
    tomorrow = ManualClock(made.context.clock.now() + 2 * LEASE_SECONDS)
    Store.open(made.uri, tomorrow).table("t").compact()
    with pytest.raises(SnapshotExpired, match="load the DataFrame again"):
        ids(reader, partitions)


def test_a_table_that_was_made_again_is_not_read_by_an_old_plan(store: Store) -> None:
    reader, partitions = planned(store)
    store.table("t").drop()
    store.create_table("t", SCHEMA, ["id"])
    with pytest.raises(TableChanged):
        ids(reader, partitions)


def test_a_store_that_was_made_again_is_not_read_by_an_old_plan(store: Store, tmp_path: Path) -> None:
    reader, partitions = planned(store)
    ids(reader, partitions)
    store.close()
    Path(store.uri).rename(tmp_path / "old")
    made = Store.create(store.uri, ["s1"], tablets=2, slots=16)
    made.create_table("t", SCHEMA, ["id"])
    assert ids(*planned(made)) == []
    with pytest.raises(TableChanged, match="load the DataFrame again"):
        ids(reader, partitions)


def test_a_partition_of_another_source_is_refused(store: Store) -> None:
    reader, _ = planned(store)
    with pytest.raises(ContinuationKeyError):
        next(iter(reader.read(InputPartition(None))))


# Metadata


def test_metadata_tells_slot_and_shard(store: Store) -> None:
    made = source(store, includeMetadata="true", columns="name")
    assert made.schema().simpleString() == "struct<name:string,_shard:string,_slot:int>"
    reader, partitions = planned(store, includeMetadata="true", columns="name", numPartitions="1")
    found = pa.Table.from_batches(list(batches(reader, partitions[0]))).to_pylist()
    placement, names = store.topology.placement, dict(store.topology.shard_names)
    assert len(found) == 1_000
    assert {row["_slot"] for row in found} == set(range(64))
    assert all(names[placement.tablet_of(row["_slot"]).shard] == row["_shard"] for row in found)


def test_metadata_can_be_read_alone_and_is_unknown_unless_asked_for(store: Store) -> None:
    made = source(store, includeMetadata="true")
    wanted = StructType([made.schema()["_slot"]])
    reader, partitions = planned(store, wanted, includeMetadata="true")
    assert len(ids(reader, partitions)) == 1_000
    with pytest.raises(SchemaMismatch, match="_slot"):
        source(store).reader(wanted)


# What is said early


def test_mistakes_are_reported_when_loading(store: Store) -> None:
    with pytest.raises(NotFound, match="has no table 'tt'"):
        source(store, table="tt").schema()
    with pytest.raises(StoreNotFound):
        source(store, store=store.uri + "x").schema()
    with pytest.raises(NotFound, match="no column 'w'"):
        source(store, columns="id,w").schema()
    with pytest.raises(FilterError):
        source(store, filter="id >").schema()
    with pytest.raises(InvalidOption, match="did you mean 'columns'"):
        source(store, column="id").schema()


def test_a_column_that_spark_cannot_take_can_be_left_out(store: Store) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("odd", pa.month_day_nano_interval())])
    store.create_table("odd", schema, ["id"])
    with pytest.raises(SchemaMismatch, match="'odd'"):
        source(store, table="odd").schema()
    assert source(store, table="odd", columns="id").schema().names == ["id"]
    reader, partitions = planned(store, table="odd", columns="id")
    assert isinstance(reader, ElasticScanReader)
    assert ids(reader, partitions) == []


def test_conditions_on_the_key_leave_partitions_that_can_hold_the_rows(store: Store) -> None:
    reader, (part,) = planned(store, filter="id = 4711 - 4700")
    assert isinstance(part, ScanPartition) and part.kind == BASE and len(SlotSet.parse(part.slots)) == 1
    assert ids(reader, [part]) == [11]
    reader, some = planned(store, filter="id IN (1, 2, 3)", index="none")
    slots = [SlotSet.parse(part.slots) for part in some if isinstance(part, ScanPartition)]
    assert len(some) <= 2 and sum(map(len, slots)) <= 3
    assert sorted(ids(reader, some)) == [1, 2, 3]


def test_a_condition_that_no_key_meets_leaves_one_empty_partition(store: Store) -> None:
    reader, partitions = planned(store, filter="id = 1 AND id = 2")
    assert len(partitions) == 1 and ids(reader, partitions) == []


def test_a_partition_by_key_follows_its_slot_to_another_shard(store: Store) -> None:
    reader, partitions = planned(store, filter="id IN (1, 2, 3)", index="key")
    for tablet in store.context.placement().tablets:
        store.move(tablet.id, "s1" if tablet.shard == 2 else "s2")
    assert sorted(ids(reader, partitions)) == [1, 2, 3]
