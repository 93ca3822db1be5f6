"""`sql` of an attached store gives what Spark gives over Parquet files with the same rows.

Random queries (`sql_queries.py`) and those at the beginning of `plans.txt` are run three times: over Parquet,
over relations that tasks read, and over rows that are read in the driver.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.connector import AttachedStore
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.sql import aggregates, conditions, joins, limits, plan, query
from elasticscan.connector.sql.plan import plan_query
from elasticscan.connector.sql.query import Session
from elasticscan.filters import quote_name
from elasticscan.store import Store
from tests.base.examples import QUERIES
from tests.connector.conftest import by_tasks, small
from tests.connector.sql_queries import SCHEMAS, TABLES, Generator, blocks_of, fill

pytestmark = pytest.mark.spark

# Spark itself fails on these by an internal error (a field of a struct and EXISTS), over Parquet, too.
FAILS_IN_SPARK = {8}
_, *BLOCKS = blocks_of(Path(__file__).with_name("plans.txt"))
BY_HAND = [text for _, text in takewhile(lambda block: not block[0], BLOCKS)]  # others are planned alone


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    return small(spark)


class Rewriting(AttachedStore):
    """Fails where a query is given to Spark as it is: then nothing would be tested."""

    def _run_unchanged(self, text: str, *others: object) -> DataFrame:
        raise AssertionError(f"not rewritten: {text}")


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, shop: Store) -> AttachedStore:
    return Rewriting(spark, shop.uri)


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, shop: Store, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session in which the same names are Parquet files."""
    session, folder = small(spark), tmp_path_factory.mktemp("parquet")
    for name, schema in SCHEMAS.items():
        micro = [
            field.with_type(pa.timestamp("us", field.type.tz)) if pa.types.is_timestamp(field.type) else field
            for field in schema
        ]
        rows = shop.table(name).scan().to_table().cast(pa.schema(micro), safe=False)
        pq.write_table(rows, folder / f"{name}.parquet")
        rows = session.read.parquet(str(folder / f"{name}.parquet")).toArrow()
        # A file's columns may all be null to Spark; a table's key may not.
        session.createDataFrame(rows, spark_schema(schema)).createOrReplaceTempView(name)
    return session


def plain(value: Any) -> Any:
    """A value that equals itself and has a hash; -0.0 is 0.0, since the order of the two is not specified."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value or 0.0
    if isinstance(value, tuple | list):
        return tuple(plain(each) for each in value)
    return bytes(value) if isinstance(value, bytearray) else value


def answer(frame: DataFrame, ordered: bool = False) -> tuple[list[Any], list[Any] | Counter[Any]]:
    """Names, types and rows, in their order if that is said to be certain."""
    fields = [(field.name, field.dataType, field.nullable) for field in frame.schema]
    rows = [plain(row) for row in frame.collect()]
    return fields, rows if ordered else Counter(rows)


def check_both_ways(asked: str, catalog: AttachedStore, parquet: SparkSession) -> None:
    ordered = re.search(r" ORDER BY [^()]* LIMIT [^()]*$", asked) is not None
    expected = answer(parquet.sql(asked), ordered)
    assert answer(catalog.sql(asked), ordered) == expected, f"in the driver: {asked}"
    with pytest.MonkeyPatch.context() as patch:
        by_tasks(patch)
        assert answer(catalog.sql(asked), ordered) == expected, f"by tasks: {asked}"


KINDS = [Generator.query, Generator.limited, Generator.aggregated]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@every_kind
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=pytest.mark.long) for at in range(6, QUERIES, 6))]
)
def test_a_random_query_gives_sparks_rows(
    catalog: AttachedStore, parquet: SparkSession, kind: Callable[[Generator], str], first: int
) -> None:
    for seed in range(first, first + 6):
        if kind is not Generator.query or seed not in FAILS_IN_SPARK:
            check_both_ways(kind(Generator(seed)), catalog, parquet)


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=[pytest.mark.long] * (first > 6)) for first in range(0, len(BY_HAND), 6)],
)
def test_a_query_by_hand_gives_sparks_rows(catalog: AttachedStore, parquet: SparkSession, first: int) -> None:
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
    spark: SparkSession, parquet: SparkSession, tmp_path: Path, kind: Callable[[Generator], str]
) -> None:
    moving = Store.create(tmp_path / "moving.store", ["s1", "s2"], tablets=8, slots=64)
    fill(moving)
    catalog = Rewriting(small(spark), moving.uri)
    with tablets_moving(moving) as arrived:
        for seed in range(1_000, 1_000 + QUERIES):
            check_both_ways(kind(Generator(seed)), catalog, parquet)
    assert len(arrived) > 6


def test_the_random_queries_push_enough_to_be_worth_comparing() -> None:
    def scans(kind: Callable[[Generator], str]) -> list[Any]:
        texts = [kind(Generator(seed)) for seed in range(60)]
        return [scan for text in texts for scan in plan_query(text, TABLES, Session()).scans]

    found = scans(Generator.query)
    assert len(found) > 150
    assert sum(scan.filter is not None for scan in found) > len(found) // 4
    assert sum(scan.columns is not None for scan in found) > len(found) // 2
    assert sum(scan.limit is not None for scan in scans(Generator.limited)) > 20
    assert sum(scan.partial is not None for scan in scans(Generator.aggregated)) > 40


# Planted faults: were the rules weaker, the comparison above would fail

Patch = pytest.MonkeyPatch
PUSH, ROW_LIMIT, COUNT = conditions.push_conditions, limits.row_limit, limits._count
MERGED = aggregates.AggregateRewriting._merged


def _put(place: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(place, name, value)


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def _all_complete(*given: Any) -> Any:
    return (*PUSH(*given)[:2], True)


def _without_order(*given: Any) -> limits.RowLimit | None:
    right = ROW_LIMIT(*given)
    return None if right is None else limits.RowLimit(right.rows)


def _anti_is_semi(patch: Patch) -> None:
    patch.setitem(joins._KINDS, ("LEFT", "ANTI"), joins._SEMI)
    patch.setitem(joins._KINDS, ("", "ANTI"), joins._SEMI)


def _merged(right: str, wrong: str) -> Callable[[Patch], None]:
    def changed(*given: Any) -> Any:
        return tuple(text.replace(right, wrong) for text in MERGED(*given))

    return _put(aggregates.AggregateRewriting, "_merged", changed)


def _upper(name: str) -> str:
    return f"`{name.upper()}`" if "(" in name[:6] else quote_name(name)


ANTI = "SELECT f.id FROM flights f ANTI JOIN ports p ON f.a = p.a AND f.id > 4 AND p.m > 0"
FAULTS: list[tuple[str, Callable[[Patch], None], str]] = [
    (
        "an outer join fills nothing",
        lambda patch: patch.setitem(joins._KINDS, ("LEFT", ""), joins._INNER),
        "SELECT id, note FROM flights LEFT JOIN tiny USING (id) WHERE id > 2 AND note IS NULL",
    ),
    (
        "on reduces the kept side",
        lambda patch: patch.setitem(joins._KINDS, ("LEFT", ""), ("LR", "L")),
        "SELECT f.id, p.code FROM flights f LEFT JOIN ports p ON f.a = p.a AND f.id > 4",
    ),
    ("anti is semi", _anti_is_semi, ANTI),
    (
        "a cte is the table",
        _put(query, "_is_cte", _always(False)),
        "WITH x AS (SELECT id FROM tiny), tiny AS (SELECT 5 AS id) SELECT x.id, tiny.id FROM x, tiny",
    ),
    ("a star takes nothing", _put(plan, "_takes_all", _always(False)), "SELECT * FROM flights"),
    (
        "words are never columns",
        _put(query, "_words", _always(frozenset())),
        "SELECT current_date FROM flights WHERE current_date > 0",
    ),
    (
        "computing is safe",
        _put(conditions, "_check", _always(None)),
        "SELECT id FROM tiny WHERE array_contains(array(4, 6), a) AND 10 / (a - 2) > 0",
    ),
    (
        "whatever stays is forgotten",
        _put(plan, "push_conditions", _all_complete),
        "SELECT count(*) FROM (SELECT id FROM flights WHERE id + 1 > 50 LIMIT 5)",
    ),
    (
        "whatever stays is forgotten",
        _put(plan, "push_conditions", _all_complete),
        "SELECT count(*) FROM wide WHERE id + 1 > 50",
    ),
    (
        "windows look at few rows",
        _put(limits, "PLAIN_NODES", object),
        "SELECT row_number() OVER (ORDER BY id DESC) AS x FROM tiny ORDER BY id LIMIT 1",
    ),
    (
        "aliases hide nothing",
        _put(limits, "_leaves_name", _always(True)),
        "SELECT -a AS a FROM tiny ORDER BY a LIMIT 5",
    ),
    (
        "orders are forgotten",
        _put(plan, "row_limit", _without_order),
        "SELECT id FROM flights ORDER BY a DESC, id DESC LIMIT 7",
    ),
    (
        "offsets are forgotten",
        _put(limits, "_count", lambda clause: 0 if clause.key == "offset" else COUNT(clause)),
        "SELECT count(*) FROM (SELECT a FROM flights LIMIT 3 OFFSET 2)",
    ),
    (
        "joins are one table",
        _put(limits, "reads_alone", _always(True)),
        "SELECT count(*) FROM (SELECT t.id FROM tiny t JOIN flights USING (id) LIMIT 6)",
    ),
    (
        "counts are counted",
        _merged("coalesce(sum(", "coalesce(count("),
        "SELECT s, count(*) FROM wide GROUP BY s",
    ),
    ("nothing is no row", _merged(", 0L)", ")"), "SELECT count(*) FROM wide WHERE id < 0"),
    (
        "zeros are one",
        _put(aggregates, "_WHOLE", (object,)),
        "SELECT cast(f64 AS string) AS c, count(*) FROM wide GROUP BY cast(f64 AS string)",
    ),
    ("names are made by spark", _put(aggregates, "quote_name", _upper), "SELECT sum(i8) FROM wide"),
    ("sums grow wider", _put(aggregates, "MAX_DECIMAL_DIGITS", 0), "SELECT sum(d5) FROM wide"),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "plant", "text"), FAULTS, ids=lambda each: each if type(each) is str else ""
)
def test_a_planted_fault_is_found(
    catalog: AttachedStore,
    parquet: SparkSession,
    monkeypatch: Patch,
    name: str,
    plant: Callable[[Patch], None],
    text: str,
) -> None:
    check_both_ways(text, catalog, parquet)
    plant(monkeypatch)
    # Spark may also refuse the query, or be given it as it was written.
    with pytest.raises((PySparkException, AssertionError)):
        check_both_ways(text, catalog, parquet)
