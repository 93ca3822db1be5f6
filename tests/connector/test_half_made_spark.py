"""Nothing half made is left behind: by first writes that fail, and by ways in that Spark cannot finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import NotFound, UnsupportedStatement
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
    "a null key": ("if(id = 7, null, id) AS id", "[ES_INVALID_KEY]"),
    "a repeated key": ("if(id = 7, 6L, id) AS id", "[ES_INVALID_KEY]"),
    "a key that is too long": ("concat(id, repeat('x', 20000)) AS id", "[ES_INVALID_KEY]"),
    "a failing query": ("if(id = 7, raise_error('no seven'), id) AS id", "no seven"),
}


@pytest.mark.parametrize(("mode", "kind"), [*(("append", kind) for kind in BAD), ("overwrite", "a null key")])
def test_a_first_write_that_fails_leaves_no_table(
    frame: DataFrame, store: Store, mode: str, kind: str
) -> None:
    key, text = BAD[kind]
    bad = frame.selectExpr(key, "name", "v")
    with error_with(text):
        bad.write.format("elasticscan").mode(mode).options(**fresh(store)).save()
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


SPARK_TABLES: dict[str, Callable[[DataFrame, dict[str, str]], object]] = {
    "saveAsTable": lambda df, o: (
        df.write.format("elasticscan").mode("append").options(**o).saveAsTable("left")
    ),
    "saveAsTable again": lambda df, o: (
        df.write.format("elasticscan").mode("overwrite").options(**o).saveAsTable("left")
    ),
    "create": lambda df, o: df.writeTo("left").using("elasticscan").options(**o).create(),
    "createOrReplace": lambda df, o: df.writeTo("left").using("elasticscan").options(**o).createOrReplace(),
}


@pytest.mark.parametrize(("table", "way"), [*(("fresh", way) for way in SPARK_TABLES), ("t", "create")])
def test_a_table_of_spark_that_nobody_could_read_is_refused(
    spark: SparkSession, frame: DataFrame, store: Store, table: str, way: str
) -> None:
    before = store.status()["snapshot"]
    with error_with("[ES_INVALID_OPTION]", "nothing was written", "save('uri/table')"):
        SPARK_TABLES[way](frame, fresh(store) | {"table": table})
    assert tables(store) == ["t"]
    assert store.status()["snapshot"] == before
    assert not spark.catalog.tableExists("left")


def test_a_table_of_spark_from_a_query_is_refused(spark: SparkSession, store: Store) -> None:
    with error_with("[ES_INVALID_OPTION]", "no store is given"):
        spark.sql(
            "CREATE TABLE left USING elasticscan "
            f"OPTIONS (store '{store.uri}', table 'fresh', primaryKey 'id') AS SELECT 1L AS id"
        )
    assert tables(store) == ["t"]
    assert not spark.catalog.tableExists("left")


def test_a_stream_into_a_table_of_spark_is_refused(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    source = spark.readStream.format("elasticscan").load(f"{store.uri}/t")
    sink = source.writeStream.format("elasticscan").options(**fresh(store)).trigger(availableNow=True)
    try:
        with error_with("[ES_INVALID_OPTION]", "start('uri/table')"):
            query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("left")
            query.awaitTermination(200)
    finally:
        spark.sql("DROP TABLE IF EXISTS left")
    assert tables(store) == ["t"]


def test_writes_inside_of_other_queries_are_still_written(
    spark: SparkSession, frame: DataFrame, store: Store, tmp_path: Path
) -> None:
    """What a write for a table of Spark is known by is not true of any other."""
    options = fresh(store)

    def save(batch: DataFrame, _number: int) -> None:
        batch.write.format("elasticscan").mode("append").options(**options).save()

    source = spark.readStream.format("elasticscan").load(f"{store.uri}/t")
    sink = source.writeStream.foreachBatch(save).trigger(availableNow=True)
    sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(200)
    assert store.table("fresh").scan().to_table().num_rows == 1_000
    attach(spark, store.uri, "inner_")
    spark.sql("BEGIN INSERT INTO inner_t VALUES (5000, 'script', 1D); END").collect()
    spark.sql("EXECUTE IMMEDIATE \"INSERT INTO inner_t VALUES (5001, 'immediate', 1D)\"")
    frame.where("id > (SELECT avg(id) FROM inner_t) - 1000").cache().write.format("elasticscan").mode(
        "append"
    ).save(f"{store.uri}/t")
    assert store.table("t").scan(filter="id >= 5000").to_table().num_rows == 2


@pytest.fixture
def shop(spark: SparkSession, store: Store) -> AttachedStore:
    return attach(spark, store.uri, "half_")


def test_drop_table_drops_the_table_of_the_store(
    spark: SparkSession, store: Store, shop: AttachedStore
) -> None:
    store.create_table("other", rows(0, 1).schema, ["id"])
    shop.sql("DROP TABLE half_t")
    assert tables(store) == ["other"]
    assert list(shop) == ["half_other"]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        shop.sql("SELECT * FROM half_t").collect()


def test_a_table_that_is_gone_is_dropped_only_if_it_exists(store: Store, shop: AttachedStore) -> None:
    store.table("t").drop()
    with pytest.raises(NotFound):
        shop.sql("DROP TABLE half_t")
    shop.sql("DROP TABLE IF EXISTS half_t")
    assert list(shop) == []


def test_drop_view_leaves_the_table(spark: SparkSession, store: Store, shop: AttachedStore) -> None:
    shop.sql("DROP VIEW half_t")
    assert tables(store) == ["t"]


def test_other_statements_are_refused_before_anything_happens(
    spark: SparkSession, store: Store, shop: AttachedStore
) -> None:
    for statement in (
        "ALTER VIEW half_t AS SELECT 1",
        "ALTER TABLE half_t RENAME TO other",
        "DROP TABLE half_t, other",
        "UPDATE half_t SET id = 1",
        "OPTIMIZE half_t ZORDER BY (id)",
        "VACUUM half_t RETAIN 0 HOURS",
        "RESTORE TABLE half_t TO 3",
        "CREATE OR REPLACE TEMP VIEW half_t AS SELECT 1",
        "CREATE TABLE half_t AS SELECT 1 AS id",
    ):
        with pytest.raises(UnsupportedStatement):
            shop.sql(statement)
    assert shop.sql("SELECT count(*) FROM half_t").collect()[0][0] == 1_000
    shop.sql("INSERT INTO half_t VALUES (5000, 'x', 1D)")
    assert shop.sql("SELECT count(*) FROM half_t").collect()[0][0] == 1_001
    shop.sql("INSERT OVERWRITE half_t SELECT * FROM half_t WHERE id < 3")
    assert store.table("t").scan().to_table().num_rows == 3


def test_statements_that_go_to_spark_change_no_row(store: Store, shop: AttachedStore) -> None:
    for statement in (
        "DELETE half_t WHERE id > 5",
        "EXPLAIN DELETE FROM half_t",
        "WITH z AS (SELECT 1L AS id) DELETE FROM half_t WHERE id IN (SELECT id FROM z)",
        "MERGE WITH SCHEMA EVOLUTION INTO half_t USING half_t s ON half_t.id = s.id WHEN MATCHED THEN DELETE",
        "INSERT INTO half_t REPLACE WHERE id > 5 SELECT * FROM half_t WHERE id > 900",
        "INSERT INTO half_t REPLACE USING (id) SELECT * FROM half_t WHERE id > 900",
        "INSERT OVERWRITE half_t PARTITION (id = 1) SELECT name, v FROM half_t",
        "REPLACE TABLE half_t USING parquet AS SELECT 1 AS id",
        "TRUNCATE half_t",
        "BEGIN DELETE FROM half_t; END",
    ):
        with suppress(PySparkException, Py4JJavaError):
            shop.sql(statement).collect()
        assert store.table("t").scan().count() == 1_000, statement


def test_a_frame_that_gained_a_column_is_written_twice(spark: SparkSession, store: Store) -> None:
    frame = (
        spark.read.format("elasticscan")
        .load(f"{store.uri}/t")
        .where("id < 10")
        .selectExpr("*", "id * 2 AS w")
    )
    for _ in range(2):
        frame.write.format("elasticscan").option("mergeSchema", "true").mode("append").save(f"{store.uri}/t")
    assert store.table("t").scan(filter="w = id * 2").to_table().num_rows == 10
