"""The cost of the promise: placement checks, leases, coverage, sealing and checksums of a scan.

python benchmarks/promise.py [--rows 10000000] [--rounds 7] [--spark]

The figures are processor time of the thread that scans. It sums two columns, and seals the key of every page,
as in a scan that may stop at any page. The first scan of an open store verifies the files that it reads;
later ones verify only blocks that are not in memory any more. Spark takes several times as long for the same
rows, and a task seals one key: with --spark the same parts are timed in its planner and tasks, as shares of
the processor time of all of its processes for a scan of all columns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from data import SCHEMA, batches, make_store
from measure import Results, family_seconds

from elasticscan.reader import coverage, cursor, scan
from elasticscan.storage import sealed_file
from elasticscan.store import Store
from elasticscan.store.context import leases, sealing, shards

# Functions and methods of each part, by the module or class that defines them.
PARTS: dict[str, list[tuple[Any, list[str]]]] = {
    "looks": [
        (shards.CatalogPlacements, ["current"]),  # before a page and after it
        (cursor, ["accept_page"]),
        (scan, ["drop_moved"]),
    ],
    "lease": [(leases, ["is_kept", "keep_lease", "end_lease"])],
    "coverage": [(coverage.Coverage, ["__init__", "finish", "prove"])],
    "sealing": [(sealing.StoreSealer, ["seal", "open"])],
    "checksums": [(sealed_file.SealedFile, ["_prove"])],
}
SPENT: Counter[str] = Counter()
INSIDE: list[str] = []  # the part that is being timed; calls within it are not timed again


def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def measured(*args: Any, **named: Any) -> Any:
        if INSIDE:
            return function(*args, **named)
        INSIDE.append(part)
        began = time.thread_time()
        try:
            return function(*args, **named)
        finally:
            SPENT[part] += time.thread_time() - began
            INSIDE.pop()

    return measured


def plant() -> None:
    """Wrap the functions with timers, in every module that imported them."""
    ours = [module for name, module in sys.modules.items() if name.startswith("elasticscan.")]
    for part, places in PARTS.items():
        for owner, names in places:
            for name in names:
                function = getattr(owner, name)
                for place in [owner, *ours]:
                    if vars(place).get(name) is function:
                        setattr(place, name, timed(part, function))


def one_scan(store: Store) -> tuple[int, float]:
    """Scan once; return the number of pages and the time."""
    pages, began = 0, time.thread_time()
    for page in store.table("t").scan(["k", "v"]):
        for values in page.rows.columns:
            pc.sum(values)
        pages, _ = pages + 1, page.key
    return pages, time.thread_time() - began


def in_spark(store: Path, times: Path, rounds: int) -> tuple[float, str]:
    """Return the median percentages of a Spark scan's time, for all parts together and for each."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ["ELASTICSCAN_PROMISE_TIMES"] = str(times)
    from spark_promised import PromisedSource  # noqa: PLC0415 - Spark is for those who ask for it
    from spark_session import start_spark  # noqa: PLC0415

    times.mkdir()
    spark = start_spark()
    spark.dataSource.register(PromisedSource)
    shares: dict[str, list[float]] = {}
    millis: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        before = family_seconds(os.getpid())
        rows = spark.read.format("promised").options(store=str(store), table="t").load()
        rows.write.format("noop").mode("overwrite").save()
        whole, spent = family_seconds(os.getpid()) - before, Counter[str]()
        for file in times.iterdir():
            spent.update(json.loads(file.read_text()))
            file.unlink()
        for part in [*PARTS, "thread"] if turn else []:
            shares.setdefault(part, []).append(100 * spent[part] / whole)
            millis.setdefault(part, []).append(1e3 * spent[part])
    spark.stop()
    medians = {part: statistics.median(values) for part, values in shares.items()}
    python = medians.pop("thread")
    shown = ", ".join(
        f"{part} {share:.2f} % ({statistics.median(millis[part]):.1f} ms)" for part, share in medians.items()
    )
    return sum(medians.values()), f"{shown}; Python {python:.0f} % of it all"


def bench_promise(results: Results, store: Path, work: Path, rounds: int) -> None:
    whole, parts = in_spark(store, work / "promise-times", rounds)
    results.at_most("the promise in a Spark scan, parts in a hundred", whole, 3, parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--spark", action="store_true", help="also through Spark")
    asked = parser.parse_args()
    shares: dict[str, dict[str, list[float]]] = {"first": {}, "later": {}}
    micros: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as work:
        place = Path(work) / "store"
        make_store(place, pa.RecordBatchReader.from_batches(SCHEMA, batches(asked.rows))).close()
        if asked.spark:
            whole, parts = in_spark(place, Path(work) / "times", asked.rounds)
            print(f"scan in Spark: {parts}; together {whole:.2f} %", flush=True)
        plant()
        for _ in range(asked.rounds):
            with Store.open(place) as store:
                for found in shares.values():
                    SPENT.clear()
                    pages, whole = one_scan(store)
                    for part in PARTS:
                        found.setdefault(part, []).append(SPENT[part] / whole)
                        micros.setdefault(part, []).append(1e6 * SPENT[part] / pages)
    for which, found in shares.items():
        medians = {part: 100 * statistics.median(values) for part, values in found.items()}
        shown = ", ".join(f"{part} {share:.2f} %" for part, share in medians.items())
        print(f"{which} scan: {shown}; together {sum(medians.values()):.2f} %")
    shown = ", ".join(f"{part} {statistics.median(values):.0f}" for part, values in micros.items())
    print(f"microseconds of a page, {asked.rows // pages:,} rows: {shown}")


if __name__ == "__main__":
    main()
