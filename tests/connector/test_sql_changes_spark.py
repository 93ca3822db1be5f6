"""Statements that change tables, through `catalog.sql`: random ones against DuckDB, and thin examples."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import (
    AlreadyExists,
    Busy,
    ElasticScanError,
    InvalidCall,
    InvalidOption,
    NotFound,
    SchemaMismatch,
)
from elasticscan.connector import AttachedStore, attach
from elasticscan.store import Store
from elasticscan.store.writing import transactions
from tests.connector.conftest import small
from tests.connector.test_catalog_spark import setting
from tests.connector.test_sql_spark import tablets_moving

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    return small(spark)


STATEMENTS = int(os.environ.get("ELASTICSCAN_STATEMENTS", "10"))
SCHEMA = pa.schema([
    pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("n", pa.int32()), ("v", pa.float64()),
    ("d", pa.decimal128(6, 2)),
])  # fmt: skip
FIRST = [
    {"id": i, "name": None if i % 5 == 0 else f"n{i % 7}", "n": None if i % 6 == 0 else i % 11, "v": i / 4}
    | {"d": Decimal(i - 20) / 4}
    for i in range(60)
]
PERSON = pa.struct([("name", pa.string()), ("town", pa.string())])
PEOPLE = pa.Table.from_pylist(
    [{"id": 1, "p": {"name": "Ada", "town": "Bonn"}, "ps": []}],
    pa.schema([("id", pa.int64()), ("p", PERSON), ("ps", pa.list_(PERSON))]),
)
DAYS = pa.table({"day": pa.array([date(2026, 1, 1)]), "n": [1]})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "s.store", ["s1", "s2"], tablets=4, slots=64)
    made.create_table("t", SCHEMA, ["id"])
    made.table("t").upsert(pa.Table.from_pylist(FIRST, SCHEMA))
    made.create_table("people", PEOPLE, primary_key="id")
    made.create_table("days", DAYS, primary_key="day")
    return made


@pytest.fixture
def catalog(spark: SparkSession, store: Store) -> AttachedStore:
    return attach(spark, store.uri)


def rows_in(store: Store) -> Any:
    return store.table("t").scan().to_table().sort_by("id").to_pylist()


def row(store: Store, key: int) -> list[tuple[Any, ...]]:
    return [tuple(found.values()) for found in store.table("t").get([key]).to_pylist()]


def counts(frame: DataFrame) -> tuple[int, ...]:
    (found,) = frame.collect()
    return tuple(found)


class Changes:
    """Random statements that change `t`, with what DuckDB calls each."""

    conditions = ("{0}id < 20", "{0}id % 3 = 1", "{0}n > 5", "{0}name IS NULL", "abs({0}n) IN (1, 2, 3)")
    values = (
        "n = {0}n + 1", "n = CASE WHEN {0}n > 3 THEN 0 ELSE {0}n END", "name = {0}name || '!'", "name = NULL",
        "v = {0}v * 2", "v = 7", "n = NULL, v = {0}n", "d = {0}d * 1.125", "d = -0.125, v = {0}d",
    )  # fmt: skip

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def statement(self) -> tuple[str, str]:
        make = self.chance.choice([self.delete, self.update, self.insert, self.merge, self.merge])
        text = make()
        return text if isinstance(text, tuple) else (text, text)

    def where(self, by: str) -> str:
        every = (*self.conditions, "{0}id IN (SELECT max(id) FROM t)")
        return self.chance.choice(every).format(by)

    def delete(self) -> str:
        return f"DELETE FROM t WHERE {self.where('t.')} AND id > {self.chance.randrange(60)}"

    def update(self) -> str:
        return f"UPDATE t AS x SET {self.chance.choice(self.values).format('x.')} WHERE {self.where('x.')}"

    def source(self) -> str:
        keys = self.chance.sample(range(90), self.chance.choice([0, 9, 30]))
        rows = [f"({key}, 's{key}', {key % 9}, {key / 2}, {key}.125)" for key in keys or [-1]]
        return f"SELECT * FROM (VALUES {', '.join(rows)}) AS w(id, name, n, v, d) WHERE id >= 0"

    def insert(self) -> tuple[str, str]:
        """Rows of keys that are there replace them, and keep what columns they leave out."""
        names = self.chance.choice([["id", "name", "n", "v", "d"], ["v", "id"], ["id", "name"]])
        shown = ", ".join(f"CAST(id + 3 AS BIGINT) AS {name}" if name == "id" else name for name in names)
        rows = self.chance.choice(["t", f"({self.source()}) s"])
        text = f"INSERT INTO t ({', '.join(names)}) SELECT {shown} FROM {rows} WHERE {self.where('')}"
        new = ", ".join(f"{name} = excluded.{name}" for name in names if name != "id")
        return text, f"{text} ON CONFLICT (id) DO UPDATE SET {new}"

    def merge(self) -> tuple[str, str]:
        text = f"MERGE INTO t USING ({self.source()}) s ON t.id = s.id"
        kinds, clauses = ["MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"], self.chance.choice([1, 2, 4])
        while kinds and clauses:
            clauses -= 1
            kind = self.chance.choice(kinds)
            by = "s." if kind == "NOT MATCHED" else "t."
            narrow = f" AND {self.chance.choice(self.conditions).format(by)}" * (self.chance.random() < 0.6)
            if not narrow:
                kinds.remove(kind)  # what follows could not be reached
            actions = ["DELETE", f"UPDATE SET {self.chance.choice(self.values).format('t.')}"]
            if kind == "MATCHED":
                actions.append("UPDATE SET *")
            if kind == "NOT MATCHED":
                actions = ["INSERT *", "INSERT (id, v) VALUES (s.id, s.v + 1)"]
            text += f" WHEN {kind}{narrow} THEN {self.chance.choice(actions)}"
        return text, f"{text} RETURNING merge_action"


def changed_in_duckdb(duck: duckdb.DuckDBPyConnection, kind: str, text: str) -> tuple[int, ...]:
    """Run a statement; return the counts that it should give."""
    found = duck.execute(text).fetchall()
    if kind != "MERGE":
        return tuple(found[0])
    done = Counter(action for (action,) in found)
    return (len(found), *(done[action] for action in ("UPDATE", "DELETE", "INSERT")))


@pytest.mark.parametrize(
    ("seed", "statements"), [(3, 3), pytest.param(11, STATEMENTS, marks=pytest.mark.long)]
)
def test_random_statements_change_what_they_say_while_tablets_move(
    store: Store, catalog: AttachedStore, seed: int, statements: int
) -> None:
    duck, chance = duckdb.connect(), random.Random(seed)
    duck.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR, n INTEGER, v DOUBLE, d DECIMAL(6, 2))")
    duck.register("first_rows", pa.Table.from_pylist(FIRST, SCHEMA))
    duck.execute("INSERT INTO t FROM first_rows")
    changes = Changes(chance)
    with tablets_moving(store):
        for _ in range(statements):
            text, same = changes.statement()
            kind = text.split()[0]
            expected, done = changed_in_duckdb(duck, kind, same), catalog.sql(text)
            assert kind == "INSERT" or counts(done) == expected, text
            gone = chance.randrange(60)  # by another writer
            duck.execute(f"DELETE FROM t WHERE id = {gone}")
            store.table("t").delete([gone])
            assert rows_in(store) == duck.sql("FROM t ORDER BY id").arrow().read_all().to_pylist(), text
    assert sorted(each.id for each in catalog.sql("SELECT id FROM t").collect()) == [
        each["id"] for each in rows_in(store)
    ]


MEDDLING = {
    "INSERT INTO t (id, name) SELECT 1L, meddle('ours')": [(1, "ours", 0, 99.0, None)],
    "UPDATE t SET name = meddle('ours') WHERE abs(id) = 1": [(1, "ours", 0, 99.0, None)],
    "DELETE FROM t WHERE meddle('ours') = 'ours' AND id = 1": [],
}


@pytest.mark.long
@pytest.mark.parametrize("text", MEDDLING)
def test_what_others_write_meanwhile_is_read_again(
    spark: SparkSession,
    store: Store,
    catalog: AttachedStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
) -> None:
    uri, notes = store.uri, tmp_path / "notes"

    def meddle(name: str) -> str:
        """While the statement reads, someone else writes a row of it, as often as the notes say."""
        left = int(notes.read_text())
        if left:
            notes.write_text(str(left - 1))
            Store.open(uri).table("t").upsert([{"id": 1, "name": "theirs", "n": 0, "v": 99.0, "d": None}])
        return name

    spark.udf.register("meddle", meddle)
    monkeypatch.setattr(transactions, "FEWEST_ATTEMPTS", 2)
    monkeypatch.setattr(transactions, "ATTEMPTS_SECONDS", 0)
    notes.write_text("99")
    with pytest.raises(Busy, match="each of the 2 times"):
        catalog.sql(text)
    assert row(store, 1) == [(1, "theirs", 0, 99.0, None)]
    notes.write_text("1")
    catalog.sql(text)
    assert row(store, 1) == MEDDLING[text]


SWAPPED = "named_struct('town', 'Bonn', 'name', 'Ada')"
OF_DAYS = "MERGE INTO days d USING (SELECT TIMESTAMP'2026-01-01 12:00:00' AS day, 2L AS n) s ON d.day = s.day"
TEXT = "(SELECT '070' AS id, 'x' AS name, 1 AS n, 0D AS v, 0 AS d)"
TWICE = "(SELECT explode(array(3L, 3L)) AS id, 'x' AS name, 1 AS n, 0D AS v, 0 AS d)"
DELETES = "WHEN MATCHED THEN DELETE"
REFUSED: list[tuple[type[Exception], str]] = [
    (AnalysisException, "INSERT INTO t (id, nope) VALUES (1, 2)"),
    (AnalysisException, "INSERT INTO t (id, v) VALUES (1, 2, 3)"),
    (PySparkException, "INSERT INTO t (id, v) VALUES (1, 'x')"),
    (AnalysisException, "INSERT INTO t (id, v) SELECT id, v FROM nowhere"),
    (InvalidCall, "INSERT INTO t BY NAME SELECT 1L AS id, 'x' AS name"),
    (SchemaMismatch, "INSERT INTO t VALUES (99, 'a', 1, 1.0, 0), (99, 'b', 2, 2.0, 0)"),
    (SchemaMismatch, "INSERT INTO t (id, v) VALUES (99, 1.0), (99, 2.0)"),
    (SchemaMismatch, "INSERT INTO t (v) VALUES (1.0)"),
    (InvalidCall, "DELETE FROM t WHERE id > 50 LIMIT 3"),
    (InvalidCall, "ALTER TABLE t ADD CONSTRAINT c CHECK (n > 0)"),
    (InvalidCall, "TRUNCATE TABLE t WHERE id = 1"),
    (NotFound, "SELECT * FROM t VERSION AS OF 'none'"),
    (NotFound, "SELECT * FROM t VERSION AS OF 99999"),
    (NotFound, "SELECT * FROM t TIMESTAMP AS OF '2020-01-01'"),
    # No value becomes another one, and no key that of another row, whether Spark computes it or the store.
    *((SchemaMismatch, f"UPDATE t SET n = {value} WHERE abs(id) = 2") for value in ("1.5", "'3'")),
    *((SchemaMismatch, f"UPDATE t SET n = {value} WHERE id = 2") for value in ("4.0", "v", "'5'")),
    (PySparkException, "UPDATE t SET n = 3000000000 WHERE abs(id) = 2"),
    (PySparkException, "UPDATE t SET d = 12345.678"),
    (SchemaMismatch, f"MERGE INTO t USING {TEXT} s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"),
    # Two rows of the source are for one key.
    (SchemaMismatch, f"MERGE INTO t USING {TWICE} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"),
    (SchemaMismatch, f"MERGE INTO t USING {TWICE} s ON t.id = s.id {DELETES} WHEN NOT MATCHED THEN INSERT *"),
    (SchemaMismatch, f"{OF_DAYS} WHEN NOT MATCHED THEN INSERT *"),
    # Fields of structs are not in the order of the column's.
    (SchemaMismatch, f"UPDATE people SET p = {SWAPPED} WHERE id = 1"),
    (SchemaMismatch, f"UPDATE people SET p = {SWAPPED} WHERE abs(id) = 1"),
    (SchemaMismatch, f"UPDATE people SET ps = array({SWAPPED}) WHERE id = 1"),
    (
        SchemaMismatch,
        f"MERGE INTO people p USING t ON p.id = t.id WHEN MATCHED THEN UPDATE SET p = {SWAPPED}",
    ),
]


def test_what_is_refused_changes_nothing_and_shows_no_traceback(store: Store, catalog: AttachedStore) -> None:
    for error, text in REFUSED:
        with pytest.raises(Exception) as refused:
            catalog.sql(text)
        assert isinstance(refused.value, error), text
        assert "UnboundLocalError" not in str(refused.value), text
        if isinstance(refused.value, ElasticScanError):
            assert "Traceback" not in str(refused.value) and refused.value.__cause__ is None, text
        assert rows_in(store) == FIRST, text
    for name, rows in (("people", PEOPLE), ("days", DAYS)):
        assert store.table(name).to_arrow().to_pylist() == rows.to_pylist()


@pytest.mark.long
def test_statements_that_go_to_spark_change_no_row(store: Store, catalog: AttachedStore) -> None:
    for statement in (
        "DELETE t WHERE id > 5",
        "WITH z AS (SELECT 1L AS id) DELETE FROM t WHERE id IN (SELECT id FROM z)",
        "MERGE WITH SCHEMA EVOLUTION INTO t USING t s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "INSERT INTO t REPLACE WHERE id > 5 SELECT * FROM t WHERE id > 900",
        "INSERT OVERWRITE t PARTITION (id = 1) SELECT name, n, v, d FROM t",
        "BEGIN DELETE FROM t; END",
    ):
        with suppress(PySparkException, Py4JJavaError):
            catalog.sql(statement).collect()
        assert rows_in(store) == FIRST, statement


def test_values_go_into_columns_as_spark_stores_them(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    catalog.sql("UPDATE t SET n = id + 1L, name = id, v = 1.25 WHERE abs(id) = 2")
    assert row(store, 2) == [(2, "2", 3, 1.25, Decimal("-4.50"))]
    with setting(spark, "spark.sql.ansi.enabled", "false"), pytest.raises(SchemaMismatch):
        catalog.sql("UPDATE t SET n = 3000000000 WHERE abs(id) = 2")
    source = "(SELECT explode(array(3L, 3L, 4L, 99L)) AS id)"  # whichever row it is that deletes
    done = catalog.sql(f"MERGE INTO t USING {source} s ON t.id = s.id WHEN MATCHED THEN DELETE")
    assert counts(done) == (2, 0, 2, 0)
    # A row of the table keeps its own key, of whatever type that of the source is.
    midnight = OF_DAYS.replace("12:00", "00:00")
    assert counts(catalog.sql(f"{midnight} WHEN MATCHED THEN UPDATE SET *")) == (1, 1, 0, 0)
    assert store.table("days").to_arrow().to_pylist() == [{"day": date(2026, 1, 1), "n": 2}]
    catalog.sql("UPDATE people SET p = named_struct('name', 'Bob', 'town', 'Ulm') WHERE id = 1")
    assert store.table("people").to_arrow()["p"].to_pylist() == [{"name": "Bob", "town": "Ulm"}]


def test_parameters_are_values(store: Store, catalog: AttachedStore) -> None:
    assert counts(catalog.sql("DELETE FROM t WHERE id = ? OR name = ?", [4, "n1"])) == (8,)
    for value in ("it's \\ \n Ω", None):
        catalog.sql("UPDATE t SET name = :value WHERE id = :id", {"value": value, "id": 6})
        assert row(store, 6)[0][1] == value
    catalog.sql("WITH x AS (SELECT 7 AS k) INSERT INTO t (id, v) SELECT k, ? FROM x", [0.5])
    assert row(store, 7) == [(7, "n0", 7, 0.5, Decimal("-3.25"))]
    with pytest.raises(InvalidCall, match="a parameter has no literal here"):
        catalog.sql("DELETE FROM t WHERE name = ?", [object()])
    assert counts(catalog.sql("DELETE FROM t /* a /* of */ b */ WHERE id = ? -- ?", [6])) == (1,)


def test_a_query_names_snapshots_of_its_tables(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    table = store.table("t")
    table.tag("before")
    first = table.history()[-1].number
    catalog.sql('UPDATE t SET name = "o\'x" WHERE id < 10')
    both = catalog.sql(
        f"SELECT t.name, n.name FROM t FOR VERSION AS OF {first} "
        "JOIN t VERSION AS OF 'before' AS b USING (id) JOIN t n USING (id) WHERE id = 1 AND b.n = 1"
    )
    assert both.collect() == [("n1", "o'x")]
    made = datetime.fromtimestamp(table.history()[0].created_at, UTC).isoformat()
    assert catalog.sql(f"SELECT count(*) FROM t TIMESTAMP AS OF '{made}'").collect() == [(0,)]
    query = "SELECT count(*) FROM t VERSION AS OF :v WHERE name = :q"
    last = table.history()[-1].number
    for version, found in ((first, 0), (last, 10)):
        assert counts(catalog.sql(query, {"v": version, "q": "o'x"})) == (found,)
    positional = query.replace(":v", "?").replace(":q", "?")
    assert counts(catalog.sql(positional, [last, "o'x"])) == (10,)
    with pytest.raises(PySparkException):
        catalog.sql("SELECT 'a\\\\b' FROM t VERSION AS OF :v", {"v": first})
    assert "as of    before" in catalog.explain("SELECT * FROM t VERSION AS OF 'before'")
    merge = "MERGE INTO t USING t VERSION AS OF 'before' AS o ON t.id = o.id WHEN MATCHED THEN UPDATE SET *"
    assert counts(catalog.sql(merge)) == (60, 60, 0, 0)
    assert rows_in(store) == FIRST
    zone = "spark.sql.session.timeZone"
    with setting(spark, zone, "Asia/Tokyo"), pytest.raises(AnalysisException, match="TIME_TRAVEL"):
        catalog.sql("SELECT * FROM t TIMESTAMP AS OF '2026-01-01'")


@pytest.mark.long
def test_a_table_is_changed_emptied_and_dropped(store: Store, catalog: AttachedStore) -> None:
    catalog.sql("ALTER TABLE t ADD COLUMNS (far DECIMAL(10, 2), `to` STRING)")
    catalog.sql("ALTER TABLE t RENAME COLUMN NAME TO label")
    catalog.sql("ALTER TABLE t ALTER COLUMN n TYPE BIGINT")
    catalog.sql("ALTER TABLE t DROP COLUMN v")
    assert catalog.sql("SELECT * FROM t").columns == ["id", "label", "n", "d", "far", "to"]
    assert store.table("t").schema.field("n").type == pa.int64()
    catalog.sql("UPDATE t SET far = id / 4, `to` = 'x' WHERE id = 3")
    (found,) = catalog.sql("SELECT far, `to` FROM t WHERE id = 3").collect()
    assert (str(found.far), found.to) == ("0.75", "x")
    catalog.sql("TRUNCATE TABLE t")
    assert catalog.sql("SELECT * FROM t").collect() == []
    catalog.sql("DROP VIEW days")
    assert [table.name for table in store.tables()] == ["days", "people", "t"]
    catalog.sql("DROP TABLE t")
    assert {table.name for table in store.tables()} == {"days", "people"} == set(catalog.tables)
    for text in ("SELECT * FROM t", "DROP TABLE t"):
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            catalog.sql(text).collect()
    catalog.sql("DROP TABLE IF EXISTS t")


def test_tables_are_made_by_sql(spark: SparkSession, store: Store) -> None:
    catalog = attach(spark, store.uri, "my_")
    text = (
        "CREATE TABLE my_trips "
        "(day DATE NOT NULL, Id BIGINT COMMENT 'it''s', km DECIMAL(9, 2), tags ARRAY<STRING>, "
        "CONSTRAINT pk PRIMARY KEY (day, id)) USING elasticscan "
        "TBLPROPERTIES ('shardKey' = 'day', 'compression' = 'zstd')"
    )
    catalog.sql(text)
    made = store.table("trips")
    assert (made.primary_key, made.shard_key) == (("day", "Id"), ("day",))
    assert made.definition.compression == "zstd"
    catalog.sql("ALTER TABLE my_trips SET TBLPROPERTIES ('Compression' = 'none')")
    assert made.definition.compression is None
    assert made.schema.field("km").type == pa.decimal128(9, 2)
    catalog.sql("INSERT INTO my_trips VALUES (DATE'2026-01-01', 1, 2.5, array('a'))")
    assert counts(catalog.sql("SELECT count(*) FROM my_trips")) == (1,)
    catalog.sql(text.replace("TABLE", "TABLE IF NOT EXISTS", 1))
    query = "WITH few AS (SELECT * FROM my_t WHERE id < 5) SELECT id, upper(name) AS name FROM few"
    catalog.sql(f"CREATE TABLE my_few TBLPROPERTIES ('primaryKey' = 'id') AS {query}")
    assert counts(catalog.sql("SELECT count(*), count(name) FROM my_few")) == (5, 4)
    assert store.table("few").definition.compression == "lz4"
    wrong: list[tuple[str, type[Exception]]] = [
        (text, AlreadyExists),
        ("ALTER TABLE my_trips SET TBLPROPERTIES ('owner' = 'me')", InvalidCall),
        ("ALTER TABLE my_trips SET TBLPROPERTIES ('compression' = 'snappy')", InvalidOption),
        ("CREATE TABLE u (id INT, PRIMARY KEY (id)) USING elasticscan", InvalidCall),
        ("CREATE TABLE my_u (STRING, PRIMARY KEY (id))", InvalidCall),
    ]
    kinds = ("VARCHAR(3)", "CHAR(3) NOT NULL", "ARRAY<VARCHAR(3)>")  # whose length a table does not check
    wrong += [(f"CREATE TABLE my_u (id BIGINT PRIMARY KEY, c {kind})", SchemaMismatch) for kind in kinds]
    for refused, error in wrong:
        with pytest.raises(error):
            catalog.sql(refused)
    assert [table.name for table in store.tables()] == ["days", "few", "people", "t", "trips"]
    assert [table.name for table in spark.catalog.listTables() if not table.isTemporary] == []
