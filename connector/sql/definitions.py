"""CREATE TABLE ... [USING elasticscan], empty or with the rows of a query; ALTER and TRUNCATE of a table."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from elasticscan.base.errors import AlreadyExists
from elasticscan.connector.conversion import arrow_schema, spell
from elasticscan.connector.options import URL, parse_options
from elasticscan.connector.sql.statements import Statement
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, keyword, tokens_of
from elasticscan.connector.store_cache import open_store
from elasticscan.store import Table

PRIMARY_KEY, SHARD_KEY, COMPRESSION = "primaryKey", "shardKey", "compression"


def read_creation(reader: StatementReader) -> tuple[str | None, str | None, dict[str, str]]:
    """Read `CREATE TABLE` after the table's name.

    Returns:
        the text of its column definitions, or else the query of its rows; and its properties, as options of a
        write that creates a table.
    """
    keys = list[str]()
    columns = _columns(reader, keys) if reader.accept("(") else None
    options: dict[str, str] = {}
    query = None
    while not reader.at_end and query is None:
        if reader.accept("USING"):
            reader.expect("ELASTICSCAN")
        elif reader.choice("TBLPROPERTIES", "OPTIONS"):
            options |= properties_of(reader, PRIMARY_KEY, SHARD_KEY, COMPRESSION)
        elif reader.accept("AS") or reader.peek("SELECT") or reader.peek("WITH"):
            query = reader.until()
        else:
            raise reader.wrong("USING elasticscan, TBLPROPERTIES or AS")
    keys += [options[PRIMARY_KEY]] if PRIMARY_KEY in options else []
    if len(keys) != 1:
        raise NotUnderstoodError(
            "a table needs one PRIMARY KEY (…) or property 'primaryKey'; tables of Spark need USING"
        )
    if (columns is None) == (query is None):
        raise NotUnderstoodError("a new table needs either columns or a query")
    return columns, query, options | {PRIMARY_KEY: keys[0]}


def _columns(reader: StatementReader, keys: list[str]) -> str:
    """Read the column definitions; append each PRIMARY KEY to `keys`."""
    columns: list[str] = []
    for _ in reader.items(end=")"):
        if reader.accept("CONSTRAINT"):
            reader.identifier()
        if reader.accept("PRIMARY KEY"):
            keys.append(",".join(reader.names_in_parentheses()))
            reader.accept("NOT", "ENFORCED")
        else:
            columns.append(_without_key(reader.until(",", ")"), keys))
    return ", ".join(columns)


def _without_key(column: str, keys: list[str]) -> str:
    """Return a column definition without PRIMARY KEY; with it, append the column to `keys`."""
    tokens = tokens_of(column)
    for token in tokens:
        if keyword(token) == "PRIMARY KEY":
            keys.append(tokens[0].text)
            return column[: token.start] + column[token.end + 1 :]
    return column


def columns_of(text: str) -> list[pa.Field]:
    """Parse column definitions with Spark's parser. Raises `SchemaMismatch` if no table can store a type."""
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
    """Read properties in parentheses; return them by the spelling of `known`."""
    properties = {}
    by_name = {name.lower(): name for name in known}
    reader.expect("(")
    for _ in reader.items(end=")"):
        name = reader.string() if reader.peek("") else ".".join(reader.name_list("."))
        if name.lower() not in by_name:
            raise NotUnderstoodError(f"unknown property {name}; use {', '.join(known)}")
        reader.accept("=")
        properties[by_name[name.lower()]] = reader.string()
    return properties


def create(uri: str, table: str, statement: Statement, query: Callable[[str], DataFrame]) -> None:
    """Create a table, with the rows of the statement's query if it has one.

    Spark gets the store's URI as the user wrote it: `env:NAME` keeps a password out of Spark's plans.
    """
    store, (columns, rows, given) = open_store(uri), read_creation(statement.reader)
    options = parse_options({URL: uri, "table": table, **given})
    exists = table in {each.name for each in store.tables()}
    if statement.is_lenient and exists:
        return
    if rows is not None:
        if exists:  # the write would upsert its rows
            raise AlreadyExists(f"table {table!r} exists; choose another name", table=table)
        writer = query(rows).write.format("elasticscan").mode("append")
        writer.options(url=uri, table=table, **given).save()
    elif columns is not None:
        schema = pa.schema(columns_of(columns))
        key, shard_key = (spell(names or (), schema) for names in (options.primary_key, options.shard_key))
        store.create_table(table, schema, key, shard_key=shard_key or None, compression=options.compression)


def maintain(spark: SparkSession, table: Table, statement: Statement) -> DataFrame:
    """Execute a DROP, TRUNCATE or ALTER TABLE and return its empty result. An error leaves all unchanged."""
    reader = statement.reader
    if statement.kind == "TRUNCATE TABLE":
        reader.expect_end()
        table.overwrite(table.schema.empty_table())
    elif statement.kind == "DROP TABLE":
        reader.accept("PURGE")
        reader.expect_end()
        table.drop()
    else:
        _alter(table, reader)
    return nothing(spark)


def _alter(table: Table, reader: StatementReader) -> None:
    if reader.choice("ADD COLUMN", "ADD COLUMNS"):
        columns = reader.until()
        table.add_columns(columns_of(columns[1:-1] if columns.startswith("(") else columns))
    elif reader.choice("DROP COLUMN", "DROP COLUMNS"):
        names = reader.names_in_parentheses() if reader.peek("(") else reader.name_list()
        reader.expect_end()
        table.drop_columns(spell(names, table.schema))
    elif reader.accept("RENAME", "COLUMN"):
        (old,) = spell([reader.identifier()], table.schema)
        reader.expect("TO")
        new = reader.identifier()
        reader.expect_end()
        table.rename_column(old, new)
    elif reader.choice("ALTER COLUMN", "CHANGE COLUMN", "ALTER"):
        (name,) = spell([reader.identifier()], table.schema)
        reader.expect("TYPE")
        (field,) = columns_of(f"c {reader.until()}")
        table.widen_column(name, field.type)
    elif reader.accept("SET", "TBLPROPERTIES"):
        (form,) = properties_of(reader, COMPRESSION).values()
        reader.expect_end()
        table.set_compression(form)
    else:
        raise reader.wrong("ADD, DROP, RENAME or ALTER COLUMN or SET TBLPROPERTIES")


def nothing(spark: SparkSession) -> DataFrame:
    """Return an empty result."""
    return spark.createDataFrame([], StructType([]))
