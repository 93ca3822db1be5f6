"""Views of an attached store, settings of a session, the builder, and what is read where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, ArithmeticException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import FilterError, InvalidOption, NotFound, NotSupported
from elasticscan.connector import AttachedStore, attach
from elasticscan.connector.sql import aggregates, driver_reads
from elasticscan.store import Store
from tests.connector.conftest import by_tasks
from tests.connector.sql_queries import WIDE, fill
from tests.connector.test_sql_spark import answer

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store.create(tmp_path_factory.mktemp("sql") / "shop.store", ["s1", "s2"], tablets=4, slots=64)
    fill(made)
    return made


@pytest.fixture(scope="module", autouse=True)
def _small(spark: SparkSession) -> Iterator[None]:
    """Some tens of rows want no plans that adapt while they run."""
    with (
        setting(spark, "spark.sql.adaptive.enabled", "false"),
        setting(spark, "spark.sql.shuffle.partitions", "1"),
    ):
        yield


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, shop: Store) -> AttachedStore:
    return attach(spark, shop.uri)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each reference that was read, whether that was alongside the driver."""
    noted: list[bool] = []
    read = driver_reads.read_few

    def noting(*given: Any) -> Any:
        few = read(*given)
        noted.append(few is not None)
        return few

    for module in ("attached", "table_read"):
        monkeypatch.setattr(f"elasticscan.connector.sql.{module}.read_few", noting)
    return noted


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def _executed(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]


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
        assert answer(catalog.sql(text)) == answer(spark.sql(text))


def test_names_that_differ_by_case_alone_are_not_supported(
    spark: SparkSession, catalog: AttachedStore
) -> None:
    with setting(spark, "spark.sql.caseSensitive", "true"):
        for ask in (catalog.sql, catalog.explain):
            with pytest.raises(NotSupported, match=r"spark.sql.caseSensitive=true is not supported"):
                ask("SELECT id FROM flights")


def test_a_number_after_group_by_is_no_column_where_spark_takes_it_for_none(
    spark: SparkSession, store: Store
) -> None:
    store.create_table("few", pa.table({"id": [1, 2], "n": [5, 5]}), primary_key="id")
    text = "SELECT n, count(*) AS c FROM few GROUP BY 1"
    try:
        shop = attach(spark, store.uri)
        assert shop.sql(text).collect() == [(5, 2)]
        with (
            setting(spark, "spark.sql.groupByOrdinal", "false"),
            pytest.raises(AnalysisException, match="MISSING_AGGREGATION"),
        ):
            shop.sql(text)
    finally:
        store.table("few").drop()


def test_a_session_that_never_named_a_time_zone_is_good_enough(
    spark: SparkSession, catalog: AttachedStore
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.unset("spark.sql.session.timeZone")
    try:
        assert catalog.sql(f"SELECT count(*) FROM {catalog.tables[0]}").count() == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


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
    try:
        with pytest.warns(UserWarning, match="table 'wide' gets no view.*column 'd'"):
            shop = attach(spark, store.uri)
        assert "wide" not in shop.tables
        assert shop.sql("SELECT count(*) FROM t").collect() == [(store.table("t").scan().count(),)]
    finally:
        store.table("wide").drop()


@pytest.mark.long
def test_tables_that_others_make_and_drop_are_seen_by_the_next_statement(
    spark: SparkSession, store: Store
) -> None:
    shop = attach(spark, store.uri, "seen_")
    with Store.open(store.uri) as other:
        other.create_table("late", {"id": [1, 2, 3], "x": [1, 2, 3]}, primary_key="id")
        assert shop.sql("SELECT sum(x) FROM seen_late WHERE id > 1").collect() == [(5,)]
        assert shop.tables == ("t", "late")
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
    shop.sql("INSERT INTO t SELECT id + 100 AS id, name, v FROM t WHERE id >= 1000")
    assert shop.sql("FROM t |> WHERE id >= 1000 |> AGGREGATE count(*), max(id)").collect() == [(20, 1109)]
    assert shop.sql("SELECT 1").collect() == [(1,)]
    assert [row.col_name for row in shop.sql("DESCRIBE t").collect()] == ["id", "name", "v"]
    store.table("t").drop()
    with pytest.raises(PySparkException):
        shop.sql("SELECT count(*) FROM t").collect()


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


def test_a_cached_result_is_not_taken_for_another_ones(spark: SparkSession, catalog: AttachedStore) -> None:
    few = catalog.sql("SELECT id, a FROM tiny WHERE id > 8").cache()
    try:
        assert few.count() == 1
        assert catalog.sql("SELECT id, a FROM tiny WHERE id > 4").count() == 3
        assert catalog.sql("SELECT id, a FROM tiny").count() == 6
    finally:
        few.unpersist()


def test_the_views_of_a_catalog_have_its_prefix(spark: SparkSession, shop: Store) -> None:
    catalog = attach(spark, shop.uri, "my_")
    assert catalog.tables == ("flights", "ports", "tiny", "wide")
    assert repr(catalog) == "<elasticscan.AttachedStore of the views my_flights, my_ports, my_tiny, my_wide>"
    assert catalog.sql("SELECT my_tiny.id FROM my_tiny WHERE my_tiny.id > 8").collect() == [(10,)]


# The builder


def test_a_read_is_put_together_step_by_step(spark: SparkSession, store: Store) -> None:
    read = attach(spark, store.uri).table("t")
    few = read.option("filter", "id < 20").where("name = 'n1' OR name = 'n2'")
    frame = few.select("name", "ID").index("none").option("batchSize", 5).load()
    assert frame.columns == ["name", "id"]
    assert sorted(frame.collect()) == [("n1", 1), ("n1", 8), ("n1", 15), ("n2", 2), ("n2", 9), ("n2", 16)]
    assert read.options == {} and read.load().count() == 1_000
    before = store.status()["snapshot"]
    store.table("t").delete(pa.table({"id": list(range(10))}))
    assert few.load().count() == 2
    assert few.as_of(before).load().count() == 6
    store.table("t").tag("earlier", before)
    assert few.as_of("earlier").load().count() == 6
    now = datetime.now(UTC)
    for time in (now, now.isoformat(), str(now)):
        assert few.as_of(before).as_of(time).load().count() == 2
    with pytest.raises(InvalidOption, match=r"no time zone: write '.*Z' for UTC"):
        few.as_of(now.replace(tzinfo=None))
    assert few.as_of(now).as_of(before).load().count() == 6
    assert read.as_of(date(2026, 1, 31)).options == {"timestampAsOf": "2026-01-31"}
    assert read.as_of("2026-01-31").options == {"timestampAsOf": "2026-01-31"}
    assert read.as_of("20260131").options == {"versionAsOf": "20260131"}


def test_a_step_that_is_wrong_fails_at_once(catalog: AttachedStore) -> None:
    read = catalog.table("tiny")
    with pytest.raises(NotFound, match="did you mean 'tiny'"):
        catalog.table("tinny")
    with pytest.raises(FilterError):
        read.where("rand() > 0.5")
    with pytest.raises(NotFound):
        read.where("nothing = 1")
    with pytest.raises(NotFound, match="nothing"):
        read.select("id", "nothing")
    assert read.select(["id", "note"]).options == read.select("id", "note").options
    for wrong in (lambda: read.as_of(-1), lambda: read.option("colour", "red"), lambda: read.index(" ")):
        with pytest.raises(InvalidOption):
            wrong()
    with pytest.raises(InvalidOption, match="set by the table"):
        read.option("table", "flights")


def test_a_builders_frame_is_the_newest_snapshot_of_its_load(spark: SparkSession, store: Store) -> None:
    shop = attach(spark, store.uri, "then_")
    few = shop.table("t").where("id < 3").load()
    most = shop.table("t").load()
    store.table("t").delete(pa.table({"id": [1]}))
    assert (few.count(), most.count()) == (3, 1_000)
    assert shop.table("t").where("id < 3").load().count() == 2
    for wrong in (-1, True, 1.5):
        with pytest.raises((InvalidOption, TypeError), match=r"whole number|integer"):
            shop.table("t").limit(wrong)  # type: ignore[arg-type]


# What is read where


def test_little_is_read_beside_the_driver(catalog: AttachedStore, reads: list[bool]) -> None:
    assert catalog.sql("SELECT * FROM flights WHERE id = 7").count() == 1
    assert catalog.sql("SELECT * FROM flights WHERE id IN (7, 8, 700)").count() == 2
    assert catalog.sql("SELECT * FROM flights WHERE id = 700").collect() == []
    assert catalog.sql("SELECT * FROM flights LIMIT 0").collect() == []
    assert catalog.sql("SELECT a FROM flights LIMIT :n", {"n": 4}).count() == 4
    assert catalog.table("flights").where("id = 7").select("a").load().columns == ["a"]
    assert catalog.table("flights").limit(5).limit(7).load().count() == 5
    assert len(reads) == 7 and all(reads)


def test_explain_shows_limits_and_what_is_read_beside_the_driver(
    catalog: AttachedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "SELECT id FROM tiny WHERE a >= 0 ORDER BY a DESC LIMIT 3"
    shown = [
        "tiny#1",
        "  columns  id, a (2 of 3)",
        "  filter   a >= 0",
        "  limit    3 in the order of a DESC",
    ]
    assert catalog.explain(text).splitlines()[2:-2] == [*shown, "  read     alongside the driver: 3 rows"]
    assert catalog.explain(text).splitlines()[-1] == "SELECT id FROM `tiny#1` AS `tiny` WHERE a >= 0"
    by_tasks(monkeypatch)
    assert catalog.explain(text).splitlines()[2:-2] == shown


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, id FROM flights ORDER BY a DESC, id LIMIT 9",
        "SELECT * FROM flights WHERE a > 1 ORDER BY d, s DESC, id LIMIT 12",
        "SELECT count(*), sum(i32) AS n, avg(i8), min(s) AS least, sum(d5) FROM wide WHERE id > 3",
        "SELECT s, count(*) AS c, b AS t FROM wide GROUP BY ALL",
    ],
)
def test_spark_neither_sorts_nor_groups_again_what_one_reader_has_done(
    catalog: AttachedStore, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    assert "LocalTableScan" in _executed(catalog.sql(text))
    assert not re.search("Sort|TakeOrdered|Exchange|Aggregate", _executed(catalog.sql(text)))
    by_tasks(monkeypatch)
    assert re.search("TakeOrdered|Aggregate", _executed(catalog.sql(text)))


# Aggregates


@pytest.mark.long
def test_a_sum_that_overflows_is_sparks_error(spark: SparkSession, tmp_path: Path) -> None:
    most = (1 << 63) - 1
    made = Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=4, slots=64)
    table = made.create_table(
        "t", pa.schema([("id", pa.int64()), ("n", pa.int64()), ("d", pa.decimal128(38, 0))]), ["id"]
    )
    table.upsert([{"id": one, "n": most, "d": 10**38 - 1} for one in range(30)])
    catalog = attach(spark, made.uri)
    for column in ("n", "d"):
        errors = []
        text = f"SELECT sum({column}) FROM t"
        for frame in (catalog.sql(text), spark.sql(text)):
            with pytest.raises(ArithmeticException) as caught:
                frame.collect()
            errors.append((caught.value.getCondition(), caught.value.getSqlState()))
        assert errors[0] == errors[1]
        assert catalog.sql(f"SELECT id, sum({column}) FROM t GROUP BY id").count() == 30
    assert catalog.sql("SELECT avg(n) FROM t").collect() == [(float(most),)]


def test_what_statistics_tell_is_not_read(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    made = Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=4, slots=64)
    made.create_table("wide", WIDE, ["id"]).upsert(shop.table("wide").scan().to_table())
    made.table("wide").compact()
    catalog = attach(spark.newSession(), made.uri)
    text = "SELECT count(*), count(s), min(i64), min(t), max(m), max(id) - min(id) AS span FROM wide"
    assert "  read     nothing: statistics of fragments tell it" in catalog.explain(text)
    assert answer(catalog.sql(text))[1] == answer(catalog.sql(text.replace("wide", "wide WHERE id > -1")))[1]
    for read in (f"{text} WHERE id >= 0", "SELECT min(s) AS least FROM wide"):
        assert "statistics" not in catalog.explain(read)


def test_what_is_folded_soon_is_folded_beside_the_driver(catalog: AttachedStore) -> None:
    text, here = "SELECT s, count(*) FROM wide GROUP BY s", "  read     alongside the driver: 7 rows"
    assert here in catalog.explain(text)
    assert "count(*) by s: each group once" in catalog.explain(text)
    assert "read     alongside the driver: 1 rows" in catalog.explain("SELECT sum(i8) FROM wide WHERE id < 0")


def test_a_sum_is_sparks_own_to_the_sign_of_zero_and_to_an_overflow(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Store.create(tmp_path / "shop.store", ["s1"], tablets=2, slots=16)
    rows = pa.table({"id": [1, 2, 3], "f": [-0.0, -0.0, None], "n": [2**62, 2**62, 1]})
    made.create_table("t", rows.schema, ["id"]).upsert(rows)
    catalog = attach(spark.newSession(), made.uri)
    assert str(catalog.sql("SELECT sum(f), avg(f) FROM t").collect()[0][:]) == "(0.0, 0.0)"
    assert catalog.sql("SELECT sum(n) AS s FROM t WHERE id > 2").collect() == [(1,)]
    with pytest.raises(ArithmeticException):
        catalog.sql("SELECT sum(n) AS s FROM t").collect()
    # One row for each group and more, which do not fit: these are not the groups themselves.
    monkeypatch.setattr(aggregates.SourceAggregates, "are_whole", lambda self, _: self.edits_of_whole)
    assert len(catalog.sql("SELECT sum(n) AS s FROM t").collect()) > 1
