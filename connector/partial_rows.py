"""Partial rows in place of rows: each task folds its pages, and Spark adds up what the tasks give.

A page is folded when it leaves the scan, after the second placement check, so every row is in one partial
row, wherever it was read. Partial rows are a task's output like rows are: of a task that is retried or runs
twice, Spark takes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.types import StructType

from elasticscan.base.errors import InvalidOption
from elasticscan.connector.conversion import ToSpark
from elasticscan.connector.options import Options, PartialAggregates
from elasticscan.connector.partitions import resume
from elasticscan.filters import AVG, COUNT_DISTINCT, COUNT_ROWS, Aggregate, Fold, check_groupable
from elasticscan.metadata import no_such_column
from elasticscan.protocol import PartScan


@dataclass(frozen=True, slots=True)
class PartialRows:
    """The groups and values of partial rows.

    Attributes:
        by: columns whose values make a group.
        values: counts, sums, least and greatest values; of an average the sum, as a double.
        schema: of the partial rows.
    """

    by: tuple[str, ...]
    values: tuple[Aggregate, ...]
    schema: pa.Schema

    @classmethod
    def of(cls, table: str, stored: pa.Schema, asked: PartialAggregates) -> PartialRows:
        """Those of the option `partialAggregates`; raises where it does not fit the columns."""
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
        """Return the columns to scan; rows are counted by some column."""
        used = [name for value in self.values for name in value.columns]
        return list(dict.fromkeys([*self.by, *used])) or list(primary_key[:1])

    @property
    def counts_rows(self) -> bool:
        """True if all values are the number of rows, of one group."""
        return not self.by and all(value.function == COUNT_ROWS for value in self.values)

    def of_count(self, count: int) -> pa.RecordBatch:
        """Return the partial row of so many rows."""
        return pa.RecordBatch.from_arrays(
            [pa.array([count], pa.int64())] * len(self.values), schema=self.schema
        )


def read_partial_rows(
    partition: Any, options: Options, names: tuple[str, ...], schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Partial rows of a partition, as Spark's schema wants them."""
    assert options.partial is not None, "a reader of partial rows was asked for them"
    scan = resume(partition, options)
    partial = PartialRows.of(options.table, scan.schema, options.partial)
    convert = ToSpark(partial.schema, names, schema)
    for rows in _partial_rows(scan, partial):
        for batch in rows.rename_columns(partial.schema.names).to_batches(options.batch_rows):
            yield convert(batch)


def _partial_rows(scan: PartScan, partial: PartialRows) -> Iterator[pa.Table]:
    if partial.counts_rows:
        yield pa.Table.from_batches([partial.of_count(scan.count())])
        return
    fold = Fold(partial.values, partial.by, scan.schema)
    for rows in scan.batches():
        fold.add(rows)
        if fold.is_full:
            yield fold.partial_rows()
    yield fold.partial_rows()
