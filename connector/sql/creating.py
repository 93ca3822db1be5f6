"""CREATE TABLE ... [USING elasticscan]: a table of the store, empty or with the rows of a query."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from elasticscan.base.errors import AlreadyExists, TableNotFound
from elasticscan.connector.conversion import arrow_schema
from elasticscan.connector.open_stores import open_store
from elasticscan.connector.options import SPARK_COMPRESSION
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, tokens_of
from elasticscan.store import Store

_KEYS = {"primarykey": "primaryKey", "shardkey": "shardKey"}
COMPRESSION = "compression"
# What tables of other formats have, with what to write instead.
_SPREAD = (
    "rows are spread by a hash of the primary key, or of its beginning: leave PARTITIONED BY and the like "
    "out, or set the property 'shardKey'"
)
_LEFT_OUT = {
    ("PARTITIONED BY", "CLUSTERED BY", "CLUSTER BY"): _SPREAD,
    ("LOCATION",): "the table lies in its store: leave LOCATION out",
    ("COMMENT",): "a table has no COMMENT: leave it out",
    ("LIKE",): "write TBLPROPERTIES ('primaryKey' = '…') AS SELECT * FROM the other table WHERE false",
}
# What columns of others may have besides, with what to do without it.
_NO_PART_OF_COLUMNS = (
    (
        r"\bGENERATED\b|\bIDENTITY\b",
        "no column makes its own values: leave it out, and write them with each row",
    ),
    (r"\bDEFAULT\b", "columns have no DEFAULT: leave it out; UPDATE gives rows that are there a value"),
    (r"\bCHECK\b|\bREFERENCES\b|\bUNIQUE\b", "only the primary key is checked, and NOT NULL: leave it out"),
    (r"^IF NOT EXISTS\b", "leave IF NOT EXISTS out: DESCRIBE t lists the columns that there are"),
    (r"\b(?:AFTER|FIRST)\b", "a new column comes last: leave its place out"),
)


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
            reported = next(
                (reported for words, reported in _LEFT_OUT.items() if reader.takes_one(*words)), None
            )
            raise reader.wrong("TBLPROPERTIES or AS") if reported is None else NotUnderstoodError(reported)
    if not keys["primaryKey"]:
        raise NotUnderstoodError(
            "every table has a primary key: write PRIMARY KEY (…) behind the columns, or TBLPROPERTIES "
            "('primaryKey' = '…') before AS; a table of Spark's own needs USING parquet, or the like"
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
            column, is_key = _without_key(reader.until(",", ")"))
            columns.append(column)
            if is_key and key:
                raise NotUnderstoodError("it gives two primary keys; one of both is PRIMARY KEY (…, …)")
            key = (tokens_of(column)[0].word,) if is_key else key
        if not reader.takes(","):
            reader.expect(")")
            return ", ".join(columns), key


def _without_key(column: str) -> tuple[str, bool]:
    """The definition of a column without the words PRIMARY KEY; and whether they were there."""
    tokens = tokens_of(column)
    for first, second in pairwise(tokens):
        if (first.upper, second.upper) == ("PRIMARY", "KEY"):
            return column[: first.start] + column[second.end :], True
    return column, False


def columns_of(text: str) -> list[pa.Field]:
    """Columns as Spark reads their definitions.

    Raises:
        NotUnderstoodError: it cannot, as those that give values or places.
        UnsupportedType: a column of a type that no table has.
    """
    try:
        # No frame is made of them: of CHAR and VARCHAR Spark makes none, in words of its own insides.
        columns = StructType.fromDDL(text)
        if not isinstance(columns, StructType):  # a type alone
            raise ParseException(message=text)
        return list(arrow_schema(columns))
    except ParseException as error:
        wrong = next((part for part in _parts(text) if not _is_column(part)), text)
        words = " ".join(token.upper for token in tokens_of(wrong) if token.kind == "word")
        reported = next(
            (reported for pattern, reported in _NO_PART_OF_COLUMNS if re.search(pattern, words)), None
        )
        raise NotUnderstoodError(
            reported
            or f"a column is a name and a type, perhaps with NOT NULL and COMMENT, and not {wrong.strip()!r}"
        ) from error


def _parts(text: str) -> list[str]:
    """The definitions of columns, one by one."""
    begins, depth = [0], 0
    for token in tokens_of(text):
        depth += (token.word in ("(", "<")) - (token.word in (")", ">"))
        if token.word == "," and depth == 0:
            begins.append(token.end)
    return [text[begin:end].rstrip().rstrip(",") for begin, end in pairwise([*begins, len(text)])]


def _is_column(text: str) -> bool:
    try:
        return isinstance(StructType.fromDDL(text), StructType)
    except ParseException:
        return False


def properties_of(reader: StatementReader) -> dict[str, str]:
    """The properties in parentheses, by their names as they were written."""
    properties = {}
    reader.expect("(")
    while True:
        name = reader.string() if reader.sees_string else ".".join(reader.name())
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
        raise AlreadyExists(f"there is a table {table!r} already; nothing was done", table=table)
    query(made.query).write.format("elasticscan").mode("append").options(**options).save()


def _is_there(store: Store, table: str) -> bool:
    try:
        store.table(table)
    except TableNotFound:
        return False
    return True
