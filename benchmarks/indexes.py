"""Secondary indexes: selective queries compared with DuckDB and Spark's Parquet, builds, choices, moves."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from data import KEYS, SCHEMA, batches, make_store, write_parquet
from measure import Results, by_turns, seconds

from elasticscan.store import Store

GRID = 40
MOST_BY_INDEX = 0.1


def fraction(share: float) -> str:
    """Return a condition on k that keeps about this share of the rows."""
    return f"k < {int(KEYS * share)}"


def with_index(store: Store) -> None:
    if not any(index.name == "by_k" for index in store.table("t").indexes()):
        store.table("t").create_index("by_k", ["k"])


def bench_build(results: Results, store: Store, rows: int) -> None:
    """Measure building an index of an existing table."""
    took = []
    for _ in range(2):
        if any(index.name == "bench" for index in store.table("t").indexes()):
            store.table("t").drop_index("bench")
        took.append(seconds(lambda: store.table("t").create_index("bench", ["k"])))
    store.table("t").drop_index("bench")
    store.collect_garbage(grace_seconds=0)
    results.at_least("index build, million rows/s", rows / min(took) / 1e6, 2)


def bench_writes(results: Results, work: Path, rows: int) -> None:
    """Measure the same rows written into a table with two indexes and into one without."""

    def write(indexed: bool) -> None:
        place = work / "writes"
        store = Store.create(place, ["s1", "s2"])
        store.create_table("t", SCHEMA, ["id"])
        if indexed:
            store.table("t").create_index("by_k", ["k"])
            store.table("t").create_index("by_ts", ["ts"])
        store.table("t").upsert(pa.RecordBatchReader.from_batches(SCHEMA, batches(rows)))
        store.close()
        shutil.rmtree(place)

    took = by_turns(3, plain=partial(write, False), indexed=partial(write, True))
    results.at_least("writes with two indexes / without", took["plain"] / took["indexed"], 0.4)


def bench_selective(results: Results, store: Store, parquet: Path, rows: int, rounds: int) -> None:
    """Measure a read of 0.1 % of the rows by an index in Python, compared with DuckDB over Parquet."""
    where = fraction(0.001)
    duck = duckdb.connect()

    def by_duckdb() -> int:
        return duck.sql(f"SELECT * FROM read_parquet('{parquet}') WHERE {where}").to_arrow_table().num_rows

    def by_index() -> int:
        return int(store.table("t").scan(filter=where).to_table().num_rows)

    assert by_index() == by_duckdb() > 0
    assert store.table("t").scan(filter=where).explain()["access"] == "by_k"
    took = by_turns(rounds, index=by_index, duckdb=by_duckdb)
    detail = f"{took['index'] * 1e3:.0f} ms and {took['duckdb'] * 1e3:.0f} ms"
    results.at_least("0.1 % by index / DuckDB over Parquet", took["duckdb"] / took["index"], 2, detail)


def bench_point(results: Results, work: Path, rows: int) -> None:
    """Measure a point query on an indexed column, 64 tablets on 4 shards."""
    store = Store.create(work / "point", ["s1", "s2", "s3", "s4"], tablets=64)
    store.create_table("t", SCHEMA, ["id"])
    store.table("t").upsert(pa.RecordBatchReader.from_batches(SCHEMA, batches(rows)))
    store.table("t").create_index("by_k", ["k"])
    wanted = store.table("t").scan(columns=["k"], page_rows=500)
    keys = next(iter(wanted)).rows.column("k").to_pylist()
    times = [seconds(lambda k=key: store.table("t").scan(filter=f"k = {k}").to_table()) for key in keys[:300]]
    store.close()
    results.at_most("point query by index, ms (median)", statistics.median(times[50:]) * 1e3, 5)


def bench_choice(results: Results, store: Store, rows: int) -> None:
    """Compare the chosen access path with the best one: 40 queries, selectivities 0.0001 to 1."""
    worst, sum_best, sum_chosen, where_worst = 0.0, 0.0, 0.0, ""
    columns: list[list[str] | None] = [None, ["id", "k"], ["v"], ["s", "ts"]]
    for number in range(GRID):
        share = 10 ** (-4 + 4 * (number // 4) / (GRID // 4 - 1))
        chosen_columns = columns[number % 4]
        where = fraction(min(share, 1.0))

        def run(index: str, wanted: list[str] | None = chosen_columns, text: str = where) -> None:
            for page in store.table("t").scan(columns=wanted, filter=text, index=index):
                del page

        chosen = store.table("t").scan(columns=chosen_columns, filter=where).explain()["access"]
        paths: dict[str, Callable[[], None]] = {"direct": partial(run, "none")}
        if share <= MOST_BY_INDEX or chosen != "direct":  # beyond, the index is many times slower
            paths["by_k"] = partial(run, "by_k")
        took = by_turns(3, 1, **paths)
        mine = took[chosen]
        best = min(took.values())
        sum_best, sum_chosen = sum_best + best, sum_chosen + mine
        if mine / best > worst:
            worst, where_worst = mine / best, f"{share:.4f} of {chosen_columns}: {chosen}"
    results.at_most(f"chosen path / best path, worst of {GRID}", worst, 1.3, where_worst)
    results.at_most(f"chosen paths / best paths, all {GRID}", sum_chosen / sum_best, 1.3)


def bench_virtual(results: Results, work: Path, rows: int) -> None:
    """Measure a read of a tenth of a table through an index, after 32 tablets moved, and after one."""

    store = Store.create(work / "virtual", ["s1", "s2"], tablets=64)
    store.create_table("t", SCHEMA, ["id"])
    store.table("t").upsert(pa.RecordBatchReader.from_batches(SCHEMA, batches(rows)))
    store.table("t").create_index("by_k", ["k"])
    home = [tablet.id for tablet in store.context.placement().tablets if tablet.shard == 1]

    def scan_with_moves(moved: int) -> float:
        """Begin a scan, move tablets to s2, and time the rest of the scan; then move them back."""
        scan = iter(store.table("t").scan(filter=fraction(0.1), index="by_k", page_rows=20_000))
        next(scan)
        for tablet in home[:moved]:
            store.move(tablet, "s2")
        store.compact()
        took = seconds(lambda: [None for _ in scan])
        for tablet in home[:moved]:
            store.move(tablet, "s1")
        store.compact()
        return took

    many, one = [], []
    for _ in range(3):
        many.append(scan_with_moves(32))
        one.append(scan_with_moves(1))
    store.close()
    results.at_most("scan after 32 tablets moved / after 1", min(many) / min(one), 1.5)


def bench_spark_selective(
    results: Results, spark: Any, place: Path, parquet: str, rows: int, rounds: int, wanted: float
) -> None:
    """Compare a read of 0.1 % by an index with Spark's Parquet scan with the same filter."""
    where = fraction(0.001)

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def elastic() -> None:
        reader = spark.read.format("elasticscan").options(store=str(place), table="t", filter=where)
        noop(reader.load())

    def by_parquet() -> None:
        noop(spark.read.parquet(parquet).where(where))

    took = by_turns(max(rounds, 5), warmups=3, elastic=elastic, parquet=by_parquet)
    ratio = took["parquet"] / took["elastic"]
    detail = f"{took['elastic'] * 1e3:.0f} ms and {took['parquet'] * 1e3:.0f} ms"
    results.at_least(f"Spark, 0.1 % of {rows:,} rows / Parquet", ratio, wanted, detail)


def bench_sql_average(
    results: Results, spark: Any, place: Path, ceiling: Callable[[], Any], rounds: int
) -> None:
    """Compare `SELECT avg(v)` through the catalog's SQL with the ceiling of a source with that column."""
    from elasticscan.connector import attach  # noqa: PLC0415 - Spark is not needed for the others

    catalog = attach(spark, str(place))

    def elastic() -> float:
        return float(catalog.sql("SELECT avg(v) FROM t").collect()[0][0])

    def best() -> float:
        return float(ceiling().selectExpr("avg(v)").collect()[0][0])

    assert math.isclose(elastic(), 0.5, rel_tol=0.01)
    took = by_turns(max(rounds, 5), warmups=3, elastic=elastic, ceiling=best)
    results.at_least("SELECT avg(v) / ceiling of that column", took["ceiling"] / took["elastic"], 0.95)


def bench_indexes(results: Results, work: Path, store: Store, parquet: Path, rows: int, rounds: int) -> None:
    """Run all parts that need no Spark."""
    bench_build(results, store, rows)
    with_index(store)
    bench_selective(results, store, parquet, rows, rounds)
    bench_choice(results, store, rows)
    bench_writes(results, work, min(rows, 2_000_000))
    bench_point(results, work, min(rows, 2_000_000))
    bench_virtual(results, work, min(rows, 2_000_000))


def bench_large_spark(results: Results, spark: Any, work: Path, rows: int, rounds: int) -> None:
    place, parquet = work / "large-indexed", work / "large.parquet"
    if not parquet.exists():
        write_parquet(parquet, rows)
    store = make_store(place, pa.RecordBatchReader.from_batches(SCHEMA, batches(rows)))
    with_index(store)
    store.close()
    bench_spark_selective(results, spark, place, str(parquet), rows, rounds, 8)
    shutil.rmtree(place)
