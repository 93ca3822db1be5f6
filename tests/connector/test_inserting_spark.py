"""INSERTs through `catalog.sql`, and what tables are reported to be: in Spark."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from elasticscan.base.errors import (
    AlreadyExists,
    NotSupported,
    WriteConflict,
)
from elasticscan.connector import AttachedStore, attach
from elasticscan.store import Store
from elasticscan.store.writing import transactions

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("v", pa.float64())])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "s.store", ["s1", "s2"], tablets=4, slots=64)
    made.create_table("t", SCHEMA, ["id"])
    made.table("t").upsert([{"id": i, "name": f"n{i}", "v": i / 2} for i in range(10)])
    return made


@pytest.fixture
def catalog(spark: SparkSession, store: Store) -> AttachedStore:
    return attach(spark, store.uri)


def rows(store: Store, *keys: int) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in store.table("t").get(list(keys)).to_pylist()]


# INSERT that leaves columns out


def test_an_insert_that_leaves_columns_out_keeps_them(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    before = len(spark.catalog.listTables())
    catalog.sql("INSERT INTO t (v, id) VALUES (7, 1), (8, 100)")
    assert rows(store, 1, 100) == [(1, "n1", 7.0), (100, None, 8.0)]
    catalog.sql(
        "INSERT INTO t (id, name) SELECT id + 1, upper(name) FROM t WHERE id IN (1, 2) AND v > :v", {"v": 0}
    )
    assert rows(store, 2, 3) == [(2, "N1", 1.0), (3, "N2", 1.5)]
    catalog.sql("INSERT INTO TABLE t (name, id) SELECT 'listed', 4L")
    catalog.sql("WITH x AS (SELECT 5 AS k) INSERT INTO t (id, v) SELECT k, ? FROM x", [0.5])
    assert rows(store, 4, 5) == [(4, "listed", 2.0), (5, "n5", 0.5)]
    catalog.sql("INSERT INTO t VALUES (6, 'all', 1)")
    catalog.sql("INSERT INTO t (name, v, id) VALUES ('all', NULL, 7)")
    assert rows(store, 6, 7) == [(6, "all", 1.0), (7, "all", None)]
    assert len(spark.catalog.listTables()) == before
    assert store.table("t").scan().to_table().num_rows == 11


def test_an_insert_of_some_columns_is_wrong_in_sparks_words(store: Store, catalog: AttachedStore) -> None:
    before = store.table("t").history()[-1].number
    for text in (
        "INSERT INTO t (id, nope) VALUES (1, 2)",
        "INSERT INTO t (id, v) VALUES (1, 2, 3)",
        "INSERT INTO t (id, v) VALUES (1, 'x')",
        "INSERT INTO t (id, v) SELECT id, v FROM nowhere",
        "INSERT INTO t BY NAME SELECT 1L AS id, 'x' AS name",
    ):
        with pytest.raises((PySparkException, NotSupported)) as refused:
            catalog.sql(text)
        assert "UnboundLocalError" not in str(refused.value)
    assert store.table("t").history()[-1].number == before


@pytest.mark.long
def test_an_insert_of_some_columns_beside_a_writer_of_its_keys_is_done_again(
    spark: SparkSession, store: Store, catalog: AttachedStore, tmp_path: Path
) -> None:
    uri, flag = store.uri, tmp_path / "was here"

    def meddle(name: str) -> str:
        if not flag.exists():
            flag.touch()
            Store.open(uri).table("t").upsert([{"id": 1, "name": "theirs", "v": 99.0}])
        return name

    spark.udf.register("meddle", meddle)
    catalog.sql("INSERT INTO t (id, name) SELECT 1L, meddle('ours')")
    assert rows(store, 1) == [(1, "ours", 99.0)]
    assert [commit.rows for commit in store.table("t").history()[-2:]] == [1, 1]


def test_an_insert_of_some_columns_gives_up_where_others_write_each_time(
    spark: SparkSession, store: Store, catalog: AttachedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, tried, named = spark.sql, list[str](), list[Any]()

    def sql(text: str, *args: Any, **frames: Any) -> Any:
        if not text.startswith("INSERT"):
            return usual(text, *args, **frames)
        tried.append(text)
        options = spark.table(text.split("`")[1])._jdf.queryExecution().optimizedPlan().relation().options()
        named.append((options.get("url"), options.get("store")))
        raise PySparkException("elasticscan.base.errors.RowsChanged: [ES_ROWS_CHANGED] id = 1; write again")

    monkeypatch.setattr(spark, "sql", sql)
    monkeypatch.setattr(transactions, "ATTEMPTS_SECONDS", 0)
    with pytest.raises(WriteConflict, match="each of the 10 times"):
        catalog.sql("INSERT INTO t (id, name) VALUES (1, 'new')")
    assert len(set(tried)) == 10
    assert set(named) == {(store.uri, None)}  # which Spark hides


def test_an_insert_of_a_table_into_itself_reads_the_newest_rows(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    assert spark.table("t").count() == 10  # the plain view stays there
    store.table("t").delete([3])
    catalog.sql("INSERT INTO t SELECT * FROM t")
    assert rows(store, 3) == []
    catalog.sql("INSERT INTO t (id, v) SELECT id, v + 1 FROM t")
    assert rows(store, 3, 4) == [(4, "n4", 3.0)]


# Tables that are made


def test_a_table_of_no_format_is_the_stores(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    catalog.sql("CREATE TABLE x TBLPROPERTIES ('primaryKey' = 'id') AS SELECT id, v FROM t WHERE id < 4")
    assert store.table("x").scan().to_table().num_rows == 4
    for _ in range(2):
        catalog.sql("CREATE TABLE IF NOT EXISTS y (id BIGINT PRIMARY KEY, v DOUBLE)")
    with pytest.raises(AlreadyExists):
        catalog.sql("CREATE TABLE y (id BIGINT PRIMARY KEY)")
    assert [table.name for table in store.tables()] == ["t", "x", "y"]
    assert [table.name for table in spark.catalog.listTables() if not table.isTemporary] == []


# Tables that are dropped, and statements that go to Spark


@pytest.mark.long
def test_drop_table_drops_the_table_and_drop_view_the_view(store: Store, catalog: AttachedStore) -> None:
    store.create_table("other", SCHEMA, ["id"])
    catalog.sql("SELECT 1")
    catalog.sql("DROP VIEW other")
    assert [table.name for table in store.tables()] == ["other", "t"]
    catalog.sql("DROP TABLE t")
    assert [table.name for table in store.tables()] == ["other"] == list(catalog.tables)
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        catalog.sql("SELECT * FROM t").collect()
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        catalog.sql("DROP TABLE t")
    catalog.sql("DROP TABLE IF EXISTS t")


@pytest.mark.long
def test_statements_that_go_to_spark_change_no_row(store: Store, catalog: AttachedStore) -> None:
    before = store.table("t").scan().to_table()
    for statement in (
        "DELETE t WHERE id > 5",
        "WITH z AS (SELECT 1L AS id) DELETE FROM t WHERE id IN (SELECT id FROM z)",
        "MERGE WITH SCHEMA EVOLUTION INTO t USING t s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "INSERT INTO t REPLACE WHERE id > 5 SELECT * FROM t WHERE id > 900",
        "INSERT OVERWRITE t PARTITION (id = 1) SELECT name, v FROM t",
        "BEGIN DELETE FROM t; END",
    ):
        with suppress(PySparkException, Py4JJavaError):
            catalog.sql(statement).collect()
        assert store.table("t").scan().to_table() == before, statement


@pytest.mark.long
def test_a_stream_that_cannot_begin_says_why(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    frame = spark.readStream.format("elasticscan").option("versionAsOf", "2").load(f"{store.uri}/t")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(PySparkException) as refused:
        query.awaitTermination(60)
    assert "option 'versionAsOf' is for read, not for readStream" in str(refused.value)
    assert "UnboundLocalError" not in str(refused.value)
