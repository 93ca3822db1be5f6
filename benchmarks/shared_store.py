"""A store that many use at once: writers side by side, writes of many tasks, a stream beside readers.

`python shared_store.py STORE FIRST SECONDS`: one of the writers; it prints how many commits it made.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import Results, seconds
from small_commits import loaded, open_files_limited, rows_of, scan_seconds

from elasticscan.store import Store

WRITERS, WRITING_SECONDS, STEP = 8, 10, 1 << 32
TASKS, TASK_ROWS = 200, 200
LOADED, BATCH_ROWS, SAMPLES = 200_000, 100, 20


def bench_writers(results: Results, work: Path) -> None:
    """Commits a second of eight writing processes, and of one."""
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
    """What three writes of 200 tasks leave to count, beside the same rows compacted."""
    with loaded(work / "tasks", LOADED) as store:
        for number in range(3):
            ids = spark.range(0, TASKS * TASK_ROWS, 1, TASKS).selectExpr(
                f"id + {number * TASKS * TASK_ROWS // 2} AS id", "id % 1000 AS k", "rand() AS v"
            )
            ids.write.format("elasticscan").mode("append").save(f"{store.uri}/t")
        table, shards = store.status()["tables"][0], len(store.status()["shards"])
        results.at_most(f"fragments of a shard after {TASKS} tasks", table["fragments"] / shards, 8)
        store.table("t").scan().count()
        counted = statistics.median(seconds(lambda: store.table("t").scan().count()) for _ in range(5))
        store.table("t").compact()
        store.table("t").scan().count()
        compacted = statistics.median(seconds(lambda: store.table("t").scan().count()) for _ in range(5))
        results.at_most("… count() / of a compacted table", counted / compacted, 1.3)


def bench_stream_beside_readers(results: Results, spark: Any, work: Path, commits: int) -> None:
    """Scans and point queries beside a stream that makes so many commits, one after the other."""
    with open_files_limited(256), loaded(work / "stream", LOADED) as store:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS).load()
        query = (
            rows.selectExpr(f"value * 7919 % {LOADED} AS id", "value % 1000 AS k", "rand() AS v")
            .writeStream.format("elasticscan")
            .option("checkpointLocation", str(work / "stream-checkpoint"))
            .start(f"{store.uri}/t")
        )
        try:
            scans, points = _sampled(store, commits)
        finally:
            query.stop()
        first, last = statistics.median(scans[0]), max(statistics.median(some) for some in scans[1:])
        detail = f"{first * 1e3:.1f} and {last * 1e3:.1f} ms"
        results.at_most(
            f"scan beside {commits:,} commits of a stream, worst / first", last / first, 2, detail
        )
        first, last = statistics.median(points[0]), max(statistics.median(some) for some in points[1:])
        detail = f"{first * 1e3:.1f} and {last * 1e3:.1f} ms"
        results.at_most("… k = 5 by an index, worst / first", last / first, 2, detail)


def _sampled(store: Store, commits: int) -> tuple[list[list[float]], list[list[float]]]:
    """Seconds of scans and of point queries, for each of some stretches of the commits."""
    scans: list[list[float]] = [[] for _ in range(SAMPLES)]
    points: list[list[float]] = [[] for _ in range(SAMPLES)]
    begin = store.status()["snapshot"]
    while (done := store.status()["snapshot"] - begin) < commits:
        at = done * SAMPLES // commits
        scans[at].append(scan_seconds(store))
        points[at].append(scan_seconds(store, filter="k = 5"))
        time.sleep(0.2)
    return [some for some in scans if some], [some for some in points if some]


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
