"""The source inside Spark: reads, SQL, writes, moves under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from elasticscan.connector import attach, register
from elasticscan.store import Store
from tests.cluster.conftest import moving
from tests.connector.conftest import kinds
from tests.connector.test_catalog_spark import setting
from tests.connector.test_conversion import CARRIED

pytestmark = pytest.mark.spark

IDS = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def reader(spark: SparkSession, store: Store, table: str = "t", **options: str) -> DataFrame:
    return spark.read.format("elasticscan").options(store=store.uri, table=table, **options).load()


def writer(frame: DataFrame, store: Store, mode: str = "append", table: str = "t") -> DataFrameWriter:
    return frame.write.format("elasticscan").mode(mode).options(store=store.uri, table=table)


def expected(spark: SparkSession, *ids: range) -> DataFrame:
    """Rows as the fixture's table holds them, made by Spark itself."""
    parts = [spark.range(part.start, part.stop, numPartitions=1) for part in ids]
    return reduce(DataFrame.union, parts).selectExpr("id", "concat('n', id % 7) AS name", "0.5D AS v")


def assert_rows(spark: SparkSession, store: Store, *ids: range) -> None:
    frame = reader(spark, store)
    assert_df_equality(frame, expected(spark, *ids), ignore_row_order=True, ignore_nullable=True)


@contextmanager
def error_with(text: str) -> Iterator[None]:
    """Spark keeps only the text of an error, wrapped in its own."""
    with pytest.raises(PySparkException) as caught:
        yield
    assert text in str(caught.value)


def test_rows_stay_exact_while_tablets_move(spark: SparkSession, store: Store) -> None:
    frame = spark.read.format("elasticscan").load(f"{store.uri}/t")
    assert frame.schema.simpleString() == "struct<id:bigint,name:string,v:double>"
    assert [field.nullable for field in frame.schema] == [False, True, True]
    with Store.open(store.uri) as own, moving(own, pause=0.0):
        for _ in range(2):
            frame = reader(spark, store, batchSize="5", splitSize="4k")
            totals = frame.agg(F.count("id"), F.countDistinct("id"), F.sum("id")).collect()
            assert [tuple(row) for row in totals] == [(1_000, 1_000, sum(range(1_000)))]
    assert_rows(spark, store, range(1_000))


def test_a_temporary_view_can_be_queried_and_inserted_into(spark: SparkSession, store: Store) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING elasticscan OPTIONS (store '{store.uri}', TABLE 't')"
    )
    assert spark.sql("SELECT count(*), max(id) FROM v WHERE name = 'n0'").first() == (143, 994)
    spark.sql("INSERT INTO v SELECT id + 1000, concat('n', (id + 1000) % 7), 0.5D FROM range(20)")
    spark.sql("INSERT INTO v (v, name, id) VALUES (0.5D, 'n5', 1020)")
    assert_rows(spark, store, range(1_021))
    spark.sql("INSERT OVERWRITE v SELECT id, name, v FROM v WHERE id < 5")
    assert_rows(spark, store, range(5))


def test_attach_refuses_a_prefix_that_cannot_be_in_a_name(spark: SparkSession, store: Store) -> None:
    for prefix in ("a`b", "a.b"):
        with pytest.raises(Exception, match="ES_INVALID_OPTION"):
            attach(spark, store.uri, prefix)


def test_append_upserts_and_overwrite_replaces(spark: SparkSession, store: Store) -> None:
    writer(expected(spark, range(995, 1_100)).repartition(3), store).save()
    assert_rows(spark, store, range(1_100))
    writer(expected(spark, range(5)).repartition(2), store, "overwrite").save()
    assert_rows(spark, store, range(5))
    some = writer(expected(spark, range(10, 20)).repartition(2), store, "overwrite")
    some.option("replaceWhere", "id > 2").save()
    assert_rows(spark, store, range(3), range(10, 20))
    assert kinds(store) == ["create", "write", "write", "overwrite", "merge"]
    with error_with("[ES_INVALID_OPTION]"):
        some.option("replaceWhere", "id > 12").save()
    failing = expected(spark, range(2_000, 2_020)).selectExpr(
        "id", "IF(id = 2013, raise_error('no such name'), name) AS name", "v"
    )
    with error_with("no such name"):  # of a task
        writer(failing.repartition(2), store).save()
    assert_rows(spark, store, range(3), range(10, 20))
    assert store.collect_garbage(grace_seconds=0, orphan_seconds=0).removed == 0


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
    frame = reader(spark, store, "types")
    with setting(spark, "spark.sql.timeType.enabled", "true"):
        # A count looks at the settings of the active session: that of whichever test made a frame last.
        spark.createDataFrame([], "id bigint")
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
        # What is read in the driver is the same.
        with setting(spark, "spark.sql.session.timeZone", "Asia/Tokyo"):
            here = attach(spark, store.uri, "typed_").sql("SELECT * FROM typed_types WHERE id < 3")
            assert "LocalTableScan" in here._jdf.queryExecution().toString()
            assert here.schema == frame.schema
            assert sorted(map(str, here.collect())) == sorted(map(str, frame.collect()))
    writer(frame, store, table="copy").save()
    assert store.table("copy").scan().to_table().sort_by("id") == given
