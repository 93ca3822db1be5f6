"""Indexes inside Spark: chosen by option, read while tablets move, explained."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.connector import register
from elasticscan.store import Store

pytestmark = pytest.mark.spark

FILTER = "name = 'n3' AND id < 600"


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def indexed(store: Store) -> Store:
    store.table("t").create_index("by_id", ["id"], include=["name"])
    store.table("t").create_index("by_name", ["name"], kind="hash")
    # Newer versions and deletions, of which the indexes have entries too.
    store.table("t").upsert(
        store.table("t").scan(filter="id BETWEEN 100 AND 299").to_table().set_column(2, "v", [[7.0] * 200])
    )
    store.table("t").delete(pa.table({"id": range(0, 1_000, 21)}))
    return store


def loaded(spark: SparkSession, store: Store, **options: str) -> DataFrame:
    return spark.read.format("elasticscan").options(**options).load(f"{store.uri}/t")


def shown(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize("index", ["by_id", "by_name", "auto"])
def test_spark_gets_the_rows_of_a_direct_scan_while_tablets_move(
    spark: SparkSession, indexed: Store, index: str
) -> None:
    wanted = [
        tuple(row.values())
        for row in indexed.table("t").scan(filter=FILTER, index="none").to_table().to_pylist()
    ]
    frame = loaded(spark, indexed, index=index, filter=FILTER)
    assert shown(frame) == sorted(wanted)
    # The plan is made; now everything moves between planning and reading.
    indexed.expand(["s3"])
    indexed.contract("s1")
    assert shown(frame) == sorted(wanted)


def test_an_index_scan_takes_one_task_where_a_direct_scan_takes_many(
    spark: SparkSession, indexed: Store
) -> None:
    options = {"filter": "id = 5", "splitSize": "1k"}
    assert loaded(spark, indexed, index="none", **options).rdd.getNumPartitions() > 8
    one = loaded(spark, indexed, index="by_id", **options)
    assert one.rdd.getNumPartitions() == 1
    assert shown(one) == [(5, "n5", 0.5)]


def test_explain_gives_the_candidates_as_a_data_frame(spark: SparkSession, indexed: Store) -> None:
    # A table this small would be read directly if nobody asked for the index.
    frame = loaded(spark, indexed, filter="id < 10", explain="true", index="by_id")
    assert frame.schema.simpleString() == (
        "struct<access:string,kind:string,condition:string,remainder:string,rows_scanned:bigint,"
        "cost:double,chosen:boolean,reason:string>"
    )
    assert [row.access for row in frame.where("chosen").collect()] == ["by_id"]
    assert frame.select("access", "kind").collect() == [
        ("direct", "direct"),
        ("by_id", "sorted"),
        ("by_name", "hash"),
    ]


def test_a_wrong_name_of_an_index_is_told_with_the_nearest(spark: SparkSession, indexed: Store) -> None:
    with pytest.raises(PySparkException) as caught:
        loaded(spark, indexed, index="by_nam").collect()
    assert "[ES_INDEX_NOT_FOUND]" in str(caught.value)
    assert "'by_name'" in str(caught.value)
