"""Statements that empty a table or change its schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from elasticscan.connector.sql.creating import COMPRESSION, columns_of, properties_of
from elasticscan.connector.sql.statements import Statement
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader
from elasticscan.store import Store, Table


def maintain(spark: SparkSession, store: Store, table: str, statement: Statement) -> DataFrame:
    """Carry out a statement and return its result as rows.

    Raises:
        NotUnderstoodError: the statement has clauses that are not supported; nothing was done.
    """
    return _STATEMENTS[statement.kind](spark, store, store.table(table), statement.reader)


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
        reader.expect("TYPE")
        (field,) = columns_of(f"c {reader.until()}")
        table.widen_column(name, field.type)
    elif reader.takes("SET", "TBLPROPERTIES"):
        _set_properties(table, reader)
    else:
        raise reader.wrong("ADD, DROP, RENAME or ALTER COLUMN or SET TBLPROPERTIES")
    return nothing(spark)


def _set_properties(table: Table, reader: StatementReader) -> None:
    properties = properties_of(reader)
    reader.expect_end()
    for name in properties:
        if name.lower() != COMPRESSION:
            raise NotUnderstoodError(f"property {name} cannot be changed; only compression can")
    for form in properties.values():
        table.set_compression(form)


def _spelt(table: Table, name: str) -> str:
    """Return a column's name as the table spells it."""
    return next((own for own in table.schema.names if own.lower() == name.lower()), name)


def nothing(spark: SparkSession) -> DataFrame:
    """Return an empty result."""
    return spark.createDataFrame([], StructType([]))


_STATEMENTS: Mapping[str, Callable[[SparkSession, Store, Table, StatementReader], DataFrame]] = {
    "ALTER TABLE": _alter,
    "TRUNCATE TABLE": _truncate,
}
