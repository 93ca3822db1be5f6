"""Spark as an engine of `peers.py`: its own Parquet files, and elasticscan through `attach`.

Results of queries come to the driver as Arrow; a full scan, one column and a stream are discarded (`noop`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from peer_engines import SCHEMA, AskedInSql, ElasticScan, bytes_of
from pyspark.sql import DataFrame, SparkSession
from spark_session import start_spark

from elasticscan.base.concurrency import cached_property
from elasticscan.connector import attach


class _Spark(AskedInSql):
    """Queries of a DataFrame `frame`, which is also the view `t`."""

    spark: SparkSession

    def frame(self, query: str) -> DataFrame:
        raise NotImplementedError

    def stream(self) -> DataFrame:
        raise NotImplementedError

    def asked(self, query: str) -> pa.Table:
        return self.frame(query).toArrow()

    def nowhere(self, query: str) -> None:
        self.frame(query).write.format("noop").mode("overwrite").save()

    def scan_nowhere(self) -> None:
        self.nowhere("SELECT * FROM t")

    def column_nowhere(self) -> None:
        self.nowhere("SELECT v FROM t")

    def streamed_nowhere(self) -> None:
        with TemporaryDirectory() as checkpoint:
            writer = self.stream().writeStream.format("noop").option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start().awaitTermination()


class SparkElasticScan(_Spark):
    name = "Spark: elasticscan"

    def __init__(self, place: Path) -> None:
        self.spark, self.python = start_spark(), ElasticScan(place)

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.python.load(batches)

    @cached_property
    def catalog(self) -> Any:
        return attach(self.spark, str(self.python.place))

    def frame(self, query: str) -> DataFrame:
        return self.catalog.sql(query)

    def stream(self) -> DataFrame:
        return self.spark.readStream.format("elasticscan").load(f"{self.python.place}/t")

    def size(self) -> int:
        return self.python.size()

    def close(self) -> None:
        self.python.close()


class SparkParquet(_Spark):
    """Typical files of PySpark's users: written by Arrow, a million rows each."""

    name = "Spark: Parquet"

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.spark, self.place = start_spark(), place

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        for number, batch in enumerate(batches):
            pq.write_table(pa.Table.from_batches([batch], SCHEMA), self.place / f"{number:04}.parquet")

    def frame(self, query: str) -> DataFrame:
        self.spark.read.parquet(str(self.place)).createOrReplaceTempView("p")
        return self.spark.sql(query.replace("FROM t", "FROM p"))

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(self.frame("SELECT * FROM t").schema).parquet(str(self.place))

    def size(self) -> int:
        return bytes_of(self.place)

    def close(self) -> None:
        pass
