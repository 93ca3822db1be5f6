"""Views of an attached store, settings of a session, the builder, and what is read where."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, ArithmeticException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import FilterError, InvalidCall, InvalidOption, NotFound
from elasticscan.connector import AttachedStore, attach
from elasticscan.connector.sql import driver_reads
from elasticscan.store import Store
from tests.connector.conftest import by_tasks, small
from tests.connector.sql_queries import WIDE

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    return small(spark)


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, shop: Store) -> AttachedStore:
    return attach(spark, shop.uri)


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def executed(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]


def made(spark: SparkSession, place: Path, rows: pa.Table) -> AttachedStore:
    """Attach a store of two shards with a table `t` of these rows."""
    store = Store.create(place / "shop.store", ["s1", "s2"], tablets=4, slots=64)
    store.create_table("t", rows.schema, [rows.schema.names[0]]).upsert(rows)
    store.compact()
    return attach(spark.newSession(), store.uri)


# Settings, snapshots and names


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("session.timeZone", "America/New_York", "SELECT id FROM flights WHERE at >= '2024-01-01 12:00:00'"),
        ("ansi.enabled", "false", "SELECT id FROM flights WHERE a > '2' AND d > '2024-01-02' AND b > 1"),
        ("timestampType", "TIMESTAMP_NTZ", "SELECT id FROM flights WHERE at < TIMESTAMP '2024-01-02'"),
        ("parser.quotedRegexColumnNames", "true", "SELECT `i.*`, `(a|b)` FROM flights WHERE a > 2"),
        ("parser.escapedStringLiterals", "true", r"SELECT 'a\b', id FROM flights WHERE s <> 'a\b'"),
        ("ansi.doubleQuotedIdentifiers", "true", 'SELECT id, "s" FROM flights WHERE "s" = s OR id < 4'),
    ],
)
def test_a_setting_that_changes_what_a_query_means_is_heeded(
    spark: SparkSession, catalog: AttachedStore, name: str, value: str, text: str
) -> None:
    with setting(spark, f"spark.sql.{name}", value):
        found, expected = catalog.sql(text), spark.sql(text)
        assert_df_equality(found, expected, ignore_row_order=True, allow_nan_equality=True)


def test_names_that_differ_by_case_alone_are_not_supported(
    spark: SparkSession, catalog: AttachedStore
) -> None:
    with setting(spark, "spark.sql.caseSensitive", "true"):
        for ask in (catalog.sql, catalog.explain):
            with pytest.raises(InvalidCall, match=r"spark.sql.caseSensitive=true is not supported"):
                ask("SELECT id FROM flights")


def test_a_session_that_never_named_a_time_zone_is_good_enough(spark: SparkSession, shop: Store) -> None:
    session = spark.newSession()
    session.conf.unset("spark.sql.session.timeZone")
    assert attach(session, shop.uri).sql("SELECT count(*) FROM flights").count() == 1


def test_every_reference_of_a_query_reads_the_newest_snapshot(spark: SparkSession, store: Store) -> None:
    shop = attach(spark, store.uri, "new_")
    text = "SELECT count(*), (SELECT max(id) FROM new_t) FROM new_t"
    spark.sql(text).collect()
    before = shop.sql(text)
    store.table("t").upsert(
        store.table("t").scan().to_table().slice(0, 1).set_column(0, "id", pa.array([5_000]))
    )
    assert before.collect() == [(1_000, 999)]
    assert shop.sql(text).collect() == [(1_001, 5_000)]
    assert spark.sql(text).collect() == [(1_000, 999)]


def test_a_table_that_spark_has_no_types_for_gets_no_view(spark: SparkSession, store: Store) -> None:
    store.create_table("wide", pa.schema([("k", pa.int64()), ("d", pa.decimal256(50, 3))]), ["k"])
    with pytest.warns(UserWarning, match="table 'wide' gets no view.*column 'd'"):
        shop = attach(spark, store.uri)
    assert "wide" not in shop.tables
    assert shop.sql("SELECT count(*) FROM t").collect() == [(1_000,)]


@pytest.mark.long
def test_tables_that_others_make_and_drop_are_seen_by_the_next_statement(
    spark: SparkSession, store: Store
) -> None:
    shop = attach(spark, store.uri, "seen_")
    with Store.open(store.uri) as other:
        other.create_table("late", {"id": [1, 2, 3], "x": [1, 2, 3]}, primary_key="id")
        assert shop.sql("SELECT sum(x) FROM seen_late WHERE id > 1").collect() == [(5,)]
        assert shop.tables == ("late", "t")
        assert spark.sql("SELECT count(*) FROM seen_late").collect() == [(3,)]
        other.table("late").add_columns([pa.field("z", pa.string())])
        assert [row.col_name for row in shop.sql("DESCRIBE TABLE seen_late").collect()] == ["id", "x", "z"]
        other.table("late").drop()
        other.create_table("late", {"key": ["a"], "y": [7.0]}, primary_key="key")
        assert shop.sql("SELECT y FROM seen_late").collect() == [(7.0,)]
        assert spark.table("seen_late").collect() == [("a", 7.0)]
        shop.sql("INSERT INTO seen_late VALUES ('b', 8.0)")
        assert other.table("late").scan().count() == 2
        other.table("late").drop()
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            shop.sql("TRUNCATE TABLE seen_late")
        assert shop.tables == ("t",)
        for ask in (shop.sql, spark.sql):
            with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
                ask("SELECT * FROM seen_late").collect()


@pytest.mark.long
def test_what_is_no_query_goes_to_spark_over_views_made_anew(spark: SparkSession, store: Store) -> None:
    shop = attach(spark, store.uri)
    shop.sql("INSERT INTO t SELECT id + 1000 AS id, name, v FROM t WHERE id < 10")
    assert shop.sql("FROM t |> WHERE id >= 1000 |> AGGREGATE count(*), max(id)").collect() == [(10, 1009)]
    assert shop.sql("SELECT 1").collect() == [(1,)]
    assert [row.col_name for row in shop.sql("DESCRIBE t").collect()] == ["id", "name", "v"]


def test_no_view_is_left_behind_and_errors_speak_of_the_users_text(
    spark: SparkSession, catalog: AttachedStore
) -> None:
    before = {table.name for table in spark.catalog.listTables()}
    frame = catalog.sql("SELECT id FROM tiny JOIN tiny AS u USING (id)")
    with pytest.raises(AnalysisException) as caught:
        catalog.sql("SELECT nothing FROM tiny")
    assert {table.name for table in spark.catalog.listTables()} == before
    assert "elasticscan_" not in str(caught.value)
    assert frame.count() == 6


def test_a_cached_result_is_not_taken_for_another_ones(spark: SparkSession, shop: Store) -> None:
    catalog = attach(spark, shop.uri, "my_")
    assert repr(catalog) == "<elasticscan.AttachedStore of the views my_flights, my_ports, my_tiny, my_wide>"
    few = catalog.sql("SELECT my_tiny.id, a FROM my_tiny WHERE my_tiny.id > 8").cache()
    counts = [
        few.count(),
        *(catalog.sql(f"SELECT id, a FROM my_tiny{end}").count() for end in ("", " WHERE id > 4")),
    ]
    few.unpersist()
    assert counts == [1, 6, 3]


# The builder


def test_a_read_is_put_together_step_by_step(spark: SparkSession, store: Store) -> None:
    read = attach(spark, store.uri).table("t")
    few = read.option("filter", "id < 20").where("name = 'n1' OR name = 'n2'")
    frame = few.select("name", "ID").index("none").option("batchSize", 5).load()
    assert frame.columns == ["name", "id"]
    assert sorted(frame.collect()) == [("n1", 1), ("n1", 8), ("n1", 15), ("n2", 2), ("n2", 9), ("n2", 16)]
    whole, before = read.load(), store.status()["snapshot"]
    assert read.options == {} and read.limit(5).limit(7).load().count() == 5
    store.table("t").delete(pa.table({"id": list(range(10))}))
    store.table("t").tag("earlier", before)
    assert whole.count() == 1_000  # of the snapshot of its load
    now = datetime.now(UTC)
    for snapshot, rows in ((before, 6), ("earlier", 6), (now, 2), (now.isoformat(), 2), (str(now), 2)):
        assert few.as_of("earlier").as_of(snapshot).load().count() == rows
    assert few.load().count() == 2
    for day in (date(2026, 1, 31), "2026-01-31"):
        assert read.as_of(day).options == {"timestampasof": "2026-01-31"}
    assert read.as_of("20260131").options == {"versionasof": "20260131"}


def test_a_step_that_is_wrong_fails_at_once(catalog: AttachedStore) -> None:
    read = catalog.table("tiny")
    steps: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: catalog.table("tinny"), NotFound),
        (lambda: read.where("rand() > 0.5"), FilterError),
        (lambda: read.where("nothing = 1"), NotFound),
        (lambda: read.select("id", "nothing"), NotFound),
        (lambda: read.as_of(-1), InvalidOption),
        (lambda: read.as_of(datetime(2026, 1, 1)), InvalidOption),  # noqa: DTZ001 - of no zone
        (lambda: read.option("colour", "red"), InvalidOption),
        (lambda: read.option("table", "flights"), InvalidOption),
        (lambda: read.index(" "), InvalidOption),
        (lambda: read.limit(-1), InvalidOption),
        (lambda: read.limit(True), InvalidOption),
        (lambda: read.limit(1.5), TypeError),  # type: ignore[arg-type]
    ]
    for step, error in steps:
        with pytest.raises(error):
            step()
    assert read.select(["id", "note"]).options == read.select("id", "note").options


# What is read where


def test_explain_shows_limits_and_what_is_read_alongside_the_driver(
    catalog: AttachedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "SELECT id FROM tiny WHERE a >= 0 ORDER BY a DESC LIMIT 3"
    shown = [
        "tiny#1",
        "  columns  id, a (2 of 3)",
        "  filter   a >= 0",
        "  limit    3 in the order of a DESC",
    ]
    assert catalog.explain(text).splitlines()[2:-2] == [*shown, "  read     in the driver: 3 rows"]
    assert catalog.explain(text).splitlines()[-1] == "SELECT id FROM `tiny#1` AS `tiny` WHERE a >= 0"
    by_tasks(monkeypatch)
    assert catalog.explain(text).splitlines()[2:-2] == shown


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, id FROM flights ORDER BY a DESC, id LIMIT 9",
        "SELECT * FROM flights WHERE a > 1 ORDER BY d, s DESC, id LIMIT 12",
        "SELECT count(*), sum(i32) AS n, avg(i8), min(s) AS least, sum(d5) FROM wide WHERE id > 3",
        "SELECT s, count(*) AS c, b AS t FROM wide GROUP BY b, s",
    ],
)
def test_spark_neither_sorts_nor_groups_again_what_one_reader_has_done(
    catalog: AttachedStore, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    assert "LocalTableScan" in executed(catalog.sql(text))
    assert not re.search("Sort|TakeOrdered|Exchange|Aggregate", executed(catalog.sql(text)))
    by_tasks(monkeypatch)
    assert re.search("TakeOrdered|Aggregate", executed(catalog.sql(text)))


# Aggregates


@pytest.mark.long
def test_a_sum_that_overflows_is_an_error_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    most = (1 << 63) - 1
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("d", pa.decimal128(38, 0))])
    rows = [{"id": one, "n": most, "d": 10**38 - 1} for one in range(30)]
    catalog = made(spark, tmp_path, pa.Table.from_pylist(rows, schema))
    for column in ("n", "d"):
        text = f"SELECT sum({column}) FROM t"
        with pytest.raises(ArithmeticException):
            catalog._spark.sql(text).collect()
        with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
            catalog.sql(text).collect()
        assert catalog.sql(f"SELECT id, sum({column}) FROM t GROUP BY id").count() == 30
    assert catalog.sql("SELECT avg(n) FROM t").collect() == [(float(most),)]


def test_a_sum_is_sparks_own_to_the_sign_of_zero(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "f": [-0.0, -0.0, None]})
    (found,) = made(spark, tmp_path, rows).sql("SELECT sum(f), avg(f) FROM t").collect()
    assert str(found[:]) == "(0.0, 0.0)"


def test_rows_that_fragments_count_are_not_read(
    spark: SparkSession, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = made(spark, tmp_path, shop.table("wide").scan().to_table().cast(WIDE))
    monkeypatch.setattr(driver_reads, "MOST_FOLDED", -1)
    text, known = "SELECT count(*) AS n FROM t", "  read     in the driver: 1 rows"
    assert known in catalog.explain(text)
    assert catalog.sql(text).collect() == catalog.sql(f"{text} WHERE id > -1").collect()
    for read in (f"{text} WHERE id >= 0", "SELECT count(*), max(id) FROM t"):
        assert known not in catalog.explain(read)
