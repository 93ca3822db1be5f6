"""CREATE TABLE ... [USING elasticscan], empty or with the rows of a query; ALTER and TRUNCATE of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from elasticscan.base.errors import AlreadyExists
from elasticscan.connector.conversion import arrow_schema, spell
from elasticscan.connector.options import SPARK_COMPRESSION
from elasticscan.connector.sql.statements import Statement
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, tokens_of
from elasticscan.connector.store_cache import open_store
from elasticscan.store import Store, Table

PRIMARY_KEY, SHARD_KEY, COMPRESSION = "primaryKey", "shardKey", "compression"


@dataclass(frozen=True, slots=True)
class Creation:
    """A statement that makes a table.

    Attributes:
        columns: their definitions as Spark writes them; None for the columns of the query.
        primary_key, shard_key: names of columns; none for the usual shard key.
        compression: of its files, as in the option of writes.
        query: the source of its rows; None for an empty table.
    """

    columns: str | None
    primary_key: tuple[str, ...]
    shard_key: tuple[str, ...]
    compression: str
    query: str | None


def read_creation(reader: StatementReader) -> Creation:
    """Read `CREATE TABLE` from behind the table's name.

    Raises:
        NotUnderstoodError: the statement is incomplete, or has clauses that tables lack.
    """
    keys: list[tuple[str, ...]] = []
    columns = _columns(reader, keys) if reader.takes("(") else None
    given: dict[str, str] = {}
    query = None
    while not reader.at_end and query is None:
        if reader.takes("USING"):
            reader.expect("ELASTICSCAN")
        elif reader.takes_one("TBLPROPERTIES", "OPTIONS"):
            given |= properties_of(reader, PRIMARY_KEY, SHARD_KEY, COMPRESSION)
        elif reader.takes("AS") or reader.sees("SELECT") or reader.sees("WITH"):
            query = reader.until()
        else:
            raise reader.wrong("USING elasticscan, TBLPROPERTIES or AS")
    keys += [_names(given[PRIMARY_KEY])] if PRIMARY_KEY in given else []
    if len(keys) != 1:
        raise NotUnderstoodError(
            "a table needs one PRIMARY KEY (…) or property 'primaryKey'; tables of Spark need USING"
        )
    if (columns is None) == (query is None):
        raise NotUnderstoodError("a new table needs either columns or a query")
    shard_key = _names(given[SHARD_KEY]) if SHARD_KEY in given else ()
    return Creation(columns, keys[0], shard_key, given.get(COMPRESSION, SPARK_COMPRESSION), query)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _columns(reader: StatementReader, keys: list[tuple[str, ...]]) -> str:
    """Read the definitions of columns; primary keys among them are added to `keys`."""
    columns: list[str] = []
    while True:
        if reader.takes("CONSTRAINT"):
            reader.identifier()
        if reader.takes("PRIMARY", "KEY"):
            keys.append(tuple(reader.names()))
            reader.takes("NOT", "ENFORCED")
        else:
            columns.append(_without_key(reader.until(",", ")"), keys))
        if not reader.takes(","):
            reader.expect(")")
            return ", ".join(columns)


def _without_key(column: str, keys: list[tuple[str, ...]]) -> str:
    """Return the definition of a column without PRIMARY KEY."""
    tokens = tokens_of(column)
    for first, second in pairwise(tokens):
        if (first.upper, second.upper) == ("PRIMARY", "KEY"):
            keys.append((tokens[0].word,))
            return column[: first.start] + column[second.end :]
    return column


def columns_of(text: str) -> list[pa.Field]:
    """Parse definitions of columns with Spark.

    Raises:
        NotUnderstoodError: Spark cannot parse them.
        SchemaMismatch: a table cannot have the type of a column.
    """
    try:
        columns = StructType.fromDDL(text)
        if not isinstance(columns, StructType):  # a type alone
            raise ParseException(message=text)
        return list(arrow_schema(columns))
    except ParseException as error:
        raise NotUnderstoodError(
            f"a column is a name, a type and perhaps NOT NULL and COMMENT, not {text.strip()!r}"
        ) from error


def properties_of(reader: StatementReader, *known: str) -> dict[str, str]:
    """Read the properties in parentheses, by their names as they are known."""
    properties = {}
    by_name = {name.lower(): name for name in known}
    reader.expect("(")
    while True:
        name = reader.string() if reader.sees_kind("text") else ".".join(reader.name())
        if name.lower() not in by_name:
            raise NotUnderstoodError(f"unknown property {name}; use {', '.join(known)}")
        reader.takes("=")
        properties[by_name[name.lower()]] = reader.string()
        if not reader.takes(","):
            reader.expect(")")
            return properties


def create(uri: str, table: str, statement: Statement, query: Callable[[str], DataFrame]) -> None:
    """Create the table, with the rows of the statement's query if it has one.

    Spark gets the store's URI as it was given: `env:NAME` keeps a password out of its plans.
    """
    store, made = open_store(uri), read_creation(statement.reader)
    is_there = table in {each.name for each in store.tables()}
    if statement.is_lenient and is_there:
        return
    if made.columns is not None:
        schema = pa.schema(columns_of(made.columns))
        key, shard_key = (spell(names, schema) for names in (made.primary_key, made.shard_key))
        store.create_table(table, schema, key, shard_key=shard_key or None, compression=made.compression)
        return
    assert made.query is not None, "a creation has columns or a query"
    if is_there:
        raise AlreadyExists(f"table {table!r} exists; choose another name", table=table)
    options = {PRIMARY_KEY: ",".join(made.primary_key), COMPRESSION: made.compression}
    options |= {SHARD_KEY: ",".join(made.shard_key)} if made.shard_key else {}
    writer = query(made.query).write.format("elasticscan").mode("append").options(**options)
    writer.options(url=uri, table=table).save()


def maintain(spark: SparkSession, store: Store, name: str, statement: Statement) -> DataFrame:
    """Carry out a statement and return its empty result.

    Raises:
        NotUnderstoodError: the statement has clauses that are not supported; nothing was done.
    """
    table, reader = store.table(name), statement.reader
    if statement.kind == "TRUNCATE TABLE":
        reader.expect_end()
        table.overwrite(table.schema.empty_table())
    else:
        _alter(table, reader)
    return nothing(spark)


def _alter(table: Table, reader: StatementReader) -> None:
    if reader.takes_one("ADD COLUMN", "ADD COLUMNS"):
        table.add_columns(columns_of(reader.list_text()))
    elif reader.takes_one("DROP COLUMN", "DROP COLUMNS"):
        names = reader.names() if reader.sees("(") else reader.listed_names()
        reader.expect_end()
        table.drop_columns(spell(names, table.schema))
    elif reader.takes("RENAME", "COLUMN"):
        (old,) = spell([reader.identifier()], table.schema)
        reader.expect("TO")
        new = reader.identifier()
        reader.expect_end()
        table.rename_column(old, new)
    elif reader.takes_one("ALTER COLUMN", "CHANGE COLUMN", "ALTER"):
        (name,) = spell([reader.identifier()], table.schema)
        reader.expect("TYPE")
        (field,) = columns_of(f"c {reader.until()}")
        table.widen_column(name, field.type)
    elif reader.takes("SET", "TBLPROPERTIES"):
        (form,) = properties_of(reader, COMPRESSION).values()
        reader.expect_end()
        table.set_compression(form)
    else:
        raise reader.wrong("ADD, DROP, RENAME or ALTER COLUMN or SET TBLPROPERTIES")


def nothing(spark: SparkSession) -> DataFrame:
    """Return an empty result."""
    return spark.createDataFrame([], StructType([]))
