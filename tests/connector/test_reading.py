"""The reader as Spark calls it: planned once, pickled, read by tasks, while tablets move."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from elasticscan.base.errors import (
    InvalidOption,
    NotFound,
    SchemaMismatch,
    TableChanged,
)
from elasticscan.base.hashing import slots_of
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.partitions import ScanPartition
from elasticscan.connector.splits import BASE
from elasticscan.store import Store
from tests.connector.conftest import SCHEMA, made_again
from tests.connector.stream_query import History, Row
from tests.connector.test_streaming import disturb, write_something
from tests.seeds import seeds


def source(made: Store | str, **options: str) -> ElasticScanSource:
    uri = made if isinstance(made, str) else made.uri
    return ElasticScanSource({"store": uri, "table": "t", **options})


def planned(
    store: Store | str, schema: StructType | None = None, **options: str
) -> tuple[DataSourceReader, Sequence[InputPartition]]:
    return carried(source(store, **options), schema)


def carried(
    made: ElasticScanSource, schema: StructType | None = None
) -> tuple[DataSourceReader, Sequence[InputPartition]]:
    """A reader and its partitions, both carried to other processes and back."""
    reader = made.reader(schema or made.schema())
    there: DataSourceReader = pickle.loads(CPickleSerializer().dumps(reader))
    return there, pickle.loads(pickle.dumps(reader.partitions()))


def ids(reader: DataSourceReader, partitions: Sequence[InputPartition]) -> list[int]:
    return [i for part in partitions for batch in batches(reader, part) for i in batch.column(0).to_pylist()]


def batches(reader: DataSourceReader, part: InputPartition) -> Iterator[pa.RecordBatch]:
    for batch in reader.read(part):
        assert isinstance(batch, pa.RecordBatch)
        yield batch


# Random reads


@pytest.fixture
def small_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real weights tables as small as these are read directly whatever the filter."""
    for weight, value in (("SEEK", 20.0), ("SORTED_ENTRY", 3.0), ("HASH_ENTRY", 2.0)):
        monkeypatch.setattr(f"elasticscan.optimizer.choice.{weight}", value)
    monkeypatch.setattr("elasticscan.connector.splits.ENTRIES_PER_TASK", 100)


# Conditions, the rows that meet them, and the access paths that can be asked for.
FILTERS: list[tuple[str | None, Callable[[Row], bool], list[str]]] = [
    (None, lambda row: True, ["by_id"]),
    ("id < 100", lambda row: row[0] < 100, ["by_id"]),
    ("name = 'n3' AND id < 250", lambda row: row[1] == "n3" and row[0] < 250, ["by_id", "by_name"]),
    ("id = 4711 - 4700", lambda row: row[0] == 11, ["by_id", "key"]),
    ("id IN (1, 2, 3) AND v >= 0", lambda row: row[0] in (1, 2, 3), ["by_id", "key"]),
    ("id = 1 AND id = 2", lambda row: False, ["by_id"]),
    ("v > 100", lambda row: row[2] > 100, ["by_id"]),
]


@pytest.mark.usefixtures("small_costs", "unflushed")
@pytest.mark.parametrize("seed", seeds(12, short=4))
def test_a_planned_read_gives_the_rows_of_its_snapshot_once_whatever_happens_meanwhile(
    history: History, seed: int
) -> None:
    draw, store, table = random.Random(seed), history.store, history.store.table("t")
    table.create_index("by_id", ["id"], include=["name"])
    table.create_index("by_name", ["name"], kind="hash")
    for number in range(6):
        write_something(history, draw, others=False)
        disturb(history, draw)
        snapshot = draw.choice([number for number, _ in history.states][1:])
        condition, holds, paths = draw.choice(FILTERS)
        names = draw.sample(SCHEMA.names, draw.randint(1, 3))
        most, bound = draw.choice([7, 100, 10_000]), draw.choice([None, 1, 3])
        options: dict[str, Any] = {
            "batchSize": str(most),
            "columns": ", ".join(draw.choice([name, name.upper()]) for name in names),
            "index": draw.choice(["auto", "none", *paths]),
        }
        options |= {"filter": condition} if condition else {}
        options |= {"numPartitions": str(bound)} if bound else {}
        options |= draw.choice([{}, {"splitSize": "1k"}])
        options |= draw.choice([{"versionAsOf": str(snapshot)}, {"versionAsOf": f"tag_{number}"}, {}])
        with_places = draw.random() < 0.5
        options |= {"includeMetadata": "true"} if with_places else {}
        table.tag(f"tag_{number}", snapshot)
        if "versionAsOf" not in options:
            snapshot = history.states[-1][0]
        reader, partitions = planned(store, **options)
        kinds = {part.kind for part in partitions if isinstance(part, ScanPartition)}
        assert bound is None or len(partitions) <= max(bound, len(kinds))
        for _ in range(2):
            disturb(history, draw)
            write_something(history, draw, others=False)
        if draw.random() < 0.3:  # a task that is left early disturbs no other
            next(iter(reader.read(partitions[0])), None)
        found = [batch for part in partitions for batch in batches(reader, part)]
        assert all(0 < batch.num_rows <= most for batch in found)
        columns = [SCHEMA.names.index(name) for name in names]
        expected = Counter(tuple(row[c] for c in columns) for row in history.at(snapshot) if holds(row))
        lines = [row for batch in found for row in batch.to_pylist()]
        assert Counter(tuple(row[name] for name in names) for row in lines) == expected
        if with_places and "id" in names and lines:
            slots = slots_of([pa.array([row["id"] for row in lines], pa.int64())], 64)
            assert [row["_slot"] for row in lines] == slots.tolist()


# What tasks give


def test_tasks_give_no_more_rows_than_they_are_asked_for(store: Store) -> None:
    bounds: list[tuple[dict[str, Any], int]] = [
        ({"maxRowsPerTask": "30"}, 60),
        ({"maxRowsPerTask": "30", "includeMetadata": "true"}, 60),
        ({"maxRowsPerTask": "0"}, 0),
        ({"maxRowsPerTask": "30", "filter": "id < 10"}, 10),
    ]
    for asked, count in bounds:
        assert len(ids(*planned(store, numPartitions="2", **asked))) == count
    order: dict[str, Any] = {"maxRowsPerTask": "3", "taskOrder": "name DESC, id", "filter": "id > 5"}
    found = ids(*planned(store, numPartitions="2", **order))  # the first of an order
    assert len(found) == 6
    assert {6, 13, 20} <= {*found}  # of which the name is n6


def test_metadata_tells_slot_and_shard_where_it_is_asked_for(store: Store) -> None:
    made = source(store, includeMetadata="true", columns="name")
    assert made.schema().simpleString() == "struct<name:string,_shard:string,_slot:int>"
    reader, (part,) = planned(store, includeMetadata="true", columns="name", numPartitions="1")
    found = pa.Table.from_batches(list(batches(reader, part))).to_pylist()
    placement, names = store.topology.placement, dict(store.topology.shard_names)
    assert len(found) == 1_000
    assert all(names[placement.tablet_of(row["_slot"]).shard] == row["_shard"] for row in found)
    for wanted in (StructType([made.schema()["_slot"]]), StructType([StructField("ID", LongType())])):
        reader, (part, *_) = planned(store, wanted, includeMetadata="true")
        assert next(batches(reader, part)).schema.names == wanted.names
    with pytest.raises(SchemaMismatch, match="_slot"):
        source(store).reader(StructType([made.schema()["_slot"]]))


@pytest.fixture
def indexed(store: Store, small_costs: None) -> Store:
    store.table("t").create_index("by_id", ["id"], include=["name"])
    store.table("t").create_index("by_name", ["name"], kind="hash")
    return store


def test_an_index_scan_has_few_tasks(indexed: Store) -> None:
    small: dict[str, Any] = {"filter": "id < 1", "splitSize": "1k"}
    assert len(planned(indexed, index="none", **small)[1]) > 8
    reader, (one,) = planned(indexed, **small)
    assert indexed.context.sealer.open(one.key).index is not None  # type: ignore[attr-defined]
    assert ids(reader, [one]) == [0]
    reader, partitions = planned(indexed, index="by_id")  # one for each shard
    assert [part.kind for part in partitions if isinstance(part, ScanPartition)] == [BASE, BASE]


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

    # It is of the read that the other options describe.
    wanted = StructType([StructField("access", StringType()), StructField("chosen", BooleanType())])
    ways = explained(indexed, wanted, index="by_id")
    assert [way["access"] for way in ways if way["chosen"]] == ["by_id"]
    assert [list(way) for way in ways] == [wanted.names] * 3


@pytest.mark.parametrize("what", ["table", "store"])
def test_what_was_made_again_is_not_read_by_an_old_plan(store: Store, what: str) -> None:
    reader, partitions = planned(store)
    ids(reader, partitions)
    store = made_again(store, what)
    assert ids(*planned(store)) == []
    with pytest.raises(TableChanged, match="again"):
        ids(reader, partitions)
    if what == "store":  # and puts the first one back
        Path(store.uri).rename(f"{store.uri}.new")
        Path(f"{store.uri}.old").rename(store.uri)
        assert len(ids(*planned(store.uri))) == len(ids(reader, partitions)) == 1_000


# What is said early


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"table": "tt"}, NotFound, "has no table 'tt'"),
        ({"store": "/nowhere/shop.store"}, NotFound, "nowhere"),
        ({"column": "id"}, InvalidOption, "did you mean 'columns'"),
        ({"table": "odd"}, SchemaMismatch, "'odd'"),
        ({"explain": "true", "columns": "nope"}, NotFound, "nope"),
    ],
)
def test_mistakes_are_reported_when_loading(
    store: Store, options: dict[str, str], error: type[Exception], message: str
) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("odd", pa.month_day_nano_interval())])
    store.create_table("odd", schema, ["id"])
    assert ids(*planned(store, table="odd", columns="id")) == []  # what Spark cannot take can be left out
    with pytest.raises(error, match=message):
        source(store, **options).schema()


def test_a_reader_takes_no_filters_from_a_plan_that_queries_share(store: Store) -> None:
    made = source(store)
    assert type(made.reader(made.schema())).pushFilters is DataSourceReader.pushFilters


def test_conditions_on_the_key_leave_partitions_that_can_hold_the_rows(store: Store) -> None:
    for condition, most in (("id = 11", 1), ("id IN (1, 2, 3)", 3)):
        _, parts = planned(store, filter=condition)
        keys = [part.key for part in parts if isinstance(part, ScanPartition)]
        slots = sum(len(store.context.sealer.open(key).slots) for key in keys)
        assert len(parts) <= 2 and slots <= most
    assert len(planned(store, filter="id = 1 AND id = 2")[1]) == 1
