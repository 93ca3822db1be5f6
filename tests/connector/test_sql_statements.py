"""Statements about tables of a store: what they are about is read from the text, or they are Spark's."""

from __future__ import annotations

import pytest

from elasticscan.base.errors import NotSupported
from elasticscan.connector.sql.creating import read_creation
from elasticscan.connector.sql.statements import statement_about
from elasticscan.connector.sql.tokens import NotUnderstoodError

VIEWS = ["trips", "odd`name", "update"]


def read(text: str) -> tuple[str, str] | None:
    """What is carried out, and the view that it is about."""
    statement = statement_about(text, VIEWS)
    return None if statement is None else (statement.kind, statement.view)


@pytest.mark.parametrize(
    "text",
    [
        "DROP TABLE trips",
        "drop table Trips;",
        "DROP /* TABLE other */ TABLE -- x\n `trips` PURGE",
        "DROP TABLE session.trips",
        " DROP TABLE system.session.trips ; ",
    ],
)
def test_a_drop_of_a_table_is_known(text: str) -> None:
    assert read(text) == ("DROP TABLE", "trips")


def test_a_drop_may_be_of_what_may_be_gone() -> None:
    for text, may_be_gone in (("DROP TABLE IF EXISTS trips", True), ("DROP TABLE `odd``name`", False)):
        statement = statement_about(text, VIEWS)
        assert statement is not None and statement.if_exists == may_be_gone
    assert read("DROP TABLE `odd``name`") == ("DROP TABLE", "odd`name")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ALTER VIEW trips AS SELECT 1", "ALTER VIEW"),
        ("CREATE TABLE IF NOT EXISTS trips (id INT) USING parquet", "CREATE"),
        ("CREATE OR REPLACE TEMP VIEW trips AS SELECT 1", "CREATE"),
        ("create or replace temporary view `Trips` as select 1", "CREATE"),
        ("CREATE TABLE trips LIKE other", "CREATE"),
    ],
)
def test_a_statement_that_would_change_the_view_and_not_the_table_is_refused(text: str, what: str) -> None:
    with pytest.raises(NotSupported, match=f"{what} of table 'trips' ") as caught:
        read(text)
    assert caught.value.fields == {"statement": what, "table": "trips"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("TRUNCATE TABLE trips", "TRUNCATE TABLE"),
        ("ALTER TABLE trips ADD COLUMN x INT", "ALTER TABLE"),
        ("delete from session.Trips where id = 1", "DELETE"),
        ("UPDATE trips SET km = 1", "UPDATE"),
        ("MERGE INTO trips USING s ON trips.id = s.id WHEN MATCHED THEN DELETE", "MERGE"),
    ],
)
def test_what_is_carried_out_is_known(text: str, kind: str) -> None:
    assert read(text) == (kind, "trips")


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE u (id bigint) USING elasticscan",
        "create or replace table if not exists a.`u` using ElasticScan options (path 'x/t')",
        "CREATE TABLE trips2 AS SELECT * FROM trips JOIN x USING (id)",
        "CREATE TABLE IF NOT EXISTS trips (id BIGINT PRIMARY KEY)",
        "CREATE OR REPLACE TABLE u TBLPROPERTIES ('primaryKey' = 'id') AS WITH x AS (SELECT 1) TABLE x",
        "CREATE TABLE u (id BIGINT PRIMARY KEY, km DOUBLE)",
        "CREATE TABLE u (id BIGINT, PRIMARY KEY (id)) TBLPROPERTIES ('a' = 'b')",
        "CREATE TABLE `u`",
    ],
)
def test_a_table_of_the_store_is_made(text: str) -> None:
    assert read(text) == ("CREATE TABLE", "")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM trips",
        "EXPLAIN DELETE FROM trips",
        "WITH z AS (SELECT 1) DELETE FROM trips WHERE id IN (SELECT * FROM z)",
        "DELETE trips WHERE id = 1",
        "CREATE TABLE u LIKE trips",
        "SELECT 'DROP TABLE trips' FROM trips",
        "INSERT INTO trips VALUES (1)",
        "DESCRIBE DETAIL trips",
        "DROP VIEW trips",
        "DROP TABLE other",
        "DROP TABLE spark_catalog.default.trips",
        "DELETE FROM other WHERE id IN (SELECT id FROM trips)",
        "CREATE TABLE trips2 USING parquet AS SELECT * FROM trips",
        "CREATE TABLE default.trips2 AS SELECT * FROM trips",
        "CREATE TABLE trips2 ROW FORMAT DELIMITED STORED AS TEXTFILE AS SELECT 1",
        "CREATE TABLE IDENTIFIER('trips2') AS SELECT 1",
        "CREATE TABLE",
        "DESCRIBE EXTENDED trips",
        "CREATE TEMPORARY VIEW u USING elasticscan OPTIONS (path 'x/t')",
        "ALTER TABLE other RENAME TO trips",
        "DESCRIBE TABLE trips",
        "DROP TABLE",
        "",
        ";",
        "'unterminated",
        "DROP TABLE `unterminated",
    ],
)
def test_everything_else_is_left_to_spark(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("id BIGINT PRIMARY KEY, km DOUBLE", ("id",)),
        ("km DOUBLE COMMENT 'PRIMARY KEY', `an id` STRING primary key NOT NULL", ("an id",)),
        ("a INT, b INT, PRIMARY KEY (a, b)", ("a", "b")),
    ],
)
def test_a_primary_key_stands_behind_a_column_or_behind_all(columns: str, key: tuple[str, ...]) -> None:
    text = f"CREATE TABLE u ({columns}) USING elasticscan"
    statement = statement_about(text, VIEWS)
    assert statement is not None
    made = read_creation(statement.reader)
    assert made.primary_key == key
    assert made.columns is not None and "KEY " not in made.columns.upper()
    assert ("NOT NULL" in made.columns) == ("NOT NULL" in columns)


@pytest.mark.parametrize(
    ("behind", "message"),
    [
        ("(id INT PRIMARY KEY, b INT PRIMARY KEY) USING elasticscan", r"PRIMARY KEY \(…, …\)"),
        ("(id INT PRIMARY KEY) USING elasticscan PARTITIONED BY (id)", "AS was expected at 'PARTITIONED'"),
        ("LIKE other USING elasticscan", "AS was expected at 'LIKE'"),
        ("(id INT) USING elasticscan", "needs PRIMARY KEY"),
        ("USING elasticscan TBLPROPERTIES ('primaryKey' = 'id')", "either columns or a query"),
        ("(id INT PRIMARY KEY) USING elasticscan TBLPROPERTIES ('a' = 'b')", "unknown property a"),
    ],
)
def test_clauses_that_tables_lack_are_refused(behind: str, message: str) -> None:
    check_refused(f"CREATE TABLE u {behind}", message)


def test_a_table_of_the_store_has_no_schema_and_is_not_replaced() -> None:
    rest = "(id BIGINT, PRIMARY KEY (id)) USING elasticscan"
    check_refused(f"CREATE OR REPLACE TABLE u {rest}", "drop the table first")
    check_refused(f"CREATE TABLE a.u {rest}", "tables of a store have no schema")


def check_refused(text: str, message: str) -> None:
    statement = statement_about(text, VIEWS)
    assert statement is not None
    with pytest.raises(NotUnderstoodError, match=message):
        read_creation(statement.reader)
