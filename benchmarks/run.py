"""`make bench`: every figure as a ratio within this run, with its wanted value.

python benchmarks/run.py [--rows 10000000] [--rounds 3] [--only spark,python,load,memory,key]
                         [--memory-rows 100000000] [--keep DIR]
                         [--commits 1000] (and promise, sql, streams, indexes, spark-indexes,
                         large-spark-indexes, keys, spark-keys, upkeep, shared)
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from data import SCHEMA, batches, make_store, parquet_reader, write_parquet
from indexes import (
    bench_indexes,
    bench_large_spark,
    bench_spark_selective,
    bench_sql_average,
    with_index,
)
from keys import bench_get, bench_key_scans, bench_spark_key, bench_unequal_runs
from measure import Results, by_turns, seconds
from promise import bench_promise
from shared_store import bench_first_scans, bench_many_tasks, bench_readers_and_a_stream, bench_writers
from small_commits import bench_upkeep
from sql_queries import bench_queries
from streams import bench_streams

from elasticscan.base.hashing import slots_of
from elasticscan.store import Store

HERE = Path(__file__).parent
MOVER_BYTES_PER_SECOND = 32 << 20


def bench_load(results: Results, source: Path, work: Path, rows: int, rounds: int) -> None:
    """Measure a bulk load from Parquet, compared with pyarrow writing Parquet sorted the same way."""

    def load() -> None:
        make_store(work / "load", parquet_reader(source)).close()
        shutil.rmtree(work / "load")

    def parquet() -> None:
        table = pq.read_table(source)
        slots = pa.array(slots_of([table["id"]], 4096))
        order = pc.sort_indices(
            table.append_column("_slot", slots),
            sort_keys=[("_slot", "ascending"), ("id", "ascending")],
        )
        pq.write_table(table.take(order), work / "sorted.parquet", compression="zstd")

    took = by_turns(max(1, rounds - 1), load=load, parquet=parquet)
    detail = f"{rows / took['load'] / 1e6:.2f} and {rows / took['parquet'] / 1e6:.2f} million rows/s"
    results.at_least("bulk load / sorted Parquet write", took["parquet"] / took["load"], 0.5, detail)


def bench_python(results: Results, store: Store, rows: int, rounds: int) -> None:
    """Measure a scan without Spark, and the cost of a page at the start and the end."""

    def scan() -> int:
        return sum(page.rows.num_rows for page in store.table("t").scan())

    def summed() -> None:
        for page in store.table("t").scan():
            pc.sum(page.rows.column("id"))
            pc.sum(page.rows.column("v"))

    assert scan() == rows
    took = by_turns(rounds, scan=scan, summed=summed)
    results.at_least("Python scan, million rows/s", rows / took["scan"] / 1e6, 10)
    results.at_least("… summing two columns, million rows/s", rows / took["summed"] / 1e6, 10)
    pages: list[float] = []
    for _ in range(rounds):
        scan_pages = iter(store.table("t").scan(page_rows=65_536))
        times = [seconds(partial(next, scan_pages)) for _ in range(rows // 65_536 - 1)]
        pages = times if not pages else [min(a, b) for a, b in zip(pages, times, strict=False)]
        for _ in scan_pages:
            pass
    tenth = max(1, len(pages) // 10)
    first, last = statistics.median(pages[1 : tenth + 1]), statistics.median(pages[-tenth:])
    results.at_most("page at the end / at the start", last / first, 1.5, f"{first * 1e3:.2f} ms")


def bench_page_in_larger_table(results: Results, work: Path, store: Store, rows: int) -> None:
    """Compare a page of a table that is ten times smaller with a page of the full table."""
    small = make_store(work / "small", pa.RecordBatchReader.from_batches(SCHEMA, batches(rows // 10)))

    def page_cost(of: Store) -> float:
        times = []
        for _ in range(5):
            pages = iter(of.table("t").scan(page_rows=10_000))
            next(pages)
            times += [seconds(partial(next, pages)) for _ in range(40)]
        return statistics.median(times)

    page_cost(small), page_cost(store)
    ratio = page_cost(store) / page_cost(small)
    results.at_most("page in a ten times larger table", ratio, 1.5)


def bench_key(results: Results, work: Path) -> None:
    """Measure the continuation key after 1,000 moves of 64 tablets during one scan."""
    store = Store.create(work / "key", ["s1", "s2", "s3"])
    store.create_table("t", SCHEMA, ["id"])
    store.table("t").upsert(next(batches(200_000)))
    chance = random.Random(5)
    scan = iter(store.table("t").scan(page_rows=180))
    longest = moves = seen = 0
    for page in scan:
        longest, seen = max(longest, len(page.key or "")), seen + page.rows.num_rows
        if moves < 1_000:
            tablet = chance.choice(store.context.placement().tablets)
            names = [n for _, n in store.topology.shard_names]
            here = dict(store.topology.shard_names)[tablet.shard]
            store.move(tablet.id, chance.choice([n for n in names if n != here]))
            moves += 1
    assert (moves, seen) == (1_000, 200_000), (moves, seen)
    results.at_most("continuation key after 1,000 moves, bytes", longest, 1_024)


def bench_memory(results: Results, work: Path, rows: int) -> None:
    store = make_store(work / "large", pa.RecordBatchReader.from_batches(SCHEMA, batches(rows)))
    store.close()
    command = [sys.executable, str(HERE / "memory.py"), str(work / "large")]
    counted, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(counted) == rows
    results.at_most(f"peak memory of a scan of {rows:,} rows, MB", float(peak), 300)


def start_spark(work: Path) -> Any:
    import spark_session  # noqa: PLC0415
    import spark_sources  # noqa: PLC0415 - Spark is not needed for the other benchmarks
    from pyspark import cloudpickle  # noqa: PLC0415

    os.environ["PYTHONPATH"] = str(HERE)  # for the workers
    spark_sources.PREPARED = next(batches(65_536))
    cloudpickle.register_pickle_by_value(spark_sources)
    spark = spark_session.start_spark(spark__sql__warehouse__dir=str(work / "warehouse"))
    spark.dataSource.register(spark_sources.CeilingSource)
    return spark


@contextmanager
def moving(store: Path) -> Iterator[list[int]]:
    """Move tablets continuously during a block; the yielded list gets the number of moves."""
    command = [sys.executable, str(HERE / "mover.py"), str(store), str(MOVER_BYTES_PER_SECOND)]
    counted: list[int] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield counted
        finally:
            process.terminate()
            counted.append(sum(1 for _ in process.stdout))


def bench_spark(results: Results, work: Path, place: Path, rows: int, rounds: int) -> None:
    spark = start_spark(work)
    names = ",".join(SCHEMA.names)

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def elastic(**options: str) -> Any:
        reader = spark.read.format("elasticscan").options(store=str(place), table="t", **options)
        return lambda: noop(reader.load())

    def ceiling(columns: str) -> Any:
        reader = spark.read.format("ceiling").options(rows=rows, columns=columns, partitions=2)
        return lambda: noop(reader.load())

    parquet = str(work / "rows.parquet")
    assert spark.read.format("elasticscan").load(f"{place}/t").count() == rows
    took = by_turns(
        max(rounds, 5),
        warmups=3,
        elastic=elastic(),
        ceiling=ceiling(names),
        parquet=lambda: noop(spark.read.parquet(parquet)),
        elastic_v=elastic(columns="v"),
        ceiling_v=ceiling("v"),
        elastic_s=elastic(columns="s"),
        ceiling_s=ceiling("s"),
    )
    rate = f"{rows / took['elastic'] / 1e6:.2f} million rows/s"
    results.at_least("Spark scan / ceiling of a Python source", took["ceiling"] / took["elastic"], 0.97, rate)
    results.at_least("Spark scan / Spark's Parquet scan", took["parquet"] / took["elastic"], 0.9)
    results.at_least("columns=v / ceiling of that column", took["ceiling_v"] / took["elastic_v"], 0.97)
    results.at_least("columns=s / ceiling of that column", took["ceiling_s"] / took["elastic_s"], 0.97)
    bench_spark_moving(results, place, elastic, rounds)
    spark.stop()


def bench_spark_moving(results: Results, place: Path, elastic: Any, rounds: int) -> None:
    """Measure the same scan without and with moves of tablets, in turns."""
    quiet, busy, moves = [], [], 0
    for _ in range(rounds):
        quiet.append(seconds(elastic()))
        with moving(place) as counted:
            time.sleep(0.2)
            busy.append(seconds(elastic()))
        moves += counted[0]
        with Store.open(place) as store:  # wait for the end of moves, so that none runs during the next scan
            store.rebalance()
            store.compact()
            store.collect_garbage(grace_seconds=0)
    ratio = statistics.median(quiet) / statistics.median(busy)
    results.at_least("Spark scan while tablets move / quiet", ratio, 0.85, f"{moves} moves in {rounds} scans")


def bench_spark_indexes(results: Results, work: Path, place: Path, rows: int, rounds: int) -> None:
    spark = start_spark(work)
    bench_spark_selective(results, spark, place, str(work / "rows.parquet"), rows, rounds, 2)
    reader = spark.read.format("ceiling").options(rows=rows, columns="v", partitions=2)
    bench_sql_average(results, spark, place, reader.load, rounds)
    spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only",
        default="load,python,key,promise,spark,sql,streams,memory,indexes,spark-indexes,keys,spark-keys,"
        "upkeep,shared",
    )
    parser.add_argument("--memory-rows", type=int, default=100_000_000)
    parser.add_argument("--commits", type=int, default=1_000, help="of the upkeep benchmark")
    parser.add_argument("--stream-commits", type=int, default=200, help="of the stream alongside readers")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    only = set(options.only.split(","))
    results = Results()
    with tempfile.TemporaryDirectory(prefix="elasticscan-bench-") as temporary:
        work = options.keep or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        if not (work / "rows.parquet").exists():
            write_parquet(work / "rows.parquet", options.rows)
        place = work / "store"
        exists = (place / "catalog.db").exists()
        store = Store.open(place) if exists else make_store(place, parquet_reader(work / "rows.parquet"))
        if "load" in only:
            bench_load(results, work / "rows.parquet", Path(temporary), options.rows, options.rounds)
        if "python" in only:
            bench_python(results, store, options.rows, options.rounds)
            bench_page_in_larger_table(results, Path(temporary), store, options.rows)
        if "key" in only:
            bench_key(results, Path(temporary))
        if "promise" in only:  # first, because a JVM that others start would keep its environment
            bench_promise(results, place, Path(temporary), options.rounds)
        if "sql" in only:
            spark = start_spark(work)
            bench_queries(results, spark, work, options.rows, options.rounds)
            spark.stop()
        if "spark" in only:
            bench_spark(results, work, place, options.rows, options.rounds)
        if "indexes" in only:
            parquet = work / "rows.parquet"
            bench_indexes(results, Path(temporary), store, parquet, options.rows, options.rounds)
        if "spark-indexes" in only:
            with_index(store)
            bench_spark_indexes(results, work, place, options.rows, options.rounds)
        if "keys" in only:
            bench_get(results, store, options.rows)
            bench_key_scans(results, store, options.rows)
            bench_unequal_runs(results, Path(temporary))
        if "spark-keys" in only:
            spark = start_spark(work)
            bench_spark_key(results, spark, place)
            spark.stop()
        if "streams" in only:
            spark = start_spark(work)
            bench_streams(results, spark, Path(temporary), place, options.rows, options.rounds)
            spark.stop()
        if "large-spark-indexes" in only:
            spark = start_spark(work)
            bench_large_spark(results, spark, Path(temporary), options.memory_rows, options.rounds)
            spark.stop()
        if "upkeep" in only:
            bench_upkeep(results, Path(temporary), options.commits, options.rows)
        if "shared" in only:
            bench_writers(results, Path(temporary))
            for rows in (200_000, 1_000_000):
                bench_first_scans(results, Path(temporary), rows)
            spark = start_spark(work)
            bench_many_tasks(results, spark, Path(temporary))
            bench_readers_and_a_stream(results, spark, Path(temporary), options.stream_commits)
            spark.stop()
        if "memory" in only:
            bench_memory(results, Path(temporary), options.memory_rows)
    missed = [row for row in results.rows if not row[3]]
    print(f"\n{len(results.rows) - len(missed)} of {len(results.rows)} as wanted")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
