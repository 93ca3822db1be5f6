"""The sink inside Spark: streams that end, start again, are replayed, delete and replace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elasticscan.connector import register
from elasticscan.store import Store
from tests.connector.conftest import kinds

pytestmark = pytest.mark.spark

COLUMNS = "id bigint, name string, v double"


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


class Source:
    """A directory of JSON files, of which a stream reads one with each micro-batch."""

    def __init__(self, spark: SparkSession, place: Path, columns: str = COLUMNS) -> None:
        self._spark, self._place, self._columns, self._files = spark, place, columns, 0
        place.mkdir()

    def add(self, *lines: dict[str, Any]) -> None:
        path = self._place / f"{self._files:04d}.json"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        os.utime(path, (1_700_000_000 + self._files,) * 2)  # the order in which Spark reads them
        self._files += 1

    def frame(self) -> DataFrame:
        reading = self._spark.readStream.schema(self._columns).option("maxFilesPerTrigger", "1")
        return reading.json(str(self._place))


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "source")


def start(
    frame: DataFrame, store: Store, checkpoint: Path, mode: str = "append", **options: str
) -> StreamingQuery:
    options = {"store": store.uri, "table": "t", "checkpointLocation": str(checkpoint)} | options
    writing = frame.writeStream.format("elasticscan").outputMode(mode).options(**options)
    return writing.trigger(availableNow=True).start()


def run(frame: DataFrame, store: Store, checkpoint: Path, mode: str = "append", **options: str) -> list[int]:
    """Write all there is; then the stream ends. Returns the numbers of the micro-batches."""
    query = start(frame, store, checkpoint, mode, **options)
    assert query.awaitTermination(200)
    return [progress.batchId for progress in query.recentProgress]


def line(key: int, v: float = 2.0, **more: Any) -> dict[str, Any]:
    return {"id": key, "name": f"n{key % 7}", "v": v, **more}


def contents(made: Store, table: str = "t") -> dict[Any, Any]:
    found = made.table(table).scan().to_table()
    assert made.verify() == []
    return dict(zip(found[0].to_pylist(), found[-1].to_pylist(), strict=True))


def forget_last_batch(checkpoint: Path) -> int:
    """As if Spark had died between the sink's commit and its own note of it."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last


def failing(started: Callable[[], StreamingQuery]) -> str:
    """What a stream says that cannot go on."""
    with pytest.raises(PySparkException) as caught:
        started().awaitTermination(200)
    return str(caught.value)


def test_a_stream_writes_each_batch_once_and_a_replayed_one_too(
    source: Source, store: Store, tmp_path: Path
) -> None:
    source.add(*[line(key) for key in range(998, 1_004)])
    checkpoint = tmp_path / "checkpoint"
    assert run(source.frame(), store, checkpoint, queryName="sink") == [0]
    assert kinds(store) == ["create", "write", "write"]
    wanted = {key: 0.5 if key < 998 else 2.0 for key in range(1_004)}
    assert contents(store) == wanted

    # The replayed batch comes over other tasks than before, after a change of its rows.
    store.table("t").upsert(store.table("t").scan(filter="id = 1003").to_table().set_column(2, "v", [[9.0]]))
    assert forget_last_batch(checkpoint) == 0
    source.add(line(0, v=3.0))
    assert run(source.frame().repartition(2, "id"), store, checkpoint) == [0, 1]
    assert kinds(store) == ["create", "write", "write", "write", "write"]
    assert contents(store) == wanted | {1_003: 9.0, 0: 3.0}
    assert store.collect_garbage(grace_seconds=0).removed == 0

    # With a new checkpoint it is another stream, which begins with the first batch.
    assert run(source.frame(), store, tmp_path / "other") == [0, 1]
    assert contents(store) == wanted | {0: 3.0}


@pytest.mark.long
def test_a_checkpoint_that_lost_its_newest_files_is_noticed(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.create_table("copy", store.table("t").schema, ["id"])
    checkpoint = tmp_path / "checkpoint"

    def copied() -> StreamingQuery:
        frame = spark.readStream.format("elasticscan").options(store=store.uri, table="t").load()
        return start(frame, store, checkpoint, table="copy")

    assert copied().awaitTermination(200)
    schema = store.table("t").schema
    store.table("t").upsert(pa.table({"id": [2_000], "name": ["x"], "v": [3.0]}, schema=schema))
    assert copied().awaitTermination(200)
    last = forget_last_batch(checkpoint)
    assert copied().awaitTermination(200)  # the same micro-batch again
    assert kinds(store, "copy") == ["create", "write", "write"]

    assert forget_last_batch(checkpoint) == last
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "offsets" / name).unlink(missing_ok=True)
    store.table("t").upsert(pa.table({"id": [2_001], "name": ["x"], "v": [4.0]}, schema=schema))
    assert "[ES_INVALID_CONTINUATION_KEY]" in failing(copied)
    assert kinds(store, "copy") == ["create", "write", "write"]


@pytest.mark.long
def test_complete_mode_keeps_a_table_equal_to_an_aggregate(
    source: Source, store: Store, tmp_path: Path
) -> None:
    counts = source.frame().groupBy("name").agg(F.count("*").alias("n"))
    given = {"table": "counts", "primaryKey": "name"}
    checkpoint = tmp_path / "checkpoint"
    source.add(line(0), line(7), line(1))
    source.add(line(8), line(2))
    run(counts, store, checkpoint, "complete", **given)
    assert contents(store, "counts") == {"n0": 2, "n1": 2, "n2": 1}
    assert kinds(store, "counts") == ["create", "overwrite", "overwrite"]
    assert forget_last_batch(checkpoint) == 1
    assert run(counts, store, checkpoint, "complete", **given) == [1]
    assert kinds(store, "counts") == ["create", "overwrite", "overwrite"]
    assert contents(store, "counts") == {"n0": 2, "n1": 2, "n2": 1}
