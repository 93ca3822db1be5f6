"""Aggregates of `catalog.sql` beside Spark's Parquet and beside reading all rows, by turns.

python benchmarks/sql_aggregates.py [--rows 10000000] [--rounds 7]

Wall time, since a query is waited for; on a machine with other work the ratios of medians still hold roughly.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from spark_session import start_spark

from elasticscan.connector import attach
from elasticscan.store import Store

SCHEMA = pa.schema(
    {"id": pa.int64(), "k": pa.int64(), "g": pa.int64(), "h": pa.int64(), "v": pa.float64(), "s": pa.string()}
)
QUERIES = {
    "sum of one column": "SELECT sum(k) FROM t",
    "avg of one column": "SELECT avg(v), count(v) FROM t",
    "count(*)": "SELECT count(*) FROM t",
    "min and max": "SELECT min(k), max(v) FROM t",
    "sum where": "SELECT sum(k) FROM t WHERE g < 10",
    "group by 100 values": "SELECT g, sum(k), count(*) FROM t GROUP BY g",
    "group by 50 texts": "SELECT s, avg(v) FROM t GROUP BY s",
    "group by 1 million values": "SELECT count(*), sum(c) FROM (SELECT k, count(*) AS c FROM t GROUP BY k)",
    "join by 100 numbers": "SELECT d.name, sum(t.k), count(*) FROM t JOIN d ON t.g = d.id GROUP BY d.name",
    "join by 100,000 numbers": "SELECT d.name, sum(t.v) FROM t JOIN d ON t.h = d.id GROUP BY d.name",
    # Each row has a key of its own, so rows are joined as they are.
    "join by the key": "SELECT d.name, sum(t.k) FROM t JOIN d ON t.id = d.id GROUP BY d.name",
}
DIMENSION_ROWS = 100_000


def some_rows(start: int, count: int, draw: np.random.Generator) -> pa.Table:
    columns = [
        np.arange(start, start + count), draw.integers(0, 1_000_000, count),
        draw.integers(0, 100, count), draw.integers(0, DIMENSION_ROWS, count), draw.random(count),
        pa.array([f"city {at:03}" for at in range(50)]).take(pa.array(draw.integers(0, 50, count))),
    ]  # fmt: skip
    return pa.table(columns, schema=SCHEMA)


def seconds(query: Callable[[str], DataFrame], text: str) -> float:
    """From the text to the answer, which is what a user waits for."""
    start = time.perf_counter()
    query(text).collect()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plain", action="store_true", help="also through the plain views")
    parser.add_argument("--only", help="queries whose names have this text")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        draw = np.random.default_rng(1)
        with (
            Store.create(Path(work) / "store", ["s1", "s2"], upkeep="off") as store,
            pq.ParquetWriter(Path(work) / "t.parquet", SCHEMA, compression="snappy") as writer,
        ):
            table = store.create_table("t", SCHEMA, ["id"])
            for start in range(0, asked.rows, 1_000_000):
                rows = some_rows(start, min(1_000_000, asked.rows - start), draw)
                table.upsert(rows)
                writer.write_table(rows)
            table.compact()
            ids = np.arange(DIMENSION_ROWS)
            dimension = pa.table({"id": ids, "name": [f"name {at % 20}" for at in ids]})
            store.create_table("d", dimension, primary_key="id")
            pq.write_table(dimension, Path(work) / "d.parquet")
        spark = start_spark()
        catalog = attach(spark, f"{work}/store")
        other = spark.newSession()
        for name in ("t", "d"):
            other.read.parquet(f"{work}/{name}.parquet").createOrReplaceTempView(name)
        for name, text in QUERIES.items():
            if asked.only and asked.only not in name:
                continue
            times: dict[str, list[float]] = {"folded": [], "parquet": [], "plain": []}
            for turn in range(asked.rounds + 1):
                took = {"folded": seconds(catalog.sql, text), "parquet": seconds(other.sql, text)}
                if asked.plain:
                    took["plain"] = seconds(spark.sql, text)
                for way, one in took.items():
                    if turn:
                        times[way].append(one)
            folded, parquet = (statistics.median(times[way]) for way in ("folded", "parquet"))
            plain = f", plain view {statistics.median(times['plain']):.3f} s" if asked.plain else ""
            print(
                f"{name}: {folded:.3f} s, Parquet {parquet:.3f} s{plain}, ratio {parquet / folded:.2f}",
                flush=True,
            )
        spark.stop()


if __name__ == "__main__":
    main()
