"""Statements about a table as a whole, in the words that users of other formats know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from elasticscan.connector.sql.creating import COMPRESSION, columns_of, properties_of
from elasticscan.connector.sql.describing import DESCRIPTIONS
from elasticscan.connector.sql.statements import Statement
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader
from elasticscan.store import Action, Store, Table

HISTORY = (
    "version BIGINT, timestamp TIMESTAMP, operation STRING, rows BIGINT, bytes BIGINT, "
    "userMetadata MAP<STRING, STRING>"
)


def maintain(spark: SparkSession, store: Store, table: str, statement: Statement) -> DataFrame:
    """Carry a statement out; what it gives is a row or more that say what was done.

    Raises:
        NotUnderstoodError: it asks for what there is not; nothing was done.
    """
    return _STATEMENTS[statement.kind](spark, store, store.table(table), statement.reader)


def _history(spark: SparkSession, store: Store, table: Table, reader: StatementReader) -> DataFrame:
    limit = reader.number() if reader.takes("LIMIT") else None
    reader.expect_end()
    rows = [
        (
            commit.number,
            datetime.fromtimestamp(commit.created_at, UTC),
            commit.kind,
            commit.rows,
            commit.bytes,
            dict(commit.user_metadata),
        )
        for commit in reversed(table.history(limit))
    ]
    return spark.createDataFrame(rows, HISTORY)


def _optimize(spark: SparkSession, store: Store, table: Table, reader: StatementReader) -> DataFrame:
    if not reader.at_end:
        raise NotUnderstoodError(
            "OPTIMIZE takes nothing but the table's name: rows are in the order of their keys"
        )
    return spark.createDataFrame([(table.compact(),)], "fragments_removed BIGINT")


def _vacuum(spark: SparkSession, store: Store, table: Table, reader: StatementReader) -> DataFrame:
    """All files of the store that nobody needs, whichever table they were of."""
    dry_run = reader.takes("DRY", "RUN")
    if not reader.at_end:
        raise NotUnderstoodError(
            "VACUUM takes DRY RUN alone: how long snapshots are kept is the table's retention period "
            "(Table.set_retention)"
        )
    collected = store.collect_garbage(dry_run=dry_run)
    removed = collected.count(Action.DELETE, Action.TRASH)
    return spark.createDataFrame([(removed,)], "files_removed BIGINT")


def _restore(spark: SparkSession, store: Store, table: Table, reader: StatementReader) -> DataFrame:
    to: int | str | datetime
    if reader.takes("TO", "TIMESTAMP", "AS", "OF"):
        try:
            to = datetime.fromisoformat(reader.string())
            to = to if to.utcoffset() is not None else to.replace(tzinfo=UTC)
        except ValueError as error:
            raise NotUnderstoodError(
                f"a time has ISO's form, as '2026-01-31 12:00:00' in UTC: {error}"
            ) from None
    elif reader.takes("TO", "VERSION", "AS", "OF"):
        to = reader.number_or_string()
    else:
        raise NotUnderstoodError(
            "write RESTORE TABLE … TO VERSION AS OF 17, or of a tag in quotes, or RESTORE TABLE … TO "
            "TIMESTAMP AS OF '2026-01-31 12:00:00'"
        )
    reader.expect_end()
    return spark.createDataFrame([(int(table.restore(to)),)], "version BIGINT")


def _truncate(spark: SparkSession, store: Store, table: Table, reader: StatementReader) -> DataFrame:
    reader.expect_end()
    table.overwrite(table.schema.empty_table())
    return nothing(spark)


def _alter(spark: SparkSession, store: Store, table: Table, reader: StatementReader) -> DataFrame:
    if reader.takes_one("ADD COLUMN", "ADD COLUMNS"):
        table.add_columns(columns_of(reader.list_text()))
    elif reader.takes_one("DROP COLUMN", "DROP COLUMNS"):
        names = reader.names() if reader.sees("(") else reader.listed_names()
        reader.expect_end()
        table.drop_columns([_spelt(table, name) for name in names])
    elif reader.takes("RENAME", "COLUMN"):
        old = reader.identifier()
        reader.expect("TO")
        new = reader.identifier()
        reader.expect_end()
        table.rename_column(_spelt(table, old), new)
    elif reader.takes_one("ALTER COLUMN", "CHANGE COLUMN", "ALTER"):
        name = _spelt(table, reader.identifier())
        if not reader.takes("TYPE"):
            raise NotUnderstoodError(
                f"ALTER COLUMN {name} changes the TYPE alone: RENAME COLUMN {name} TO … gives it another "
                "name, whether a column allows nulls is said when a table is made, and it has no DEFAULT, "
                "COMMENT or place"
            )
        (field,) = columns_of(f"c {reader.until()}")
        table.widen_column(name, field.type)
    elif reader.takes("SET", "TBLPROPERTIES"):
        _set_properties(table, reader)
    elif reader.takes("RENAME", "TO"):
        keys = ",".join(table.primary_key)
        raise NotUnderstoodError(
            f"a table keeps its name: CREATE TABLE {reader.name()[-1]} TBLPROPERTIES ('primaryKey' = "
            f"'{keys}') AS SELECT * FROM … makes another with its rows"
        )
    else:
        raise NotUnderstoodError(
            "ALTER TABLE adds, drops, renames and widens columns, and sets the property 'compression' (SET "
            "TBLPROPERTIES), and nothing else"
        )
    return nothing(spark)


def _set_properties(table: Table, reader: StatementReader) -> None:
    properties = properties_of(reader)
    reader.expect_end()
    for name in properties:
        if name.lower() != COMPRESSION:
            raise NotUnderstoodError(
                f"there is no property {name} that can be changed; there is compression ('none', 'lz4' or "
                "'zstd'), and store.table(name).set_retention('7d') says how long snapshots are kept"
            )
    (form,) = properties.values()
    table.set_compression(form)


def _spelt(table: Table, name: str) -> str:
    """A column's name as the table spells it."""
    return next((own for own in table.schema.names if own.lower() == name.lower()), name)


def nothing(spark: SparkSession) -> DataFrame:
    """The result of a statement that has none."""
    return spark.createDataFrame([], StructType([]))


_STATEMENTS: Mapping[str, Callable[[SparkSession, Store, Table, StatementReader], DataFrame]] = {
    **DESCRIPTIONS,
    "ALTER TABLE": _alter,
    "DESCRIBE HISTORY": _history,
    "OPTIMIZE": _optimize,
    "RESTORE TABLE": _restore,
    "TRUNCATE TABLE": _truncate,
    "VACUUM": _vacuum,
}
