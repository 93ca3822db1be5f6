"""CREATE TABLE ... USING elasticscan: a table of the store, empty or with the rows of a query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import AlreadyExists, TableNotFound
from elasticscan.connector.conversion import arrow_schema
from elasticscan.connector.open_stores import open_store
from elasticscan.connector.options import SPARK_COMPRESSION
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader
from elasticscan.store import Store

_KEYS = {"primarykey": "primaryKey", "shardkey": "shardKey"}
COMPRESSION = "compression"


@dataclass(frozen=True, slots=True)
class Creation:
    """A statement that makes a table.

    Attributes:
        name: the table's name as a view.
        if_missing: whether it may be there already.
        columns: their definitions as Spark writes them; None for those of the query.
        primary_key, shard_key: names of columns; none for the usual shard key.
        compression: of its files, as the option of writes has it.
        query: whose rows the table gets; None for an empty one.
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
        NotUnderstoodError: it is none, or asks for what tables do not have.
    """
    reader.expect("CREATE")
    if reader.takes("OR", "REPLACE"):
        raise NotUnderstoodError(
            "a table is not replaced: drop it first, or give it other rows by INSERT OVERWRITE"
        )
    reader.takes("EXTERNAL")
    reader.expect("TABLE")
    if_missing = reader.takes("IF", "NOT", "EXISTS")
    name = reader.name()
    if len(name) > 1:
        raise NotUnderstoodError(f"{'.'.join(name)} is in a schema, and tables of a store are in none")
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
                        f"there is no property {option}; there are primaryKey, shardKey and compression"
                    )
                which, names = _KEYS[option.lower()], tuple(part.strip() for part in text.split(","))
                if keys.get(which, names) not in ((), names):
                    raise NotUnderstoodError("it gives two primary keys")
                keys[which] = names
        elif reader.takes("AS") or reader.sees("SELECT") or reader.sees("WITH"):
            query = reader.until()
        else:
            raise reader.wrong("TBLPROPERTIES or AS")
    if not keys["primaryKey"]:
        raise NotUnderstoodError(
            "every table has a primary key: write PRIMARY KEY (…) behind the columns, or TBLPROPERTIES "
            "('primaryKey' = '…')"
        )
    if (columns is None) == (query is None):
        raise NotUnderstoodError("give it either columns or a query")
    key, shard_key = keys["primaryKey"], keys.get("shardKey", ())
    return Creation(name[0], if_missing, columns, key, shard_key, form, query)


def _columns(reader: StatementReader) -> tuple[str, tuple[str, ...]]:
    """The definitions of columns, and the primary key among them."""
    columns: list[str] = []
    key: tuple[str, ...] = ()
    while True:
        if reader.takes("CONSTRAINT"):
            reader.identifier()
        if reader.takes("PRIMARY", "KEY"):
            key = tuple(reader.names())
            reader.takes("NOT", "ENFORCED")
        else:
            columns.append(reader.until(",", ")"))
        if not reader.takes(","):
            reader.expect(")")
            return ", ".join(columns), key


def properties_of(reader: StatementReader) -> dict[str, str]:
    """The properties in parentheses, by their names as they were written."""
    properties = {}
    reader.expect("(")
    while True:
        name = reader.string()
        reader.takes("=")
        properties[name] = reader.string()
        if not reader.takes(","):
            reader.expect(")")
            return properties


def create(
    spark: SparkSession, uri: str, table: str, made: Creation, query: Callable[[str], DataFrame]
) -> None:
    """Make the table, with the rows of its query if it has one.

    Spark gets the store's URI as it was given: `env:NAME` keeps a password out of its plans.
    """
    store = open_store(uri)
    if made.if_missing and _is_there(store, table):
        return
    if made.columns is not None:
        schema = arrow_schema(spark.createDataFrame([], made.columns).schema)
        by_name = {name.lower(): name for name in schema.names}
        key, shard_key = (
            [by_name.get(name.lower(), name) for name in names]
            for names in (made.primary_key, made.shard_key)
        )
        store.create_table(table, schema, key, shard_key=shard_key or None, compression=made.compression)
        return
    assert made.query is not None, "a creation has columns or a query"
    options = {"store": uri, "table": table, "primaryKey": ",".join(made.primary_key)}
    options[COMPRESSION] = made.compression
    if made.shard_key:
        options["shardKey"] = ",".join(made.shard_key)
    if _is_there(store, table):
        raise AlreadyExists(f"there is a table {table!r} already; nothing was done", table=table)
    query(made.query).write.format("elasticscan").mode("append").options(**options).save()


def _is_there(store: Store, table: str) -> bool:
    try:
        store.table(table)
    except TableNotFound:
        return False
    return True
