"""The cost of reads and commits, and the disk space, after many small commits.

Only the writing process runs upkeep, after its commits. 256 open files are allowed.
"""

from __future__ import annotations

import json
import resource
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measure import Results, by_turns, seconds

from elasticscan.store import Store

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("k", pa.int64()), pa.field("v", pa.float64())]
)
LOADED = 1_000_000
COMMIT_ROWS = 100  # half of them update rows that were loaded
OPEN_FILES = 256
POINT = "k = 5"  # some ten rows
MOVES = 128


@contextmanager
def open_files_limited(to: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (to, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def rows_of(ids: np.ndarray[Any, Any], seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    columns = [pa.array(ids), pa.array(chance.integers(0, LOADED // 10, len(ids)))]
    return pa.Table.from_arrays([*columns, pa.array(chance.random(len(ids)))], schema=SCHEMA)


def loaded(place: Path, rows: int, upkeep: str = "auto") -> Store:
    """Make a store with this number of rows, written in one commit, and an index."""
    Store.create(place, ["s1", "s2"]).close()
    store = Store.open(place, upkeep=upkeep)
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(rows_of(np.arange(rows), 1))
    table.create_index("by_k", ["k"])
    return store


def write_small(store: Store, number: int) -> None:
    """Make one commit: half updates, half new rows."""
    chance = np.random.default_rng(number)
    updated = chance.choice(LOADED, COMMIT_ROWS // 2, replace=False)
    new = LOADED + number * COMMIT_ROWS + np.arange(COMMIT_ROWS // 2)
    store.table("t").upsert(rows_of(np.concatenate([updated, new]), number))


def scanned(store: Store, **how: Any) -> int:
    """Scan the table; return the number of pages."""
    return sum(1 for _ in store.table("t").scan(**how))


def scan_seconds(store: Store, **how: Any) -> float:
    """Return the shortest time of three scans, the one least disturbed by other work."""
    return min(seconds(lambda: scanned(store, **how)) for _ in range(3))


def bench_small_commits(results: Results, work: Path, commits: int) -> None:
    """Measure reads and commits after many small commits, compared with a store loaded in one commit."""
    with open_files_limited(OPEN_FILES), loaded(work / "small", LOADED) as store:
        took: list[float] = []
        curve: list[dict[str, float]] = []
        for number in range(commits):
            took.append(seconds(lambda number=number: write_small(store, number)))  # type: ignore[misc]
            if number + 1 in {10, 100, 1_000, commits}:
                curve.append(
                    {
                        "commits": number + 1,
                        "scan_ms": scan_seconds(store) * 1e3,
                        "point_ms": scan_seconds(store, filter=POINT) * 1e3,
                        "commit_ms": statistics.median(took[-100:]) * 1e3,
                        "slot_fragments": store.status()["tables"][0]["upkeep"]["slot_fragments"],
                    }
                )
                print("      " + json.dumps({name: round(value, 2) for name, value in curve[-1].items()}))
        state = store.status()["tables"][0]
        scan, point = scan_seconds(store), scan_seconds(store, filter=POINT)
        rows = store.table("t").scan().count()
        with loaded(work / "at-once", rows) as fresh:
            fresh_scan, fresh_point = scan_seconds(fresh), scan_seconds(fresh, filter=POINT)
            fresh_bytes = bytes_of(work / "at-once")
        after = f"after {commits:,} commits of {COMMIT_ROWS} rows"
        detail = f"{scan * 1e3:.1f} and {fresh_scan * 1e3:.1f} ms"
        results.at_least(f"full scan {after} / loaded at once", fresh_scan / scan, 0.9, detail)
        detail = f"{point * 1e3:.1f} and {fresh_point * 1e3:.1f} ms"
        results.at_most(f"… {POINT} by an index", point / fresh_point, 1.5, detail)
        some = max(1, commits // 10)
        first, last = statistics.median(took[:some]), statistics.median(took[-some:])
        results.at_most(
            "commit at the end / at the start", last / first, 1.3, f"{first * 1e3:.1f} ms at the start"
        )
        results.at_most("… fragments of the worst slot", state["upkeep"]["slot_fragments"], 8)
        store.table("t").set_retention("0s")
        store.table("t").compact()
        store.collect_garbage(grace_seconds=0, orphan_seconds=0)
        results.at_most(
            "space once retention has passed / loaded at once", bytes_of(work / "small") / fresh_bytes, 2
        )


def bytes_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def bench_upkeep_price(results: Results, work: Path, commits: int) -> None:
    """Compare small commits with upkeep after them and without it, in turns."""
    with loaded(work / "kept", LOADED) as kept, loaded(work / "plain", LOADED, "off") as plain:
        number = iter(range(1 << 30))

        def write_to(store: Store) -> None:
            for _ in range(commits // 4):
                write_small(store, next(number))

        took = by_turns(3, kept=lambda: write_to(kept), plain=lambda: write_to(plain))
        results.at_least("commits a second with upkeep / without", took["plain"] / took["kept"], 0.7)


def bench_updates(results: Results, work: Path, rows: int) -> None:
    """Measure a scan of one column after upserts of 1 %, before and after maintenance."""
    for many, wanted, wanted_later in ((1, 0.5, 0.9), (10, 0.4, 0.8)):
        with loaded(work / f"updates-{many}", rows) as store:
            fresh = scan_seconds(store, columns=["v"])
            chance = np.random.default_rng(7)
            for number in range(many):
                some = chance.choice(rows, rows // 100, replace=False)
                store.table("t").upsert(rows_of(some, 100 + number))
            scanned(store, columns=["v"])
            after = scan_seconds(store, columns=["v"])
            store.keep()
            later = scan_seconds(store, columns=["v"])
        what = f"one column from the second scan after {many} upserts of 1 % / before"
        results.at_least(what, fresh / after, wanted, f"{fresh * 1e3:.1f} and {after * 1e3:.1f} ms")
        results.at_least("… after maintenance", fresh / later, wanted_later, f"{later * 1e3:.1f} ms")


def bench_moves(results: Results, work: Path, rows: int) -> None:
    """Measure reads after moves of tablets, with automatic upkeep."""
    with loaded(work / "moves", rows) as store:
        table, thousandth = store.table("t"), LOADED // 10 // 1_000
        reads: dict[str, Callable[[], object]] = {
            POINT: lambda: scanned(store, filter=POINT),
            "0.1 % by an index": lambda: scanned(store, filter=f"k BETWEEN 100 AND {99 + thousandth}"),
            "sum of a column": lambda: table.aggregate("sum(v)"),
            "count(*)": lambda: table.scan().count(),
            "full scan": lambda: scanned(store),
        }
        before = {name: _best(read) for name, read in reads.items()}
        chance = np.random.default_rng(11)
        for _ in range(MOVES):
            tablet = chance.choice(store.status()["tablets"])
            store.move(tablet["id"], "s1" if tablet["shard"] == "s2" else "s2")
        for name, read in reads.items():
            after = _best(read)
            detail = f"{before[name] * 1e3:.1f} and {after * 1e3:.1f} ms"
            results.at_most(f"{name} after {MOVES} moves / before", after / before[name], 1.3, detail)


def _best(read: Callable[[], object]) -> float:
    return min(seconds(read) for _ in range(7))


def bench_upkeep(results: Results, work: Path, commits: int, rows: int) -> None:
    bench_small_commits(results, work, commits)
    bench_upkeep_price(results, work, max(40, commits // 25))
    bench_updates(results, work, rows)
    bench_moves(results, work, rows)
