"""elasticscan's own source, proving every byte that it reads, or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import trust
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from elasticscan.connector import ElasticScanSource


class _Reader(DataSourceReader):
    def __init__(self, reader: DataSourceReader, checksums: bool) -> None:
        self._reader, self._checksums = reader, checksums

    def partitions(self) -> Any:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        trust.read_with(self._checksums)
        yield from self._reader.read(partition)  # type: ignore[misc]


class ProvenSource(ElasticScanSource):
    @classmethod
    def name(cls) -> str:
        return "proven"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(super().reader(schema), checksums=True)


class UnprovenSource(ElasticScanSource):
    @classmethod
    def name(cls) -> str:
        return "unproven"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(super().reader(schema), checksums=False)
