"""Statements that describe a table: its keys, indexes and size, which Spark does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.redaction import shown
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.sql.tokens import StatementReader, quoted
from elasticscan.store import Store, Table

DETAIL = (
    "format STRING, name STRING, location STRING, snapshot BIGINT, lastModified TIMESTAMP, rows BIGINT, "
    "rowsExact BOOLEAN, bytes BIGINT, fragments BIGINT, primaryKey ARRAY<STRING>, shardKey ARRAY<STRING>, "
    "indexes ARRAY<STRING>, tags ARRAY<STRING>, compression STRING, retentionSeconds DOUBLE"
)


def _facts(store: Store, table: Table) -> dict[str, Any]:
    """Return facts about a table, by the columns of `DETAIL`."""
    status = store.backend.status(table.name)
    newest = next(iter(table.history(1)), None)
    return {
        "format": "elasticscan",
        "name": table.name,
        "location": f"{shown(store.uri)}/{table.name}",
        "snapshot": newest and newest.number,
        "lastModified": newest and datetime.fromtimestamp(newest.created_at, UTC),
        "rows": status["rows"],
        "rowsExact": status["rows_exact"],
        "bytes": status["bytes"],
        "fragments": status["fragments"],
        "primaryKey": list(table.primary_key),
        "shardKey": list(table.shard_key),
        "indexes": [_index(index) for index in status["indexes"]],
        "tags": [tag["name"] for tag in status["tags"]],
        "compression": status["compression"] or "none",
        "retentionSeconds": float(status["retention_seconds"]),
    }


def _index(index: Mapping[str, Any]) -> str:
    include = f" INCLUDE ({', '.join(index['include'])})" if index["include"] else ""
    unready = "" if index["ready"] else ", not ready"
    return f"{index['name']}: {index['kind']} ({', '.join(index['columns'])}){include}{unready}"


def _detail(spark: SparkSession, store: Store, table: Table, reader: StatementReader) -> DataFrame:
    reader.expect_end()
    return spark.createDataFrame([tuple(_facts(store, table).values())], DETAIL)


def _creation(spark: SparkSession, store: Store, table: Table, reader: StatementReader) -> DataFrame:
    """Return the statement that makes an equal table; indexes, which only Python makes, are comments."""
    reader.expect_end()
    info = table.definition
    columns = [
        f"  {quoted(field.name)} {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
        for field in spark_schema(info.schema)
    ]
    columns.append(f"  PRIMARY KEY ({', '.join(map(quoted, info.primary_key))})")
    properties = {"compression": info.compression or "none"}
    if info.shard_key != info.primary_key:
        properties["shardKey"] = ",".join(info.shard_key)
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    lines = [f"CREATE TABLE {quoted(info.name)} (", ",\n".join(columns) + ")"]
    lines += ["USING elasticscan", f"TBLPROPERTIES ({listed})"]
    for index in table.indexes():
        rest = f", include={list(index.include)!r}" if index.include else ""
        lines.append(
            f"-- store.table({info.name!r}).create_index({index.name!r}, {list(index.columns)!r}, "
            f"{index.kind!r}{rest})"
        )
    return spark.createDataFrame([("\n".join(lines),)], "createtab_stmt STRING")


DESCRIPTIONS: Mapping[str, Callable[[SparkSession, Store, Table, StatementReader], DataFrame]] = {
    "DESCRIBE DETAIL": _detail,
    "SHOW CREATE TABLE": _creation,
}
