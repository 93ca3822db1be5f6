"""The streaming source inside Spark: streams that end, follow, die, start again and are replayed."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elasticscan.connector import register
from elasticscan.store import Store
from tests.connector.conftest import rows

pytestmark = pytest.mark.spark

Row = tuple[Any, ...]


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


class Sink:
    """Rows by batch, so that a batch that is repeated replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.calls = 0

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = [tuple(row) for row in frame.collect()]
        self.calls += 1

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def sizes(self) -> list[int]:
        return [len(self.batches[number]) for number in sorted(self.batches)]


def stream(spark: SparkSession, store: Store, **options: str) -> DataFrame:
    return spark.readStream.format("elasticscan").options(**options).load(f"{store.uri}/t")


def start(frame: DataFrame, sink: Sink, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    writing = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writing.trigger(**trigger) if trigger else writing).start()


def run(frame: DataFrame, sink: Sink, checkpoint: Path) -> StreamingQuery:
    """Read all there is; then the stream ends."""
    query = start(frame, sink, checkpoint, availableNow=True)
    assert query.awaitTermination(200)
    return query


def wait(until: Callable[[], bool], query: StreamingQuery) -> None:
    for _ in range(3_000):
        if until():
            return
        assert query.isActive, query.exception()
        time.sleep(0.05)
    raise AssertionError("it took too long")


def as_rows(table: pa.Table) -> list[Row]:
    return list(zip(*table.to_pydict().values(), strict=True))


@pytest.mark.long
def test_a_stream_that_ends_reads_bounded_batches_and_goes_on_later(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    sink, frame = Sink(), stream(spark, store, maxRowsPerTrigger="400")
    assert frame.schema.simpleString() == "struct<id:bigint,name:string,v:double>"
    query = run(frame, sink, tmp_path / "c")
    assert Counter(sink.rows) == Counter(as_rows(rows(0, 1_000)))
    assert len(sink.batches) == 3
    assert max(sink.sizes()) <= 400
    progress = query.recentProgress[-1].sources[0]
    assert json.loads(progress.latestOffset)["behindRows"] == 0
    store.table("t").upsert(rows(0, 300, v=1.0))
    store.expand(["s3"])
    store.table("t").upsert(rows(300, 500, v=2.0))
    store.table("t").delete(pa.table({"id": [1]}))  # has no new rows: a batch without tasks
    run(frame, sink, tmp_path / "c")
    assert sink.sizes()[3:] == [300, 200]
    store.table("t").upsert(rows(0, 5, v=3.0))
    run(frame, sink, tmp_path / "c")
    assert Counter(sink.rows[1_500:]) == Counter(as_rows(rows(0, 5, v=3.0)))


def test_a_stream_follows_a_table_that_is_written_while_its_tablets_move(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    sink, elsewhere = Sink(), Store.open(store.uri)
    query = start(
        stream(spark, store, minPartitions="2"), sink, tmp_path / "c", processingTime="50 milliseconds"
    )
    wait(lambda: len(sink.rows) == 1_000, query)

    def change() -> None:
        for number in range(12):
            elsewhere.table("t").upsert(rows(1_000 + 100 * number, 1_150 + 100 * number, v=float(number)))
            match number:
                case 2:
                    elsewhere.expand(["s3", "s4"])
                case 5:
                    elsewhere.table("t").compact()
                case 8:
                    elsewhere.contract("s1")
                case _:
                    tablet = elsewhere.topology.placement.tablets[number % 8]
                    names = list(elsewhere.context.shard_names().values())
                    if names[number % len(names)] != elsewhere.context.shard_names()[tablet.shard]:
                        elsewhere.move(tablet.id, names[number % len(names)])

    others = threading.Thread(target=change)
    others.start()
    others.join(200)
    wait(lambda: len(sink.rows) >= 1_000 + 12 * 150, query)
    idle = sink.calls
    time.sleep(0.5)
    assert sink.calls == idle
    query.stop()
    written = [as_rows(rows(1_000 + 100 * n, 1_150 + 100 * n, v=float(n))) for n in range(12)]
    assert Counter(sink.rows) == Counter(
        [*as_rows(rows(0, 1_000)), *(row for part in written for row in part)]
    )


@pytest.mark.long
def test_a_batch_that_is_replayed_after_a_crash_has_the_same_rows(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    for lost in ("first", "last"):
        sink, checkpoint = Sink(), tmp_path / lost
        frame = stream(spark, store, maxRowsPerTrigger="300")
        if lost == "first":  # as if it had died in its first batch
            query = start(frame, Died(), checkpoint)
            with pytest.raises(StreamingQueryException, match="died here"):
                query.awaitTermination(200)
            expected = None
        else:
            run(frame, sink, checkpoint)
            expected = forget_last(checkpoint, sink)
        before = as_rows(store.table("t").scan().to_table())
        store.table("t").upsert(rows(0, 50, v=4.0 if lost == "first" else 5.0))
        store.expand([f"s{lost}"])
        store.table("t").compact()
        run(frame, sink, checkpoint)
        new = as_rows(rows(0, 50, v=4.0 if lost == "first" else 5.0))
        if expected is not None:
            assert Counter(sink.batches[expected[0]]) == Counter(expected[1])
        assert Counter(sink.rows) == Counter([*before, *new])


class Died(Sink):
    def __call__(self, frame: DataFrame, number: int) -> None:
        raise RuntimeError("died here")


def forget_last(checkpoint: Path, sink: Sink) -> tuple[int, list[Row]]:
    """As if Spark had died before it noted that the last batch was done."""
    last = max(sink.batches)
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last, sink.batches.pop(last)


@pytest.mark.long
def test_a_change_feed_is_reported_by_streams_and_batches_alike(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    sink = Sink()
    frame = stream(spark, store, readChangeFeed="true", filter="id < 5", startingVersion="1")
    assert frame.schema.names[3:] == ["_change_type", "_commit_version", "_commit_timestamp"]
    first = store.context.catalog.versions()[1]
    store.table("t").upsert(rows(0, 3, v=1.0))
    store.table("t").overwrite(rows(1, 4, v=2.0))
    store.table("t").delete(pa.table({"id": [1]}))
    run(frame, sink, tmp_path / "c")
    expected = Counter({("insert", first): 5, ("delete", first + 3): 1, ("delete", first + 2): 2})
    expected += Counter({("update_preimage", first + 1): 3, ("update_postimage", first + 1): 3})
    expected += Counter({("update_preimage", first + 2): 3, ("update_postimage", first + 2): 3})
    assert Counter(row[3:5] for row in sink.rows) == expected
    reading = spark.read.format("elasticscan").options(readChangeFeed="true", filter="id < 5")
    batch = reading.option("startingVersion", "1").load(f"{store.uri}/t")
    assert Counter(tuple(row) for row in batch.collect()) == Counter(sink.rows)
    one = reading.option("startingVersion", str(first + 3)).load(f"{store.uri}/t")
    assert [tuple(row) for row in one.select("id", "_change_type").collect()] == [(1, "delete")]
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW feed USING elasticscan OPTIONS "
        f"(store '{store.uri}', table 't', readChangeFeed 'true', startingVersion '{first + 1}')"
    )
    assert spark.sql("SELECT count(*) FROM feed WHERE _change_type = 'delete'").collect()[0][0] > 990
