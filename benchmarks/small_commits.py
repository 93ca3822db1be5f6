"""A store that is written in small pieces: what reads, commits and disks cost after so many commits.

All maintenance is that of the writing process after its commits, and 256 open files are allowed.
"""

from __future__ import annotations

import json
import resource
import statistics
from collections.abc import Iterator
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
    """Make a store with so many rows, written at once, and an index."""
    Store.create(place, ["s1", "s2"]).close()
    store = Store.open(place, upkeep=upkeep)
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(rows_of(np.arange(rows), 1))
    table.create_index("by_k", ["k"])
    return store


def write_small(store: Store, number: int) -> None:
    """One commit: half updates, half new rows."""
    chance = np.random.default_rng(number)
    updated = chance.choice(LOADED, COMMIT_ROWS // 2, replace=False)
    new = LOADED + number * COMMIT_ROWS + np.arange(COMMIT_ROWS // 2)
    store.table("t").upsert(rows_of(np.concatenate([updated, new]), number))


def scanned(store: Store, **how: Any) -> int:
    """Scan the table; return how many pages there were."""
    return sum(1 for _ in store.table("t").scan(**how))


def scan_seconds(store: Store, **how: Any) -> float:
    """Return the best of three, as of an undisturbed scan."""
    return min(seconds(lambda: scanned(store, **how)) for _ in range(3))


def bench_small_commits(results: Results, work: Path, commits: int) -> None:
    """Measure reads and commits after so many small commits, against a store that was loaded at once."""
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
        results.at_least(f"full scan {after} / loaded at once", fresh_scan / scan, 0.8, detail)
        detail = f"{point * 1e3:.1f} and {fresh_point * 1e3:.1f} ms"
        results.at_most(f"… {POINT} by an index", point / fresh_point, 2, detail)
        some = max(1, commits // 10)
        first, last = statistics.median(took[:some]), statistics.median(took[-some:])
        results.at_most(
            "commit at the end / at the start", last / first, 1.5, f"{first * 1e3:.1f} ms at the start"
        )
        results.at_most("… fragments of the worst slot", state["upkeep"]["slot_fragments"], 8)
        results.at_most("… bytes written / committed", state["upkeep"]["amplification"]["writes"], 8)
        store.table("t").set_retention("0s")
        store.table("t").compact()
        store.collect_garbage(grace_seconds=0, trash_seconds=0)
        results.at_most(
            "space once retention has passed / loaded at once", bytes_of(work / "small") / fresh_bytes, 2
        )


def bytes_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def bench_upkeep_price(results: Results, work: Path, commits: int) -> None:
    """Small commits with upkeep after them and without it, by turns."""
    with loaded(work / "kept", LOADED) as kept, loaded(work / "plain", LOADED, "off") as plain:
        number = iter(range(1 << 30))

        def write_to(store: Store) -> None:
            for _ in range(commits // 4):
                write_small(store, next(number))

        took = by_turns(3, kept=lambda: write_to(kept), plain=lambda: write_to(plain))
        results.at_least("commits a second with upkeep / without", took["plain"] / took["kept"], 0.7)


def bench_upserts(results: Results, work: Path, rows: int) -> None:
    """Measure a scan after ten upserts of 1 %, before upkeep has run and after it, within retention."""
    with loaded(work / "upserts", rows, "off") as store:
        fresh = scan_seconds(store)
        chance = np.random.default_rng(7)
        for number in range(10):
            store.table("t").upsert(rows_of(chance.choice(rows, rows // 100, replace=False), 100 + number))
        before = scan_seconds(store)
        store.keep()
        after = scan_seconds(store)
        results.at_least("full scan after ten upserts of 1 % / before them", fresh / before, 0.3)
        results.at_least("… once upkeep has run", fresh / after, 0.8)


def bench_upkeep(results: Results, work: Path, commits: int, rows: int) -> None:
    bench_small_commits(results, work, commits)
    bench_upkeep_price(results, work, max(40, commits // 25))
    bench_upserts(results, work, rows)
