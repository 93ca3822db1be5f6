"""Columns that are dropped, renamed and widened while Spark reads and writes, as it calls the source."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import NotFound, SchemaMismatch, TableChanged
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.streams.reader import ElasticScanStreamReader
from tests.connector.conftest import SCHEMA
from tests.connector.stream_query import History, Query, rows

pytestmark = pytest.mark.usefixtures("unflushed")


class Running(Query):
    """A query whose tasks have copies of the reader, as Spark makes them at its start."""

    def made(self) -> ElasticScanStreamReader:
        return self.reader or super().made()


def query(history: History, **options: str) -> Query:
    return Running(history.store.uri, options)


def newest(history: History) -> int:
    return history.store.context.catalog.newest().state.versions[1]


def _row_of(schema: pa.Schema, **values: Any) -> pa.Table:
    return pa.Table.from_pylist([{name: values.get(name) for name in schema.names}], schema)


def test_a_stream_goes_on_with_its_columns_when_they_are_dropped_and_renamed(history: History) -> None:
    """What later commits changed is null in a column that was dropped before them."""
    stream, table = query(history), history.store.table("t")
    stream.run_to_the_end()
    history.write(rows(1_000, 1_003))
    table.drop_columns(["v"])
    table.rename_column("name", "called")
    table.upsert(_row_of(table.schema, id=2_000, called="x"))
    table.add_columns([pa.field("v", pa.string())])
    table.upsert(_row_of(table.schema, id=2_001, called="y", v="other"))
    history.store.compact()
    stream.run_to_the_end()
    assert sorted(row for batch in stream.batches[1:] for row in batch) == [
        *((i, f"n{i % 7}", 0.5) for i in range(1_000, 1_003)),
        (2_000, "x", None),
        (2_001, "y", None),
    ]
    again = query(history, startingVersion=str(newest(history)))
    again.run_to_the_end()
    assert again.rows == [(2_001, "y", "other")]
    with pytest.raises(NotFound, match="'name'"):
        query(history, columns="id,name").run_to_the_end()


def test_a_stream_ends_at_a_value_that_its_type_does_not_hold(history: History) -> None:
    table = history.store.table("t")
    table.add_columns([pa.field("n", pa.int32())])
    stream = query(history, columns="id,n", startingVersion="latest")
    stream.run_to_the_end()
    table.widen_column("n", pa.int64())
    table.upsert(_row_of(table.schema, id=1, n=7))
    stream.run_to_the_end()
    assert stream.rows == [(1, 7)]
    table.upsert(_row_of(table.schema, id=1, n=1 << 40))
    with pytest.raises(TableChanged, match="begin again"):
        stream.run_to_the_end()
    again = query(history, columns="id,n", startingVersion=str(newest(history)))
    again.run_to_the_end()
    assert again.rows == [(1, 1 << 40)]


@pytest.mark.parametrize("feed", ["false", "true"])
def test_a_read_that_was_planned_goes_on_with_its_columns(history: History, feed: str) -> None:
    table, options = history.store.table("t"), {"readChangeFeed": feed}
    if feed == "true":
        options |= {"startingVersion": "2"}
    source = ElasticScanSource({"store": history.store.uri, "table": "t", **options})
    reader = source.reader(source.schema())
    planned = list(reader.partitions())
    table.drop_columns(["v"])
    table.rename_column("name", "called")
    table.upsert(_row_of(table.schema, id=5, called="x"))
    history.store.compact()
    message = [
        row[:3]
        for part in planned
        for b in reader.read(part)
        for row in zip(*b.to_pydict().values(), strict=True)
    ]
    assert sorted(message) == sorted(rows(0, 1_000).values())
    with pytest.raises(SchemaMismatch, match="names a column 'name'"):
        source.reader(spark_schema(SCHEMA))
