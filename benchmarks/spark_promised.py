"""elasticscan's source with timers around the functions that keep its promise: see `promise.py`."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import promise
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from elasticscan.connector import ElasticScanSource

# The directory to which Spark's processes write their times.
PLACE = "ELASTICSCAN_PROMISE_TIMES"
_plant_once = cache(promise.plant)


@contextmanager
def _noted() -> Iterator[None]:
    """Write a file with the processor time of the parts in this thread, and of the whole thread."""
    _plant_once()
    promise.SPENT.clear()
    began = time.thread_time()
    yield
    taken = {**promise.SPENT, "thread": time.thread_time() - began}
    Path(os.environ[PLACE], f"{uuid.uuid4().hex}.json").write_text(json.dumps(taken))


class _Reader(DataSourceReader):
    def __init__(self, reader: DataSourceReader) -> None:
        self._reader = reader

    def partitions(self) -> Any:
        with _noted():
            return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        with _noted():
            yield from self._reader.read(partition)  # type: ignore[misc]


class PromisedSource(ElasticScanSource):
    @classmethod
    def name(cls) -> str:
        return "promised"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(super().reader(schema))
