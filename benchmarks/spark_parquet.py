"""Reads in Spark of a table and of the same rows in Parquet, by turns in one run.

    python benchmarks/spark_parquet.py [--rows 10000000] [--rounds 7] [--random]

Prints for each query the medians and how many times as fast as Parquet it is. For a full scan and a scan of
one column, which leave the source as rows, it also prints the ceiling of a Python source: one that only hands
over a prepared batch again and again. `--random` uses rows of random bits, which Parquet cannot compress.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import spark_sources
from data import SCHEMA, batches, make_store, random_batches
from pyspark import cloudpickle
from spark_session import start_spark

from elasticscan.connector import attach

KEY = 4711
SCANS = {
    "full scan": ("SELECT * FROM t", SCHEMA.names),
    "one column": ("SELECT v FROM t", ["v"]),
}
ANSWERS = {
    "sum": "SELECT sum(k) FROM t",
    "group by 1,000 texts": "SELECT s, sum(k), count(*) FROM t GROUP BY s",
    "top 10": "SELECT * FROM t ORDER BY v DESC, id LIMIT 10",
    "limit 10": "SELECT * FROM t LIMIT 10",
    "a row by its key": f"SELECT * FROM t WHERE id = {KEY}",
}
Works = dict[str, Callable[[], object]]


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def works(spark: Any, ours: Any, parquet: Any, rows: int) -> dict[str, Works]:
    """Return the works to compare by query: `table`, `parquet` and for scans `ceiling`."""
    found: dict[str, Works] = {}
    for name, (text, columns) in SCANS.items():
        options = {"rows": rows, "columns": ",".join(columns), "partitions": 2}
        found[name] = {
            "table": lambda text=text: noop(ours.sql(text)),
            "parquet": lambda text=text: noop(parquet.sql(text)),
            "ceiling": lambda options=options: noop(spark.read.format("ceiling").options(**options).load()),
        }
    for name, text in ANSWERS.items():
        found[name] = {
            "table": lambda text=text: ours.sql(text).collect(),
            "parquet": lambda text=text: parquet.sql(text).collect(),
        }
    return found


def measure(compared: Works, rounds: int, warmups: int = 2) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in compared}
    for number in range(warmups + rounds):
        for name, work in compared.items():
            began = time.perf_counter()
            work()
            if number >= warmups:
                times[name].append(time.perf_counter() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--random", action="store_true", help="rows of random bits")
    given = parser.parse_args()
    generate = random_batches if given.random else batches
    with tempfile.TemporaryDirectory() as work:
        place, file = Path(work) / "store", Path(work) / "t.parquet"
        with pq.ParquetWriter(file, SCHEMA, compression="snappy") as writer:
            for batch in generate(given.rows):
                writer.write_batch(batch)
        make_store(place, pa.RecordBatchReader.from_batches(SCHEMA, generate(given.rows))).close()
        spark_sources.PREPARED = next(generate(spark_sources.BATCH))
        cloudpickle.register_pickle_by_value(spark_sources)
        spark = start_spark()
        spark.dataSource.register(spark_sources.CeilingSource)
        parquet = spark.newSession()
        parquet.read.parquet(str(file)).createOrReplaceTempView("t")
        for name, compared in works(spark, attach(spark, str(place)), parquet, given.rows).items():
            times = measure(compared, given.rounds)
            medians = {which: statistics.median(taken) for which, taken in times.items()}
            shown = ", ".join(f"{which} {median * 1e3:,.0f} ms" for which, median in medians.items())
            ratio = f"{medians['parquet'] / medians['table']:.2f} × Parquet"
            if "ceiling" in medians:
                ratio += f", ceiling {medians['parquet'] / medians['ceiling']:.2f} ×"
            print(f"{name:<22}{ratio:<34}{shown}", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
