"""Tables that gain columns inside Spark: writes that bring them, streams and DataFrames that meet them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from elasticscan.connector import register
from elasticscan.store import Store
from tests.connector.conftest import SCHEMA, rows
from tests.connector.test_sink_spark import Source, failing, line
from tests.connector.test_sink_spark import run as write_stream
from tests.connector.test_sink_spark import start as start_writing
from tests.connector.test_streaming_spark import Sink, run, stream

pytestmark = [pytest.mark.spark, pytest.mark.long]

NEW = pa.field("n", pa.int32())


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def read(spark: SparkSession, store: Store, **options: str) -> DataFrame:
    return spark.read.format("elasticscan").options(**options).load(f"{store.uri}/t")


def with_n(start: int, end: int, n: int) -> pa.Table:
    return rows(start, end).append_column(NEW, pa.array([n] * (end - start), NEW.type))


def test_a_write_brings_its_columns_and_a_dataframe_goes_on_without_them(
    spark: SparkSession, store: Store
) -> None:
    before = read(spark, store)
    frame = spark.range(995, 1_005).selectExpr(
        "id", "'new' AS name", "2.5D AS v", "CAST(id AS INT) AS n", "array(id) AS a"
    )

    def write(data: DataFrame, mode: str, **options: str) -> None:
        data.write.format("elasticscan").mode(mode).options(**options).save(f"{store.uri}/t")

    with pytest.raises(Exception, match="set the option 'mergeSchema'"):
        write(frame, "append")
    write(frame, "append", mergeSchema="true")
    after = read(spark, store)
    assert after.schema.simpleString() == "struct<id:bigint,name:string,v:double,n:int,a:array<bigint>>"
    assert after.where("n IS NULL AND a IS NULL").count() == 995
    assert [tuple(row) for row in after.where("id = 1004").collect()] == [(1004, "new", 2.5, 1004, [1004])]
    assert before.columns == ["id", "name", "v"]
    assert before.count() == 1_005
    assert read(spark, store, versionAsOf="2").where("n IS NULL").count() == 1_000
    write(frame.select("id", "a"), "overwrite", mergeSchema="true")
    assert sorted(tuple(row) for row in read(spark, store).collect())[0] == (995, None, None, None, [995])


@pytest.mark.parametrize("feed", ["false", "true"])
def test_a_stream_that_is_started_again_offers_the_new_column(
    spark: SparkSession, store: Store, tmp_path: Path, feed: str
) -> None:
    def run_again() -> tuple[DataFrame, list[dict[str, Any]]]:
        sink, frame = Sink(), stream(spark, store, readChangeFeed=feed, maxRowsPerTrigger="600")
        run(frame, sink, tmp_path / "c")
        return frame, [dict(zip(frame.columns, row, strict=True)) for row in sink.rows]

    frame, message = run_again()
    assert frame.columns[:3] == ["id", "name", "v"]
    assert "n" not in frame.columns
    assert len(message) == 1_000
    store.table("t").upsert(rows(0, 10, v=3.0))  # not read before the column comes
    store.table("t").add_columns([NEW])
    store.table("t").upsert(with_n(5, 20, 7))
    store.table("t").compact()
    store.expand(["s3"])
    frame, message = run_again()
    assert frame.columns[:4] == ["id", "name", "v", "n"]
    news = [row for row in message if row.get("_change_type") != "update_preimage"]
    assert [row["n"] for row in sorted(news, key=lambda row: (row["v"] != 3.0, row["id"]))] == [None] * 10 + [
        7
    ] * 15
    if feed == "true":
        olds = [row for row in message if row["_change_type"] == "update_preimage"]
        assert [row["n"] for row in olds] == [None] * 25


@pytest.mark.parametrize("merge", ["false", "true"])
def test_a_sink_that_runs_when_its_table_gains_a_column_ends_or_gives_nulls(
    spark: SparkSession, store: Store, tmp_path: Path, merge: str
) -> None:
    source = Source(spark, tmp_path / "source")
    source.add(line(2_000))
    options = {"checkpointLocation": str(tmp_path / "c"), "mergeSchema": merge}
    writing = source.frame().writeStream.format("elasticscan").options(**options)
    query = writing.trigger(processingTime="50 milliseconds").start(f"{store.uri}/t")
    query.processAllAvailable()
    store.table("t").add_columns([NEW])
    source.add(line(2_001))
    if merge == "true":
        query.processAllAvailable()
        query.stop()
        found = store.table("t").scan(["id", "n"], "id >= 2000").to_table().to_pylist()
        assert sorted(found, key=str) == [{"id": 2_000, "n": None}, {"id": 2_001, "n": None}]
        return
    with pytest.raises(Exception, match="set the option 'partialUpdate'"):
        query.processAllAvailable()


def test_a_sink_brings_the_columns_of_its_stream_and_misses_none(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    source = Source(spark, tmp_path / "source", "id bigint, name string, v double, n int")
    source.add(line(1, n=5), line(2_000, n=6))
    message = failing(lambda: start_writing(source.frame(), store, tmp_path / "refused"))
    assert "set the option 'mergeSchema'" in message
    assert store.table("t").schema == SCHEMA
    checkpoint = tmp_path / "checkpoint"
    assert write_stream(source.frame(), store, checkpoint, mergeSchema="true") == [0]
    assert store.table("t").schema.names == ["id", "name", "v", "n"]
    store.table("t").add_columns([pa.field("more", pa.string())])
    source.add(line(2_001, n=7))
    assert write_stream(source.frame(), store, checkpoint, mergeSchema="true") == [1]
    found = store.table("t").scan(["id", "n", "more"], "n IS NOT NULL").to_table().to_pylist()
    assert sorted((row["id"], row["n"], row["more"]) for row in found) == [
        (1, 5, None),
        (2_000, 6, None),
        (2_001, 7, None),
    ]


def test_a_sink_that_runs_takes_a_wider_column_and_ends_without_a_dropped_one(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    table = store.table("t")
    table.add_columns([NEW])
    source = Source(spark, tmp_path / "source", "id bigint, name string, v double, n int")
    source.add(line(2_000, n=6))
    writing = source.frame().writeStream.format("elasticscan")
    writing = writing.options(checkpointLocation=str(tmp_path / "c"))
    query = writing.trigger(processingTime="50 milliseconds").start(f"{store.uri}/t")
    query.processAllAvailable()
    table.widen_column("n", pa.int64())
    source.add(line(2_001, n=7))
    query.processAllAvailable()
    found = table.scan(["id", "n"], "id >= 2000").to_table().to_pylist()
    assert sorted(found, key=str) == [{"id": 2_000, "n": 6}, {"id": 2_001, "n": 7}]
    table.rename_column("n", "m")
    source.add(line(2_002, n=8))
    with pytest.raises(Exception, match="ES_SCHEMA_MISMATCH"):
        query.processAllAvailable()
