"""Streams: the cost of a micro-batch, the speed of catching up, the latency of a commit."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
from data import SCHEMA, batches
from measure import Results, by_turns

from elasticscan.store import Store

SMALL = 1_000  # rows of a commit, and of a micro-batch that is little more than overhead
COUNTED, SKIPPED = 12, 3  # micro-batches of a query; its first ones load classes and connect
LARGE = 500_000
NEW_KEYS = 1 << 40  # above all keys of the initial rows
COMMITS = 40


class Streams:
    """Starts queries, each with a checkpoint of its own."""

    def __init__(self, spark: Any, work: Path) -> None:
        self._spark, self._work, self._numbers = spark, work, itertools.count()

    def reading(self, source: str, **options: Any) -> Any:
        return self._spark.readStream.format(source).options(**options).load()

    def writer(self, frame: Any) -> Any:
        checkpoint = self._work / "checkpoints" / str(next(self._numbers))
        return frame.writeStream.option("checkpointLocation", str(checkpoint))

    def run(self, source: str, **options: Any) -> list[Any]:
        """Read all available rows; return the progress of every micro-batch."""
        writer = self.writer(self.reading(source, **options)).format("noop")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress.numInputRows]


def new_rows(first: int, count: int) -> pa.RecordBatch:
    """Return rows with new keys; the other columns are as in the tables."""
    rows = next(batches(SMALL)).slice(0, count)
    keys = pa.array(np.arange(NEW_KEYS + first, NEW_KEYS + first + count))
    return rows.set_column(0, SCHEMA.field("id"), keys)


def small_store(place: Path, rows: int, commits: int) -> Store:
    """Make a table of some size by commits 1 and 2, and small commits after it."""
    store = Store.create(place, ["s1", "s2"])
    store.create_table("t", SCHEMA, ["id"])
    store.table("t").upsert(pa.RecordBatchReader.from_batches(SCHEMA, batches(rows)))
    for number in range(commits):
        store.table("t").upsert(new_rows(number * SMALL, SMALL))
    return store


def bench_overhead(results: Results, streams: Streams, work: Path, rows: int) -> None:
    """Compare micro-batches of one small commit each with those of a source that does nothing."""
    with small_store(work / "small-commits", rows, COUNTED + SKIPPED) as store:
        elastic = partial(
            streams.run,
            "elasticscan",
            store=store.uri,
            table="t",
            startingVersion=3,
            maxRowsPerTrigger=SMALL,
        )
        total = SMALL * (COUNTED + SKIPPED)
        columns = ",".join(SCHEMA.names)
        trivial = partial(streams.run, "ceiling", rows=total, batch=SMALL, columns=columns, partitions=1)
        took: dict[str, list[float]] = {"elastic": [], "trivial": []}
        parts: dict[str, dict[str, list[float]]] = {"elastic": {}, "trivial": {}}
        for turn in range(5):
            for name, run in (("elastic", elastic), ("trivial", trivial)):
                found = run()
                assert [progress.numInputRows for progress in found] == [SMALL] * (COUNTED + SKIPPED)
                if not turn:  # the JVM warms up
                    continue
                for progress in found[SKIPPED:]:
                    took[name].append(progress.durationMs["triggerExecution"])
                    for part, spent in progress.durationMs.items():
                        parts[name].setdefault(part, []).append(spent)
    mine, least = statistics.median(took["elastic"]), statistics.median(took["trivial"])
    detail = f"{mine:.0f} and {least:.0f} ms, medians of {len(took['elastic'])}"
    results.at_most("micro-batch, ms above a source that has nothing to do", mine - least, 30, detail)
    for part in parts["elastic"]:
        here, there = (statistics.median(parts[name].get(part, [0])) for name in ("elastic", "trivial"))
        print(f"              {part}: {here:.0f} and {there:.0f} ms", flush=True)


def bench_catch_up(results: Results, streams: Streams, place: Path, rows: int, rounds: int) -> None:
    """Measure a whole table in micro-batches, compared with a source that does nothing."""

    def stream(source: str, **options: Any) -> Callable[[], None]:
        def run() -> None:
            found = streams.run(source, **options)
            assert sum(progress.numInputRows for progress in found) == rows, found
            assert len(found) >= rows // LARGE

        return run

    columns = ",".join(SCHEMA.names)
    took = by_turns(
        rounds,
        warmups=2,
        stream=stream("elasticscan", store=str(place), table="t", maxRowsPerTrigger=LARGE),
        ceiling=stream("ceiling", rows=rows, batch=LARGE, columns=columns, partitions=2),
    )
    what = f"catch-up, {LARGE:,} rows at a time / ceiling of a Python streaming source"
    rate = f"{rows / took['stream'] / 1e6:.2f} million rows/s"
    results.at_least(what, took["ceiling"] / took["stream"], 0.85, rate)


@contextmanager
def following(streams: Streams, store: Store) -> Iterator[dict[int, float]]:
    """Start a stream that notes when each new key was processed."""
    seen: dict[int, float] = {}
    first = Event()

    def note(frame: Any, number: int) -> None:
        del number
        keys = [row.id for row in frame.select("id").collect()]
        now = time.perf_counter()
        seen.update((key, now) for key in keys)
        first.set()

    frame = streams.reading("elasticscan", store=store.uri, table="t", startingVersion="latest")
    query = streams.writer(frame).foreachBatch(note).trigger(processingTime="200 milliseconds").start()
    try:
        query.processAllAvailable()
        store.table("t").upsert(new_rows(1 << 30, 1))
        assert first.wait(60), query.exception()
        yield seen
        query.processAllAvailable()
    finally:
        query.stop()


def bench_latency(results: Results, streams: Streams, work: Path, rows: int) -> None:
    """Measure the time from the return of a small write to the end of its micro-batch, at random times."""
    chance = random.Random(7)
    written: dict[int, float] = {}
    with small_store(work / "followed", rows, 0) as store, following(streams, store) as seen:
        for number in range(COMMITS):
            time.sleep(chance.uniform(0.3, 1.3))
            batch = new_rows(number * SMALL, 10)
            store.table("t").upsert(batch)
            written[batch["id"][0].as_py()] = time.perf_counter()
    waits = sorted(seen[key] - at for key, at in written.items())
    detail = f"{COMMITS} commits, trigger of 200 ms, 90 % within {waits[COMMITS * 9 // 10]:.2f} s"
    results.at_most("commit to processed rows, s (median)", statistics.median(waits), 1, detail)


def bench_streams(results: Results, spark: Any, work: Path, place: Path, rows: int, rounds: int) -> None:
    streams = Streams(spark, work)
    some = min(rows, 1_000_000)
    bench_overhead(results, streams, work, some)
    bench_latency(results, streams, work, some)
    bench_catch_up(results, streams, place, rows, rounds)
