"""LIMITs, reads by key and tops through `catalog.sql`: by tasks and alongside the driver they are Spark's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import ContinuationKeyError, InvalidOption
from elasticscan.connector import AttachedStore, attach
from elasticscan.connector.options import parse_options
from elasticscan.connector.sql import conditions, few_rows, limits
from elasticscan.connector.sql.limits import RowLimit
from elasticscan.store import Scan, Store
from tests.base.examples import QUERIES
from tests.connector.catalog_queries import KEYS, tables
from tests.connector.conftest import by_tasks
from tests.connector.limit_queries import LimitedQuery, limited
from tests.connector.test_catalog_spark import plain, rows_of, setting, tablets_moving

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store.create(tmp_path_factory.mktemp("few") / "shop.store", ["s1", "s2"], tablets=4, slots=64)
    for name, rows in tables().items():
        made.create_table(name, rows.schema, [KEYS[name]])
        made.table(name).upsert(rows)
        for column in ("a", KEYS[name]):
            made.table(name).create_index(f"by_{column}", [column])
    return made


@pytest.fixture(scope="module", autouse=True)
def _small(spark: SparkSession) -> Iterator[None]:
    with (
        setting(spark, "spark.sql.adaptive.enabled", "false"),
        setting(spark, "spark.sql.shuffle.partitions", "1"),
    ):
        yield


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, shop: Store) -> AttachedStore:
    return attach(spark, shop.uri)


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    folder = tmp_path_factory.mktemp("parquet")
    for name, rows in tables().items():
        pq.write_table(rows, folder / f"{name}.parquet")
        session.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(name)
    return session


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each reference that was read, whether that was alongside the driver."""
    noted: list[bool] = []
    read = few_rows.read_few

    def noting(*given: Any) -> Any:
        few = read(*given)
        noted.append(few is not None)
        return few

    for module in ("attached", "table_read"):
        monkeypatch.setattr(f"elasticscan.connector.sql.{module}.read_few", noting)
    return noted


Rows = list[Any]


def without_limit(query: LimitedQuery, parquet: SparkSession) -> tuple[Rows, Rows]:
    """The rows of Spark's own query without its limit: of the part that has it, and of the whole."""
    inner = [plain(row) for row in parquet.sql(query.inner).collect()]
    if query.whole == query.inner:
        return inner, inner
    return inner, [plain(row) for row in parquet.sql(query.whole).collect()]


def whys(query: LimitedQuery, catalog: AttachedStore, inner: Rows, whole: Rows) -> str | None:
    """What is wrong with the catalog's answer, by Spark's to the query without its limit."""
    answer = [plain(row) for row in catalog.sql(query.text).collect()]
    expected = min(query.rows, max(len(inner) - query.offset, 0))
    if query.counts:
        return None if answer == [(expected,)] else f"counted {answer}, not {expected}"
    if missing := Counter(answer) - Counter(whole):
        return f"rows that are not there: {missing}"
    if query.whole.startswith("SELECT l.*"):
        return None if len(answer) >= expected else f"{len(answer)} rows, not {expected}"
    if len(answer) != expected * query.times:
        return f"{len(answer)} rows, not {expected * query.times}"
    if not query.ordered:
        return None
    first = inner[query.offset : query.offset + query.rows]
    keys = [[row[: query.ordered] for row in rows] for rows in (answer, first)]
    return None if keys[0] == keys[1] else f"begins with {keys[0]}, not with {keys[1]}"


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=pytest.mark.long) for at in range(8, 2 * QUERIES, 8))]
)
def test_a_random_limit_gives_what_spark_may_give(
    catalog: AttachedStore, parquet: SparkSession, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    for seed in range(first, first + 8):
        query = limited(seed)
        found = without_limit(query, parquet)
        assert whys(query, catalog, *found) is None, f"seed {seed}: {query.text}"
        with monkeypatch.context() as patch:
            by_tasks(patch)
            assert whys(query, catalog, *found) is None, f"by tasks, seed {seed}: {query.text}"


@pytest.mark.long
def test_a_random_limit_is_right_while_tablets_move(
    spark: SparkSession, parquet: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = Store.create(tmp_path / "moving.store", ["s1", "s2"], tablets=8, slots=64)
    for name, rows in tables().items():
        moving.create_table(name, rows.schema, [KEYS[name]])
        moving.table(name).upsert(rows)
        moving.table(name).create_index("by_a", ["a"])
    catalog = attach(spark.newSession(), moving.uri)
    with tablets_moving(moving) as arrived:
        for seed in range(2_000, 2_000 + QUERIES):
            query = limited(seed)
            found = without_limit(query, parquet)
            assert whys(query, catalog, *found) is None, f"seed {seed}: {query.text}"
            with monkeypatch.context() as patch:
                by_tasks(patch)
                assert whys(query, catalog, *found) is None, f"by tasks, seed {seed}: {query.text}"
    assert len(arrived) > 2


BY_HAND = [
    ("SELECT id FROM flights ORDER BY a DESC, id DESC LIMIT 7", True),
    ("SELECT id FROM flights ORDER BY a, id LIMIT 30 OFFSET 5", True),
    ("SELECT max(id) FROM flights LIMIT 1", False),
    ("SELECT sum(a) OVER () AS x FROM tiny ORDER BY id LIMIT 1", False),
    ("SELECT -a AS a FROM tiny ORDER BY a LIMIT 5", False),
    ("SELECT a FROM tiny ORDER BY a NULLS LAST LIMIT 2", False),
    ("SELECT count(*) FROM (SELECT id FROM flights WHERE id + 1 > 50 LIMIT 5)", False),
    ("SELECT count(*) FROM (SELECT DISTINCT a FROM flights LIMIT 8)", False),
    ("SELECT count(*) FROM (SELECT a FROM flights LIMIT 3 OFFSET 2)", True),
    ("SELECT count(*) FROM (SELECT t.id FROM tiny t JOIN flights USING (id) LIMIT 6)", False),
    ("SELECT st.x AS id FROM flights WHERE st.x IS NOT NULL ORDER BY id LIMIT 3", False),
]  # fmt: skip


def _whatever_stays_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    push = conditions.push_conditions

    def wrong(*given: Any) -> Any:
        return {
            reference: conditions.Pushed(pushed.filter, pushed.stayed, True)
            for reference, pushed in push(*given).items()
        }

    patch.setattr("elasticscan.connector.sql.plan.push_conditions", wrong)


def _aggregates_look_at_few_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(limits, "PLAIN_NODES", object)


def _aliases_hide_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(limits, "_leaves_name", lambda *_: True)


def _orders_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    limit = limits.row_limit

    def wrong(*given: Any) -> RowLimit | None:
        right = limit(*given)
        return None if right is None else RowLimit(right.rows)

    patch.setattr("elasticscan.connector.sql.plan.row_limit", wrong)


def _offsets_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    count = limits._count
    patch.setattr(limits, "_count", lambda clause: 0 if clause.key == "offset" else count(clause))


def _joins_are_one_table(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(limits, "reads_alone", lambda *_: True)


@pytest.mark.parametrize(("text", "limits"), BY_HAND)
def test_a_limit_by_hand_gives_the_rows_of_parquet(
    catalog: AttachedStore, parquet: SparkSession, text: str, limits: bool
) -> None:
    assert rows_of(catalog.sql(text)) == rows_of(parquet.sql(text))
    assert ("  limit  " in catalog.explain(text)) == limits


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (
        _whatever_stays_is_forgotten,
        "SELECT count(*) FROM (SELECT id FROM flights WHERE id + 1 > 50 LIMIT 5)",
    ),
    (_aggregates_look_at_few_rows, "SELECT sum(a) OVER () AS x FROM tiny ORDER BY id LIMIT 1"),
    (_aliases_hide_nothing, "SELECT -a AS a FROM tiny ORDER BY a LIMIT 5"),
    (_orders_are_forgotten, "SELECT id FROM flights ORDER BY a DESC, id DESC LIMIT 7"),
    (_offsets_are_forgotten, "SELECT count(*) FROM (SELECT a FROM flights LIMIT 3 OFFSET 2)"),
    (
        _joins_are_one_table,
        "SELECT count(*) FROM (SELECT t.id FROM tiny t JOIN flights USING (id) LIMIT 6)",
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("plant", "text"), FAULTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_planted_fault_is_found(
    catalog: AttachedStore,
    parquet: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    text: str,
) -> None:
    plant(monkeypatch)
    assert rows_of(catalog.sql(text)) != rows_of(parquet.sql(text))


# Orders without an index


def test_each_task_keeps_the_first_rows_of_an_order_without_an_index(
    spark: SparkSession, catalog: AttachedStore, shop: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_tasks(monkeypatch)
    options = {"maxRowsPerTask": "3", "taskOrder": "d DESC, id"}
    read = spark.read.format("elasticscan").options(**options, columns="id,d", filter="id > 5")
    rows = read.load(f"{shop.uri}/flights").collect()
    whole = shop.table("flights").scan(["id", "d"], filter="id > 5").to_table().to_pylist()
    whole.sort(key=lambda row: (row["d"] is not None, row["d"] or date.min, -row["id"]), reverse=True)
    assert {row["id"] for row in whole[:3]} <= {row.id for row in rows}
    assert len(rows) <= 3 * read.load(f"{shop.uri}/flights").rdd.getNumPartitions() < len(whole)


def test_an_order_of_tasks_goes_with_their_number_of_rows() -> None:
    asked = {"store": "/s", "table": "t", "taskOrder": "d"}
    with pytest.raises(InvalidOption, match="needs 'maxRowsPerTask'"):
        parse_options(asked)
    assert parse_options({**asked, "maxRowsPerTask": "3"}).task_order == ("d",)


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
    by_tasks(monkeypatch)
    assert catalog.explain(text).splitlines()[2:-2] == shown
    assert "  limit    4\n" in catalog.explain("SELECT * FROM tiny LIMIT 4")


def _executed(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, id FROM flights t ORDER BY a, id LIMIT 9",
        "SELECT a, id FROM flights ORDER BY flights.a DESC, id DESC LIMIT 9 -- the first\n ; ",
        "SELECT a, '(ORDER BY' AS x FROM flights /* ) */ WHERE a > 1 OR a IS NULL ORDER BY a, id LIMIT 400",
        "SELECT id, a AS b FROM tiny ORDER BY id DESC LIMIT 0",
        "SELECT a, id FROM flights ORDER BY a DESC, id LIMIT 9",
        "SELECT * FROM flights WHERE a > 1 ORDER BY d, s DESC, id LIMIT 12",
    ],
)
def test_the_first_rows_of_an_order_come_sorted_and_spark_sorts_no_more(
    catalog: AttachedStore, parquet: SparkSession, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    found = catalog.sql(text)
    assert [plain(row) for row in found.collect()] == [plain(row) for row in parquet.sql(text).collect()]
    assert found.columns == parquet.sql(text).columns
    assert not re.search("Sort|TakeOrdered|Exchange", _executed(found)), _executed(found)
    assert "ORDER BY a" not in catalog.explain(text).splitlines()[-1]
    by_tasks(monkeypatch)
    assert re.search("TakeOrdered|LocalTableScan <empty>", _executed(catalog.sql(text)))


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, id FROM flights ORDER BY a, id LIMIT 3 OFFSET 2",
        "(SELECT a, id FROM flights ORDER BY a, id LIMIT 9)",
        "SELECT * FROM (SELECT a, id FROM flights ORDER BY a, id LIMIT 9) ORDER BY id DESC LIMIT 2",
        "SELECT id FROM flights ORDER BY a, id LIMIT 5 UNION ALL SELECT id FROM tiny ORDER BY a, id LIMIT 4",
    ],
)
def test_an_order_that_is_not_the_whole_querys_last_word_stays(
    catalog: AttachedStore, parquet: SparkSession, text: str
) -> None:
    assert text.count("ORDER BY") == catalog.explain(text).count("ORDER BY")
    if "UNION" not in text:
        assert [plain(row) for row in catalog.sql(text).collect()] == [
            plain(row) for row in parquet.sql(text).collect()
        ]


def test_what_is_more_than_few_rows_is_left_to_tasks(
    spark: SparkSession, store: Store, reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = attach(spark, store.uri, "few_")
    monkeypatch.setattr(few_rows, "FEW_ROWS", 20)
    assert shop.sql("SELECT count(*) FROM few_t").collect() == [(1_000,)]
    assert shop.sql("SELECT id FROM few_t LIMIT 21").count() == 21
    assert shop.sql("SELECT id FROM few_t LIMIT 20").count() == 20
    assert shop.sql("SELECT id FROM few_t ORDER BY name LIMIT 20").count() == 20
    assert shop.table("t").limit(200).load().count() == 200
    assert reads == [True, False, True, True, False]
    monkeypatch.setattr(few_rows, "MOST_FOLDED", 100)
    assert shop.sql("SELECT count(*) FROM few_t").collect() == [(1_000,)]
    assert shop.sql("SELECT id FROM few_t ORDER BY name LIMIT 20").count() == 20
    monkeypatch.setattr(few_rows, "FEW_BYTES", 100)
    assert shop.sql("SELECT id FROM few_t LIMIT 20").count() == 20
    assert reads[5:] == [False] * 3


def test_a_read_that_finds_too_little_is_given_up(
    spark: SparkSession, store: Store, reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = attach(spark, store.uri, "rare_")
    monkeypatch.setattr(few_rows, "MOST_SCANNED", 200)
    assert shop.sql("SELECT id FROM rare_t WHERE name LIKE '%z%' LIMIT 5").collect() == []
    assert shop.sql("SELECT id FROM rare_t WHERE name = 'n1' LIMIT 500").count() == 143
    assert reads == [False, False]


def test_a_read_that_fails_here_is_reported_by_the_tasks(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = attach(spark, store.uri, "torn_")

    def failing(_: Scan) -> Any:
        raise ContinuationKeyError("torn")

    monkeypatch.setattr(Scan, "__next__", failing)
    assert shop.sql("SELECT id FROM torn_t LIMIT 3").count() == 3


def test_tasks_give_no_more_rows_than_they_are_asked_for(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = attach(spark, store.uri, "some_")

    def by_two(options: dict[str, str]) -> int:
        options = {"store": store.uri, "table": "t", "numPartitions": "2", **options}
        return spark.read.format("elasticscan").options(**options).load().count()

    assert by_two({"maxRowsPerTask": "30"}) == 60
    assert by_two({"maxRowsPerTask": "30", "includeMetadata": "true"}) == 60
    assert by_two({"maxRowsPerTask": "0"}) == 0
    assert by_two({"maxRowsPerTask": "30", "filter": "id < 10"}) == 10
    by_tasks(monkeypatch)
    assert shop.sql("SELECT id FROM some_t LIMIT 30").count() == 30


@pytest.mark.long
def test_both_ways_give_the_same_types_nulls_and_values(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoned = datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
    local = datetime(1950, 3, 1, 1, 2, 3, tzinfo=UTC).replace(tzinfo=None)
    nested = pa.struct(
        [("at", pa.timestamp("ns", "UTC")), ("m", pa.map_(pa.string(), pa.list_(pa.date32())))]
    )
    schema = pa.schema([
        pa.field("k", pa.int64(), nullable=False), pa.field("u", pa.uint64()), pa.field("h", pa.float16()),
        pa.field("d", pa.decimal128(38, 6)), pa.field("at", pa.timestamp("us", "America/New_York")),
        pa.field("local", pa.timestamp("ns")), pa.field("day", pa.date32()), pa.field("bytes", pa.binary()),
        pa.field("n", nested), pa.field("l", pa.list_(pa.field("item", pa.timestamp("ms", "UTC")))),
        pa.field("big", pa.large_string()), pa.field("f", pa.float64(), nullable=False),
    ])  # fmt: skip
    value = {
        "u": 2**64 - 1, "h": 0.5, "d": Decimal("-1.000001"), "at": zoned, "local": local,
        "day": date(1, 1, 1), "bytes": b"\0\xff",
        "n": {"at": zoned, "m": [("a", [date(2024, 1, 1), None]), ("b", None)]},
        "l": [zoned.replace(microsecond=0), None], "big": "\U0001f600", "f": float("nan"),
    }  # fmt: skip
    empty = {"u": None, "n": {"at": None, "m": None}, "l": [], "f": -0.0}
    rows = [{"k": 0, **value}, {"k": 1, "f": 1.0}, {"k": 2, **empty}, {"k": 3, **value}]
    made = Store.create(tmp_path / "types.store", ["s1", "s2"], tablets=4, slots=64)
    made.create_table("t", schema, ["k"])
    made.table("t").upsert(pa.Table.from_pylist(rows, schema=schema))
    shop = attach(spark, made.uri, "types_")
    for zone in ("UTC", "Asia/Tokyo"):
        with setting(spark, "spark.sql.session.timeZone", zone):
            for text in ("SELECT * FROM types_t LIMIT 10", "SELECT * FROM types_t WHERE k IN (1, 2, 3)"):
                here = shop.sql(text)
                with monkeypatch.context() as patch:
                    by_tasks(patch)
                    there = shop.sql(text)
                assert here.schema == there.schema
                shown = [str(row) for row in here.orderBy("k").collect()]
                assert shown == [str(row) for row in there.orderBy("k").collect()]
                assert "LocalTableScan" in here._jdf.queryExecution().toString()


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
