"""Clusters read from Spark while they are resharded, by paths, options and SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from elasticscan.connector import register
from elasticscan.store import Store
from tests.backends.redis.servers import ServerCluster
from tests.backends.redis.soak import SCANS, soaked

ROWS = {f"person:{n}": {"name": f"n{n}", "age": str(n)} for n in range(3_000)}
COLUMNS = "key string, name string, age long"


@pytest.mark.long
def test_a_soak_finds_each_key_once(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    history = tmp_path / "topologies"
    Store.create(history, ["a"]).close()
    options = {"topologyHistory": str(history), "keySecret": "s3cret", "numPartitions": "4"}
    with soaked("valkey", "Spark") as soak:
        frame = spark.read.format("elasticscan").schema("key string, name string, version long")
        url = f"{soak.cluster.url}/person"
        soak.scan(lambda: frame.options(**options).load(url).toArrow(), SCANS)
    spark.createDataFrame([(1,)], "a int")  # the soak's threads leave this one without an active session
    assert spark.read.format("elasticscan").load(f"{history}/topology_history").count() > 1


@pytest.fixture
def cluster() -> Iterator[ServerCluster]:
    with ServerCluster("redis") as started:
        started.load(ROWS)
        yield started


@pytest.mark.long
def test_a_cluster_is_read_by_paths_by_options_and_in_sql_and_not_written(
    spark: SparkSession, cluster: ServerCluster, tmp_path: Path
) -> None:
    register(spark)
    url = f"{cluster.url}/person"
    spark.sql(f"CREATE TEMPORARY VIEW people USING elasticscan OPTIONS (url '{url}', inferSchema 'true')")
    (row,) = spark.sql("SELECT count(*) AS n, max(age) AS oldest FROM people").collect()
    assert (row.n, row.oldest) == (3_000, 2_999)
    options = spark.read.format("elasticscan").schema(COLUMNS).option("url", cluster.url)
    some = options.option("table", "person").option("filter", "key IN ('7', '8')").load()
    assert sorted(row.age for row in some.collect()) == [7, 8]
    few = spark.read.format("elasticscan").option("inferSchema", "true").option("columns", "name")
    assert [row.asDict() for row in few.option("filter", "age = 9").load(url).collect()] == [{"name": "n9"}]
    with pytest.raises(Exception, match="ES_NOT_FOUND"):
        spark.read.format("elasticscan").option("columns", "nmae").load(url)
    with pytest.raises(Exception, match=r"ES_INVALID_OPTION.*keysPattern"):
        spark.read.format("elasticscan").schema(COLUMNS).option("keysPatern", "x").load(url).collect()
    with pytest.raises(Exception, match="ES_INVALID_CALL"):
        spark.range(1).write.format("elasticscan").mode("append").save(url)
    with pytest.raises(Exception, match="ES_INVALID_CALL"):
        spark.readStream.format("elasticscan").schema(COLUMNS).load(url).writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path)
        ).start().awaitTermination(60)
