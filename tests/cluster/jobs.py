"""What drivers do at a cluster: each a function of a session that answers with plain values.

Functions that executors run are made within others, so that Spark sends them: these have no `tests` folder.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from elasticscan.connector import attach


def read(
    spark: SparkSession, path: str, gate: str | None = None, options: dict[str, str] | None = None
) -> dict[str, Any]:
    """All rows of a table, and the directories of the executors that read them."""
    frame = spark.read.format("elasticscan").options(**(options or {})).load(path)
    return _answer(frame, gate)


def sql(spark: SparkSession, query: str, store: str, gate: str | None = None) -> dict[str, Any]:
    """What a query of an attached store gives, whose conditions and columns reach the files."""
    return _answer(attach(spark, store).sql(query), gate)


def write(
    spark: SparkSession,
    path: str,
    ids: list[int],
    v: int,
    gate: str | None = None,
    options: dict[str, str] | None = None,
    parts: int = 4,
    slow: int | None = None,
) -> None:
    """Write rows with these first and last ids, in `parts` tasks; the gate may hold the `slow` one alone."""
    frame = spark.range(ids[0], ids[1], 1, parts).selectExpr("id", f"CAST({v} AS BIGINT) AS v")
    held = _held(frame, gate, slow)
    held.write.format("elasticscan").mode("append").options(**(options or {})).save(path)


def stream(
    spark: SparkSession,
    source: str,
    target: str,
    checkpoint: str,
    gate: str | None = None,
    rows: int = 1_000,
) -> int:
    """Copy what a table has and what changes in it; how many micro-batches that took."""
    reading = spark.readStream.format("elasticscan").option("readChangeFeed", "true")
    frame = reading.option("maxRowsPerTrigger", str(rows)).option("minPartitions", "2").load(source)
    writing = _held(frame, gate).writeStream.format("elasticscan").option("deleteColumn", "_change_type")
    writing = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = writing.start(target)
    query.awaitTermination()
    return len(query.recentProgress)


def follow(spark: SparkSession, source: str, target: str, checkpoint: str, ends: bool = False) -> None:
    """Insert each change of a table into another one, for ever or until there are no more."""
    reading = spark.readStream.format("elasticscan").option("readChangeFeed", "true")
    frame = reading.options(maxRowsPerTrigger="12000", minPartitions="2", streamName="soak").load(source)
    frame = frame.selectExpr("id", "_commit_version AS number", "_change_type AS kind", "v")
    writing = frame.writeStream.format("elasticscan").option("insertOnly", "true")
    writing = writing.option("checkpointLocation", checkpoint)
    how: dict[str, Any] = {"availableNow": True} if ends else {"processingTime": "200 milliseconds"}
    writing.trigger(**how).start(target).awaitTermination()


def shown(spark: SparkSession, uri: str, by_url: bool) -> list[str]:
    """What Spark shows of reads in every way that there is: plans, and a message of what is not there.

    Args:
        by_url: name the store by the option `url`; else as people who know no better do.
    """
    name = "url" if by_url else "store"
    reader = spark.read.format("elasticscan")
    frame = reader.options(url=uri, table="t").load() if by_url else reader.load(f"{uri}/t")
    frame.createOrReplaceTempView("plain")
    catalog, texts = attach(spark, uri), [repr(frame)]
    in_sql = f"CREATE OR REPLACE TEMPORARY VIEW v USING elasticscan OPTIONS ({name} '{uri}', table 't')"
    asked = ["SELECT count(*) FROM plain", in_sql, "SELECT v FROM v WHERE id = 3", "SHOW TABLES"]
    frames = [spark.sql(text) for text in asked]
    frames += [catalog.sql("SELECT v, count(*) FROM t WHERE id < 9 GROUP BY v"), catalog.table("t").load()]
    for frame in frames:
        frame.collect()
        texts.append(frame._jdf.queryExecution().toString())
    return texts


def stop(spark: SparkSession) -> None:
    """End the session, which then has written all of its logs."""
    spark.stop()


def _answer(frame: DataFrame, gate: str | None) -> dict[str, Any]:
    table = _held(_with_places(frame), gate).toArrow()
    places = sorted(set(table["_place"].to_pylist()))
    table = table.drop_columns(["_place"])
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return {"rows": sorted(map(list, rows)), "places": places}


def _with_places(frame: DataFrame) -> DataFrame:
    """The rows, each with the directory of the executor that it came to."""

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            place = pa.array([str(Path.cwd())] * batch.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, place], names=[*batch.schema.names, "_place"])

    return frame.mapInArrow(add, StructType([*frame.schema, StructField("_place", StringType())]))


def _held(frame: DataFrame, gate: str | None, slow: int | None = None) -> DataFrame:
    """The rows; each task, or a slow one alone, stops at its first batch until the gate is open."""
    if gate is None:
        return frame

    def hold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        place = Path(gate)
        for number, batch in enumerate(batches):
            yield batch
            task = TaskContext.get()
            if number == 0 and task is not None and slow in (None, task.partitionId()):
                (place / f"at-{uuid.uuid4()}").write_text(str(Path.cwd()))
                end = time.monotonic() + 240
                while not (place / "open").exists():
                    assert time.monotonic() < end, "no one opened the gate"
                    time.sleep(0.02)

    return frame.mapInArrow(hold, frame.schema)


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job for job in (read, sql, write, stream, follow, shown, stop)
}
