"""Reads of one and of many primary keys, in Python and through Spark; an index over unequal runs."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from data import SCHEMA, batches
from measure import Results, by_turns, seconds

from elasticscan.connector import attach
from elasticscan.store import Store

MANY = 10_000
SMALL_RUNS, SMALL_ROWS = 40, 500


def bench_get(results: Results, store: Store, rows: int) -> None:
    """Measure reads of rows by key in the largest table."""
    table, chance = store.table("t"), np.random.default_rng(7)
    assert table.get([0, rows - 1, rows]).num_rows == 2

    def one() -> None:
        table.get([int(chance.integers(rows))])

    def many() -> None:
        table.get(pa.table({"id": chance.integers(0, rows, MANY)}))

    singles = [seconds(one) for _ in range(1_500)]
    results.at_most(f"get of one key among {rows:,}, ms (median)", statistics.median(singles[500:]) * 1e3, 1)
    took = statistics.median(seconds(many) for _ in range(12))
    results.at_least(f"get of {MANY:,} keys, thousand keys/s", MANY / took / 1e3, 200)


def bench_key_scans(results: Results, store: Store, rows: int) -> None:
    """Measure a scan of one key, of a thousand, and of a short range, compared with one of all slots."""
    table, chance = store.table("t"), np.random.default_rng(8)

    def one() -> None:
        table.scan(filter=f"id = {chance.integers(rows)}").to_table()

    def thousand() -> None:
        keys = ", ".join(map(str, chance.integers(0, rows, 1_000)))
        table.scan(filter=f"id IN ({keys})").to_table()

    def everything() -> None:
        table.scan(filter="id + 0 = 4711").to_table()

    took = by_turns(5, one=one, thousand=thousand, everything=everything)
    results.at_least("scan of all rows / of one key", took["everything"] / took["one"], 10)
    results.at_least("scan of all rows / of 1,000 keys", took["everything"] / took["thousand"], 1)


def bench_unequal_runs(results: Results, work: Path) -> None:
    """Measure an index over one large run and forty small ones, compared with the same rows compacted."""
    place = work / "unequal"
    store = Store.create(place, ["s1"])
    table = store.create_table("t", SCHEMA, ["id"])
    table.create_index("by_k", ["k"])
    large = next(batches(300_000))
    table.upsert(large)
    for number in range(SMALL_RUNS):
        table.upsert(large.slice(number * 7_000, SMALL_ROWS))

    def pages() -> int:
        return sum(page.rows.num_rows for page in table.scan(index="by_k", page_rows=1_000))

    assert pages() == 300_000
    unequal = statistics.median(seconds(pages) for _ in range(2))
    table.compact()
    merged = statistics.median(seconds(pages) for _ in range(2))
    store.close()
    shutil.rmtree(place)
    detail = f"{300 / unequal:.0f} thousand rows/s"
    results.at_least("index over 1 large and 40 small runs / compacted", merged / unequal, 0.1, detail)


def bench_spark_key(results: Results, spark: Any, place: Path) -> None:
    """Compare a read of one key through Spark, by `filter` and in SQL, with a read of an empty table."""
    with Store.open(place) as store:
        if all(table.name != "nothing" for table in store.tables()):
            store.create_table("nothing", SCHEMA, ["id"])

    def read(table: str, **options: str) -> int:
        reader = spark.read.format("elasticscan").options(store=str(place), table=table, **options)
        return len(reader.load().collect())

    catalog = attach(spark, str(place))

    def queried(text: str) -> int:
        return len(catalog.sql(text).collect())

    assert read("t", filter="id = 4711") == queried("SELECT * FROM t WHERE id = 4711") == 1
    took = by_turns(
        15,
        warmups=5,
        one=lambda: read("t", filter="id = 4711"),
        nothing=lambda: read("nothing"),
        sql_one=lambda: queried("SELECT * FROM t WHERE id = 4711"),
        sql_nothing=lambda: queried("SELECT * FROM nothing"),
    )
    for how, one, nothing in (("", "one", "nothing"), (" SQL", "sql_one", "sql_nothing")):
        detail = f"{took[one] * 1e3:.0f} and {took[nothing] * 1e3:.0f} ms"
        beyond = (took[one] - took[nothing]) * 1e3
        results.at_most(f"id = 4711 through Spark{how}, ms beyond no rows", beyond, 50, detail)
