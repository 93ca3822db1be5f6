"""`sql` of an attached store gives what Spark gives over Parquet files with the same rows.

Random queries (`sql_queries.py`) and those at the beginning of `plans.txt` are run three times: over Parquet,
over relations that tasks read, and over rows that are read alongside the driver.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.connector import AttachedStore, attach
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.sql import aggregates, columns, conditions, joins, limits, query
from elasticscan.connector.sql.plan import plan_query
from elasticscan.connector.sql.query import Session
from elasticscan.store import Store
from tests.base.examples import QUERIES
from tests.connector.conftest import by_tasks
from tests.connector.sql_queries import SCHEMAS, SHAPES, Generator, LimitedQuery, blocks_of, fill

pytestmark = pytest.mark.spark

# Spark finds no rows of these in Parquet; plain views, to which these are compared, and DuckDB agree with
# this store.
WRONG_OF_PARQUET = {183}
_, *BLOCKS = blocks_of(Path(__file__).with_name("plans.txt"))
BY_HAND = [text for _, text in takewhile(lambda block: not block[0], BLOCKS)]  # others are planned alone


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store.create(tmp_path_factory.mktemp("sql") / "shop.store", ["s1", "s2"], tablets=4, slots=64)
    fill(made)
    return made


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, shop: Store) -> AttachedStore:
    return attach(small(spark), shop.uri)


def small(spark: SparkSession) -> SparkSession:
    """Return a session of its own for some tens of rows, which want no plans that adapt while they run."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, shop: Store, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session in which the same names are Parquet files."""
    session, folder = small(spark), tmp_path_factory.mktemp("parquet")
    for name, schema in SCHEMAS.items():
        micro = [field.with_type(_in_parquet(field.type)) for field in schema]
        rows = shop.table(name).scan().to_table().cast(pa.schema(micro), safe=False)
        pq.write_table(rows, folder / f"{name}.parquet")
        rows = session.read.parquet(str(folder / f"{name}.parquet")).toArrow()
        # A file's columns may all be null to Spark; a table's key may not.
        session.createDataFrame(rows, spark_schema(schema)).createOrReplaceTempView(name)
    return session


def _in_parquet(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def plain(value: Any) -> Any:
    """A value that equals itself and has a hash; -0.0 is 0.0, since the order of the two is not specified."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value or 0.0
    if isinstance(value, tuple | list):
        return tuple(plain(each) for each in value)
    return bytes(value) if isinstance(value, bytearray) else value


def answer(frame: DataFrame) -> tuple[list[Any], Counter[Any]]:
    """Names, types and rows."""
    fields = [(field.name, field.dataType, field.nullable) for field in frame.schema]
    return fields, Counter(plain(row) for row in frame.collect())


def why_wrong(asked: str | LimitedQuery, catalog: AttachedStore, parquet: SparkSession) -> str | None:
    """What is wrong with the catalog's answer, by Spark's own."""
    if isinstance(asked, LimitedQuery):
        return why_limit_is_wrong(asked, catalog, parquet)
    found, expected = answer(catalog.sql(asked)), answer(parquet.sql(asked))
    return None if found == expected else f"{found}, not {expected}"


def why_limit_is_wrong(asked: LimitedQuery, catalog: AttachedStore, parquet: SparkSession) -> str | None:
    inner, whole = (
        [plain(row) for row in parquet.sql(text).collect()] for text in (asked.inner, asked.whole)
    )
    found = [plain(row) for row in catalog.sql(asked.text).collect()]
    expected = min(asked.rows, max(len(inner) - asked.offset, 0))
    if asked.counts:
        return None if found == [(expected,)] else f"counted {found}, not {expected}"
    if missing := Counter(found) - Counter(whole):
        return f"rows that are not there: {missing}"
    if len(found) != expected * asked.times and not (asked.is_joined and len(found) > expected):
        return f"{len(found)} rows, not {expected * asked.times}"
    first = inner[asked.offset : asked.offset + asked.rows]
    keys = [[row[: asked.ordered] for row in rows] for rows in (found, first)]
    return None if not asked.ordered or keys[0] == keys[1] else f"begins with {keys[0]}, not with {keys[1]}"


def check_both_ways(asked: str | LimitedQuery, catalog: AttachedStore, parquet: SparkSession) -> None:
    assert why_wrong(asked, catalog, parquet) is None, f"alongside the driver: {asked}"
    with pytest.MonkeyPatch.context() as patch:
        by_tasks(patch)
        assert why_wrong(asked, catalog, parquet) is None, f"by tasks: {asked}"


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a query is given to Spark as it is: then nothing would be tested."""

    def refused(_: AttachedStore, text: str, *others: object) -> DataFrame:
        raise AssertionError(f"not rewritten: {text}")

    monkeypatch.setattr(AttachedStore, "_run_unchanged", refused)


KINDS = [Generator.query, Generator.limited, Generator.aggregated]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@every_kind
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=pytest.mark.long) for at in range(6, 2 * QUERIES, 6))]
)
def test_a_random_query_gives_sparks_rows(
    catalog: AttachedStore,
    parquet: SparkSession,
    shop: Store,
    rewritten: None,
    kind: Callable[[Generator], str | LimitedQuery],
    first: int,
) -> None:
    for seed in range(first, first + 6):
        of_views = kind is Generator.query and seed in WRONG_OF_PARQUET
        check_both_ways(kind(Generator(seed)), catalog, catalog._spark if of_views else parquet)


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=[pytest.mark.long] * (first > 6)) for first in range(0, len(BY_HAND), 6)],
)
def test_a_query_by_hand_gives_sparks_rows(
    catalog: AttachedStore, parquet: SparkSession, rewritten: None, first: int
) -> None:
    for text in BY_HAND[first : first + 6]:
        check_both_ways(text, catalog, parquet)


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
@every_kind
def test_a_random_query_gives_sparks_rows_while_tablets_move(
    spark: SparkSession,
    parquet: SparkSession,
    rewritten: None,
    tmp_path: Path,
    kind: Callable[[Generator], str | LimitedQuery],
) -> None:
    moving = Store.create(tmp_path / "moving.store", ["s1", "s2"], tablets=8, slots=64)
    fill(moving)
    catalog = attach(small(spark), moving.uri)
    with tablets_moving(moving) as arrived:
        for seed in range(1_000, 1_000 + QUERIES):
            check_both_ways(kind(Generator(seed)), catalog, parquet)
    assert len(arrived) > 6


def test_the_random_queries_push_enough_to_be_worth_comparing() -> None:
    def scans(kind: Callable[[Generator], Any]) -> list[Any]:
        made = [kind(Generator(seed)) for seed in range(60)]
        texts = [one.text if isinstance(one, LimitedQuery) else one for one in made]
        return [scan for text in texts for scan in plan_query(text, SHAPES, Session()).scans]

    found = scans(Generator.query)
    assert len(found) > 150
    assert sum(scan.filter is not None for scan in found) > len(found) // 4
    assert sum(scan.columns is not None for scan in found) > len(found) // 2
    assert sum(scan.limit is not None for scan in scans(Generator.limited)) > 20
    assert sum(scan.aggregates is not None for scan in scans(Generator.aggregated)) > 40


# Planted faults: were the rules weaker, the comparison above would fail

Patch = pytest.MonkeyPatch


def _an_outer_join_fills_nothing(patch: Patch) -> None:
    patch.setitem(joins._KINDS, ("LEFT", ""), "inner")


def _on_reduces_the_kept_side(patch: Patch) -> None:
    right = joins._reducible
    patch.setattr(joins, "_reducible", lambda _, *sides: right("inner", *sides))


def _anti_is_semi(patch: Patch) -> None:
    patch.setitem(joins._KINDS, ("LEFT", "ANTI"), "semi")
    patch.setitem(joins._KINDS, ("", "ANTI"), "semi")


def _a_cte_is_the_table(patch: Patch) -> None:
    patch.setattr(query, "_is_cte", lambda *_: False)


def _a_star_takes_nothing(patch: Patch) -> None:
    patch.setattr(columns, "_takes_all", lambda *_: False)


def _words_are_never_columns(patch: Patch) -> None:
    patch.setattr(query, "_words", lambda _: frozenset())


def _computing_is_safe(patch: Patch) -> None:
    patch.setattr(conditions._PushdownRules, "_check", lambda *_: None)


def _whatever_stays_is_forgotten(patch: Patch) -> None:
    push = conditions.push_conditions

    def wrong(*given: Any) -> Any:
        return {reference: replace(pushed, complete=True) for reference, pushed in push(*given).items()}

    patch.setattr("elasticscan.connector.sql.plan.push_conditions", wrong)


def _aggregates_look_at_few_rows(patch: Patch) -> None:
    patch.setattr(limits, "PLAIN_NODES", object)


def _aliases_hide_nothing(patch: Patch) -> None:
    patch.setattr(limits, "_leaves_name", lambda *_: True)


def _orders_are_forgotten(patch: Patch) -> None:
    limit = limits.row_limit

    def wrong(*given: Any) -> limits.RowLimit | None:
        right = limit(*given)
        return None if right is None else limits.RowLimit(right.rows)

    patch.setattr("elasticscan.connector.sql.plan.row_limit", wrong)


def _offsets_are_forgotten(patch: Patch) -> None:
    count = limits._count
    patch.setattr(limits, "_count", lambda clause: 0 if clause.key == "offset" else count(clause))


def _joins_are_one_table(patch: Patch) -> None:
    patch.setattr(limits, "reads_alone", lambda *_: True)


def _finished(patch: Patch, right: str, wrong: str) -> None:
    finished = aggregates._Rewriting._finished

    def changed(self: Any, call: Any, *, adding: bool) -> str:
        return finished(self, call, adding=adding).replace(right, wrong)

    patch.setattr(aggregates._Rewriting, "_finished", changed)


def _counts_are_counted(patch: Patch) -> None:
    _finished(patch, "coalesce(sum(", "coalesce(count(")


def _nothing_is_no_row(patch: Patch) -> None:
    _finished(patch, ", 0L)", ")")


def _zeros_are_one(patch: Patch) -> None:
    patch.setattr(aggregates, "_WHOLE", (object,))


def _names_are_made_by_spark(patch: Patch) -> None:
    patch.setattr(
        aggregates, "quote_name", lambda name: f"`{name.upper()}`" if "(" in name[:6] else f"`{name}`"
    )


def _sums_grow_wider(patch: Patch) -> None:
    patch.setattr(aggregates, "MAX_DECIMAL_DIGITS", 0)


ANTI = "SELECT f.id FROM flights f ANTI JOIN ports p ON f.a = p.a AND f.id > 4 AND p.m > 0"
FAULTS: list[tuple[Callable[[Patch], None], str]] = [
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
    (
        _whatever_stays_is_forgotten,
        "SELECT count(*) FROM (SELECT id FROM flights WHERE id + 1 > 50 LIMIT 5)",
    ),
    (_whatever_stays_is_forgotten, "SELECT count(*) FROM wide WHERE id + 1 > 50"),
    (_aggregates_look_at_few_rows, "SELECT sum(a) OVER () AS x FROM tiny ORDER BY id LIMIT 1"),
    (_aliases_hide_nothing, "SELECT -a AS a FROM tiny ORDER BY a LIMIT 5"),
    (_orders_are_forgotten, "SELECT id FROM flights ORDER BY a DESC, id DESC LIMIT 7"),
    (_offsets_are_forgotten, "SELECT count(*) FROM (SELECT a FROM flights LIMIT 3 OFFSET 2)"),
    (
        _joins_are_one_table,
        "SELECT count(*) FROM (SELECT t.id FROM tiny t JOIN flights USING (id) LIMIT 6)",
    ),
    (_counts_are_counted, "SELECT s, count(*) FROM wide GROUP BY s"),
    (_nothing_is_no_row, "SELECT count(*) FROM wide WHERE id < 0"),
    (_zeros_are_one, "SELECT cast(f64 AS string) AS c, count(*) FROM wide GROUP BY cast(f64 AS string)"),
    (_names_are_made_by_spark, "SELECT sum(i8) FROM wide"),
    (_sums_grow_wider, "SELECT sum(d5) FROM wide"),
]


@pytest.mark.long
@pytest.mark.parametrize(("plant", "text"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_fault_is_found(
    catalog: AttachedStore,
    parquet: SparkSession,
    rewritten: None,
    monkeypatch: Patch,
    plant: Callable[[Patch], None],
    text: str,
) -> None:
    check_both_ways(text, catalog, parquet)
    plant(monkeypatch)
    # Spark may also refuse the query, or be given it as it was written.
    with pytest.raises((PySparkException, AssertionError)):
        check_both_ways(text, catalog, parquet)
