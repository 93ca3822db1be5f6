"""Partitions: parts of a scan for one task each, of a table, the first snapshot of a stream, or changes.

A partition is a base-shard scan (its slots are where the newest topology of the history has them) or a
virtual scan (its slots have moved since then). It carries a continuation key, which only the store can seal.
A task resumes the scan from the key, as every client does. The key does not contain where the slots are.

A task may return partial rows instead of rows, and Spark adds them up (`PartialRows`). A page is folded after
its placement check, so every row is in exactly one partial row, wherever it was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import MAX_NUMBER
from elasticscan.connector.conversion import ToSpark
from elasticscan.connector.options import Options, PartialAggregates
from elasticscan.connector.splits import ScanPart
from elasticscan.connector.store_cache import open_backend, open_store
from elasticscan.filters import AVG, COUNT_DISTINCT, COUNT_ROWS, Aggregate, Fold, check_groupable
from elasticscan.metadata import SHARD_COLUMN, SLOT_COLUMN, no_such_column
from elasticscan.protocol import Backend, PartScan
from elasticscan.store import EmbeddedTable, FirstRows

PLACES = pa.schema(
    [pa.field(SHARD_COLUMN, pa.string(), nullable=False), pa.field(SLOT_COLUMN, pa.int32(), nullable=False)]
)


class ScanPartition(InputPartition):
    """A part of a scan, for one task.

    Attributes:
        key: continuation key of the part; a task needs nothing else.
        store_id: id of the store; a task refuses another store at the URI.
        kind: base-shard or virtual scan when it was planned, for people.
    """

    def __init__(self, key: str, store_id: str, kind: str) -> None:
        super().__init__(kind)
        self.key, self.store_id, self.kind = key, store_id, kind


def partitions_of(backend: Backend, scan: PartScan, parts: Sequence[ScanPart]) -> list[ScanPartition]:
    """Return the partitions of a scan, one for each part."""
    keys = scan.parts([part.slots for part in parts])
    return [ScanPartition(key, backend.identity, part.kind) for part, key in zip(parts, keys, strict=True)]


def read_partition(
    partition: Any, options: Options, columns: Sequence[str], schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in Spark's schema, each once, also after its slots have moved.

    Every call returns the same rows, so Spark may retry a task or run it twice. It may also stop reading at
    any point.

    Raises:
        ContinuationKeyError: the partition belongs to another read.
        TableChanged: another store is at the URI now.
    """
    backend = open_backend(options, partition.store_id)
    scan = backend.resume(partition.key, options.table, options.filter)
    stored, batches = scan.schema, rows_of_task(scan, options)
    if options.partial is not None:
        partial = PartialRows.of(options.table, stored, options.partial)
        stored, batches = partial.schema, partial.of_scan(scan, options.batch_rows)
    elif not set(PLACES.names).isdisjoint(columns):
        stored, batches = pa.schema([*stored, *PLACES]), _with_places(batches, options)
    yield from map(ToSpark(stored, columns, schema), batches)


def _with_places(batches: Iterator[pa.RecordBatch], options: Options) -> Iterator[pa.RecordBatch]:
    table = embedded_table(options)
    for rows in batches:
        shards, slots = table.places(rows)
        places = [shards, pa.array(slots.astype(np.int32))]
        yield pa.RecordBatch.from_arrays([*rows.columns, *places], schema=pa.schema([*rows.schema, *PLACES]))


def embedded_table(options: Options) -> EmbeddedTable:
    return open_store(options.store).backend.table(options.table)


def rows_of_task(scan: PartScan, options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a scan, at most `maxRowsPerTask`; with `taskOrder` the first in that order."""
    rows_left = MAX_NUMBER if options.task_rows is None else options.task_rows
    if options.task_order is not None:
        first = FirstRows(options.task_order, rows_left, scan.schema)
        for rows in scan.batches():
            first.add(rows)
        yield from first.rows().combine_chunks().to_batches(options.batch_rows)
        return
    batches = scan.batches()
    while rows_left and (rows := next(batches, None)) is not None:
        if rows.num_rows:
            yield rows.slice(0, rows_left)
        rows_left -= min(rows.num_rows, rows_left)


@dataclass(frozen=True, slots=True)
class PartialRows:
    """Aggregates that a task computes of its rows, one partial row for each group.

    Attributes:
        by: the columns that define a group.
        values: the aggregates. An average is represented by its sum, as a double.
    """

    by: tuple[str, ...]
    values: tuple[Aggregate, ...]
    schema: pa.Schema

    @classmethod
    def of(cls, table: str, stored: pa.Schema, asked: PartialAggregates) -> PartialRows:
        """Return the aggregates of the option `partialAggregates`; raises if they do not fit the columns."""
        for name in asked.by:
            if name not in stored.names:
                raise no_such_column(table, name, stored.names)
            check_groupable(name, stored.field(name).type, "partialAggregates")
        values = tuple(Aggregate.parse(text, stored) for text in asked.values)
        for value in values:
            if value.function == COUNT_DISTINCT or (value.function == AVG and pt.is_decimal(value.type)):
                raise InvalidOption(
                    f"partialAggregates: {value} cannot be added up from parts; take the sum and the count, "
                    "or group by the column",
                    option="partialAggregates",
                )
        fields = [stored.field(name) for name in asked.by]
        fields += [pa.field(f"partial {value}", value.type) for value in values]
        return cls(asked.by, values, pa.schema(fields))

    def columns(self, primary_key: Sequence[str]) -> list[str]:
        """Return the columns to scan; a column of the key if none is needed, so that rows can be counted."""
        used = [name for value in self.values for name in value.columns]
        return list(dict.fromkeys([*self.by, *used])) or list(primary_key[:1])

    @property
    def counts_rows(self) -> bool:
        """True if the partial row only counts all rows."""
        return not self.by and all(value.function == COUNT_ROWS for value in self.values)

    def of_count(self, count: int) -> pa.RecordBatch:
        """Return the partial row of `count` rows."""
        return pa.RecordBatch.from_arrays(
            [pa.array([count], pa.int64())] * len(self.values), schema=self.schema
        )

    def of_scan(self, scan: PartScan, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the partial rows of a scan, in batches of at most `most_rows`."""
        if self.counts_rows:
            yield self.of_count(scan.count())
            return
        fold = Fold(self.values, self.by, scan.schema)
        for rows in scan.batches():
            fold.add(rows)
            if fold.is_full:
                yield from self._batches(fold, most_rows)
        yield from self._batches(fold, most_rows)

    def _batches(self, fold: Fold, most_rows: int) -> Iterator[pa.RecordBatch]:
        yield from fold.partial_rows().rename_columns(self.schema.names).to_batches(most_rows)
