"""Statements about tables of a store: what they are about is read from the text, or they are Spark's."""

from __future__ import annotations

import pytest

from elasticscan.base.errors import UnsupportedStatement
from elasticscan.connector.sql.creating import read_creation
from elasticscan.connector.sql.foreign import foreign_statement, words_of_others
from elasticscan.connector.sql.query import Session
from elasticscan.connector.sql.statements import (
    check_no_times_past,
    other_format,
    other_name,
    other_words,
    statement_about,
    tables_there,
    unknown_table,
)
from elasticscan.connector.sql.tokens import NotUnderstoodError

VIEWS = ["trips", "odd`name", "update"]


def read(text: str, session: Session | None = None) -> tuple[str, str] | None:
    """What is carried out, and the view that it is about."""
    statement = statement_about(text, VIEWS, session or Session())
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
        statement = statement_about(text, VIEWS, Session())
        assert statement is not None and statement.if_exists == may_be_gone
    assert read("DROP TABLE `odd``name`") == ("DROP TABLE", "odd`name")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ALTER VIEW trips AS SELECT 1", "ALTER VIEW"),
        (
            "MERGE WITH SCHEMA EVOLUTION INTO trips t USING s ON true WHEN MATCHED THEN DELETE",
            "MERGE WITH SCHEMA EVOLUTION",
        ),
        ("CREATE TABLE IF NOT EXISTS trips (id INT) USING parquet", "CREATE"),
        ("CREATE OR REPLACE TEMP VIEW trips AS SELECT 1", "CREATE"),
        ("create or replace temporary view `Trips` as select 1", "CREATE"),
        ("REPLACE TABLE trips USING parquet AS SELECT 1", "REPLACE TABLE"),
        ("CREATE TABLE u LIKE trips", "CREATE TABLE LIKE"),
        ("CREATE TABLE IF NOT EXISTS a.`b` LIKE session.trips", "CREATE TABLE LIKE"),
        ("CREATE TABLE trips LIKE other", "CREATE"),
        ("COMMENT ON TABLE trips IS 'x'", "COMMENT"),
        ("CREATE INDEX by_km ON trips (km)", "CREATE INDEX"),
        ("create index if not exists `by km` on table session.trips (km)", "CREATE INDEX"),
        ("DROP INDEX IF EXISTS by_km ON trips", "DROP INDEX"),
        ("SHOW INDEXES FROM trips", "SHOW INDEXES"),
        ("INSERT INTO trips REPLACE WHERE km > 1 SELECT * FROM s", "INSERT with REPLACE"),
        (
            "INSERT INTO TABLE system.session.`trips` REPLACE USING (id) SELECT * FROM s",
            "INSERT with REPLACE",
        ),
        ("DELETE trips WHERE id = 1", "DELETE without FROM"),
        ("ANALYZE TABLE trips COMPUTE STATISTICS", "ANALYZE"),
        ("FSCK REPAIR TABLE trips", "REPAIR"),
        ("REORG TABLE trips APPLY (PURGE)", "REORG"),
        ("LOAD DATA INPATH 'x.csv' INTO TABLE trips", "LOAD DATA"),
        ("EXPORT TABLE trips TO '/x'", "EXPORT"),
        ("BEGIN DROP TABLE trips; END", "DROP TABLE"),
        ("EXECUTE IMMEDIATE 'DROP TABLE trips'", "DROP TABLE"),
        ("DROP TABLE IDENTIFIER('trips')", "DROP TABLE"),
    ],
)
def test_what_would_change_a_table_otherwise_is_refused_by_name(text: str, what: str) -> None:
    with pytest.raises(UnsupportedStatement, match=f"{what} .*nothing was done: ") as caught:
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
        ("DESCRIBE HISTORY trips", "DESCRIBE HISTORY"),
        ("desc history trips limit 1", "DESCRIBE HISTORY"),
        ("OPTIMIZE trips", "OPTIMIZE"),
        ("VACUUM trips", "VACUUM"),
        ("RESTORE TABLE trips TO VERSION AS OF 2", "RESTORE TABLE"),
        ("RESTORE trips TO VERSION AS OF 2", "RESTORE TABLE"),
        ("DESCRIBE DETAIL trips", "DESCRIBE DETAIL"),
        ("desc extended `trips`", "DESCRIBE EXTENDED"),
        ("DESCRIBE TABLE FORMATTED trips", "DESCRIBE EXTENDED"),
        ("SHOW TBLPROPERTIES trips ('primaryKey')", "SHOW TBLPROPERTIES"),
        ("SHOW CREATE TABLE session.trips", "SHOW CREATE TABLE"),
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
    ("text", "what"),
    [
        ("SELECT count(*) FROM trips VERSION AS OF 2", "VERSION AS OF"),
        ("select * from session.Trips for version as of 'tag'", "VERSION AS OF"),
        ("SELECT * FROM a JOIN `trips` /* x */ TIMESTAMP AS OF '2026-01-01' t", "TIMESTAMP AS OF"),
        ("WITH x AS (SELECT * FROM a, trips SYSTEM_TIME AS OF now()) SELECT * FROM x", "SYSTEM_TIME AS OF"),
        ("INSERT INTO trips SELECT * FROM trips VERSION AS OF 2", "VERSION AS OF"),
        ("SELECT * FROM table_changes('trips', 2)", "table_changes"),
        ('SELECT * FROM TABLE_CHANGES("trips", 2, 3)', "table_changes"),
    ],
)
def test_times_past_in_sql_are_answered_with_what_to_call(text: str, what: str) -> None:
    with pytest.raises(UnsupportedStatement, match=f"{what} .*read it( with|s changes)") as caught:
        check_no_times_past(text, VIEWS, Session())
    assert caught.value.fields == {"statement": what, "table": "trips"}


@pytest.mark.parametrize(
    "text",
    [
        "WITH z AS (SELECT 1 AS id) MERGE INTO trips USING z ON trips.id = z.id WHEN MATCHED THEN DELETE",
        "with z as (select 1), y as (select 2) update Trips set km = 1",
        "WITH z AS (SELECT 1) DELETE FROM trips WHERE id IN (SELECT * FROM z)",
    ],
)
def test_a_change_behind_a_with_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedStatement, match="cannot follow a WITH; nothing was done: put WITH into"):
        read(text)
    assert read(text.replace("trips", "other").replace("Trips", "other")) is None


def test_a_column_of_a_table_called_history_is_described() -> None:
    for called in ("history", "detail"):
        assert statement_about(f"DESCRIBE {called} trips", [called, "trips"], Session()) is None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM trips",
        "SELECT version AS of, trips.timestamp AS of FROM trips",
        "SELECT trips AS of FROM trips version",
        "SELECT 'FROM trips VERSION AS OF 2', \"trips\" FROM trips",
        "SELECT * FROM other VERSION AS OF 2",
        "SELECT * FROM elsewhere.trips VERSION AS OF 2",
        "SELECT * FROM table_changes('other', 2)",
        "SELECT table_changes FROM trips",
        "SELECT * FROM trips,",
        "SELECT * FROM table_changes(",
        "OPTIMIZE other",
        "DESCRIBE HISTORY other",
        "SELECT 'DROP TABLE trips' FROM trips",
        "INSERT INTO trips VALUES (1)",
        "INSERT INTO trips SELECT replace WHERE true",
        "INSERT INTO other REPLACE WHERE id = 1 SELECT * FROM trips",
        "CREATE INDEX trips ON other (km)",
        "DESCRIBE DETAIL other",
        "DELETE other WHERE id IN (SELECT id FROM trips)",
        "INSERT OVERWRITE trips SELECT * FROM trips",
        "DROP VIEW trips",
        "DROP TABLE other",
        "DROP TABLE spark_catalog.default.trips",
        "DELETE FROM other WHERE id IN (SELECT id FROM trips)",
        "CREATE TEMP VIEW long AS SELECT * FROM trips",
        "CREATE TABLE trips2 USING parquet AS SELECT * FROM trips",
        "CREATE TABLE default.trips2 AS SELECT * FROM trips",
        "CREATE TABLE trips2 (id INT) STORED AS ORC",
        "CREATE TABLE trips2 ROW FORMAT DELIMITED STORED AS TEXTFILE AS SELECT 1",
        "CREATE TABLE trips2 LIKE other",
        "CREATE EXTERNAL TABLE trips2 (id INT) LOCATION '/x'",
        "CREATE TABLE IDENTIFIER('trips2') AS SELECT 1",
        "CREATE TABLE",
        "DESCRIBE EXTENDED other",
        "SHOW CREATE TABLE other",
        "CREATE TEMPORARY VIEW u USING elasticscan OPTIONS (path 'x/t')",
        "ALTER TABLE other RENAME TO trips",
        "DESCRIBE TABLE trips",
        "UPDATE",
        "DROP TABLE",
        "",
        ";",
        "'unterminated",
        "DROP TABLE `unterminated",
    ],
)
def test_everything_else_is_left_to_spark(text: str) -> None:
    assert read(text) is None
    check_no_times_past(text, VIEWS, Session())


def test_names_are_reported_apart_by_case_where_the_session_does() -> None:
    assert read("DROP TABLE TRIPS", Session(case_sensitive=True)) is None
    assert read("DROP TABLE trips", Session(case_sensitive=True)) == ("DROP TABLE", "trips")


@pytest.mark.parametrize(
    "text",
    [
        "DESCRIBE HISTORY nope",
        "desc history `nope`",
        "DESCRIBE DETAIL nope",
        "OPTIMIZE nope",
        "VACUUM nope DRY RUN",
        "RESTORE nope TO VERSION AS OF 1",
    ],
)
def test_a_statement_of_other_formats_that_spark_refused_names_the_table_that_is_not_there(text: str) -> None:
    assert read(text) is None
    error = unknown_table(text, VIEWS, Session())
    assert error is not None
    assert "'nope': the store has no such table, it has odd`name, trips, update" in error.message
    for other in ("SELECT nope", "DROP TABLE nope", "VACUUM delta.`/data/nope`"):
        assert unknown_table(other, VIEWS, Session()) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CALL system.rollback_to_snapshot('trips', 2)", "write RESTORE TABLE trips TO VERSION AS OF"),
        ("CALL x.system.expire_snapshots(table => 'session.Trips')", "write VACUUM trips"),
        ('call system.rewrite_data_files("trips")', "write OPTIMIZE trips"),
        ("CALL system.other('trips')", "there are no procedures"),
        ("SELECT * FROM table_changes('trips', 2)", "'readChangeFeed'"),
        ('SELECT a.* FROM x JOIN TABLE_CHANGES("Trips") a', "'readChangeFeed'"),
        (
            "UPSERT INTO trips VALUES (1)",
            "every INSERT INTO trips, a table of an elasticscan store, is an",
        ),
        ("insert or replace into `trips` values (1)", "is an upsert"),
        ("INSERT INTO session.trips VALUES (1) ON CONFLICT (id) DO NOTHING", "is an upsert"),
    ],
)
def test_what_spark_refused_is_reported_with_what_to_write(text: str, message: str) -> None:
    assert read(text) is None
    error = other_words(text, VIEWS, Session())
    assert error is not None
    assert message in error.message
    other = text.replace("'trips'", "'db.trips'")
    if other != text:
        assert other_words(other, VIEWS, Session()) is None


@pytest.mark.parametrize(
    ("condition", "name", "message"),
    [
        ("TABLE_OR_VIEW_NOT_FOUND", "`default`.`Trips`", "in no schema: write trips"),
        ("TABLE_OR_VIEW_NOT_FOUND", "`trips`.`snapshots`", "write DESCRIBE HISTORY trips"),
        ("UNSUPPORTED_FEATURE.TIME_TRAVEL", "`trips`", "write trips VERSION AS OF"),
        ("UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY", "elasticscan", "which has odd`name, trips, update"),
    ],
)
def test_a_name_that_spark_cannot_follow_is_reported_with_the_table_s(
    condition: str, name: str, message: str
) -> None:
    error = other_name(condition, name, VIEWS, Session())
    assert error is not None
    assert message in error.message
    for other in ("`nope`", "`default`.`nope`", "parquet", ""):
        assert other_name(condition, other, VIEWS, Session()) is None


def test_a_table_of_a_format_that_is_not_there_is_reported_of_ours() -> None:
    said = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure the provider"
    refused = other_format("CREATE TABLE IF NOT EXISTS t (id INT) USING delta", said)
    assert refused is not None and "no format delta; nothing was done" in refused.message
    assert "USING elasticscan" in refused.message
    assert other_format("SELECT 1", said) is None
    assert other_format("CREATE TABLE t (id INT) USING delta", "something else") is None


def test_a_name_that_is_nowhere_is_reported_with_the_tables_that_there_are() -> None:
    missing = "TABLE_OR_VIEW_NOT_FOUND"
    listed = "The store has the tables odd`name, trips, update"
    for name in ("`Tirps`", "tirps", "`spark_catalog`.`default`.`tirps`"):
        assert tables_there(missing, name, VIEWS) == f"did you mean 'trips'? {listed}"
    assert tables_there(missing, "`nope`", VIEWS) == listed
    assert tables_there(missing, "`nope`", []) == "The store has no tables yet"
    assert str(tables_there(missing, "nope", [f"t{i}" for i in range(99)])).endswith(", …")
    for condition, name in (
        (missing, "`a`.`trip`"),
        (missing, ""),
        ("UNSUPPORTED_FEATURE.TIME_TRAVEL", "trip"),
    ):
        assert tables_there(condition, name, VIEWS) is None


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
    statement = statement_about(text, VIEWS, Session())
    assert statement is not None
    made = read_creation(statement.reader)
    assert made.primary_key == key
    assert made.columns is not None and "KEY " not in made.columns.upper()
    assert ("NOT NULL" in made.columns) == ("NOT NULL" in columns)


@pytest.mark.parametrize(
    ("behind", "message"),
    [
        ("(id INT PRIMARY KEY, b INT PRIMARY KEY) USING elasticscan", r"PRIMARY KEY \(…, …\)"),
        (
            "(id INT PRIMARY KEY) USING elasticscan PARTITIONED BY (id)",
            "leave PARTITIONED BY and the like out",
        ),
        ("(id INT PRIMARY KEY) USING elasticscan LOCATION '/x'", "leave LOCATION out"),
        ("(id INT PRIMARY KEY) USING elasticscan COMMENT 'x'", "no COMMENT: leave it out"),
        ("LIKE other USING elasticscan", "AS SELECT"),
    ],
)
def test_what_tables_of_a_store_do_not_have_is_to_be_left_out(behind: str, message: str) -> None:
    statement = statement_about(f"CREATE TABLE u {behind}", VIEWS, Session())
    assert statement is not None
    with pytest.raises(NotUnderstoodError, match=message):
        read_creation(statement.reader)


@pytest.mark.parametrize(
    "text",
    [
        "EXPLAIN DELETE FROM trips",
        "explain extended UPDATE `trips` SET km = 1",
        "EXPLAIN MERGE INTO trips USING s ON true WHEN MATCHED THEN DELETE",
    ],
)
def test_a_change_is_not_explained_as_one_that_cannot_be_done(text: str) -> None:
    with pytest.raises(UnsupportedStatement, match=r"catalog\.explain"):
        read(text)
    assert read(text.replace("trips", "nope")) is None
    assert read("EXPLAIN SELECT * FROM trips") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SHOW PARTITIONS trips", "there are no partitions"),
        ("ALTER TABLE trips ADD PARTITION (id = 1)", "there are no partitions"),
        ("INSERT OVERWRITE trips PARTITION (id = 1) SELECT 1", "the option 'replaceWhere'"),
        ("SELECT * FROM trips WHERE id = 5 ALLOW FILTERING", "leave ALLOW FILTERING out"),
        ("SELECT * FROM trips WHERE token(id) > 5", "leave token() out"),
        ("SELECT ttl(city) FROM trips", "DESCRIBE HISTORY"),
        ("INSERT INTO trips (id) VALUES (1) IF NOT EXISTS", "table.insert(rows)"),
        ("INSERT INTO trips (id) VALUES (1) USING TTL 86400", "leave TTL out"),
        ("UPDATE trips SET km = 1 WHERE id = 1 IF km = 2", "'ifUnchangedSince'"),
        ("DELETE city FROM trips WHERE id = 1", "write UPDATE t SET column = NULL"),
        ("BEGIN BATCH INSERT INTO trips VALUES (1); APPLY BATCH", "each statement is one commit"),
        ("BEGIN TRANSACTION", "each statement is one commit"),
        ("ROLLBACK", "each statement is one commit"),
        ("CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy'}", "one space of tables"),
        ("TRUNCATE trips", "write TRUNCATE TABLE t"),
        ("COPY trips TO 'f.csv'", "table.export(path)"),
        ("BEGIN; INSERT INTO trips VALUES (1); COMMIT", "each statement is one commit"),
        ("INSERT IGNORE INTO trips VALUES (1)", "'insertOnly'"),
        ("INSERT INTO trips SET id = 1", "(id, km) VALUES"),
        ("SELECT 1; SELECT 2", "each call takes one statement"),
        ("CREATE MATERIALIZED VIEW mv AS SELECT 1", "CREATE TABLE … AS SELECT"),
        ("create or replace materialized view mv as select * from trips", "CREATE TABLE … AS SELECT"),
        ("REFRESH MATERIALIZED VIEW mv", "CREATE TABLE … AS SELECT"),
        ("DROP MATERIALIZED VIEW mv", "CREATE TABLE … AS SELECT"),
        ("CREATE STREAMING TABLE st AS SELECT * FROM STREAM x", "spark.readStream"),
        ("CREATE TAG v1", "store.table(name).tag(tag)"),
        ("ALTER TABLE trips CREATE BRANCH b", "there are no branches"),
        ("ALTER TABLE trips ADD CONSTRAINT c CHECK (id > 0)", "nothing else is checked"),
        ("CREATE TABLE u SHALLOW CLONE trips", "AS SELECT * FROM t"),
        ("EXPLAIN ANALYZE SELECT 1", "catalog.explain(query)"),
        ("PRAGMA table_info('trips')", "write DESCRIBE t"),
        ("ATTACH 'x.db'", "prefix='b_'"),
        ("SELECT * EXCLUDE (km) FROM trips", "write * EXCEPT (columns)"),
        ("SELECT * FROM read_parquet('x.parquet')", "parquet.`path`"),
        ("SHOW SNAPSHOTS", "DESCRIBE HISTORY t"),
        ("show history for trips", "DESCRIBE HISTORY t"),
        ("SELECT * FROM trips AT (VERSION => 2)", "t VERSION AS OF 2"),
        ("CHECKPOINT", "leave it out"),
        ("VACUUM", "VACUUM t"),
        ("OPTIMIZE", "OPTIMIZE t"),
        ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "each statement is one commit"),
        ("CONVERT TO DELTA parquet.`/x`", "format='delta'"),
        ("CREATE TEMPORARY TABLE u (id INT PRIMARY KEY)", "CREATE TEMPORARY VIEW"),
        ("CREATE EXTERNAL TABLE u (id INT PRIMARY KEY)", "leave EXTERNAL out"),
        ("DROP INDEX by_km", "drop_index(index)"),
        ("SELECT TOP 5 id FROM trips", "write LIMIT"),
        ("SELECT id FROM trips FETCH FIRST 3 ROWS ONLY", "write LIMIT"),
        ("SELECT id FROM trips USING SAMPLE 5", "TABLESAMPLE (5 ROWS)"),
        ("DESCRIBE trips VERSION AS OF 2", "every snapshot has the newest columns"),
        ("DELETE FROM trips WHERE id = 3 RETURNING *", "no RETURNING"),
        ("UPDATE trips SET (km, city) = (1, 'x')", "SET a = …, b = …"),
        ("MERGE INTO trips USING s ON trips.id = s.id WHEN MATCHED THEN DO NOTHING", "leave out the WHEN"),
        ("CALL system.remove_orphan_files('x')", "there are no procedures"),
        ("PIVOT trips ON city", "PIVOT (sum(km) FOR city"),
        ("SELECT * FROM trips EMIT CHANGES", "spark.readStream"),
        ("SELECT * FROM STREAM trips", "spark.readStream"),
        ("CREATE CUSTOM INDEX i ON trips (city)", "create_index(index, columns)"),
        ("ALTER TABLE trips ADD x int", "ADD COLUMN name type"),
        ("LOCK TABLE trips", "if_unchanged_since="),
        ("GRANT SELECT ON trips TO bob", "there are no other rights"),
        ("db.trips.find({})", "write SQL"),
        ("CREATE TABLE u (a int, b int, PRIMARY KEY ((a), b))", "'shardKey' = 'a'"),
        ("CREATE TABLE u (id int PRIMARY KEY, v text)", "STRING"),
    ],
)
def test_a_refused_statement_of_another_database_is_reported_with_what_to_write(
    text: str, message: str
) -> None:
    assert message in (words_of_others(text, VIEWS, Session()) or "")
    error = foreign_statement(text, "PARSE_SYNTAX_ERROR", VIEWS, Session())
    assert error is not None and message in error.message
    assert foreign_statement(text, "UNRESOLVED_COLUMN.WITH_SUGGESTION", VIEWS, Session()) is None


def test_what_cannot_be_of_a_temporary_view_is_reported_with_what_to_write() -> None:
    lasting = "create view v as select * from trips"
    for text, condition, message in (
        (lasting, "INVALID_TEMP_OBJ_REFERENCE", "write CREATE TEMPORARY VIEW"),
        ("CREATE TABLE db.u (id INT PRIMARY KEY)", "UNSUPPORTED_FEATURE.TABLE_OPERATION", "CREATE TABLE u"),
    ):
        error = foreign_statement(text, condition, VIEWS, Session())
        assert error is not None and message in error.message
        assert "nothing was done" in error.message
        assert foreign_statement(text, "SOMETHING_ELSE", VIEWS, Session()) is None
        assert foreign_statement("SELECT 1", condition, VIEWS, Session()) is None


def test_a_statement_about_other_tables_or_with_such_words_in_quotes_is_spark_s_to_refuse() -> None:
    for text in (
        "SHOW PARTITIONS other",
        "SELECT * FROM trips WHERE city = 'ALLOW FILTERING' x y",
        "UPDATE trips SET km = if(km > 1, 2, 3) x",
        "GRANT SELECT ON other TO bob",
    ):
        assert words_of_others(text, VIEWS, Session()) is None, text
