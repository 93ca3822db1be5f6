"""Statements that change tables, through `catalog.sql`, against what Python makes of the rows."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import (
    AlreadyExists,
    FilterError,
    InvalidKey,
    InvalidOption,
    NotFound,
    NotSupported,
    SchemaMismatch,
    WriteConflict,
)
from elasticscan.connector import AttachedStore, attach
from elasticscan.store import Store
from elasticscan.store.writing import transactions
from tests.connector.test_catalog_spark import setting
from tests.connector.test_sql_spark import tablets_moving

pytestmark = pytest.mark.spark

STATEMENTS = int(os.environ.get("ELASTICSCAN_STATEMENTS", "10"))
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("n", pa.int32()),
        ("v", pa.float64()),
    ]
)


class Row(NamedTuple):
    id: int
    name: str | None
    n: int | None
    v: float | None


Rows = dict[int, Row]


def first_rows() -> Rows:
    return {
        i: Row(i, None if i % 5 == 0 else f"n{i % 7}", None if i % 6 == 0 else i % 11, i / 4)
        for i in range(60)
    }


@pytest.fixture(scope="module", autouse=True)
def _small(spark: SparkSession) -> Iterator[None]:
    with (
        setting(spark, "spark.sql.adaptive.enabled", "false"),
        setting(spark, "spark.sql.shuffle.partitions", "1"),
    ):
        yield


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "s.store", ["s1", "s2"], tablets=4, slots=64)
    made.create_table("t", SCHEMA, ["id"])
    made.table("t").upsert(pa.Table.from_pylist([row._asdict() for row in first_rows().values()], SCHEMA))
    return made


@pytest.fixture
def catalog(spark: SparkSession, store: Store) -> AttachedStore:
    return attach(spark, store.uri)


def rows_in(store: Store) -> Rows:
    rows = store.table("t").scan().to_table().to_pylist()
    state = {row["id"]: Row(**row) for row in rows}
    assert len(state) == len(rows)
    return state


def counts(frame: DataFrame) -> tuple[int, ...]:
    (row,) = frame.collect()
    return tuple(row)


# Conditions and values as SQL over a row `{0}`, and as Python; None is unknown.
CONDITIONS: tuple[tuple[str, Callable[[Row], bool | None]], ...] = (
    ("{0}id < 20", lambda r: r.id < 20),
    ("{0}id % 3 = 1", lambda r: r.id % 3 == 1),
    ("{0}n > 5", lambda r: None if r.n is None else r.n > 5),
    ("{0}name IS NULL", lambda r: r.name is None),
    ("abs({0}n) IN (1, 2, 3)", lambda r: None if r.n is None else r.n in (1, 2, 3)),
    ("{0}id IN (SELECT max(id) FROM t)", lambda r: None),  # replaced: it needs all rows
)
VALUES: tuple[tuple[str, str, Callable[[Row], Any]], ...] = (
    ("n", "{0}n + 1", lambda r: None if r.n is None else r.n + 1),
    ("n", "CASE WHEN {0}n > 3 THEN 0 ELSE {0}n END", lambda r: 0 if r.n is not None and r.n > 3 else r.n),
    ("name", "concat({0}name, '!')", lambda r: None if r.name is None else r.name + "!"),
    ("name", "NULL", lambda r: None),
    ("v", "{0}v * 2", lambda r: None if r.v is None else r.v * 2),
    ("v", "7", lambda r: 7.0),
)


def a_condition(chance: random.Random, state: Rows, by: str) -> tuple[str, Callable[[Row], bool | None]]:
    at = chance.randrange(len(CONDITIONS))
    text, test = CONDITIONS[at]
    if at == len(CONDITIONS) - 1:
        greatest = max(state, default=-1)
        return text.format(by), lambda r: r.id == greatest
    return text.format(by), test


def a_change(chance: random.Random, state: Rows) -> tuple[str, Rows, tuple[int, ...]]:
    """A statement, the rows after it, and the counts that it gives."""
    return chance.choice([deleted, updated, merged, merged])(chance, state)


def deleted(chance: random.Random, state: Rows) -> tuple[str, Rows, tuple[int, ...]]:
    text, test = a_condition(chance, state, "t.")
    text += f" AND id > {chance.randrange(60)}"
    bound = int(text.split()[-1])
    rest = {key: row for key, row in state.items() if not (test(row) and key > bound)}
    return f"DELETE FROM t WHERE {text}", rest, (len(state) - len(rest),)


def updated(chance: random.Random, state: Rows) -> tuple[str, Rows, tuple[int, ...]]:
    text, test = a_condition(chance, state, "x.")
    column, value, compute = chance.choice(VALUES)
    hit = [key for key, row in state.items() if test(row)]
    after = state | {key: state[key]._replace(**{column: compute(state[key])}) for key in hit}
    return f"UPDATE t AS x SET {column} = {value.format('x.')} WHERE {text}", after, (len(hit),)


def merged(chance: random.Random, state: Rows) -> tuple[str, Rows, tuple[int, ...]]:
    source = {
        key: Row(key, f"s{key}", key % 9, key / 2)
        for key in chance.sample(range(90), chance.choice([0, 9, 30]))
    }
    values = ", ".join(f"({r.id}L, '{r.name}', {r.n}, {r.v}D)" for r in source.values()) or "(-1L, '', 1, 1D)"
    values = f"SELECT * FROM VALUES {values} AS w(id, name, n, v) WHERE id >= 0"
    text = f"MERGE INTO t USING ({values}) s ON t.id = s.id"
    after, done = dict(state), {"update": 0, "delete": 0, "insert": 0}
    left = {
        "matched": set(source) & set(state),
        "target": set(source) - set(state),
        "source": set(state) - set(source),
    }
    for _ in range(chance.choice([1, 2, 4])):
        kind = chance.choice(list(left))
        by = "s." if kind == "target" else "t."
        condition, test = a_condition(chance, state, by)
        narrow = "SELECT" not in condition and chance.random() < 0.6
        rows = source if kind == "target" else state
        hit = {key for key in left[kind] if not narrow or test(rows[key])}
        left[kind] -= hit
        words = {"matched": "MATCHED", "target": "NOT MATCHED", "source": "NOT MATCHED BY SOURCE"}[kind]
        text += f" WHEN {words}{f' AND {condition}' if narrow else ''} THEN "
        action = "insert" if kind == "target" else chance.choice(["update", "delete"])
        done[action] += len(hit)
        if action == "insert":
            whole = chance.random() < 0.5
            text += "INSERT *" if whole else "INSERT (id, v) VALUES (s.id, s.v + 1)"
            after |= {k: source[k] if whole else Row(k, None, None, source[k].v + 1) for k in hit}  # type: ignore[operator]
        elif action == "delete":
            text += "DELETE"
            after = {key: row for key, row in after.items() if key not in hit}
        elif kind == "matched" and chance.random() < 0.5:
            text += "UPDATE SET *"
            after |= {key: source[key] for key in hit}
        else:
            column, value, compute = chance.choice(VALUES)
            text += f"UPDATE SET {column} = {value.format('t.')}"
            after |= {key: state[key]._replace(**{column: compute(state[key])}) for key in hit}
    return text, after, (sum(done.values()), *done.values())


@pytest.mark.long
def test_random_statements_change_what_they_say_while_tablets_move(
    store: Store, catalog: AttachedStore
) -> None:
    chance = random.Random(11)
    state = first_rows()
    with tablets_moving(store):
        for _ in range(STATEMENTS):
            text, state, numbers = a_change(chance, state)
            assert counts(catalog.sql(text)) == numbers, text
            assert rows_in(store) == state, text
    assert sorted(catalog.sql("SELECT id FROM t").collect()) == sorted((key,) for key in state)


@pytest.mark.long
def test_what_others_write_meanwhile_is_read_again(
    store: Store, catalog: AttachedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, disturbances = AttachedStore._run_plan, [4]

    def disturbed(attached: AttachedStore, *given: Any) -> DataFrame:
        frame = run(attached, *given)
        if disturbances[0]:
            disturbances[0] -= 1
            store.table("t").update({"n": "coalesce(n, 0) + 100"}, "id = 7")
        return frame

    monkeypatch.setattr(AttachedStore, "_run_plan", disturbed)
    before = rows_in(store)[7].n
    assert before is not None
    assert counts(catalog.sql("UPDATE t SET n = n + 1 WHERE abs(id) = 7")) == (1,)
    assert rows_in(store)[7].n == before + 401
    disturbances[0] = 100
    monkeypatch.setattr(transactions, "FEWEST_ATTEMPTS", 2)
    monkeypatch.setattr(transactions, "ATTEMPTS_SECONDS", 0)
    with pytest.raises(WriteConflict, match=r"rows of table 't' were written by others each of the 2 times"):
        catalog.sql("DELETE FROM t WHERE abs(id) = 7")
    assert rows_in(store)[7].n == before + 601
    # Writes of other rows are no conflict.
    assert counts(catalog.sql("DELETE FROM t WHERE abs(id) = 8")) == (1,)


@pytest.mark.long
def test_a_merge_takes_one_row_of_the_source_for_each_key(store: Store, catalog: AttachedStore) -> None:
    before = rows_in(store)
    twice = "(SELECT 3L AS id, 'x' AS name, 1 AS n, 0D AS v UNION ALL SELECT 3L, 'y', 2, 0D)"
    for action in ("UPDATE SET *", "DELETE WHEN NOT MATCHED THEN INSERT *"):
        with pytest.raises(InvalidKey, match=r"\{'id': 3\} occurs more than once"):
            catalog.sql(f"MERGE INTO t USING {twice} s ON t.id = s.id WHEN MATCHED THEN {action}")
    assert rows_in(store) == before
    source = "(SELECT explode(array(3L, 3L, 4L, 99L)) AS id)"  # whichever row it is that deletes
    done = catalog.sql(f"MERGE INTO t USING {source} s ON t.id = s.id WHEN MATCHED THEN DELETE")
    assert counts(done) == (2, 0, 2, 0)
    assert rows_in(store) == {key: row for key, row in before.items() if key not in (3, 4)}


def test_values_go_into_columns_as_spark_stores_them(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    catalog.sql("UPDATE t SET n = id + 1L, name = id, v = 1.25 WHERE abs(id) = 2")
    assert rows_in(store)[2] == Row(2, "2", 3, 1.25)
    for value, given in (("1.5", r"decimal\(2,1\)"), ("'3'", "string"), ("DATE'2026-01-01'", "date")):
        with pytest.raises(SchemaMismatch, match=f"column 'n' of table 't' is int, not {given}; "):
            catalog.sql(f"UPDATE t SET n = {value} WHERE abs(id) = 2")
    # Likewise where the store alone could evaluate it, which takes more.
    store.table("t").add_columns([pa.field("day", pa.date32())])
    for given, message in (
        ("day = '2024-03-29'", r"'day' .* is date, not string; "),
        ("n = 4.0", r"'n' .* is int, not decimal\(2,1\); "),
        ("n = v", r"'n' .* is int, not double"),
    ):
        with pytest.raises(SchemaMismatch, match=message):
            catalog.sql(f"UPDATE t SET {given} WHERE id = 2")
    store.table("t").drop_columns(["day"])
    with pytest.raises(PySparkException, match="CAST_OVERFLOW"):
        catalog.sql("UPDATE t SET n = 3000000000 WHERE abs(id) = 2")
    with setting(spark, "spark.sql.ansi.enabled", "false"), pytest.raises(SchemaMismatch):
        catalog.sql("UPDATE t SET n = 3000000000 WHERE abs(id) = 2")
    assert rows_in(store)[2] == Row(2, "2", 3, 1.25)


def test_a_key_is_never_rounded_to_that_of_another_row(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    days = pa.table({"day": pa.array([date(2026, 1, 1)], pa.date32()), "n": [1]})
    store.create_table("d", days.schema, ["day"])
    store.table("d").upsert(days)
    attached = attach(spark, store.uri, "of_")
    merge = (
        "MERGE INTO of_d USING (SELECT TIMESTAMP'2026-01-01 {}' AS day, 2L AS n) s ON of_d.day = s.day WHEN "
    )
    with pytest.raises(SchemaMismatch, match="'day' of table 'd' is date, not timestamp"):
        attached.sql(f"{merge} NOT MATCHED THEN INSERT *".format("12:00:00"))
    # A row of the table keeps its own key, of whatever type that of the source is.
    message = attached.sql(f"{merge} MATCHED THEN UPDATE SET *".format("00:00:00"))
    assert counts(message) == (1, 1, 0, 0)
    assert store.table("d").scan().to_table().to_pylist() == [{"day": date(2026, 1, 1), "n": 2}]
    source = "MERGE INTO t USING (SELECT {} AS id) s ON t.id = s.id "
    merge = f"{source} WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    with pytest.raises(SchemaMismatch, match="'id' of table 't' is bigint, not string"):
        catalog.sql(merge.format("'070'"))
    catalog.sql(merge.format("70"))
    assert rows_in(store)[70] == Row(70, None, None, None)


def test_parameters_are_values(store: Store, catalog: AttachedStore) -> None:
    assert counts(catalog.sql("DELETE FROM t WHERE id = ? OR name = ?", [4, "n1"])) == (8,)
    for value in ("it's \\ \n Ω", None):
        catalog.sql("UPDATE t SET name = :value WHERE id = :id", {"value": value, "id": 6})
        assert rows_in(store)[6].name == value
    with pytest.raises(NotSupported, match="a parameter has no literal here"):
        catalog.sql("DELETE FROM t WHERE name = ?", [object()])
    with pytest.raises((NotSupported, PySparkException)):
        catalog.sql("DELETE FROM t WHERE id > 50 LIMIT 3")
    assert counts(catalog.sql("DELETE FROM t /* a /* of */ b */ WHERE id = ? -- ?", [6])) == (1,)


def test_a_query_names_snapshots_of_its_tables(
    spark: SparkSession, store: Store, catalog: AttachedStore
) -> None:
    table = store.table("t")
    table.tag("before")
    first = table.history()[-1].number
    catalog.sql("UPDATE t SET name = 'new' WHERE id < 10")
    message = catalog.sql(
        f"SELECT t.name, n.name FROM t FOR VERSION AS OF {first} "
        "JOIN t VERSION AS OF 'before' AS b USING (id) JOIN t n USING (id) WHERE id = 1 AND b.n = 1"
    )
    assert message.collect() == [("n1", "new")]
    made = datetime.fromtimestamp(table.history()[0].created_at, UTC).isoformat()
    assert catalog.sql(f"SELECT count(*) FROM t TIMESTAMP AS OF '{made}'").collect() == [(0,)]
    assert "as of    before" in catalog.explain("SELECT * FROM t VERSION AS OF 'before'")
    merge = (
        "MERGE INTO t USING t VERSION AS OF 'before' AS old ON t.id = old.id WHEN MATCHED THEN UPDATE SET *"
    )
    assert counts(catalog.sql(merge)) == (60, 60, 0, 0)
    assert rows_in(store) == first_rows()
    with pytest.raises(NotFound):
        catalog.sql("SELECT * FROM t VERSION AS OF 'none'")
    for past in ("VERSION AS OF 99999", "TIMESTAMP AS OF '2020-01-01'"):
        with pytest.raises(NotFound):
            catalog.sql(f"SELECT * FROM t {past}")
    zone = "spark.sql.session.timeZone"
    with setting(spark, zone, "Asia/Tokyo"), pytest.raises(AnalysisException, match="TIME_TRAVEL"):
        catalog.sql("SELECT * FROM t TIMESTAMP AS OF '2026-01-01'")


def test_the_number_of_a_snapshot_is_a_parameter(store: Store, catalog: AttachedStore) -> None:
    number = store.table("t").history()[-1].number
    catalog.sql('UPDATE t SET name = "o\'x" WHERE id = 1')
    query = "SELECT count(*) FROM t VERSION AS OF :v WHERE name = :q"
    assert catalog.sql(query, {"v": number, "q": "o'x"}).collect() == [(0,)]
    assert catalog.sql(query, {"v": number + 1, "q": "o'x"}).collect() == [(1,)]
    positional = query.replace(":v", "?").replace(":q", "?")
    assert catalog.sql(positional, [number + 1, "o'x"]).collect() == [(1,)]
    with pytest.raises(PySparkException):
        catalog.sql("SELECT 'a\\\\b' FROM t VERSION AS OF :v", {"v": number})


def test_a_division_is_not_tried_on_rows_that_were_not_read(spark: SparkSession, store: Store) -> None:
    store.create_table("z", pa.table({"id": [1, 2], "n": [0, 2]}), primary_key="id")
    rows = attach(spark, store.uri).sql("SELECT id FROM z WHERE 10 / n > 2 AND n <> 0")
    assert rows.collect() == [(2,)]


@pytest.mark.long
def test_a_table_is_changed_and_emptied(store: Store, catalog: AttachedStore) -> None:
    table = store.table("t")
    catalog.sql("ALTER TABLE t ADD COLUMNS (far DECIMAL(10, 2), `to` STRING)")
    catalog.sql("ALTER TABLE t RENAME COLUMN NAME TO label")
    catalog.sql("ALTER TABLE t ALTER COLUMN n TYPE BIGINT")
    catalog.sql("ALTER TABLE t DROP COLUMN v")
    assert catalog.sql("SELECT * FROM t").columns == ["id", "label", "n", "far", "to"]
    assert table.schema.field("n").type == pa.int64()
    catalog.sql("UPDATE t SET far = id / 4, `to` = 'x' WHERE id = 3")
    (row,) = catalog.sql("SELECT far, `to` FROM t WHERE id = 3").collect()
    assert (str(row.far), row.to) == ("0.75", "x")
    catalog.sql("TRUNCATE TABLE t")
    assert catalog.sql("SELECT * FROM t").collect() == []
    for wrong in (
        "ALTER TABLE t ADD CONSTRAINT c CHECK (n > 0)",
        "TRUNCATE TABLE t WHERE id = 1",
    ):
        with pytest.raises(NotSupported, match="of table 't' did nothing: "):
            catalog.sql(wrong)


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
    for wrong, error in (("'owner' = 'me'", NotSupported), ("'compression' = 'snappy'", InvalidOption)):
        with pytest.raises(error):
            catalog.sql(f"ALTER TABLE my_trips SET TBLPROPERTIES ({wrong})")
    assert made.schema.field("km").type == pa.decimal128(9, 2)
    catalog.sql("INSERT INTO my_trips VALUES (DATE'2026-01-01', 1, 2.5, array('a'))")
    assert counts(catalog.sql("SELECT count(*) FROM my_trips")) == (1,)
    with pytest.raises(AlreadyExists):
        catalog.sql(text)
    catalog.sql(text.replace("TABLE", "TABLE IF NOT EXISTS", 1))
    query = "WITH few AS (SELECT * FROM my_t WHERE id < 5) SELECT id, upper(name) AS name FROM few"
    catalog.sql(f"CREATE TABLE my_few USING elasticscan OPTIONS ('primaryKey' = 'id') AS {query}")
    assert counts(catalog.sql("SELECT count(*), count(name) FROM my_few")) == (5, 4)
    assert store.table("few").definition.compression == "lz4"
    for wrong, why in (
        ("CREATE TABLE u (id INT, PRIMARY KEY (id)) USING elasticscan", "the name must begin with my_"),
        ("CREATE TABLE my_u (STRING, PRIMARY KEY (id))", "a column is a name, a type .* not 'STRING'"),
    ):
        with pytest.raises(NotSupported, match=why):
            catalog.sql(wrong)
    for kind in ("VARCHAR(3)", "CHAR(3) NOT NULL", "ARRAY<VARCHAR(3)>"):
        with pytest.raises(
            SchemaMismatch, match=r"'c' is .*char\(3\).* make it STRING, since a table checks no"
        ):
            catalog.sql(f"CREATE TABLE my_u (id BIGINT PRIMARY KEY, c {kind})")
    assert [table.name for table in store.tables()] == ["few", "t", "trips"]


def test_structs_with_other_names_of_fields_are_refused(spark: SparkSession, store: Store) -> None:
    person = pa.struct([("name", pa.string()), ("town", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("p", person), ("ps", pa.list_(person))])
    given = [{"id": 1, "p": {"name": "Ada", "town": "Bonn"}, "ps": []}]
    store.create_table("people", pa.Table.from_pylist(given, schema), primary_key="id")
    catalog = attach(spark, store.uri)
    swapped = "named_struct('town', 'Bonn', 'name', 'Ada')"
    merge = "MERGE INTO people t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET"
    for assigned in (
        f"p = {swapped}",
        f"ps = array({swapped})",
    ):
        for text in (
            f"UPDATE people SET {assigned} WHERE abs(id) = 1",
            f"UPDATE people SET {assigned} WHERE id = 1",
            f"{merge} {assigned}",
        ):
            with pytest.raises(SchemaMismatch, match="give values of that type"):
                catalog.sql(text)
    assert store.table("people").to_arrow().to_pylist() == given
    catalog.sql("UPDATE people SET p = named_struct('name', 'Bob', 'town', 'Ulm') WHERE id = 1")
    assert store.table("people").to_arrow()["p"].to_pylist() == [{"name": "Bob", "town": "Ulm"}]


@pytest.mark.long
def test_an_insert_that_is_refused_is_reported_without_a_traceback(
    store: Store, catalog: AttachedStore
) -> None:
    before = rows_in(store)
    for text, error in (
        ("INSERT INTO t VALUES (99, 'a', 1, 1.0), (99, 'b', 2, 2.0)", InvalidKey),
        ("INSERT INTO t (id, v) VALUES (99, 1.0), (99, 2.0)", InvalidKey),
        ("INSERT INTO t (v) VALUES (1.0)", SchemaMismatch),
    ):
        with pytest.raises(error) as refused:
            catalog.sql(text)
        assert "Traceback" not in str(refused.value) and refused.value.__cause__ is None
    assert rows_in(store) == before


@pytest.mark.long
def test_decimals_are_rounded_to_their_column_however_they_are_written(
    spark: SparkSession, store: Store
) -> None:
    kind = pa.decimal128(6, 2)
    table = store.create_table("d", pa.schema([("id", pa.int64()), ("p", kind), ("q", kind)]), ["id"])
    attached = attach(spark, store.uri)
    attached.sql("INSERT INTO d VALUES (1, 1.005, 2), (2, 2.5, 2), (3, 2.5, 2), (4, -1.005, 2)")
    attached.sql("UPDATE d SET p = 1.005, q = p * 1.125 WHERE id = 2")  # evaluated by the store
    attached.sql("UPDATE d SET p = 1.005, q = p * 1.125 WHERE abs(id) = 3")  # and by Spark
    attached.sql(
        "MERGE INTO d USING (SELECT 4 AS id, -1.005 AS p) s ON d.id = s.id "
        "WHEN MATCHED THEN UPDATE SET q = s.p"
    )
    table.update({"q": "p + 0.005"}, where="id = 1")
    cents = {row["id"]: (str(row["p"]), str(row["q"])) for row in table.to_arrow().to_pylist()}
    assert cents == {1: ("1.01", "1.02"), 2: ("1.01", "2.81"), 3: ("1.01", "2.81"), 4: ("-1.01", "-1.01")}
    with pytest.raises(FilterError):
        table.update({"p": "12345.678"})
    with pytest.raises(PySparkException, match="NUMERIC_VALUE_OUT_OF_RANGE"):
        attached.sql("UPDATE d SET p = 12345.678")
