"""Nothing half made is left behind by first writes that fail, or by statements about tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.connector import AttachedStore, attach
from elasticscan.store import Store
from tests.connector.conftest import rows

pytestmark = [pytest.mark.spark, pytest.mark.long]


@contextmanager
def error_with(*texts: str) -> Iterator[None]:
    with pytest.raises(Exception) as caught:
        yield
    for text in texts:
        assert text in str(caught.value)


def tables(store: Store) -> list[str]:
    return [table.name for table in store.tables()]


def fresh(store: Store) -> dict[str, str]:
    return {"store": store.uri, "table": "fresh", "primaryKey": "id"}


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.range(10).selectExpr("id", "concat('n', id) AS name", "CAST(0.5 AS DOUBLE) AS v")


BAD = {
    "a repeated key": ("if(id = 7, 6L, id) AS id", "[ES_INVALID_KEY]"),
    "a failing query": ("if(id = 7, raise_error('no seven'), id) AS id", "no seven"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_first_write_that_fails_leaves_no_table(frame: DataFrame, store: Store, kind: str) -> None:
    key, text = BAD[kind]
    bad = frame.selectExpr(key, "name", "v")
    with error_with(text):
        bad.write.format("elasticscan").mode("append").options(**fresh(store)).save()
    assert tables(store) == ["t"]
    store.collect_garbage(grace_seconds=0)  # of tasks that had ended when another failed
    assert store.verify() == []


def test_a_first_batch_of_a_stream_that_fails_leaves_no_table(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    source = spark.readStream.format("elasticscan").option("startingVersion", "earliest")
    changes = source.load(f"{store.uri}/t").selectExpr("if(id = 7, null, id) AS id", "name", "v")
    sink = changes.writeStream.format("elasticscan").options(**fresh(store)).trigger(availableNow=True)
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with error_with("[ES_INVALID_KEY]"):
        query.awaitTermination(200)
    assert tables(store) == ["t"]


@pytest.fixture
def shop(spark: SparkSession, store: Store) -> AttachedStore:
    return attach(spark, store.uri, "half_")


def test_drop_table_drops_the_table_of_the_store(
    spark: SparkSession, store: Store, shop: AttachedStore
) -> None:
    store.create_table("other", rows(0, 1).schema, ["id"])
    shop.sql("DROP TABLE half_t")
    assert tables(store) == ["other"]
    assert shop.tables == ("other",)
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        shop.sql("SELECT * FROM half_t").collect()


def test_a_table_that_is_gone_is_dropped_only_if_it_exists(store: Store, shop: AttachedStore) -> None:
    store.table("t").drop()
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        shop.sql("DROP TABLE half_t")
    shop.sql("DROP TABLE IF EXISTS half_t")
    assert shop.tables == ()


def test_drop_view_leaves_the_table(spark: SparkSession, store: Store, shop: AttachedStore) -> None:
    shop.sql("DROP VIEW half_t")
    assert tables(store) == ["t"]


def test_statements_that_go_to_spark_change_no_row(store: Store, shop: AttachedStore) -> None:
    for statement in (
        "DELETE half_t WHERE id > 5",
        "WITH z AS (SELECT 1L AS id) DELETE FROM half_t WHERE id IN (SELECT id FROM z)",
        "MERGE WITH SCHEMA EVOLUTION INTO half_t USING half_t s ON half_t.id = s.id WHEN MATCHED THEN DELETE",
        "INSERT INTO half_t REPLACE WHERE id > 5 SELECT * FROM half_t WHERE id > 900",
        "INSERT OVERWRITE half_t PARTITION (id = 1) SELECT name, v FROM half_t",
        "BEGIN DELETE FROM half_t; END",
    ):
        with suppress(PySparkException, Py4JJavaError):
            shop.sql(statement).collect()
        assert store.table("t").scan().count() == 1_000, statement
