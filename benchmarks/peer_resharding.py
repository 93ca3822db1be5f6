"""Scans while rows move between shards: how many rows they lose, and how many they return twice.

elasticscan is compared with a program that shards a database itself: it has two schemas of PostgreSQL, moves
rows from one to the other in one transaction, and reads one schema after the other, page by page.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from peer_engines import ElasticScan, Postgres, rows

from elasticscan.errors import TryAgain, UsageError

ROWS, PAGE, TABLETS, SCANS = 200_000, 2_000, 64, 3
Outcome = tuple[int, int, int, float]  # rows lost, rows returned twice, moves, median seconds of a scan


def counted(pages: Callable[[], Iterator[pa.RecordBatch]], move: Callable[[random.Random], None]) -> Outcome:
    """Return the lost and repeated rows of a few scans while tablets move."""
    ended, moves = threading.Event(), 0

    def go_on() -> None:
        nonlocal moves
        chance = random.Random(1)
        while not ended.is_set():
            move(chance)
            moves += 1

    mover = threading.Thread(target=go_on)
    mover.start()
    lost = twice = 0
    took: list[float] = []
    try:
        for _ in range(SCANS):
            times = np.zeros(ROWS, dtype=np.int64)
            start = time.perf_counter()
            for page in pages():
                np.add.at(times, page.column("id").to_numpy(), 1)
            took.append(time.perf_counter() - start)
            lost += int((times == 0).sum())
            twice += int((times > 1).sum())
    finally:
        ended.set()
        mover.join()
    return lost, twice, moves, statistics.median(took)


def elasticscan(place: Path) -> Outcome:
    engine = ElasticScan(place)
    engine.load(rows(0, ROWS))
    shards = ("s1", "s2", "s3", "s4")

    def move(chance: random.Random) -> None:
        tablets = [tablet["id"] for tablet in engine.store.status()["tablets"]]
        with suppress(TryAgain, UsageError):  # it is already at this shard
            engine.store.move(chance.choice(tablets), chance.choice(shards))

    try:
        return counted(lambda: engine.pages(PAGE), move)
    finally:
        engine.close()


def sharded_by_hand(place: Path) -> Outcome:
    engine = Postgres(place)
    engine.load(rows(0, ROWS))
    engine._do("CREATE SCHEMA a", "CREATE TABLE a.t (LIKE t INCLUDING ALL)")
    engine._do("CREATE SCHEMA b", "CREATE TABLE b.t (LIKE t INCLUDING ALL)")
    for shard, part in (("a", 0), ("b", 1)):
        engine._do(f"INSERT INTO {shard}.t SELECT * FROM t WHERE id % {TABLETS} % 2 = {part}")
    moving = engine.another()

    def move(chance: random.Random) -> None:
        source, target = chance.sample(["a", "b"], 2)
        gone = f"DELETE FROM {source}.t WHERE id % {TABLETS} = {chance.randrange(TABLETS)} RETURNING *"
        with moving.cursor() as cursor:
            cursor.execute(f"WITH gone AS ({gone}) INSERT INTO {target}.t SELECT * FROM gone")
        moving.commit()

    def pages() -> Iterator[pa.RecordBatch]:
        for shard in ("a", "b"):
            last = -1
            while (
                page := engine.asked(f"SELECT * FROM {shard}.t WHERE id > {last} ORDER BY id LIMIT {PAGE}")
            ).num_rows:
                yield from page.to_batches()
                last = page["id"][-1].as_py()
            engine.connection.commit()

    try:
        return counted(pages, move)
    finally:
        moving.close()
        engine.close()


RESHARDED: dict[str, Callable[[Path], Outcome]] = {
    ElasticScan.name: elasticscan,
    Postgres.name: sharded_by_hand,
}
