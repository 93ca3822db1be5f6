"""Keys that a join hands from side to side: the rows stay those of Parquet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from elasticscan.connector import AttachedStore, attach
from elasticscan.connector.sql import few_rows, reads, semi_joins
from elasticscan.connector.sql.plan import QueryPlan, TableShape, plan_query
from elasticscan.connector.sql.query import Session
from elasticscan.store import Store
from tests.base.examples import QUERIES
from tests.connector.catalog_queries import SHAPES, tables
from tests.connector.test_catalog_spark import (  # noqa: F401 - fixtures
    KEYS,
    parquet,
    rewritten,
    rows_of,
    setting,
    tablets_moving,
)

pytestmark = pytest.mark.spark

KINDS = [
    "JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "CROSS JOIN",
]  # fmt: skip
EQUAL = {"flights": ["id", "a", "s", "d"], "ports": ["id", "a", "code", "name"], "tiny": ["id", "a", "note"]}
WHOLE = {name: TableShape(shape.schema, shape.key, (shape.key,)) for name, shape in SHAPES.items()}


def among(draw: random.Random, alias: str, name: str) -> list[str]:
    """A condition with a sub-query, if there is a column of the type."""
    key, inner = draw.choice(EQUAL[name]), draw.choice(list(EQUAL))
    kind = WHOLE[name].schema.field(key).type
    others = [other for other in EQUAL[inner] if WHOLE[inner].schema.field(other).type == kind]
    if not others:
        return []
    outer, other = f"{alias}.{key}", draw.choice(others)
    rows = f"FROM {inner} y WHERE {draw.choice(['true', 'y.a > 3', 'y.id < 12'])}"
    return [
        draw.choice(
            [
                f"{outer} IN (SELECT y.{other} {rows})",
                f"{outer} NOT IN (SELECT {other} {rows} AND y.id > 2)",
                f"EXISTS (SELECT 1 {rows} AND {outer} = y.{other})",
                f"NOT EXISTS (SELECT * {rows} AND {outer} = y.{other})",
                f"{outer} IN (SELECT {other} FROM {inner} ORDER BY id LIMIT 5)",
                f"EXISTS (SELECT max(y.a) {rows} AND {outer} = y.{other})",
            ]
        )
    ]


def joined(seed: int) -> str:
    """The query of a seed: two or three tables, joined by columns of the same type."""
    draw = random.Random(seed)
    names = [draw.choice(list(EQUAL)) for _ in range(draw.choice([2, 2, 3]))]

    def equal(one: int, other: int) -> str:
        pairs = [
            (left, right)
            for left in EQUAL[names[one]]
            for right in EQUAL[names[other]]
            if WHOLE[names[one]].schema.field(left).type == WHOLE[names[other]].schema.field(right).type
        ]
        left, right = draw.choice(pairs)
        sides = [f"x{one}.{left}", f"X{other}.{right.upper()}"]
        draw.shuffle(sides)
        return " = ".join(sides)

    def condition(one: int) -> str:
        return draw.choice(
            [f"x{one}.a > 2", f"x{one}.id < 20", f"x{one}.a IS NULL", f"x{one}.id IN (2, 4, 8)"]
        )

    text, shown, where = f"{names[0]} x0", [0], []
    for at in range(1, len(names)):
        kind = draw.choice(KINDS)
        other = draw.choice(shown)
        if kind == "CROSS JOIN":
            text += draw.choice([f" CROSS JOIN {names[at]} x{at}", f", {names[at]} x{at}"])
            where.append(equal(other, at))
        else:
            on = [equal(other, at), *([condition(draw.choice([other, at]))] if draw.random() < 0.4 else [])]
            text += f" {kind} {names[at]} x{at} ON {' AND '.join(on)}"
        if "SEMI" not in kind and "ANTI" not in kind:
            shown.append(at)
    if draw.random() < 0.6:
        where.append(condition(draw.choice(shown)))
    if draw.random() < 0.3 and len(shown) > 1:
        where.append(equal(*draw.sample(shown, 2)))
    if draw.random() < 0.4:
        at = draw.choice(shown)
        where += among(draw, f"x{at}", names[at])
    where_text = f" WHERE {' AND '.join(where)}" if where else ""
    columns = ", ".join(f"x{at}.id AS i{at}, x{at}.a AS a{at}" for at in shown)
    if draw.random() < 0.3:
        columns = f"count(*) AS n, sum(x{shown[-1]}.a) AS s"
    return f"SELECT {columns} FROM {text}{where_text}"


def set_bounds(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Some tables are few, and some keys are."""
    patch.setattr(few_rows, "FEW_ROWS", (30, -1, 10)[seed % 3])
    patch.setattr(few_rows, "MOST_KEYS", (50_000, 15, 50_000, -1)[seed % 4])


@pytest.fixture(scope="module", autouse=True)
def _small(spark: SparkSession) -> Iterator[None]:
    with (
        setting(spark, "spark.sql.adaptive.enabled", "false"),
        setting(spark, "spark.sql.shuffle.partitions", "1"),
    ):
        yield


def fill(made: Store) -> Store:
    for name, rows in tables().items():
        made.create_table(name, rows.schema, [KEYS[name]])
        made.table(name).upsert(rows)
    return made


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AttachedStore:
    place = tmp_path_factory.mktemp("joins") / "shop.store"
    return attach(spark, fill(Store.create(place, ["s1"], tablets=2, slots=64)).uri)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=pytest.mark.long) for at in range(6, 2 * QUERIES, 6))]
)
@pytest.mark.usefixtures("rewritten")
def test_a_random_join_gives_the_rows_of_parquet(
    catalog: AttachedStore,
    parquet: SparkSession,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    first: int,
) -> None:
    handed: list[str] = []
    honest = reads.Reads.of

    def noting(self: reads.Reads, plan: QueryPlan) -> list[reads.Read]:
        found = honest(self, plan)
        handed.extend(read.scan.keys for read in found if read.scan.keys is not None)
        return found

    monkeypatch.setattr(reads.Reads, "of", noting)
    for seed in range(first, first + 6):
        text = joined(seed)
        set_bounds(monkeypatch, seed)
        assert rows_of(catalog.sql(text)) == rows_of(parquet.sql(text)), f"seed {seed}: {text}"
    assert handed or first  # the first six do; whether six others do is theirs


@pytest.mark.long
def test_a_random_join_gives_the_rows_of_parquet_while_tablets_move(
    spark: SparkSession,
    parquet: SparkSession,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    moving = fill(Store.create(tmp_path / "moving.store", ["s1", "s2"], tablets=8, slots=64))
    catalog = attach(spark.newSession(), moving.uri)
    with tablets_moving(moving) as arrived:
        for seed in range(5_000, 5_000 + QUERIES):
            text = joined(seed)
            set_bounds(monkeypatch, seed)
            assert rows_of(catalog.sql(text)) == rows_of(parquet.sql(text)), f"seed {seed}: {text}"
    assert len(arrived) > 6


def test_keys_go_where_a_join_lets_them() -> None:
    def directions(text: str) -> set[str]:
        joins = plan_query(text, WHOLE, Session()).joins
        return {f"{join.needed}.{join.column} < {join.given}.{join.key}" for join in joins}

    both = {"0.a < 1.a", "1.a < 0.a"}
    for text, expected in {
        "SELECT 1 FROM flights f, ports p WHERE f.a = p.a": both,
        "SELECT 1 FROM flights f JOIN ports p ON (f.a = (p.a)) AND f.g": both,
        "SELECT 1 FROM flights f LEFT SEMI JOIN ports p ON f.a = p.a": both,
        "SELECT 1 FROM flights f LEFT JOIN ports p ON f.a = p.a": {"1.a < 0.a"},
        "SELECT 1 FROM flights f RIGHT JOIN ports p ON f.a = p.a": {"0.a < 1.a"},
        "SELECT 1 FROM flights f LEFT ANTI JOIN ports p ON f.a = p.a": {"1.a < 0.a"},
        "SELECT 1 FROM flights f LEFT JOIN ports p ON f.id = p.id WHERE f.a = p.a": {
            "1.id < 0.id",
            "0.a < 1.a",
        },
        "SELECT 1 FROM flights f FULL JOIN ports p ON f.a = p.a": set(),
        "SELECT 1 FROM flights f JOIN ports p USING (a)": both,
        "SELECT 1 FROM flights f LEFT JOIN ports p USING (A)": {"1.a < 0.a"},
        "SELECT 1 FROM flights f JOIN tiny t ON f.id = t.id JOIN ports p USING (d)": {
            "0.id < 1.id",
            "1.id < 0.id",
        },
        "SELECT 1 FROM flights f CROSS JOIN tiny t JOIN ports p USING (a)": set(),
        "SELECT 1 FROM flights f JOIN tiny t USING (a) JOIN ports p USING (a)": set(),
        "SELECT 1 FROM others o CROSS JOIN flights f JOIN ports p USING (a)": set(),
        "SELECT 1 FROM flights f JOIN ports p ON f.a <=> p.a": set(),
        "SELECT 1 FROM flights f JOIN ports p ON f.a = p.a OR f.g": set(),
        "SELECT 1 FROM flights f JOIN ports p ON f.a + 0 = p.a": set(),
        "SELECT 1 FROM flights f JOIN ports p ON f.id = p.a": set(),
        "SELECT 1 FROM flights f JOIN ports p ON f.st.x = p.a": set(),
        "SELECT 1 FROM flights TABLESAMPLE (50 PERCENT) f JOIN ports p ON f.a = p.a": set(),
        "SELECT 1 FROM flights AS f(a, id, b, s, d, g, st, arr, at, c) JOIN tiny t ON f.a = t.a": set(),
        "SELECT 1 FROM ports p WHERE EXISTS (SELECT 1 FROM flights f WHERE f.a = p.a)": both,
        "SELECT 1 FROM ports p WHERE NOT EXISTS (SELECT 1 FROM flights f WHERE f.a = p.a)": set(),
        "SELECT 1 FROM ports p WHERE EXISTS (SELECT max(f.a) FROM flights f WHERE f.a = p.a)": set(),
        "SELECT 1 FROM ports p WHERE EXISTS (SELECT 1 FROM flights f WHERE f.a = p.a LIMIT 1)": set(),
        "SELECT 1 FROM ports p WHERE EXISTS (SELECT 1 FROM flights f WHERE f.a = a)": set(),
        "SELECT 1 FROM ports p WHERE EXISTS (SELECT 1 FROM flights p WHERE p.a = p.id)": set(),
        "SELECT 1 FROM ports p WHERE p.a IN (SELECT f.a FROM flights f)": {"0.a < 1.a"},
        "SELECT 1 FROM ports p WHERE (a IN (SELECT a AS b FROM flights ORDER BY id LIMIT 3))": {"0.a < 1.a"},
        "SELECT 1 FROM ports p WHERE p.a NOT IN (SELECT f.a FROM flights f)": set(),
        "SELECT 1 FROM ports p WHERE p.a IN (SELECT f.a + 0 FROM flights f)": set(),
        "SELECT 1 FROM ports p WHERE p.a IN (SELECT f.a FROM flights f JOIN tiny t)": set(),
        "SELECT 1 FROM ports p WHERE p.a IN (SELECT a FROM flights GROUP BY a)": set(),
        "SELECT 1 FROM ports p WHERE p.a IN (SELECT a FROM flights) OR p.a = 3": set(),
    }.items():
        assert directions(text) == expected, text


def test_explain_tells_whose_keys_are_read(catalog: AttachedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "FEW_ROWS", -1)
    text = "SELECT count(*) FROM ports p JOIN flights f ON p.id = f.id WHERE p.a > 5"
    message = catalog.explain(text)
    assert "  keys     2 of p.id for id\n  read     alongside the driver: 2 rows" in message
    monkeypatch.setattr(few_rows, "MOST_KEYS", 0)
    assert "  keys  " not in catalog.explain(text)
    monkeypatch.setattr(few_rows, "FEW_ROWS", 30)
    message = catalog.explain("SELECT count(*) FROM flights f JOIN tiny t ON f.a = t.a WHERE t.id < 6")
    assert "filter   a IN (" in message


def test_keys_that_begin_primary_keys_are_read_in_parts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Store.create(tmp_path / "shop.store", ["s1"], tablets=2, slots=64)
    visits = pa.table({"user": [at % 30 for at in range(90)], "at": range(90), "n": range(90)})
    made.create_table("visits", visits, primary_key=["user", "at"], shard_key=["user"])
    made.create_table("people", {"id": range(0, 40, 2), "name": ["x"] * 20}, primary_key="id")
    monkeypatch.setattr(reads, "MOST_LISTED", 3)
    monkeypatch.setattr(reads, "LISTED_IN_PART", 7)
    monkeypatch.setattr(few_rows, "FEW_ROWS", 30)
    catalog = attach(spark.newSession(), made.uri)
    text = "SELECT n FROM visits v JOIN people p ON v.user = p.id WHERE n > 10"
    expected = sorted(n for n in range(11, 90) if n % 30 % 2 == 0)
    message = "  keys     20 of p.id for user\n  read     alongside the driver: 39 rows"
    assert message in catalog.explain(text)
    assert sorted(row.n for row in catalog.sql(text).collect()) == expected
    for bound, most in (("JOINED_BYTES", 100), ("MOST_KEYS", 30), ("MOST_SCANNED", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(few_rows, bound, most)
            assert "20 of p.id" not in catalog.explain(text)


# Planted faults: were the rules weaker, the comparison above would fail


def _every_side_may_be_reduced(patch: pytest.MonkeyPatch) -> None:
    honest = semi_joins._Sides.join

    def wrong(self: Any, condition: Any, needed: Any, given: Any) -> Any:
        free = frozenset(condition.visible)
        return honest(self, type("Free", (), {"free": free})(), needed, given)

    patch.setattr(semi_joins._Sides, "join", wrong)


def _a_row_of_the_given_is_lost(patch: pytest.MonkeyPatch) -> None:
    honest = few_rows.read_joined
    patch.setattr(
        "elasticscan.connector.sql.reads.read_joined",
        lambda options: (few := honest(options)) and few_rows.FewRows(few.schema, few.rows.slice(1)),
    )


def _what_an_aggregate_gives_are_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(semi_joins, "PLAIN_NODES", (object,))


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (
        _every_side_may_be_reduced,
        "SELECT f.id, p.id FROM flights f LEFT JOIN ports p ON f.id = p.id AND p.a > 3",
    ),
    (
        _what_an_aggregate_gives_are_rows,
        "SELECT f.id FROM flights f WHERE EXISTS (SELECT max(a) FROM ports p WHERE f.id = p.id AND p.a > 3)",
    ),
    (_a_row_of_the_given_is_lost, "SELECT f.id FROM flights f WHERE f.id IN (SELECT id FROM ports)"),
    (_a_row_of_the_given_is_lost, "SELECT f.id FROM flights f LEFT SEMI JOIN ports p ON f.id = p.id"),
]


@pytest.mark.long
@pytest.mark.parametrize(("plant", "text"), FAULTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_planted_fault_is_found(
    catalog: AttachedStore,
    parquet: SparkSession,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    text: str,
) -> None:
    monkeypatch.setattr(few_rows, "FEW_ROWS", -1)
    expected = rows_of(parquet.sql(text))
    assert rows_of(catalog.sql(text)) == expected
    plant(monkeypatch)
    assert rows_of(catalog.sql(text)) != expected
