"""A stream that cannot begin: its error, told where Spark shows it.

Spark 4.3 ends the process of a reader by a call of its `stop`; where making the reader failed there is none,
and that second mistake is the error that people would see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from elasticscan.base.errors import ElasticScanError


class RefusedStream(DataSourceStreamReader):
    """A reader that raises its error whatever it is asked for."""

    def __init__(self, error: ElasticScanError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self._error
