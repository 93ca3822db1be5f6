"""Spark as an engine of `peers.py`: its own Parquet files, and elasticscan through `attach`.

What a query gives comes to the driver as Arrow; a full scan and one column go nowhere (`noop`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from peer_engines import FEW, SCHEMA, ElasticScan, bytes_of
from pyspark.sql import DataFrame, SparkSession

from elasticscan.connector import attach, register


def session() -> SparkSession:
    building = SparkSession.builder.master("local[2]").appName("peers")
    building = building.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    building = building.config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", "4g")
    spark: SparkSession = building.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


class _Spark:
    """The queries; `asked` runs one over `t`."""

    spark: SparkSession

    def asked(self, query: str) -> DataFrame:
        raise NotImplementedError

    def nowhere(self, query: str) -> None:
        self.asked(query).write.format("noop").mode("overwrite").save()

    def scan_nowhere(self) -> None:
        self.nowhere("SELECT * FROM t")

    def column_nowhere(self) -> None:
        self.nowhere("SELECT v FROM t")

    def few(self) -> pa.Table:
        return self.asked(f"SELECT * FROM t WHERE k < {FEW}").toArrow()

    def tenth(self) -> pa.Table:
        return self.asked("SELECT * FROM t WHERE v < 0.1").toArrow()

    def groups(self) -> pa.Table:
        return self.asked("SELECT g, count(*) AS n, sum(v) AS v FROM t GROUP BY g").toArrow()

    def top(self) -> pa.Table:
        return self.asked("SELECT * FROM t ORDER BY k LIMIT 10").toArrow()

    def get(self, key: int) -> pa.Table:
        return self.asked(f"SELECT * FROM t WHERE id = {key}").toArrow()


class SparkElasticScan(_Spark):
    name = "Spark: elasticscan"

    def __init__(self, place: Path) -> None:
        self.spark, self.python = session(), ElasticScan(place)

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.python.load(batches)

    @cached_property
    def catalog(self) -> Any:
        return attach(self.spark, str(self.python.place))

    def asked(self, query: str) -> DataFrame:
        return self.catalog.sql(query)

    def size(self) -> int:
        return self.python.size()

    def close(self) -> None:
        self.python.close()


class SparkParquet(_Spark):
    """Files as PySpark's users have them: written by Arrow, a million rows each."""

    name = "Spark: Parquet"

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.spark, self.place = session(), place

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        for number, batch in enumerate(batches):
            pq.write_table(pa.Table.from_batches([batch], SCHEMA), self.place / f"{number:04}.parquet")

    def asked(self, query: str) -> DataFrame:
        self.spark.read.parquet(str(self.place)).createOrReplaceTempView("p")
        return self.spark.sql(query.replace("FROM t", "FROM p"))

    def size(self) -> int:
        return bytes_of(self.place)

    def close(self) -> None:
        pass
