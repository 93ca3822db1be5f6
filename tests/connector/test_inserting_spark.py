"""INSERTs through `catalog.sql`, and what tables are reported to be: in Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from elasticscan.base.errors import (
    AlreadyExists,
    NotSupported,
    WriteConflict,
)
from elasticscan.connector import AttachedStore, attach
from elasticscan.store import Store
from elasticscan.store.writing import attempts

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
    monkeypatch.setattr(attempts, "ATTEMPTS_SECONDS", 0)
    with pytest.raises(WriteConflict, match="each of the 10 times"):
        catalog.sql("INSERT INTO t (id, name) VALUES (1, 'new')")
    assert len(set(tried)) == 10
    assert set(named) == {(store.uri, None)}  # which Spark hides


@pytest.mark.long
def test_an_append_of_some_columns_keeps_the_others(spark: SparkSession, store: Store) -> None:
    some = spark.createDataFrame([(i, -1.0) for i in range(5, 15)], "id long, v double").repartition(3)
    write = some.write.format("elasticscan").mode("append")
    with pytest.raises(PySparkException, match="partialUpdate"):
        write.save(f"{store.uri}/t")
    write.option("partialUpdate", "true").save(f"{store.uri}/t")
    assert rows(store, 4, 5, 14) == [(4, "n4", 2.0), (5, "n5", -1.0), (14, None, -1.0)]


def test_an_insert_of_a_table_into_itself_reads_the_newest_rows(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    assert spark.table("t").count() == 10  # the plain view stays there
    store.table("t").delete([3])
    catalog.sql("INSERT INTO t SELECT * FROM t")
    assert rows(store, 3) == []
    catalog.sql("INSERT INTO t (id, v) SELECT id, v + 1 FROM t")
    assert rows(store, 3, 4) == [(4, "n4", 3.0)]


@pytest.mark.long
def test_a_plain_view_brings_back_what_it_was_first_read_with(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    """A limit that the guide tells: where Spark ceases to have it, the guide can, too."""
    assert spark.table("t").count() == 10
    before = store.table("t").history()[-1].number
    store.table("t").delete([3])
    spark.sql("INSERT INTO t SELECT * FROM t")
    assert rows(store, 3) == [(3, "n3", 1.5)]
    store.table("t").delete([3])
    guarded = spark.table("t").write.format("elasticscan").mode("append").option("ifUnchangedSince", before)
    with pytest.raises(PySparkException, match="ES_ROWS_CHANGED"):
        guarded.save(f"{store.uri}/t")
    assert rows(store, 3) == []


# Tables that are made


def test_a_table_of_no_format_is_the_stores(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    for wrong in ("CREATE TABLE x AS SELECT * FROM t", "CREATE TABLE x (id BIGINT, v DOUBLE)"):
        with pytest.raises(NotSupported, match="a table needs PRIMARY KEY"):
            catalog.sql(wrong)
    catalog.sql("CREATE TABLE x TBLPROPERTIES ('primaryKey' = 'id') AS SELECT id, v FROM t WHERE id < 4")
    assert store.table("x").scan().to_table().num_rows == 4
    catalog.sql("CREATE TABLE IF NOT EXISTS y (id BIGINT PRIMARY KEY, v DOUBLE)")
    catalog.sql("CREATE TABLE IF NOT EXISTS y (id BIGINT PRIMARY KEY, v DOUBLE)")
    with pytest.raises(AlreadyExists):
        catalog.sql("CREATE TABLE y (id BIGINT PRIMARY KEY)")
    catalog.sql("CREATE TABLE z OPTIONS (primaryKey 'id', compression = 'none') AS SELECT id FROM t")
    assert store.table("z").definition.compression is None
    assert [table.name for table in store.tables()] == ["t", "x", "y", "z"]
    assert [table.name for table in spark.catalog.listTables() if not table.isTemporary] == []


def test_a_merge_that_only_deletes_may_have_several_rows_for_one(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    source = "(SELECT explode(array(3, 3, 4, 99)) AS id)"
    done = catalog.sql(f"MERGE INTO t USING {source} s ON t.id = s.id WHEN MATCHED THEN DELETE").collect()
    assert [tuple(row) for row in done] == [(2, 0, 2, 0)]
    assert rows(store, 2, 3, 4) == [(2, "n2", 1.0)]


@pytest.mark.long
def test_a_stream_that_cannot_begin_says_why(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    frame = spark.readStream.format("elasticscan").option("versionAsOf", "2").load(f"{store.uri}/t")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(PySparkException) as refused:
        query.awaitTermination(60)
    assert "option 'versionAsOf' is not for a stream" in str(refused.value)
    assert "UnboundLocalError" not in str(refused.value)
