"""Aggregates that tasks compute of their own rows: names, types and values are Spark's over Parquet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, ArithmeticException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.connector import AttachedStore, attach
from elasticscan.connector.sql import aggregates, conditions, few_rows
from elasticscan.connector.sql.plan import TableShape, plan_query
from elasticscan.connector.sql.query import Session
from elasticscan.store import Store
from tests.base.examples import QUERIES
from tests.connector.aggregate_queries import BY_HAND, SCHEMA, aggregated, some_rows
from tests.connector.conftest import by_tasks
from tests.connector.test_catalog_spark import plain, setting, tablets_moving

pytestmark = pytest.mark.spark

SHAPES = {"wide": TableShape(SCHEMA, "id")}


def fill(made: Store) -> pa.Table:
    """Several commits, with rows written again and rows deleted; gives what is left."""
    draw = random.Random(5)
    wide = made.create_table("wide", SCHEMA, ["id"])
    wide.upsert(some_rows(draw, list(range(90))))
    wide.upsert(some_rows(draw, draw.sample(range(120), 40)))
    wide.delete(draw.sample(range(120), 20))
    return wide.scan().to_table()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store.create(tmp_path_factory.mktemp("agg") / "shop.store", ["s1", "s2"], tablets=4, slots=64)
    fill(made)
    return made


@pytest.fixture(scope="module", autouse=True)
def _small(spark: SparkSession) -> Iterator[None]:
    with (
        setting(spark, "spark.sql.adaptive.enabled", "false"),
        setting(spark, "spark.sql.shuffle.partitions", "1"),
        setting(spark, "spark.sql.session.timeZone", "UTC"),
    ):
        yield


@pytest.fixture(autouse=True)
def _by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    by_tasks(monkeypatch)


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, shop: Store) -> AttachedStore:
    return attach(spark, shop.uri)


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, shop: Store, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session of its own in which the same name is a Parquet file."""
    session = spark.newSession()
    for name, value in (("adaptive.enabled", "false"), ("shuffle.partitions", "1")):
        session.conf.set(f"spark.sql.{name}", value)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    file = str(tmp_path_factory.mktemp("parquet") / "wide.parquet")
    rows = shop.table("wide").scan().to_table()
    fields = [
        pa.field("n", pa.timestamp("us", "UTC")) if field.name == "n" else field for field in rows.schema
    ]
    pq.write_table(rows.cast(pa.schema(fields), safe=False), file)
    # A file's columns may all be null to Spark; the table's key may not.
    schema = session.read.parquet(file).schema
    schema["id"].nullable = False
    frame = session.createDataFrame(session.read.parquet(file).toArrow(), schema)
    frame.createOrReplaceTempView("wide")
    return session


def beside_the_driver(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("elasticscan.connector.sql.attached.read_few", few_rows.read_few)


def answer(frame: DataFrame) -> tuple[Any, list[Any]]:
    """Names, types and rows; -0.0 is 0.0, since the order of the two is not specified."""
    rows = [tuple(0.0 if value == 0 and isinstance(value, float) else plain(value) for value in row)
            for row in frame.collect()]  # fmt: skip
    return [(field.name, field.dataType, field.nullable) for field in frame.schema], sorted(rows, key=repr)


def optimized(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())  # type: ignore[operator]


def folds(text: str) -> bool:
    return any(scan.aggregates for scan in plan_query(text, SHAPES, Session()).scans)


def check_both_ways(catalog: AttachedStore, parquet: SparkSession, text: str) -> None:
    """Compare the answer of tasks, and that of the driver, with Spark's."""
    expected = answer(parquet.sql(text))
    assert answer(catalog.sql(text)) == expected, text
    with pytest.MonkeyPatch.context() as patch:
        beside_the_driver(patch)
        assert answer(catalog.sql(text)) == expected, text


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=pytest.mark.long) for at in range(8, QUERIES, 8))]
)
def test_a_random_aggregate_is_sparks_own(catalog: AttachedStore, parquet: SparkSession, first: int) -> None:
    for seed in range(first, first + 8):
        check_both_ways(catalog, parquet, aggregated(seed))


def test_most_random_aggregates_are_folded() -> None:
    assert sum(folds(aggregated(seed)) for seed in range(100)) > 70


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=pytest.mark.long) for at in range(5, len(BY_HAND), 5))]
)
def test_an_aggregate_by_hand_is_sparks_own(
    catalog: AttachedStore, parquet: SparkSession, first: int
) -> None:
    for text in BY_HAND[first : first + 5]:
        check_both_ways(catalog, parquet, text)


@pytest.mark.long
def test_a_random_aggregate_is_sparks_own_while_tablets_move(
    spark: SparkSession, parquet: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = Store.create(tmp_path / "moving.store", ["s1", "s2"], tablets=8, slots=64)
    fill(moving)
    catalog = attach(spark.newSession(), moving.uri)
    with tablets_moving(moving) as arrived:
        for seed in range(5_000, 5_000 + QUERIES):
            text = aggregated(seed)
            if seed == 5_000 + QUERIES // 2:
                beside_the_driver(monkeypatch)
            assert answer(catalog.sql(text)) == answer(parquet.sql(text)), f"seed {seed}: {text}"
    assert len(arrived) > 6


# What is left to Spark, and what it says


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT sum(i32 + 1) AS s FROM wide", "is not of a column"),
        ("SELECT sum((SELECT 1) * i8) AS s FROM wide", "SELECT 1"),
        ("SELECT avg(d5) FROM wide", "a decimal"),
        ("SELECT round(avg(i8), 2) FROM wide", "has no name"),
        ("SELECT count(*) FROM wide WHERE i32 + 1 > 2", "Spark tests a condition first"),
        ("SELECT count(*) FROM wide WHERE rand() < 2", "Spark tests a condition first"),
        ("SELECT s, sum(i8) AS i8 FROM wide GROUP BY s HAVING i8 > 1", "another name in the SELECT"),
        ("SELECT count(*) FROM wide a CROSS JOIN others b", "more than a table"),
        ("SELECT sum(i8) OVER () FROM wide", "OVER"),
        ("SELECT my_total(i8), count(*) FROM wide", "MY_TOTAL"),
        ("SELECT f32 + 1, count(*) FROM wide GROUP BY f32 + 1", "0.0 and -0.0"),
        ("SELECT s, count(*) FROM wide GROUP BY s WITH CUBE", "in several ways"),
        ("SELECT sum(nothing) FROM wide", "not a column"),
        ("SELECT count(*), (SELECT 1) FROM wide", "SELECT 1"),
        ("FROM wide SELECT count(*)", "begins with FROM"),
        ("SELECT max(count(*)) FROM wide GROUP BY s", "stands in another"),
    ],
)
def test_what_is_not_certain_is_left_to_spark(text: str, why: str) -> None:
    scans = plan_query(text, SHAPES, Session()).scans
    assert all(scan.aggregates is None for scan in scans)
    assert why in "; ".join(reason for scan in scans for what, reason in scan.stayed if what == "aggregates")


def test_sums_in_a_session_that_wraps_around_are_left_to_spark() -> None:
    session = Session(ansi=False)
    for column, folded in (("i64", False), ("d38", False), ("f64", True)):
        (scan,) = plan_query(f"SELECT sum({column}) FROM wide", SHAPES, session).scans
        assert (scan.aggregates is not None) == folded


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


def test_an_error_in_a_folded_query_speaks_of_the_users_text(catalog: AttachedStore) -> None:
    with pytest.raises(AnalysisException) as caught:
        catalog.sql("SELECT i8, count(*) FROM wide GROUP BY s")
    assert "partial" not in str(caught.value)


def test_what_statistics_tell_is_not_read(
    spark: SparkSession, shop: Store, parquet: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside_the_driver(monkeypatch)
    made = Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=4, slots=64)
    made.create_table("wide", SCHEMA, ["id"]).upsert(shop.table("wide").scan().to_table())
    made.table("wide").compact()
    catalog = attach(spark.newSession(), made.uri)
    text = "SELECT count(*), count(s), min(i64), min(t), max(m), max(id) - min(id) AS span FROM wide"
    assert "  read     nothing: statistics of fragments tell it" in catalog.explain(text)
    assert answer(catalog.sql(text)) == answer(parquet.sql(text))
    for read in (f"{text} WHERE id >= 0", "SELECT min(s) AS least FROM wide"):
        assert "statistics" not in catalog.explain(read)


def test_what_is_folded_soon_is_folded_beside_the_driver(
    catalog: AttachedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "SELECT s, count(*) FROM wide GROUP BY s"
    here = "  read     alongside the driver: 7 rows"
    assert here not in catalog.explain(text)
    beside_the_driver(monkeypatch)
    assert here in catalog.explain(text)
    assert "count(*) by s: each group once" in catalog.explain(text)
    with monkeypatch.context() as patch:
        patch.setattr(few_rows, "FEW_ROWS", 6)
        assert here not in catalog.explain(text)
        patch.setattr(few_rows, "FEW_ROWS", 20)
        patch.setattr(few_rows, "MOST_FOLDED", 10)
        assert here not in catalog.explain(text)
    assert "read     alongside the driver: 1 rows" in catalog.explain("SELECT sum(i8) FROM wide WHERE id < 0")


WHOLE = [
    "SELECT count(*), sum(i32) AS n, avg(i8), min(s) AS least, sum(d5) FROM wide WHERE id > 3",
    "SELECT s AS t, count(*) AS c, avg(i8) FROM wide GROUP BY s",
    "SELECT x.b AS t, max(i8) AS m, s FROM wide x GROUP BY 3, 1",
    "SELECT s, count(*) AS c, b AS t FROM wide GROUP BY ALL",
]


@pytest.mark.long
@pytest.mark.parametrize("text", WHOLE)
def test_spark_does_not_group_again_what_one_reader_folded(
    catalog: AttachedStore, parquet: SparkSession, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    assert "Aggregate" in optimized(catalog.sql(text))
    beside_the_driver(monkeypatch)
    frame = catalog.sql(text)
    assert optimized(frame).startswith("LocalRelation")
    assert answer(frame) == answer(parquet.sql(text))
    more = f"{text} ORDER BY count(*), 1, 2, 3 LIMIT 3"
    assert answer(catalog.sql(more)) == answer(parquet.sql(more))


def test_a_sum_is_sparks_own_to_the_sign_of_zero_and_to_an_overflow(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Store.create(tmp_path / "shop.store", ["s1"], tablets=2, slots=16)
    rows = pa.table({"id": [1, 2, 3], "f": [-0.0, -0.0, None], "n": [2**62, 2**62, 1]})
    made.create_table("t", rows.schema, ["id"]).upsert(rows)
    catalog = attach(spark.newSession(), made.uri)
    beside_the_driver(monkeypatch)
    assert str(catalog.sql("SELECT sum(f), avg(f) FROM t").collect()[0][:]) == "(0.0, 0.0)"
    assert catalog.sql("SELECT sum(n) AS s FROM t WHERE id > 2").collect() == [(1,)]
    with pytest.raises(ArithmeticException):
        catalog.sql("SELECT sum(n) AS s FROM t").collect()
    # One row for each group and more, which do not fit: these are not the groups themselves.
    monkeypatch.setattr(aggregates.SourceAggregates, "are_whole", lambda self, _: self.edits_of_whole)
    assert len(catalog.sql("SELECT sum(n) AS s FROM t").collect()) > 1


# Planted faults: were the rules weaker, the comparison above would fail


def _counts_are_counted(patch: pytest.MonkeyPatch) -> None:
    finished = aggregates._Rewriting._finished

    def wrong(self: Any, call: Any, *, adding: bool) -> str:
        return finished(self, call, adding=adding).replace("coalesce(sum(", "coalesce(count(")

    patch.setattr(aggregates._Rewriting, "_finished", wrong)


def _nothing_is_no_row(patch: pytest.MonkeyPatch) -> None:
    finished = aggregates._Rewriting._finished

    def wrong(self: Any, call: Any, *, adding: bool) -> str:
        return finished(self, call, adding=adding).replace(", 0L)", ")")

    patch.setattr(aggregates._Rewriting, "_finished", wrong)


def _conditions_that_stay_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    push = conditions.push_conditions

    def wrong(*given: Any) -> Any:
        pushed = push(*given)
        return {ref: conditions.Pushed(one.filter, one.stayed, True) for ref, one in pushed.items()}

    patch.setattr("elasticscan.connector.sql.plan.push_conditions", wrong)


def _zeros_are_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(aggregates, "_WHOLE", (object,))


def _names_are_made_by_spark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        aggregates, "quote_name", lambda name: f"`{name.upper()}`" if "(" in name[:6] else f"`{name}`"
    )


def _sums_grow_wider(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(aggregates, "MAX_DECIMAL_DIGITS", 0)


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (_counts_are_counted, "SELECT s, count(*) FROM wide GROUP BY s"),
    (_nothing_is_no_row, "SELECT count(*) FROM wide WHERE id < 0"),
    (_conditions_that_stay_are_forgotten, "SELECT count(*) FROM wide WHERE id + 1 > 50"),
    (_zeros_are_one, "SELECT cast(f64 AS string) AS c, count(*) FROM wide GROUP BY cast(f64 AS string)"),
    (_names_are_made_by_spark, "SELECT sum(i8) FROM wide"),
    (_sums_grow_wider, "SELECT sum(d5) FROM wide"),
]


@pytest.mark.parametrize(("plant", "text"), FAULTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_planted_fault_is_found(
    catalog: AttachedStore,
    parquet: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    text: str,
) -> None:
    expected = answer(parquet.sql(text))
    assert answer(catalog.sql(text)) == expected
    plant(monkeypatch)
    assert answer(catalog.sql(text)) != expected
