"""The ceiling of a Python source: it returns one prepared batch repeatedly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

BATCH = 65_536
PREPARED: pa.RecordBatch | None = None  # set before the session starts; pickled with the class


class CeilingSource(DataSource):
    """Options: rows, columns (comma list), partitions, and for streams batch, the rows of a micro-batch."""

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

    def streamReader(self, schema: StructType) -> CeilingStreamReader:
        del schema
        sizes = (int(self.options[name]) for name in ("rows", "batch", "partitions"))
        return CeilingStreamReader(self._batch(), *sizes)


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


class CeilingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader whose offsets are numbers of rows; it reads and stores nothing."""

    def __init__(self, batch: pa.RecordBatch, rows: int, size: int, partitions: int) -> None:
        self._batch, self._rows, self._size, self._partitions = batch, rows, size, partitions

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._size)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        del limit
        return {"at": min(start["at"] + self._size, self._rows)}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        rows = (end["at"] - start["at"]) // self._partitions
        return [InputPartition(rows) for _ in range(self._partitions)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        left = partition.value
        while left > 0:
            yield self._batch.slice(0, min(left, BATCH))
            left -= BATCH

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        pass
