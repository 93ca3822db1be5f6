"""Queries of `catalog.sql` compared with Spark's Parquet, in turns.

python benchmarks/sql_queries.py [--rows 10000000] [--rounds 7] [--only TEXT] [--plain] [--ceiling]

Times are wall time, since users wait for a query; the ratios of medians roughly hold on a busy machine, too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import spark_sources
from measure import Results
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from spark_session import start_spark

from elasticscan.connector import attach
from elasticscan.store import Store

SCHEMA = pa.schema(
    {"id": pa.int64(), "k": pa.int64(), "g": pa.int64(), "h": pa.int64(), "v": pa.float64(), "s": pa.string()}
)
DIMENSION_ROWS, AFTER = 100_000, "query after a limit"


@dataclass(frozen=True)
class Query:
    """A query, its wanted speed as a multiple of Parquet's, and whether its rows stay in the JVM.

    `share` is the fraction of the rows in the answer, which has these `columns`.
    """

    text: str
    wanted: float | None = None
    stays: bool = False
    share: float = 0.0
    columns: tuple[str, ...] = tuple(SCHEMA.names)


QUERIES = {
    "full scan": Query("SELECT * FROM t", stays=True, share=1),
    "one column": Query("SELECT v FROM t", stays=True, share=1, columns=("v",)),
    "sum of one column": Query("SELECT sum(k) FROM t", 1.8),
    "avg of one column": Query("SELECT avg(v), count(v) FROM t", 1.8),
    "count(*)": Query("SELECT count(*) FROM t", 1),
    "min and max": Query("SELECT min(k), max(v) FROM t"),
    "sum where": Query("SELECT sum(k) FROM t WHERE g < 10"),
    "group by 100 values": Query("SELECT g, sum(k), count(*) FROM t GROUP BY g", 1.5),
    "group by 50 texts": Query("SELECT s, avg(v) FROM t GROUP BY s"),
    "group by 1 million values": Query(
        "SELECT count(*), sum(c) FROM (SELECT k, count(*) AS c FROM t GROUP BY k)", 0.8
    ),
    "join by 100 numbers": Query(
        "SELECT d.name, sum(t.k), count(*) FROM t JOIN d ON t.g = d.id GROUP BY d.name"
    ),
    "join by 100,000 numbers": Query("SELECT d.name, sum(t.v) FROM t JOIN d ON t.h = d.id GROUP BY d.name"),
    # Each row has its own key, so no row can be aggregated before the join.
    "join by the key": Query("SELECT d.name, sum(t.k) FROM t JOIN d ON t.id = d.id GROUP BY d.name"),
    "top 10 by an index": Query("SELECT * FROM t ORDER BY v DESC LIMIT 10", 10),
    "top 10 without an index": Query("SELECT * FROM t ORDER BY k DESC, id LIMIT 10"),
    "limit 10": Query("SELECT * FROM t LIMIT 10", 1),
    "a row by its key": Query("SELECT * FROM t WHERE id = 4711", 1),
    "filter, 0.1 %": Query("SELECT * FROM t WHERE v < 0.001", 5, stays=True, share=0.001),
    "filter, 10 %": Query("SELECT * FROM t WHERE v < 0.1", 3, stays=True, share=0.1),
}


@dataclass
class Times:
    """Seconds of the rounds of a query."""

    ours: list[float] = field(default_factory=list)
    parquet: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    ceiling: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(self.parquet) / statistics.median(self.ours)

    def __str__(self) -> str:
        shown = {"Parquet": self.parquet, "plain view": self.plain, "ceiling": self.ceiling}
        others = "".join(f", {name} {statistics.median(t):.3f} s" for name, t in shown.items() if t)
        return f"{statistics.median(self.ours):.3f} s{others}"


def some_rows(start: int, count: int, draw: np.random.Generator) -> pa.Table:
    columns = [
        np.arange(start, start + count), draw.integers(0, 1_000_000, count),
        draw.integers(0, 100, count), draw.integers(0, DIMENSION_ROWS, count), draw.random(count),
        pa.array([f"city {at:03}" for at in range(50)]).take(pa.array(draw.integers(0, 50, count))),
    ]  # fmt: skip
    return pa.table(columns, schema=SCHEMA)


def make_tables(place: Path, count: int) -> None:
    """Write the same rows as a store and as Parquet."""
    place.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(1)
    with (
        Store.create(place / "store", ["s1", "s2"], upkeep="off") as store,
        pq.ParquetWriter(place / "t.parquet", SCHEMA, compression="snappy") as writer,
    ):
        table = store.create_table("t", SCHEMA, ["id"])
        for start in range(0, count, 1_000_000):
            rows = some_rows(start, min(1_000_000, count - start), draw)
            table.upsert(rows)
            writer.write_table(rows)
        table.compact()
        table.create_index("by_v", ["v"])
        ids = np.arange(DIMENSION_ROWS)
        dimension = pa.table({"id": ids, "name": [f"name {at % 20}" for at in ids]})
        store.create_table("d", dimension, primary_key="id")
        pq.write_table(dimension, place / "d.parquet")


def seconds(query: Callable[[str], DataFrame], asked: Query) -> float:
    """Return the seconds from the text of a query to its answer, as a user waits for it."""
    start = time.perf_counter()
    rows = query(asked.text)
    if asked.stays:
        rows.write.format("noop").mode("overwrite").save()
    else:
        rows.collect()
    return time.perf_counter() - start


def ceiling_seconds(spark: Any, rows: int, columns: Sequence[str]) -> float:
    """Return the seconds of a Python source that only returns this number of rows to Spark."""
    start = time.perf_counter()
    options = {"rows": rows, "columns": ",".join(columns), "partitions": 2}
    spark.read.format("ceiling").options(**options).load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def queried(
    spark: Any, place: Path, rounds: int, only: str = "", plain: bool = False, ceiling_of: int = 0
) -> Iterator[tuple[str, Query, Times]]:
    """Yield each query with its times when it is measured; the first round warms up.

    With `ceiling_of`, the number of rows of the table, it also measures the ceiling of answers that stay in
    the JVM.
    """
    catalog = attach(spark, str(place / "store"))
    other = spark.newSession()
    for name in ("t", "d"):
        other.read.parquet(str(place / f"{name}.parquet")).createOrReplaceTempView(name)
    for name, asked in QUERIES.items():
        if only not in name:
            continue
        times = Times()
        for turn in range(rounds + 1):
            took = seconds(catalog.sql, asked), seconds(other.sql, asked)
            if turn:
                times.ours.append(took[0])
                times.parquet.append(took[1])
            if plain:
                times.plain.append(seconds(spark.sql, asked))
            if ceiling_of and asked.share:
                times.ceiling.append(ceiling_seconds(spark, int(ceiling_of * asked.share), asked.columns))
        yield name, asked, times


def after_a_limit(spark: Any, place: Path, rounds: int) -> tuple[float, float]:
    """Return the median times of a query that tasks answer, after itself and after a LIMIT from tasks."""
    catalog = attach(spark, str(place / "store"))
    read, limit = (
        Query("SELECT id, k FROM t WHERE v < 0.05", stays=True),
        Query("SELECT id FROM t LIMIT 200000"),
    )
    alone, after = list[float](), list[float]()
    for _ in range(rounds + 1):
        alone.append(seconds(catalog.sql, read))
        seconds(catalog.sql, limit)
        after.append(seconds(catalog.sql, read))
        seconds(catalog.sql, read)
    return statistics.median(alone[1:]), statistics.median(after[1:])


def bench_queries(results: Results, spark: Any, work: Path, rows: int, rounds: int) -> None:
    place = work / "queries"
    if not place.exists():
        make_tables(place, rows)
    for name, asked, times in queried(spark, place, rounds):
        if asked.wanted is not None:
            results.at_least(f"catalog.sql / Parquet: {name}", times.ratio, asked.wanted, str(times))
    alone, after = after_a_limit(spark, place, rounds)
    detail = f"{after * 1e3:.0f} and {alone * 1e3:.0f} ms"
    results.at_most("catalog.sql: a query after a LIMIT / after none", after / alone, 1.1, detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plain", action="store_true", help="also through the plain views")
    parser.add_argument("--ceiling", action="store_true", help="also a source that only hands over the rows")
    parser.add_argument("--only", default="", help="queries whose names have this text")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        make_tables(Path(work), asked.rows)
        spark_sources.PREPARED = some_rows(0, spark_sources.BATCH, np.random.default_rng(2)).to_batches()[0]
        cloudpickle.register_pickle_by_value(spark_sources)
        spark = start_spark()
        spark.dataSource.register(spark_sources.CeilingSource)
        rows = asked.rows if asked.ceiling else 0
        for name, _, times in queried(spark, Path(work), asked.rounds, asked.only, asked.plain, rows):
            print(f"{name}: {times}, ratio {times.ratio:.2f}", flush=True)
        if asked.only in AFTER:
            alone, after = after_a_limit(spark, Path(work), asked.rounds)
            print(f"{AFTER}: {after:.3f} s, after none {alone:.3f} s", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
