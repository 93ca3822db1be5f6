"""The cost of stores with many rows, tablets, shards, commits and so on: figures over counts, and plots.

    python benchmarks/scale.py PART … [--most N] [--work DIR] [--figures FILE] [--plots docs]

Parts: rows, tablets, shards, topologies, commits, tasks; "lived" and "scattered" are commits to 4,096
tablets, in the usual order and in the worst one. In "server" (with PYTHONPATH=.) the catalog is in
PostgreSQL; beyond 10,000 commits only the last 500 have rows, since the length of the history is measured.
Each part prints JSON for each count; `--figures` adds it to a file, from which `--plots` draws. Times are
milliseconds of processor time of all threads: wall time would depend on other work on the machine.

Commits are ten seconds apart by a clock that the program sets, so retention and grace periods end as in a
real store: 100,000 commits take eleven and a half days of this clock.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from measure import family_seconds, processor_seconds
from plots import Points, plotted
from pyspark.serializers import CPickleSerializer

from elasticscan.base.clock import SystemClock
from elasticscan.catalog import base_topology
from elasticscan.connector import ElasticScanSource
from elasticscan.metadata import StoreCreated
from elasticscan.storage import open_disk
from elasticscan.store import Store
from elasticscan.store.copies.creation import make_store
from elasticscan.store.roots.location import Location
from elasticscan.store.writing.publishing import CommitRequest, commit_of
from elasticscan.topology import Placement, Shard, Tablet, Topology, initial_placement

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
BATCH_ROWS = 1_000_000
COMMIT_ROWS, COMMIT_SECONDS = 10, 10.0
SLOTS = 16_384

Figures = dict[str, float]


class TurnedClock:
    """A clock that begins in the past, and advances only when the program sets it."""

    def __init__(self, ahead_seconds: float) -> None:
        self._now = time.time() - ahead_seconds

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def milliseconds(work: Callable[[], object], times: int = 5) -> float:
    """Return the median of several times, after one call that warms up."""
    work()
    return statistics.median(processor_seconds(work) for _ in range(times)) * 1e3


def once(work: Callable[[], object]) -> float:
    return processor_seconds(work) * 1e3


def anonymous_mb() -> float:
    """Return the anonymous memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


def batch(first: int, count: int) -> pa.RecordBatch:
    ids = np.arange(first, first + count)
    return pa.RecordBatch.from_arrays([pa.array(ids), pa.array(ids * 7919 % 1_000_003)], schema=SCHEMA)


def write(store: Store, first: int, count: int) -> None:
    store.table("t").upsert(pa.Table.from_batches([batch(first, count)]))


def made(
    work: Path,
    shards: int = 2,
    tablets: int = 64,
    clock: TurnedClock | None = None,
    scattered: bool = True,
    server: str | None = None,
) -> Store:
    """Make a store with an empty table; its catalog is in its directory, or at a server.

    Scattered tablets are the worst case: neighbours are at different shards and have different epochs.
    Otherwise each shard has a contiguous range of tablets, as `Store.create` places them.
    """
    place = server or str(work)
    location, names = Location.of(place), [f"s{number}" for number in range(1, shards + 1)]
    cuts = [number * SLOTS // tablets for number in range(tablets + 1)]
    placement = initial_placement(SLOTS, tablets, range(1, shards + 1))
    if scattered:
        placement = Placement.of(
            Tablet(number + 1, cuts[number], cuts[number + 1], number % shards + 1, number % 7 + 1)
            for number in range(tablets)
        )
    of_shards = {name: str(work / "shards" / name) if server else None for name in names}
    roots = (location.stored_root(name, root) for name, root in of_shards.items())
    made = tuple(map(Shard, range(1, shards + 1), names, roots))
    record = StoreCreated(work.name, "spark", 7 * 86_400.0, made, placement.tablets, work.name)
    make_store(location, open_disk, clock or SystemClock(), record)
    store = Store.open(place, clock=clock)
    store.create_table("t", SCHEMA, ["id"])
    return store


def catalog_bytes(work: Path) -> dict[str, int]:
    """Return the bytes of each table of the catalog, with its indexes."""
    with closing(sqlite3.connect(f"file:{work}/catalog.db?mode=ro", uri=True)) as database:
        sizes = "SELECT tbl_name, sum(pgsize - unused) FROM dbstat JOIN sqlite_schema USING (name)"
        query = f"{sizes} GROUP BY tbl_name"
        return {str(name): int(size) for name, size in database.execute(query)}


def catalog_mb(work: Path) -> float:
    return sum(catalog_bytes(work).values()) / 1e6


def first_page(store: Store) -> int:
    with store.table("t").scan() as scan:
        return next(iter(scan)).rows.num_rows


def planned(store: Store, **options: str) -> list[Any]:
    """Return the partitions of a Spark scan, as the driver plans them."""
    source = ElasticScanSource({"store": store.uri, "table": "t", **options})
    return list(source.reader(source.schema()).partitions())


def reads(store: Store) -> Figures:
    return {
        "status_ms": milliseconds(store.status, 3),
        "plan_ms": milliseconds(lambda: planned(store)),
        "page_ms": milliseconds(lambda: first_page(store)),
    }


def commits_ms(store: Store, first: int, commits: int = 40) -> float:
    """Return the mean of small commits, with the upkeep after them."""
    took = [once(lambda n=n: write(store, first + 10 * n, COMMIT_ROWS)) for n in range(commits)]  # type: ignore[misc]
    return statistics.mean(took)


# Each part yields its figures count by count.


def rows_part(work: Path, most: int) -> Iterator[Figures]:
    with made(work) as store:
        table, there = store.table("t"), 0
        for rows in (10**6, 10**7, 10**8):
            if rows > most:
                return
            peak = [0.0]

            def batches(start: int, end: int, peak: list[float] = peak) -> Iterator[pa.RecordBatch]:
                for first in range(start, end, BATCH_ROWS):
                    yield batch(first, BATCH_ROWS)
                    peak[0] = max(peak[0], anonymous_mb())

            def scanned(peak: list[float] = peak) -> None:
                seen = 0
                with table.scan() as scan:
                    for page in scan:
                        seen += page.rows.num_rows
                        peak[0] = max(peak[0], anonymous_mb())
                assert seen >= rows, "all rows are there"  # noqa: B023

            loading = pa.RecordBatchReader.from_batches(SCHEMA, batches(there, rows))
            load = once(lambda loading=loading: table.upsert(loading))  # type: ignore[misc]
            added, there = rows - there, rows
            scan = once(scanned)
            keys = iter(range(1, 1 << 30))
            yield {
                "rows": rows,
                "load_ms_per_million": load / added * 1e6,
                "scan_ms_per_million": scan / rows * 1e6,
                "get_ms": milliseconds(lambda: table.get([next(keys) * 7_919 % 10**6]), 40),  # noqa: B023
                **reads(store),
                "commit_ms": commits_ms(store, 10**9),
                "bytes_per_row": store.status()["tables"][0]["bytes"] / rows,
                "fragments": store.status()["tables"][0]["fragments"],
                "memory_mb": peak[0],
                "catalog_mb": catalog_mb(work),
            }


def tablets_part(work: Path, most: int) -> Iterator[Figures]:
    for tablets in (64, 256, 1_024, 4_096, SLOTS):
        if tablets > most:
            return
        place = work / str(tablets)
        with made(place, 4, tablets) as store:
            write(store, 0, 200_000)
            before = catalog_mb(place)
            ids = [tablet["id"] for tablet in store.status()["tablets"][:: tablets // 16]]
            yield {
                "tablets": tablets,
                "commit_ms": commits_ms(store, 10**6),
                "commit_catalog_kb": (catalog_mb(place) - before) * 1e3 / 40,
                **reads(store),
                "move_ms": statistics.median(once(lambda at=at: store.move(at, "s2")) for at in ids[:4]),  # type: ignore[misc]
                "open_ms": milliseconds(lambda: Store.open(place).close()),  # noqa: B023
                "catalog_mb": catalog_mb(place),
            }


def shards_part(work: Path, most: int) -> Iterator[Figures]:
    for shards in (2, 4, 8, 16, 32, 64):
        if shards > most:
            return
        place = work / str(shards)
        with made(place, shards, 1_024) as store:
            load = once(lambda store=store: write(store, 0, 1_000_000))  # type: ignore[misc]
            yield {
                "shards": shards,
                "load_ms": load,
                "commit_ms": commits_ms(store, 10**7),
                **reads(store),
                "scan_ms": milliseconds(lambda store=store: store.table("t").scan().count(), 3),  # type: ignore[misc]
                "catalog_mb": catalog_mb(place),
            }


def topology_at(store: Store, number: int) -> Topology:
    return base_topology(store.context.catalog.newest(), number)


def topologies_part(work: Path, most: int) -> Iterator[Figures]:
    with made(work, 2, 4_096) as store:
        first = store.status()["tablets"][0]["id"]
        took: list[float] = []
        while len(took) < min(most, 10_000):
            took.append(once(lambda: store.split(first)))  # noqa: B023
            left, right = sorted(store.topology.placement.tablets, key=lambda tablet: tablet.start)[:2]
            took.append(once(lambda: store.join(left.id, right.id)))  # noqa: B023
            first = store.topology.placement.tablet_of(0).id
            if len(took) in (100, 1_000, 10_000):
                yield {
                    "topologies": len(took),
                    "change_ms": statistics.mean(took[-len(took) // 10 :]),
                    "list_ms": milliseconds(store.topology_history, 3),
                    "list_ten_ms": milliseconds(lambda: store.topology_history(10), 3),
                    "at_ms": milliseconds(lambda: topology_at(store, 50), 3),
                    **reads(store),
                    "history_mb": catalog_bytes(work)["topology_history"] / 1e6,
                }


def _updates(store: Store, clock: TurnedClock, most: int) -> Iterator[float]:
    """Update existing rows, ten seconds apart; return the seconds of each commit."""
    chance = np.random.default_rng(most)
    for number in range(most):
        ids = chance.choice(20_000, COMMIT_ROWS, replace=False)
        rows = pa.Table.from_arrays([pa.array(ids), pa.array(ids * number)], schema=SCHEMA)
        yield once(lambda rows=rows: store.table("t").upsert(rows))  # type: ignore[misc]
        clock.sleep(COMMIT_SECONDS)


def _lived(work: Path, most: int, tablets: int, scattered: bool) -> Iterator[Figures]:
    clock = TurnedClock(most * COMMIT_SECONDS + 3_600)
    with made(work, 2, tablets, clock, scattered) as store:
        write(store, 0, 20_000)
        took = list[float]()
        for number, milliseconds_of_one in enumerate(_updates(store, clock, most), 1):
            took.append(milliseconds_of_one)
            if number in (100, 1_000, 3_000, 10_000, 20_000, 30_000, 100_000):
                sizes = catalog_bytes(work)
                yield {
                    "commits": number,
                    "commit_ms": statistics.mean(took[-max(50, number // 10) :]),
                    **reads(store),
                    "history_ms": milliseconds(store.table("t").history, 1),
                    "history_ten_ms": milliseconds(lambda: store.table("t").history(10)),
                    "collect_ms": once(store.collect_garbage),
                    "catalog_mb": sum(sizes.values()) / 1e6,
                    "catalog_commits_mb": sizes["commits"] / 1e6,
                    "files": sum(1 for path in (work / "shards").rglob("*") if path.is_file()),
                    "memory_mb": anonymous_mb(),
                }


def server_part(work: Path, most: int) -> Iterator[Figures]:
    from tests.base.postgres import start_server  # noqa: PLC0415 - the other parts need no server

    most = min(most, 100_000)
    clock = TurnedClock(most * COMMIT_SECONDS + 3_600)
    with start_server() as server, server.database() as database:
        uri = server.url(database)
        with made(work, 2, 64, clock, scattered=False, server=uri) as store:
            write(store, 0, 20_000)
            table, there = store.table("t"), 0
            for commits in (1_000, 10_000, 100_000):
                if commits > most:
                    return
                if there >= 10_000:
                    _enter_without_rows(store, clock, commits - 500 - there)
                    there = commits - 500
                took = list(_updates(store, clock, commits - there - 100))
                at_server = family_seconds(server.process)
                took, there = list(_updates(store, clock, 100)), commits
                at_server = family_seconds(server.process) - at_server
                yield {
                    "commits": commits,
                    "commit_ms": statistics.mean(took),
                    "server_ms": at_server / len(took) * 1e3,
                    **reads(store),
                    "history_ms": milliseconds(table.history, 3),
                    "history_ten_ms": milliseconds(lambda: table.history(10)),
                    "collect_ms": once(store.collect_garbage),
                    **_server_mb(uri),
                    "memory_mb": anonymous_mb(),
                }


def _enter_without_rows(store: Store, clock: TurnedClock, commits: int) -> None:
    """Make commits of no rows, a hundred in a transaction."""
    table = store.table("t").definition.id
    for first in range(0, commits, 100):
        with store.context.catalog.writing() as tx:
            for _ in range(min(100, commits - first)):
                tx.append(commit_of(tx.state, table, [], CommitRequest()))
        clock.sleep(100 * COMMIT_SECONDS)


def _server_mb(uri: str) -> Figures:
    """Return the sizes of a database, its entries with their indexes, and the server's write-ahead log."""
    query = (
        "SELECT pg_database_size(current_database()), pg_total_relation_size('log'), "
        "pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
    )
    with psycopg.connect(uri.replace("+psycopg", "")) as connection:
        sizes = connection.execute(query).fetchall()[0]
    return dict(
        zip(("catalog_mb", "catalog_commits_mb", "log_mb"), (float(n) / 1e6 for n in sizes), strict=True)
    )


def commits_part(work: Path, most: int) -> Iterator[Figures]:
    yield from _lived(work, min(most, 100_000), 64, scattered=False)


def lived_part(work: Path, most: int) -> Iterator[Figures]:
    yield from _lived(work, min(most, 10_000), 4_096, scattered=False)


def scattered_part(work: Path, most: int) -> Iterator[Figures]:
    yield from _lived(work, min(most, 10_000), 4_096, scattered=True)


def tasks_part(work: Path, most: int) -> Iterator[Figures]:
    with made(work, 4, 4_096) as store:
        write(store, 0, 4_000_000)
        size = store.status()["tables"][0]["bytes"]
        for tasks in (4, 10, 100, 1_000):
            if tasks > most:
                return
            options = {"splitSize": str(max(1, size // tasks)), "numPartitions": str(tasks)}
            parts = planned(store, **options)
            sizes = [len(CPickleSerializer().dumps(part)) for part in parts]
            yield {
                "tasks": len(parts),
                "plan_ms": milliseconds(lambda options=options: planned(store, **options)),  # type: ignore[misc]
                "task_kb": sum(sizes) / len(parts) / 1e3,
                "plan_mb": sum(sizes) / 1e6,
            }


@dataclass(frozen=True, slots=True)
class Part:
    """A part, and how it is drawn: the figures and their labels."""

    measured: Callable[[Path, int], Iterator[Figures]]
    along: str
    caption: str
    lines: Mapping[str, str]


_READS = {"status_ms": "status", "plan_ms": "plan of a Spark scan", "page_ms": "first page of a scan"}
_COMMIT = {"commit_ms": f"commit of {COMMIT_ROWS} rows"}
_CATALOG = {"catalog_mb": "catalog (MB)"}
_COMMITS = {
    **_COMMIT,
    **_READS,
    "history_ms": "list the history",
    "collect_ms": "collect garbage",
    **_CATALOG,
}
PARTS = {
    "rows": Part(
        rows_part,
        "rows",
        "ms of the processor, by rows",
        {
            "load_ms_per_million": "load, a million rows",
            "scan_ms_per_million": "scan, a million rows",
            "get_ms": "a row by its key",
            **_COMMIT,
            **_READS,
        },
    ),
    "tablets": Part(
        tablets_part,
        "tablets",
        "ms of the processor, by scattered tablets at four shards",
        {**_COMMIT, "move_ms": "move of a tablet", "open_ms": "open the store", **_READS, **_CATALOG},
    ),
    "shards": Part(
        shards_part,
        "shards",
        "ms of the processor, by shards",
        {"load_ms": "a million rows written", "scan_ms": "… counted", **_COMMIT, **_READS},
    ),
    "topologies": Part(
        topologies_part,
        "topologies",
        "ms of the processor, by topologies of 4,096 tablets",
        {
            "change_ms": "split or join",
            "list_ms": "list all",
            "at_ms": "an old placement",
            "history_mb": "history (MB)",
            **_READS,
        },
    ),
    "commits": Part(
        commits_part,
        "commits",
        "ms of the processor, by commits, one each ten seconds",
        _COMMITS,
    ),
    "lived": Part(
        lived_part,
        "commits",
        "ms of the processor, by commits, with 4,096 tablets in order",
        _COMMITS,
    ),
    "scattered": Part(
        scattered_part,
        "commits",
        "ms of the processor, by commits, with 4,096 scattered tablets",
        _COMMITS,
    ),
    "server": Part(
        server_part,
        "commits",
        "ms of the processor, by commits, catalog in PostgreSQL",
        {"server_ms": "… of it at the server", **_COMMITS, "log_mb": "log written (MB)"},
    ),
    "tasks": Part(
        tasks_part,
        "tasks",
        "plan of a scan by tasks, 4,096 scattered tablets",
        {"plan_ms": "plan (ms)", "task_kb": "a task's part (kB)", "plan_mb": "all parts (MB)"},
    ),
}


def draw(figures: Path, to: Path) -> None:
    points: dict[str, list[Figures]] = {}
    for line in figures.read_text(encoding="utf-8").splitlines():
        point = json.loads(line)
        points.setdefault(point.pop("part"), []).append(point)
    for name, some in points.items():
        (to / f"scale-{name}.svg").write_text(drawn(PARTS[name], some), encoding="utf-8")


def drawn(part: Part, points: Points) -> str:
    ticks = [10.0**power for power in range(-1, 6)]
    return plotted(points, part.along, part.lines, part.caption, 0.1, ticks)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], help="all by default where nothing is drawn"
    )
    parser.add_argument("--most", type=int, default=1 << 40, help="the largest count")
    parser.add_argument("--work", type=Path, help="where stores are made; by default a temporary directory")
    parser.add_argument("--figures", type=Path, help="a file for the figures, a JSON a line")
    parser.add_argument("--plots", type=Path, help="a directory for an SVG of each part in that file")
    options = parser.parse_args()
    for name in options.parts or ([] if options.plots else PARTS):
        with tempfile.TemporaryDirectory(prefix="elasticscan-scale-", dir=options.work) as temporary:
            for point in PARTS[name].measured(Path(temporary) / name, options.most):
                said = json.dumps({"part": name} | {key: round(value, 3) for key, value in point.items()})
                print(said, flush=True)
                if options.figures:
                    with options.figures.open("a", encoding="utf-8") as file:
                        file.write(said + "\n")
    if options.plots:
        draw(options.figures, options.plots)
    return 0


if __name__ == "__main__":
    sys.exit(main())
