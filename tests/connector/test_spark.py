"""The source inside Spark: reads, SQL, writes, moves under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from elasticscan.connector import attach, register
from elasticscan.store import Store
from tests.connector.test_conversion import CARRIED

pytestmark = pytest.mark.spark

IDS = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def reader(spark: SparkSession, store: Store, **options: str) -> DataFrameReader:
    return spark.read.format("elasticscan").options(store=store.uri, table="t", **options)


def writer(frame: DataFrame, store: Store, mode: str = "append", **options: str) -> DataFrameWriter:
    return frame.write.format("elasticscan").mode(mode).options(store=store.uri, **{"table": "t", **options})


def expected(spark: SparkSession, *ids: range) -> DataFrame:
    """What the fixture's table holds in these rows, made by Spark itself."""
    parts = [spark.range(part.start, part.stop, numPartitions=1) for part in ids]
    return reduce(DataFrame.union, parts).selectExpr("id", "concat('n', id % 7) AS name", "0.5D AS v")


def shown(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def rows(ids: range) -> list[tuple[Any, ...]]:
    return [(i, f"n{i % 7}", 0.5) for i in ids]


@contextmanager
def error_with(text: str) -> Iterator[None]:
    """Spark keeps only the text of an error, wrapped in its own."""
    with pytest.raises(PySparkException) as caught:
        yield
    assert text in str(caught.value)


@contextmanager
def enabled(spark: SparkSession, name: str) -> Iterator[None]:
    spark.conf.set(name, "true")
    # A count looks at the settings of the active session: that of whichever test made a frame last.
    spark.createDataFrame([], "id bigint")
    try:
        yield
    finally:
        spark.conf.unset(name)


# Reading


def test_a_batch_read_gives_every_row_once(spark: SparkSession, store: Store) -> None:
    frame = spark.read.format("elasticscan").load(f"{store.uri}/t")
    assert frame.schema.simpleString() == "struct<id:bigint,name:string,v:double>"
    assert [field.nullable for field in frame.schema] == [False, True, True]
    assert_df_equality(frame, expected(spark, range(1_000)), ignore_row_order=True, ignore_nullable=True)


# While tablets move


def test_rows_stay_exact_while_tablets_move(spark: SparkSession, store: Store) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        moves = pool.submit(_keep_moving, store, stop)
        try:
            for _ in range(2):
                frame = reader(spark, store, batchSize="5", splitSize="4k").load()
                totals = frame.agg(F.count("id"), F.countDistinct("id"), F.sum("id")).collect()
                assert [tuple(row) for row in totals] == [(1_000, 1_000, sum(range(1_000)))]
        finally:
            stop.set()
    assert moves.result() > 10


def _keep_moving(store: Store, stop: threading.Event) -> int:
    """Send tablets to and fro until reported to stop; returns how often."""
    with Store.open(store.uri) as own:
        names = dict(own.topology.shard_names)
        moves = 0
        while not stop.is_set():
            tablet = own.topology.placement.tablets[moves % 8]
            own.move(tablet.id, "s2" if names[tablet.shard] == "s1" else "s1")
            moves += 1
        return moves


# SQL


def test_a_temporary_view_can_be_queried_and_inserted_into(spark: SparkSession, store: Store) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING elasticscan OPTIONS (store '{store.uri}', TABLE 't')"
    )
    assert spark.sql("SELECT count(*), max(id) FROM v WHERE name = 'n0'").first() == (143, 994)
    spark.sql("INSERT INTO v SELECT id + 1000, concat('n', (id + 1000) % 7), 0.5D FROM range(20)")
    spark.sql("INSERT INTO v (v, name, id) VALUES (0.5D, 'n5', 1020)")
    assert shown(reader(spark, store).load()) == rows(range(1_021))
    spark.sql("INSERT OVERWRITE v SELECT id, name, v FROM v WHERE id < 5")
    assert shown(reader(spark, store).load()) == rows(range(5))


@pytest.mark.long
def test_attach_makes_a_view_of_every_table_and_again_shows_what_came_since(
    spark: SparkSession, store: Store
) -> None:
    store.create_table("12", IDS, ["id"])
    assert attach(spark, store.uri, "shop_").tables == ("12", "t")
    assert attach(spark, store.uri).tables == ("12", "t")
    assert spark.sql("SELECT count(*) FROM shop_t JOIN t USING (id)").first() == (1_000,)
    assert spark.table("`12`").count() == 0
    spark.sql("INSERT INTO `12` VALUES (1), (2)")
    assert spark.table("`12`").count() == 0
    attach(spark, store.uri)
    assert spark.table("`12`").count() == 2


def test_attach_refuses_a_prefix_that_cannot_be_in_a_name(spark: SparkSession, store: Store) -> None:
    for prefix in ("a`b", "a.b"):
        with pytest.raises(Exception, match="ES_INVALID_OPTION"):
            attach(spark, store.uri, prefix)


# Writing


def test_append_upserts_and_overwrite_replaces(spark: SparkSession, store: Store) -> None:
    writer(expected(spark, range(995, 1_100)).repartition(3), store).save()
    assert shown(reader(spark, store).load()) == rows(range(1_100))
    commits = len(store.table("t").history())
    writer(expected(spark, range(5)).repartition(2), store, "overwrite").save()
    assert len(store.table("t").history()) == commits + 1
    assert shown(reader(spark, store).load()) == rows(range(5))
    some = expected(spark, range(10, 20)).repartition(2)
    writer(some, store, "overwrite").option("replaceWhere", "id > 2").save()
    assert shown(reader(spark, store).load()) == rows([*range(3), *range(10, 20)])
    with error_with("[ES_INVALID_OPTION]"):
        writer(some, store, "overwrite").option("replaceWhere", "id > 12").save()


def test_a_failing_task_fails_the_write_and_leaves_nothing(spark: SparkSession, store: Store) -> None:
    frame = expected(spark, range(2_000, 2_020)).selectExpr(
        "id", "IF(id = 2013, raise_error('no such name'), name) AS name", "v"
    )
    with error_with("no such name"):
        writer(frame.repartition(2), store).save()
    assert store.status()["tables"][0]["rows"] == 1_000
    assert store.collect_garbage(grace_seconds=0).removed == 0


TYPES = [
    (f"c{number}", kind, value)
    for number, (kind, value, _) in enumerate(CARRIED)
    if kind not in (pa.null(), pa.string_view(), pa.binary_view())  # which no table has
]


def test_every_type_goes_through_spark_and_back_unchanged(spark: SparkSession, store: Store) -> None:
    names = {str(kind): name for name, kind, _ in TYPES}
    schema = pa.schema([IDS.field("id"), *(pa.field(name, kind) for name, kind, _ in TYPES)])
    columns = [
        pa.array([value, None], pa.float32() if kind == pa.float16() else kind) for _, kind, value in TYPES
    ]
    given = pa.table([pa.array([1, 2]), *columns], names=schema.names).cast(schema)
    for table in ("types", "copy"):
        store.create_table(table, schema, ["id"])
    store.table("types").upsert(given)
    frame = reader(spark, store).option("table", "types").load()
    with enabled(spark, "spark.sql.timeType.enabled"):
        # Spark understands the values, and does not just carry them.
        conditions = {
            "uint64": "{} = 18446744073709551615",
            "large_string": "{} = 'grün'",
            "list<item: int32>": "size({}) = 3",
            "timestamp[ns, tz=UTC]": "{} = TIMESTAMP'2026-01-31 12:30:15Z'",
            "time32[s]": "{} = to_time('23:59:59')",
            "fixed_size_binary[3]": "{} = X'616263'",
        }
        known = " AND ".join(text.format(names[kind]) for kind, text in conditions.items())
        assert frame.where(known).count() == 1
        # What is read alongside the driver is the same.
        zone = spark.conf.get("spark.sql.session.timeZone")
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        try:
            here = attach(spark, store.uri, "typed_").sql("SELECT * FROM typed_types WHERE id < 3")
            assert "LocalTableScan" in here._jdf.queryExecution().toString()
            assert here.schema == frame.schema
            assert sorted(map(str, here.collect())) == sorted(map(str, frame.collect()))
        finally:
            spark.conf.set("spark.sql.session.timeZone", str(zone))
    writer(frame, store, table="copy").save()
    assert store.table("copy").scan().to_table().sort_by("id") == given


@pytest.mark.long
def test_a_thread_of_its_own_writes_once_spark_has_an_active_session_there(
    spark: SparkSession, store: Store
) -> None:
    """Spark looks for Python sources in the thread's session, and a new thread of Python's has none."""

    def write() -> None:
        spark.createDataFrame([(1,)], "a int")
        frame = spark.range(5_000, 5_010).selectExpr("id", "'n' AS name", "0.0D AS v")
        frame.write.format("elasticscan").mode("append").save(f"{store.uri}/t")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert store.table("t").scan().count() == 1_010
