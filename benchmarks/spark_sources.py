"""What a Python source could reach at best: one prepared batch, again and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

BATCH = 65_536
PREPARED: pa.RecordBatch | None = None  # set before the session starts; travels with the class


class CeilingSource(DataSource):
    """Options: rows, columns (comma list), partitions."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def _batch(self) -> pa.RecordBatch:
        assert PREPARED is not None
        return PREPARED.select(self.options["columns"].split(","))

    def schema(self) -> StructType:
        return from_arrow_schema(self._batch().schema)

    def reader(self, schema: StructType) -> CeilingReader:
        del schema
        return CeilingReader(self._batch(), int(self.options["rows"]), int(self.options["partitions"]))


class CeilingReader(DataSourceReader):
    def __init__(self, batch: pa.RecordBatch, rows: int, partitions: int) -> None:
        self._batch, self._rows, self._partitions = batch, rows, partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        del partition
        left = self._rows // self._partitions
        while left > 0:
            yield self._batch.slice(0, min(left, BATCH))
            left -= BATCH
