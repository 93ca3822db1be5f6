"""A store with many users: parallel writers, writes of many tasks, readers during a stream.

`python shared_store.py STORE FIRST SECONDS`: one of the writers; it prints how many commits it made.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import Results, processor_seconds, seconds
from small_commits import loaded, open_files_limited, rows_of, scanned

from elasticscan.store import Store

WRITERS, WRITING_SECONDS, STEP = 8, 10, 1 << 32
TASKS, TASK_ROWS = 200, 200
LOADED, BATCH_ROWS, SAMPLES, COMMITS = 200_000, 100, 20, 30


def bench_writers(results: Results, work: Path) -> None:
    """Measure commits a second of eight writing processes, and of one."""
    with loaded(work / "writers", LOADED) as store:
        alone = _commits(store.uri, 1, 1)
        together = _commits(store.uri, WRITERS, 2)
        detail = f"{together / WRITING_SECONDS:.0f} and {alone / WRITING_SECONDS:.0f} a second"
        results.at_least(f"commits of {WRITERS} writers / of one", together / alone, 1, detail)


def _commits(uri: str, writers: int, first: int) -> int:
    parts = [[uri, str((first + number) * STEP), str(WRITING_SECONDS)] for number in range(writers)]
    running = [
        subprocess.Popen([sys.executable, __file__, *part], stdout=subprocess.PIPE, text=True)
        for part in parts
    ]
    return sum(int(process.communicate()[0]) for process in running)


def bench_many_tasks(results: Results, spark: Any, work: Path) -> None:
    """Measure a count after three writes of 200 tasks, compared with the same rows compacted."""
    with loaded(work / "tasks", LOADED) as store:
        _counted(store, spark)  # warm up the JVM
        for number in range(3):
            ids = spark.range(0, TASKS * TASK_ROWS, 1, TASKS).selectExpr(
                f"id + {number * TASKS * TASK_ROWS // 2} AS id", "id % 1000 AS k", "rand() AS v"
            )
            ids.write.format("elasticscan").mode("append").save(f"{store.uri}/t")
        table, shards = store.status()["tables"][0], len(store.status()["shards"])
        results.at_most(f"fragments of a shard after {TASKS} tasks", table["fragments"] / shards, 8)
        written = _counted(store, spark)
        store.table("t").compact()
        for what, took in _counted(store, spark).items():
            detail = f"{written[what] * 1e3:.1f} and {took * 1e3:.1f} ms"
            results.at_most(f"… {what} / of a compacted table", written[what] / took, 1.3, detail)


def _counted(store: Store, spark: Any) -> dict[str, float]:
    """Return the seconds of the first count() after a change and of later ones, in Python and in Spark."""

    def by_spark() -> None:
        spark.read.format("elasticscan").load(f"{store.uri}/t").count()

    first = processor_seconds(lambda: store.table("t").scan().count())
    later = [processor_seconds(lambda: store.table("t").scan().count()) for _ in range(5)]
    first_by_spark = seconds(by_spark)
    later_by_spark = [seconds(by_spark) for _ in range(5)]
    return {
        "first count()": first,
        "later count()": statistics.median(later),
        "first count() through Spark": first_by_spark,
        "later count() through Spark": statistics.median(later_by_spark),
    }


def bench_first_scans(results: Results, work: Path, rows: int) -> None:
    """Measure the first scan after each of some commits, and the best of three later ones.

    The reader opens the store again, as another process would.
    """
    with loaded(work / f"first-{rows}", rows) as store, Store.open(work / f"first-{rows}") as reader:

        def scan() -> float:
            return processor_seconds(lambda: scanned(reader))

        scan()
        fresh, first, later = statistics.median(scan() for _ in range(9)), [], []
        chance = np.random.default_rng(3)
        for number in range(COMMITS):
            store.table("t").upsert(rows_of(chance.choice(rows, BATCH_ROWS, replace=False), number))
            first.append(scan())
            later.append(min(scan() for _ in range(3)))
        for what, times, wanted in (("first", first, 2), ("best of three later", later, 1.3)):
            took = statistics.median(times)
            detail = f"{took * 1e3:.1f} and {fresh * 1e3:.1f} ms"
            results.at_most(
                f"{what} scan after a commit / before any, {rows:,} rows", took / fresh, wanted, detail
            )


@dataclass(frozen=True, slots=True)
class Curve:
    """The cost of reads during a stream, in one range of its commits; times in milliseconds.

    Attributes:
        scan, point: medians of processor time, as ratios to those of a store without a stream, in turns.
        resident_mb: memory of the reading process.
    """

    commits: int
    scan_ms: float
    scan: float
    point_ms: float
    point: float
    slot_fragments: int
    open_files: int
    catalog_mb: float
    resident_mb: float


def bench_readers_and_a_stream(results: Results, spark: Any, work: Path, commits: int) -> None:
    """Measure scans and point queries while a stream makes this number of commits, one after the other."""
    with (
        open_files_limited(256),
        loaded(work / "stream", LOADED) as store,
        loaded(work / "quiet", LOADED) as quiet,
    ):
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS).load()
        query = (
            rows.selectExpr(f"value * 7919 % {LOADED} AS id", "value % 100000 AS k", "rand() AS v")
            .writeStream.format("elasticscan")
            .option("checkpointLocation", str(work / "stream-checkpoint"))
            .start(f"{store.uri}/t")
        )
        try:
            curve = list(_sampled(store, quiet, commits))
        finally:
            query.stop()
    worst = max(curve, key=lambda point: point.scan)
    results.at_most(
        f"scan alongside {commits:,} commits of a stream, worst range / of a store without a stream",
        worst.scan,
        2,
        f"{worst.scan_ms:.1f} ms",
    )
    worst = max(curve, key=lambda point: point.point)
    results.at_most("… k = 5 by an index", worst.point, 2, f"{worst.point_ms:.1f} ms")
    most = max(point.slot_fragments for point in curve)
    results.at_most("… fragments of the worst slot, with one of a commit that is just made", most, 9)


def _sampled(store: Store, quiet: Store, commits: int) -> Iterator[Curve]:
    """Read both stores in turns; group the times by ranges of the commits made at the same time."""
    begin = store.status()["snapshot"]
    reads = [(of, how) for how in ({}, {"filter": "k = 5"}) for of in (store, quiet)]
    done, span = 0, 0
    while span < SAMPLES:
        span = done * SAMPLES // commits + 1
        took: list[list[float]] = [[] for _ in reads]
        while (done := store.status()["snapshot"] - begin) * SAMPLES < span * commits:
            for (of, how), times in zip(reads, took, strict=True):
                times.append(processor_seconds(lambda of=of, how=how: scanned(of, **how)))  # type: ignore[misc]
            time.sleep(0.2)
        if took[0]:
            yield _measured(store, done, *map(statistics.median, took))


def _measured(store: Store, commits: int, scan: float, quiet: float, point: float, calm: float) -> Curve:
    measured = Curve(
        commits=commits,
        scan_ms=scan * 1e3,
        scan=scan / quiet,
        point_ms=point * 1e3,
        point=point / calm,
        slot_fragments=store.status()["tables"][0]["upkeep"]["slot_fragments"],
        open_files=sum(1 for _ in Path("/proc/self/fd").iterdir()),
        catalog_mb=sum(path.stat().st_size for path in Path(store.uri).glob("catalog.db*")) / 1e6,
        resident_mb=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6,
    )
    print("      " + json.dumps({name: round(value, 2) for name, value in asdict(measured).items()}))
    return measured


def main() -> None:
    uri, first, enough = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    done, ends = 0, time.monotonic() + enough
    with Store.open(uri) as store:
        while time.monotonic() < ends:
            store.table("t").upsert(rows_of(first + done * 100 + np.arange(100), done))
            done += 1
    print(done)


if __name__ == "__main__":
    main()
