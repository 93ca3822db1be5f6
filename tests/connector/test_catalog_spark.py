"""`Catalog.sql` gives what Spark gives over the plain views, and over other copies of the rows.

Random queries are run twice: rewritten, and over Parquet files with the same rows. Others, by hand, have
what a generator would rarely meet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import FilterError, InvalidOption, NotFound, NotSupported
from elasticscan.connector import AttachedStore, attach
from elasticscan.connector.sql import columns as sql_columns
from elasticscan.connector.sql import conditions as sql_conditions
from elasticscan.connector.sql import few_rows
from elasticscan.connector.sql import joins as sql_joins
from elasticscan.connector.sql import query as sql_query
from elasticscan.connector.sql.plan import plan_query
from elasticscan.connector.sql.query import Session
from elasticscan.store import Store
from tests.base.examples import QUERIES
from tests.connector.catalog_queries import BY_HAND, KEYS, SHAPES, generated, tables
from tests.connector.conftest import by_tasks

pytestmark = pytest.mark.spark

# Spark finds no rows of these in Parquet; plain views, to which these are compared, and DuckDB agree with
# this store.
WRONG_OF_PARQUET = {183}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store.create(tmp_path_factory.mktemp("sql") / "shop.store", ["s1"], tablets=2, slots=64)
    for name, rows in tables().items():
        made.create_table(name, rows.schema, [KEYS[name]])
        made.table(name).upsert(rows)
    return made


@pytest.fixture(scope="module", autouse=True)
def _small(spark: SparkSession) -> Iterator[None]:
    """Some tens of rows want no plans that adapt while they run."""
    with (
        setting(spark, "spark.sql.adaptive.enabled", "false"),
        setting(spark, "spark.sql.shuffle.partitions", "1"),
    ):
        yield


@pytest.fixture(autouse=True)
def _by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tasks read also what is little; `test_few_rows` is about reads alongside the driver."""
    by_tasks(monkeypatch)


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, shop: Store) -> AttachedStore:
    return attach(spark, shop.uri)


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session of its own in which the same names are Parquet files."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    folder = tmp_path_factory.mktemp("parquet")
    for name, rows in tables().items():
        pq.write_table(rows, folder / f"{name}.parquet")
        session.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(name)
    return session


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a query is given to Spark as it is: then nothing would be tested."""

    def refused(_: AttachedStore, text: str, *others: object) -> DataFrame:
        raise AssertionError(f"not rewritten: {text}")

    monkeypatch.setattr(AttachedStore, "_run_unchanged", refused)


def plain(value: Any) -> Any:
    """A value that equals itself and has a hash: NaN and lists have to be turned into others."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, tuple | list):
        return tuple(plain(each) for each in value)
    return value


def by_turns(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Read a part of the queries alongside the driver."""
    read = few_rows.read_few if seed % 3 else lambda *_: None
    patch.setattr("elasticscan.connector.sql.attached.read_few", read)
    patch.setattr(few_rows, "FEW_ROWS", (10_000, 30, 10_000)[seed % 3])


def rows_of(frame: DataFrame) -> tuple[list[str], Counter[Any]]:
    return frame.columns, Counter(plain(row) for row in frame.collect())


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


# Random queries


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, QUERIES, 12))
def test_a_random_query_gives_the_rows_of_parquet(
    spark: SparkSession,
    catalog: AttachedStore,
    parquet: SparkSession,
    rewritten: None,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
) -> None:
    for seed in range(first, first + 12):
        text = generated(seed)
        by_turns(monkeypatch, seed)
        other = spark if seed in WRONG_OF_PARQUET else parquet
        assert rows_of(catalog.sql(text)) == rows_of(other.sql(text)), f"seed {seed}: {text}"


INDEXED = {"flights": ("a", "b", "s", "d", "at"), "ports": ("id", "name", "m"), "tiny": ("a",)}


@contextmanager
def tablets_moving(store: Store) -> Iterator[list[int]]:
    """Every tablet goes from shard to shard, again and again; the list has the moved tablets."""
    arrived: list[int] = []
    ended = Event()

    def move() -> None:
        for number in count():
            placed = store.context.placement().tablets
            tablet = placed[number * 3 % len(placed)]
            store.move(tablet.id, "s2" if tablet.shard == 1 else "s1")
            arrived.append(tablet.id)
            if ended.wait(0.05):  # leaves time for queries
                return

    with ThreadPoolExecutor(1) as pool:
        mover = pool.submit(move)
        try:
            yield arrived
        finally:
            ended.set()
            mover.result()


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 1_000 + QUERIES // 4, 6))
def test_a_random_query_gives_the_same_rows_while_tablets_move(
    spark: SparkSession,
    parquet: SparkSession,
    rewritten: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    first: int,
) -> None:
    moving = Store.create(tmp_path / "moving.store", ["s1", "s2"], tablets=8, slots=64)
    for name, rows in tables().items():
        moving.create_table(name, rows.schema, [KEYS[name]])
        moving.table(name).upsert(rows)
        for column in INDEXED[name]:
            moving.table(name).create_index(f"by_{column}", [column])
    catalog = attach(spark.newSession(), moving.uri)
    with tablets_moving(moving) as arrived:
        for seed in range(first, first + 6):
            text = generated(seed)
            by_turns(monkeypatch, seed)
            assert rows_of(catalog.sql(text)) == rows_of(parquet.sql(text)), f"seed {seed}: {text}"
    assert len(arrived) > 6


def test_the_random_queries_push_enough_to_be_worth_comparing() -> None:
    scans = [scan for seed in range(60) for scan in plan_query(generated(seed), SHAPES, Session()).scans]
    assert len(scans) > 150
    assert sum(scan.filter is not None for scan in scans) > len(scans) // 4
    assert sum(scan.columns is not None for scan in scans) > len(scans) // 2


# Queries by hand


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=() if first < 8 else pytest.mark.long) for first in range(0, len(BY_HAND), 8)],
)
def test_a_query_by_hand_gives_the_rows_of_parquet(
    catalog: AttachedStore, parquet: SparkSession, rewritten: None, first: int
) -> None:
    for text in BY_HAND[first : first + 8]:
        assert rows_of(catalog.sql(text)) == rows_of(parquet.sql(text)), text


# Planted faults: were the rules weaker, the comparison above would fail


def _an_outer_join_fills_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sql_joins._KINDS, ("LEFT", ""), "inner")


def _on_reduces_the_kept_side(patch: pytest.MonkeyPatch) -> None:
    right = sql_joins._reducible
    patch.setattr(sql_joins, "_reducible", lambda _, *sides: right("inner", *sides))


def _anti_is_semi(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sql_joins._KINDS, ("LEFT", "ANTI"), "semi")
    patch.setitem(sql_joins._KINDS, ("", "ANTI"), "semi")


def _a_cte_is_the_table(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql_query, "_is_cte", lambda *_: False)


def _a_star_takes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql_columns, "_takes_all", lambda *_: False)


def _words_are_never_columns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql_query, "_words", lambda _: frozenset())


def _computing_is_safe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql_conditions._PushdownRules, "_check", lambda *_: None)


ANTI = "SELECT f.id FROM flights f ANTI JOIN ports p ON f.a = p.a AND f.id > 4 AND p.m > 0"
FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (
        _an_outer_join_fills_nothing,
        "SELECT id, note FROM flights LEFT JOIN tiny USING (id) WHERE id > 2 AND note IS NULL",
    ),
    (_on_reduces_the_kept_side, ANTI),
    (_anti_is_semi, ANTI),
    (
        _a_cte_is_the_table,
        "WITH x AS (SELECT id FROM tiny), tiny AS (SELECT 5 AS id) SELECT x.id, tiny.id FROM x, tiny",
    ),
    (_a_star_takes_nothing, "SELECT * FROM flights"),
    (_words_are_never_columns, "SELECT current_date FROM flights WHERE current_date > 0"),
    (_computing_is_safe, "SELECT id FROM tiny WHERE array_contains(array(4, 6), a) AND 10 / (a - 2) > 0"),
]


@pytest.mark.long
@pytest.mark.parametrize(("plant", "text"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_fault_is_found(
    catalog: AttachedStore,
    parquet: SparkSession,
    rewritten: None,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    text: str,
) -> None:
    expected, usual = rows_of(parquet.sql(text)), plan_query(text, SHAPES, Session()).scans
    plant(monkeypatch)
    assert plan_query(text, SHAPES, Session()).scans != usual
    try:
        found = rows_of(catalog.sql(text))
    except (PySparkException, AssertionError):
        return  # Spark refuses the query, or was given it as it was written
    assert found != expected


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
        assert rows_of(catalog.sql(text)) == rows_of(spark.sql(text))


def test_names_that_differ_by_case_alone_are_not_supported(
    spark: SparkSession, catalog: AttachedStore
) -> None:
    with setting(spark, "spark.sql.caseSensitive", "true"):
        for ask in (catalog.sql, catalog.explain):
            with pytest.raises(NotSupported, match=r"spark.sql.caseSensitive=true is not supported"):
                ask("SELECT id FROM flights")


def test_a_number_after_group_by_is_no_column_where_spark_takes_it_for_none(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # what is read alongside the driver has groups of one row, and needs no GROUP BY
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
    assert catalog.tables == ("flights", "ports", "tiny")
    assert repr(catalog) == "<elasticscan.AttachedStore of the views my_flights, my_ports, my_tiny>"
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
