"""Batch reads of every back end: a scan that is planned once, cut into partitions and read by tasks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from elasticscan.base.limits import DEFAULT_PAGE_BYTES
from elasticscan.connector.conversion import ToSpark, arrow_schema, match_columns, spark_schema, spell
from elasticscan.connector.options import Options
from elasticscan.connector.partitions import (
    PLACES,
    PartialRows,
    embedded_table,
    partitions_of,
    read_partition,
)
from elasticscan.connector.splits import NOTHING, cut, most_index_parts
from elasticscan.connector.store_cache import open_backend
from elasticscan.connector.streams.changes import plan_batch_read
from elasticscan.protocol import Backend, NamedColumns, ReadableTable, ReadRequest
from elasticscan.store import EmbeddedTable, columns_of, feed_fields

EXPLANATION = pa.schema([
    ("access", pa.string()), ("kind", pa.string()), ("condition", pa.string()), ("remainder", pa.string()),
    ("rows_scanned", pa.int64()), ("cost", pa.float64()), ("chosen", pa.bool_()), ("reason", pa.string()),
])  # fmt: skip


def offered_schema(table: NamedColumns, options: Options) -> StructType:
    """Return the schema of a read with these options if the user gives none."""
    chosen = chosen_columns(table, options)
    if options.explain:
        return spark_schema(EXPLANATION)
    if options.partial is not None:
        return spark_schema(PartialRows.of(table.name, table.schema, options.partial).schema)
    feed = feed_fields() if options.feed else []
    metadata = PLACES if options.metadata else []
    return spark_schema(pa.schema([*(table.schema.field(name) for name in chosen), *feed, *metadata]))


def chosen_columns(table: NamedColumns, options: Options) -> list[str]:
    """Return the columns of the option `columns`, as the table spells them; all without the option."""
    names = None if options.columns is None else spell(options.columns, table.schema)
    return list(columns_of(table, names))


class ElasticScanReader(DataSourceReader):
    """Reader of a table's rows or changes: plans in the driver, reads partitions in tasks.

    Has no `pushFilters`: with it, every action fails unless a setting of Spark is on.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check Spark's schema: all offered columns, or the user's choice of them."""
        self._options = options
        self._schema = schema
        # A wrong schema fails here in the driver, not later in every task.
        table = self._table(open_backend(options))
        self._columns = match_columns(schema, offered_schema(table, options))
        self._scanned = self._columns
        if isinstance(table, EmbeddedTable):
            self._definition = table.info.definition  # a read of changes has the columns of this version
        if options.partial is not None:
            partial = PartialRows.of(table.name, table.schema, options.partial)
            self._scanned = tuple(partial.columns(table.primary_key))
        elif options.explain:
            self._scanned = tuple(chosen_columns(table, options))

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the snapshot, and cut the scan by the present placement of slots."""
        options = self._options
        if options.feed:
            return list(plan_batch_read(options, self._columns, self._definition))
        backend = open_backend(options)
        table = self._table(backend)
        columns = [name for name in self._scanned if name not in PLACES.names]
        if len(columns) < len(self._scanned):
            columns += [name for name in embedded_table(options).shard_key if name not in columns]
        page_rows, most = options.batch_rows, options.task_rows
        # A page is no longer than a task's result, unless rows of it may be dropped.
        if most is not None and not (options.filter or options.task_order):
            page_rows = max(min(page_rows, most), 1)
        read = request_of(options, columns, page_rows)
        if options.explain:
            paths = embedded_table(options).access_paths(read)
            for path in paths:
                is_usable = math.isfinite(path["cost"])
                path["cost"] = path["cost"] if is_usable else None
                path["rows_scanned"] = round(path["rows_scanned"]) if is_usable else None
            return [InputPartition(paths)]
        start, most, cores = table.begin(read), options.partitions, os.cpu_count() or 1
        if start.entries is not None:
            most, cores = most_index_parts(len(start.placement.shards), start.entries, most), 1
        parts = cut(
            start.placement, start.base, start.weights, options.split_bytes, most, start.scan.slots, cores
        )
        # Without any partition Spark would make one that this reader does not know.
        return list(partitions_of(backend, start.scan, parts or [NOTHING]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, the same at every call."""
        if self._options.explain:
            rows = pa.RecordBatch.from_pylist(partition.value, schema=EXPLANATION)
            yield ToSpark(EXPLANATION, self._columns, self._schema)(rows)
        else:
            yield from read_partition(partition, self._options, self._columns, self._schema)

    def _table(self, backend: Backend) -> ReadableTable:
        options = self._options
        # A cluster does not know its columns, so the schema names them. With `columns` or aggregates it does
        # not, since the filter or the aggregates may need others: then types are found in rows.
        is_given = not (options.is_embedded or options.columns or options.partial)
        return backend.table(options.table, arrow_schema(self._schema) if is_given else None)


def request_of(
    options: Options, columns: Sequence[str], page_rows: int, page_bytes: int = DEFAULT_PAGE_BYTES
) -> ReadRequest:
    """Return the read of these columns with the filter, index and snapshot of the options."""
    snapshot = (
        options.version if options.timestamp is None else datetime.fromtimestamp(options.timestamp, UTC)
    )
    return ReadRequest(columns, options.filter, page_rows, page_bytes, options.index, snapshot)


def check_snapshot(options: Options) -> None:
    """Raise the error of a scan if the snapshot of the options does not exist or is no longer kept."""
    table = embedded_table(options)
    table.scan(request_of(options, table.primary_key, 1)).close()
