"""Statements of Cassandra, Kafka, MongoDB and other databases: what to write in place of each.

They are looked at only when a statement was refused, so nothing that works is ever taken for one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from elasticscan.base.errors import UnsupportedStatement
from elasticscan.connector.sql.query import Session
from elasticscan.connector.sql.tokens import tokens_of

_A_COMMIT = "each statement is one commit, all or nothing: leave it out"
_PARTITIONS = (
    "there are no partitions: rows are spread by a hash of their key, over tablets that "
    "store.status()['tablets'] and `elasticscan status STORE --tablets` list"
)
_STREAM = "a stream is spark.readStream.format('elasticscan').load('store/table')"
_TTL = "rows stay until they are deleted, as by DELETE FROM t WHERE at < …: leave TTL out"
_ABSENT = "table.insert(rows), the option 'insertOnly' or a MERGE with WHEN NOT MATCHED alone writes new keys"
_UNCHANGED = (
    "write if_unchanged_since=, or the option 'ifUnchangedSince': it refuses rows that others changed"
)

_TAG = r"^(?:ALTER TABLE \S+ )?(?:CREATE|REPLACE|DROP|SHOW) (?:TAGS?|BRANCH(?:ES)?)\b"

# Words of no table, then those of one: what is met in a text without its quotes, and what to write.
_STATEMENTS = (
    (r"^(?:BEGIN|START) (?:UNLOGGED |COUNTER )?BATCH\b|\bAPPLY BATCH\b", _A_COMMIT),
    (r"^(?:BEGIN|START) TRANSACTION\b|^BEGIN(?: ;|$)|^(?:COMMIT|ROLLBACK|SAVEPOINT)\b", _A_COMMIT),
    (r"^SET TRANSACTION\b", _A_COMMIT),
    (r"^(?!BEGIN\b).* ; ", "each call takes one statement: make several calls"),
    (
        r"^(?:CREATE|DROP|ALTER|USE) KEYSPACE\b",
        "a store is one space of tables: elasticscan.create(uri, shards)",
    ),
    (r"^SHOW (?:STREAMS|TOPICS)\b", "streams are in store.status()['streams'], tables in SHOW TABLES"),
    (r"^(?:PRINT|LIST) ", "tables are in SHOW TABLES, rows in SELECT"),
    (
        r"^(?:CREATE (?:OR (?:REPLACE|REFRESH) )?|ALTER |DROP |REFRESH |SHOW )MATERIALIZED VIEWS?\b",
        "there are none: write CREATE TABLE … AS SELECT, and INSERT OVERWRITE or a stream to renew its rows",
    ),
    (r"^CREATE (?:OR (?:REPLACE|REFRESH) )?STREAMING (?:LIVE )?TABLE\b|\bEMIT CHANGES\b", _STREAM),
    (_TAG, "store.table(name).tag(tag) makes one, tags() lists them, and there are no branches"),
    (
        r"^SHOW (?:HISTORY|SNAPSHOTS|VERSIONS|COMMITS|LOG)\b",
        "DESCRIBE HISTORY t lists the commits of a table",
    ),
    (r"\bAT \( (?:VERSION|TIMESTAMP|SNAPSHOT)\b", "write t VERSION AS OF 2, or t TIMESTAMP AS OF '…'"),
    (r"^(?:FORCE )?CHECKPOINT\b", "a commit is on the disks when its statement returns: leave it out"),
    (r"^UNDROP\b", "a table that was dropped comes back of a backup alone"),
    (
        r"^EXPLAIN ANALYZE\b",
        "catalog.explain(query) says what each table sends, and EXPLAIN query how Spark runs it",
    ),
    (r"^(?:PRAGMA|SUMMARIZE)\b", "write DESCRIBE t, DESCRIBE DETAIL t, or SELECT what is to be counted"),
    (
        r"^(?:ATTACH|DETACH|INSTALL)\b|^(?:EXPORT|IMPORT) DATABASE\b",
        "attach(spark, uri, prefix='b_') has the tables of another store; table.export(path) writes files",
    ),
    (r"^PIVOT\b", "write SELECT * FROM t PIVOT (sum(km) FOR city IN ('Oslo', 'Lima'))"),
    (r"\* EXCLUDE \(", "write * EXCEPT (columns)"),
    (r"\bREAD_(?:PARQUET|CSV|JSON) \(", "write parquet.`path`, csv.`path` or json.`path`"),
    (r"^(?:OPTIMIZE|VACUUM)$", "name the table, as in OPTIMIZE t and VACUUM t"),
    (
        r"^CONVERT TO\b",
        "store.load(table, directory, format='delta', primary_key=…) reads a table of Delta or Iceberg in",
    ),
    (
        r"^CREATE (?:GLOBAL |LOCAL )?TEMP(?:ORARY)? TABLE\b",
        "write CREATE TABLE for a table of the store, or CREATE TEMPORARY VIEW … AS SELECT",
    ),
    (r"^CREATE EXTERNAL TABLE\b", "tables lie in their store: leave EXTERNAL out"),
    (r"^DROP INDEX\b", "drop it with store.table(name).drop_index(index), or `elasticscan index drop`"),
    (r"^(?:FSCK|IMPORT|EXPORT) ", "`elasticscan verify`, `load` and `export` check, read and write files"),
    (r"^SELECT (?:DISTINCT )?TOP \(?(?: ?\d|:)", "write LIMIT at the end"),
    (r"\bFETCH (?:FIRST|NEXT)\b", "write LIMIT at the end"),
    (r"\bUSING SAMPLE\b", "write FROM t TABLESAMPLE (5 ROWS), or (5 PERCENT)"),
    (
        r"^CALL\b",
        "there are no procedures, but OPTIMIZE t, VACUUM t, RESTORE TABLE t TO … and DESCRIBE HISTORY t",
    ),
    (r"^DB \. ", "write SQL, or store.table(name).scan(filter=…) in Python"),
)
_OF_TABLES = (
    (r"^SHOW PARTITIONS\b|^ALTER TABLE .* PARTITION\b", _PARTITIONS),
    (
        r"\bPARTITION \(",
        "there are no partitions: mode overwrite with the option 'replaceWhere' replaces some rows",
    ),
    (
        r"^(?:DESCRIBE|DESC) .*\bAS OF\b",
        "every snapshot has the newest columns: write DESCRIBE t",
    ),
    (r"\bRETURNING\b", "there is no RETURNING: SELECT the rows before, at a snapshot"),
    (r"^UPDATE .*\bSET \(", "write each column by itself: SET a = …, b = …"),
    (r"\bTHEN DO NOTHING\b", "leave out the WHEN that does nothing"),
    (r"\bALLOW FILTERING\b", "leave ALLOW FILTERING out: any condition may be asked"),
    (r"\bUSING (?:TTL|TIMESTAMP)\b", _TTL),
    (
        r"\b(?:TTL|WRITETIME) \(",
        "DESCRIBE HISTORY t and the changes of a table have the times of its commits",
    ),
    (r"\bTOKEN \(", "rows are spread by themselves, and a query is divided into tasks: leave token() out"),
    (r"^INSERT .*\bIF NOT EXISTS\b", _ABSENT),
    (r"^(?:UPDATE|DELETE) .*\bIF (?!\()", _UNCHANGED),
    (r"^INSERT IGNORE\b", _ABSENT),
    (r"^INSERT INTO \S+ SET\b", "write INSERT INTO t (id, km) VALUES (1, 2.5)"),
    (r"^INSERT .*\bJSON\b", "hand in rows in Python: table.upsert([{…}])"),
    (r"^TRUNCATE (?!TABLE\b)", "write TRUNCATE TABLE t"),
    (r"^DELETE \S+(?: , \S+)* FROM\b", "write UPDATE t SET column = NULL WHERE …"),
    (r"^COPY\b", "table.export(path) writes files, and store.load(table, files) reads them"),
    (r"^CREATE (?:OR REPLACE )?STREAM\b|\bSTREAM \(?", _STREAM),
    (r"^CREATE (?:CUSTOM )?INDEX\b", "make it with store.table(name).create_index(index, columns)"),
    (r"^LOCK\b|\bFOR UPDATE\b", _UNCHANGED),
    (r"^CREATE .*\bCLONE\b", "write CREATE TABLE … TBLPROPERTIES ('primaryKey' = '…') AS SELECT * FROM t"),
    (
        r"^ALTER TABLE \S+ (?:ADD|DROP) (?:CONSTRAINT|CHECK|FOREIGN KEY)\b",
        "of each key there is one row, and columns of NOT NULL have no null; nothing else is checked",
    ),
    (r"^ALTER TABLE \S+ ADD (?!COLUMN)", "write ALTER TABLE t ADD COLUMN name type"),
    (r"^ALTER TABLE \S+ DROP (?!COLUMN)", "write ALTER TABLE t DROP COLUMN name"),
    (
        r"^ALTER TABLE \S+ WITH\b",
        "table.set_retention(period) and SET TBLPROPERTIES ('compression' = …) set what there is",
    ),
    (r"^ALTER TABLE .*\b(?:RETENTION|TTL)", "table.set_retention('7d') says how long snapshots stay"),
    (
        r"^(?:GRANT|REVOKE)\b",
        "who may read and write the files and the catalog may do so; there are no other rights",
    ),
)
_OF_NEW = (
    (r"PRIMARY KEY \( \(", "write PRIMARY KEY (a, b), and TBLPROPERTIES ('shardKey' = 'a') for what spreads"),
    (r"\bCLUSTERING ORDER\b", "rows lie by their key: leave WITH CLUSTERING ORDER BY out"),
    (
        r"\b(?:TEXT|UUID|TIMEUUID|COUNTER|VARINT|BLOB|INET|ASCII|SERIAL|JSONB?)\b",
        "types are Spark's: STRING, BIGINT, BINARY",
    ),
)


_LASTING_VIEW = re.compile(r"CREATE (?:OR REPLACE )?VIEW ")
_IN_SCHEMA = re.compile(r"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?\S+ \. (\S+)")

# Spark's errors about a name: the statement itself is one that it has.
_OF_NAMES = ("UNRESOLVED_COLUMN", "TABLE_OR_VIEW_NOT_FOUND", "INSERT_COLUMN")


def words_of_others(text: str, views: Iterable[str], session: Session) -> str | None:
    """The hint what to write in place of a refused statement, if it is like one of other databases."""
    tokens = [token for token in tokens_of(text) if token.kind != "text"]
    line = " ".join(token.word for token in tokens).upper()
    folded = {session.folded(view) for view in views}
    is_of_table = any(session.folded(token.word) in folded for token in tokens)
    kinds = [*_STATEMENTS, *(_OF_TABLES if is_of_table else ())]
    kinds += _OF_NEW if line.startswith("CREATE TABLE") else ()
    return next((message for pattern, message in kinds if re.search(pattern, line)), None)


def foreign_statement(
    text: str, condition: str, views: Iterable[str], session: Session
) -> UnsupportedStatement | None:
    """The error of such a statement; `condition` is of Spark's own error about it."""
    if condition.startswith(_OF_NAMES):
        return None
    words = [token.word for token in tokens_of(text)]
    why = _why_not_of_a_view(" ".join(words), condition)
    message = None if why else words_of_others(text, views, session)
    if message is not None:
        why = f"neither Spark nor elasticscan understands this statement; nothing was done: {message}"
    return UnsupportedStatement(why, statement=" ".join(words[:2]), table="") if why else None


def _why_not_of_a_view(text: str, condition: str) -> str | None:
    """The reason why a statement that Spark has cannot be of tables that are temporary views to it."""
    if condition == "INVALID_TEMP_OBJ_REFERENCE" and _LASTING_VIEW.match(text.upper()):
        return (
            "the tables of an elasticscan store are temporary views, so a view of them lasts as long as the "
            "session; nothing was done: write CREATE TEMPORARY VIEW"
        )
    made = _IN_SCHEMA.match(text) or _IN_SCHEMA.match(text.upper())
    if condition == "UNSUPPORTED_FEATURE.TABLE_OPERATION" and made is not None:
        return (
            "Spark makes no such table in a schema of its own; nothing was done: tables of an elasticscan "
            f"store are in no schema: write CREATE TABLE {made[1]}"
        )
    return None
