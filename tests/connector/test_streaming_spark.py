"""The streaming source and the sink inside Spark: streams that end, follow, die and are replayed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elasticscan.base.errors import InvalidCall
from elasticscan.connector import register
from elasticscan.store import Store
from tests.base.topology_changes import change_topology
from tests.connector.conftest import contents, kinds, rows

pytestmark = pytest.mark.spark

Row = tuple[Any, ...]


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


class Sink:
    """Rows by batch, so that a batch that is repeated replaces itself."""

    def __init__(self, dies: bool = False) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.calls, self.dies = 0, dies

    def __call__(self, frame: DataFrame, number: int) -> None:
        if self.dies:
            raise RuntimeError("died here")
        self.batches[number] = [tuple(row) for row in frame.collect()]
        self.calls += 1

    @property
    def rows(self) -> Counter[Row]:
        return Counter(row for batch in self.batches.values() for row in batch)


def stream(spark: SparkSession, store: Store, **options: str) -> DataFrame:
    return spark.readStream.format("elasticscan").options(**options).load(f"{store.uri}/t")


def start(frame: DataFrame, sink: Sink, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    writing = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writing.trigger(**(trigger or {"availableNow": True})).start()


def ended(query: StreamingQuery) -> list[int]:
    """Wait for the end of a stream; the numbers of its micro-batches."""
    assert query.awaitTermination(200)
    return [progress.batchId for progress in query.recentProgress]


def failing(started: Callable[[], StreamingQuery]) -> str:
    """What a stream says that cannot go on."""
    with pytest.raises(PySparkException) as caught:
        started().awaitTermination(200)
    return str(caught.value)


def wait(until: Callable[[], bool], query: StreamingQuery) -> None:
    for _ in range(3_000):
        if until():
            return
        assert query.isActive, query.exception()
        time.sleep(0.05)
    raise AssertionError("it took too long")


def forget_last(checkpoint: Path, log: str = "commits") -> int:
    """As if Spark had died between the sink's commit and its own note of it."""
    last = max(int(path.name) for path in (checkpoint / log).iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / log / name).unlink(missing_ok=True)
    return last


def as_rows(table: pa.Table) -> Counter[Row]:
    return Counter(zip(*table.to_pydict().values(), strict=True))


# The source


def test_a_stream_follows_a_table_that_is_written_while_its_tablets_move(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    sink, elsewhere, chance = Sink(), Store.open(store.uri), Random(1)
    frame = stream(spark, store, minPartitions="2")
    assert frame.schema.simpleString() == "struct<id:bigint,name:string,v:double>"
    query = start(frame, sink, tmp_path / "c", processingTime="50 milliseconds")
    wait(lambda: sink.rows.total() == 1_000, query)
    written = [rows(1_000 + 100 * number, 1_150 + 100 * number, v=float(number)) for number in range(12)]
    for number, part in enumerate(written):
        elsewhere.table("t").upsert(part)
        try:
            change_topology(elsewhere, chance, f"n{number}")
        except InvalidCall:
            elsewhere.table("t").compact()
    wait(lambda: sink.rows.total() >= 1_000 + 12 * 150, query)
    idle = sink.calls
    time.sleep(0.5)
    assert sink.calls == idle
    query.stop()
    assert sink.rows == as_rows(pa.concat_tables([rows(0, 1_000), *written]))


# The sink


def test_a_stream_writes_each_batch_once_and_notices_a_checkpoint_that_lost_its_newest_files(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.create_table("copy", store.table("t").schema, ["id"])

    def copied(tasks: int = 1, checkpoint: str = "c") -> StreamingQuery:
        writing = stream(spark, store).repartition(tasks, "id").writeStream.format("elasticscan")
        writing = writing.options(store=store.uri, table="copy").outputMode("append")
        return writing.trigger(availableNow=True).start(checkpointLocation=str(tmp_path / checkpoint))

    assert ended(copied()) == [0]
    store.table("t").upsert(rows(2_000, 2_001, v=4.0))
    assert ended(copied()) == [1]
    wanted = dict.fromkeys(range(1_000), 0.5)
    assert contents(store, "copy") == wanted | {2_000: 4.0}

    # The batch comes again over other tasks, after a change of its rows.
    store.table("copy").upsert(rows(2_000, 2_001, v=9.0))
    last = forget_last(tmp_path / "c")
    assert ended(copied(tasks=2)) == [1]
    assert contents(store, "copy") == wanted | {2_000: 9.0}
    assert kinds(store, "copy") == ["create", *["write"] * 3]

    # And with rows that it did not have.
    assert forget_last(tmp_path / "c") == forget_last(tmp_path / "c", "offsets") == last
    store.table("t").upsert(rows(2_001, 2_002, v=4.0))
    assert "[ES_INVALID_CONTINUATION_KEY]" in failing(copied)
    assert contents(store, "copy") == wanted | {2_000: 9.0}
    assert store.collect_garbage(grace_seconds=0, orphan_seconds=0).removed == 0

    # With a new checkpoint it is another stream, which begins with the first batch.
    assert ended(copied(checkpoint="other")) == [0]
    assert contents(store, "copy") == wanted | {2_000: 4.0, 2_001: 4.0}
