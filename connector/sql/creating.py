"""CREATE TABLE ... [USING elasticscan]: a table of the store, empty or with the rows of a query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from elasticscan.base.errors import AlreadyExists, NotFound
from elasticscan.connector.conversion import arrow_schema
from elasticscan.connector.options import SPARK_COMPRESSION
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, tokens_of
from elasticscan.connector.store_cache import open_store
from elasticscan.store import Store

_KEYS = {"primarykey": "primaryKey", "shardkey": "shardKey"}
COMPRESSION = "compression"


@dataclass(frozen=True, slots=True)
class Creation:
    """A statement that makes a table.

    Attributes:
        name: the table's name as a view.
        if_missing: whether an existing table is left alone.
        columns: their definitions as Spark writes them; None for the columns of the query.
        primary_key, shard_key: names of columns; none for the usual shard key.
        compression: of its files, as in the option of writes.
        query: the source of its rows; None for an empty table.
    """

    name: str
    if_missing: bool
    columns: str | None
    primary_key: tuple[str, ...]
    shard_key: tuple[str, ...]
    compression: str
    query: str | None


def read_creation(reader: StatementReader) -> Creation:
    """Read `CREATE TABLE` from its first word on.

    Raises:
        NotUnderstoodError: the statement is incomplete, or has clauses that tables lack.
    """
    reader.expect("CREATE")
    if reader.takes("OR", "REPLACE"):
        raise NotUnderstoodError("OR REPLACE is not supported; drop the table first, or use INSERT OVERWRITE")
    reader.takes("EXTERNAL")
    reader.expect("TABLE")
    if_missing = reader.takes("IF", "NOT", "EXISTS")
    name = reader.name()
    if len(name) > 1:
        raise NotUnderstoodError(f"tables of a store have no schema; write CREATE TABLE {name[-1]}")
    columns, key = _columns(reader) if reader.takes("(") else (None, ())
    keys = {"primaryKey": key}
    form, query = SPARK_COMPRESSION, None
    while not reader.at_end and query is None:
        if reader.takes("USING"):
            reader.expect("ELASTICSCAN")
        elif reader.takes_one("TBLPROPERTIES", "OPTIONS"):
            for option, text in properties_of(reader).items():
                if option.lower() == COMPRESSION:
                    form = text
                    continue
                if option.lower() not in _KEYS:
                    raise NotUnderstoodError(
                        f"unknown property {option}; use primaryKey, shardKey or compression"
                    )
                which, names = _KEYS[option.lower()], tuple(part.strip() for part in text.split(","))
                if keys.get(which, names) not in ((), names):
                    raise NotUnderstoodError("it has two primary keys; give one")
                keys[which] = names
        elif reader.takes("AS") or reader.sees("SELECT") or reader.sees("WITH"):
            query = reader.until()
        else:
            raise reader.wrong("USING elasticscan, TBLPROPERTIES or AS")
    if not keys["primaryKey"]:
        raise NotUnderstoodError(
            "a table needs PRIMARY KEY (…) or the property 'primaryKey'; tables of Spark need USING"
        )
    if (columns is None) == (query is None):
        raise NotUnderstoodError("a new table needs either columns or a query")
    key, shard_key = keys["primaryKey"], keys.get("shardKey", ())
    return Creation(name[0], if_missing, columns, key, shard_key, form, query)


def _columns(reader: StatementReader) -> tuple[str, tuple[str, ...]]:
    """Read the definitions of columns, and the primary key among them."""
    columns: list[str] = []
    key: tuple[str, ...] = ()
    while True:
        if reader.takes("CONSTRAINT"):
            reader.identifier()
        if reader.takes("PRIMARY", "KEY"):
            key = tuple(reader.names())
            reader.takes("NOT", "ENFORCED")
        else:
            column, is_key = _without_key(reader.until(",", ")"))
            columns.append(column)
            if is_key and key:
                raise NotUnderstoodError(
                    "it has two primary keys; a key of two columns is PRIMARY KEY (…, …)"
                )
            key = (tokens_of(column)[0].word,) if is_key else key
        if not reader.takes(","):
            reader.expect(")")
            return ", ".join(columns), key


def _without_key(column: str) -> tuple[str, bool]:
    """Return the definition of a column without PRIMARY KEY, and whether it had these words."""
    tokens = tokens_of(column)
    for first, second in pairwise(tokens):
        if (first.upper, second.upper) == ("PRIMARY", "KEY"):
            return column[: first.start] + column[second.end :], True
    return column, False


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


def properties_of(reader: StatementReader) -> dict[str, str]:
    """Read the properties in parentheses, by their names as they were written."""
    properties = {}
    reader.expect("(")
    while True:
        name = reader.string() if reader.sees_string else ".".join(reader.name())
        reader.takes("=")
        properties[name] = reader.string()
        if not reader.takes(","):
            reader.expect(")")
            return properties


def create(uri: str, table: str, made: Creation, query: Callable[[str], DataFrame]) -> None:
    """Create the table, with the rows of its query if it has one.

    Spark gets the store's URI as it was given: `env:NAME` keeps a password out of its plans.
    """
    store = open_store(uri)
    if made.if_missing and _is_there(store, table):
        return
    if made.columns is not None:
        schema = pa.schema(columns_of(made.columns))
        by_name = {name.lower(): name for name in schema.names}
        key, shard_key = (
            [by_name.get(name.lower(), name) for name in names]
            for names in (made.primary_key, made.shard_key)
        )
        store.create_table(table, schema, key, shard_key=shard_key or None, compression=made.compression)
        return
    assert made.query is not None, "a creation has columns or a query"
    options = {"url": uri, "table": table, "primaryKey": ",".join(made.primary_key)}
    options[COMPRESSION] = made.compression
    if made.shard_key:
        options["shardKey"] = ",".join(made.shard_key)
    if _is_there(store, table):
        raise AlreadyExists(f"table {table!r} exists; choose another name", table=table)
    query(made.query).write.format("elasticscan").mode("append").options(**options).save()


def _is_there(store: Store, table: str) -> bool:
    try:
        store.table(table)
    except NotFound:
        return False
    return True
