"""Scans read by threads that Python did not start: of DuckDB, delta-rs, and bare ones.

python foreign.py PROGRAM URI ROUNDS     runs one of the programs below so many times

Such a thread is known to Python only while it calls it, over and over again. A mistake in what it
leaves behind ends the whole process by a signal, so each program is a process of its own.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from elasticscan.store import Page, Scan, Store

ROWS = 30_000
TOTAL = ROWS * (ROWS - 1) // 2
THREADS = 100

_pthreads = ctypes.CDLL(None)
_Start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def stream(scan: Scan) -> pa.RecordBatchReader:
    """A scan as what other tools read, page by page as they ask for it."""
    return pa.RecordBatchReader.from_batches(scan.schema, (page.rows for page in scan))


def some_scan(store: Store) -> Scan:
    return store.table("t").scan(page_rows=2_000)


def begin_thread(work: Callable[[], None], errors: list[str]) -> Callable[[], None]:
    """Run something in a thread of the operating system alone; returns what waits for its end."""

    def start(_argument: int | None) -> None:
        try:
            work()
        except BaseException:
            errors.append(traceback.format_exc())

    entry, handle = _Start(start), ctypes.c_ulong()
    assert _pthreads.pthread_create(ctypes.byref(handle), None, entry, None) == 0

    def join() -> None:
        assert _pthreads.pthread_join(handle, None) == 0
        assert entry  # lives as long as the thread

    return join


def in_threads(works: list[Callable[[], None]]) -> None:
    errors: list[str] = []
    for join in [begin_thread(work, errors) for work in works]:
        join()
    assert not errors, errors[0]


def duckdb_aggregates(store: Store, number: int) -> None:
    import duckdb  # noqa: PLC0415

    with duckdb.connect(config={"threads": 2 + number % 3}) as connection:
        trips = stream(some_scan(store))
        query = "SELECT count(*), sum(id), count(DISTINCT v) FROM trips"
        assert connection.execute(query).fetchall() == [(ROWS, TOTAL, 100)]
        del trips


def duckdb_limits(store: Store, number: int) -> None:
    """The reader is let go of before its end, by whichever thread that happens to be in."""
    import duckdb  # noqa: PLC0415

    with duckdb.connect(config={"threads": 2 + number % 3}) as connection:
        trips = stream(some_scan(store))
        assert len(connection.execute("SELECT id FROM trips LIMIT 5").fetchall()) == 5
        del trips


def duckdb_in_several_threads(store: Store, number: int) -> None:
    errors: list[str] = []

    def work() -> None:
        try:
            for each in (duckdb_aggregates, duckdb_limits):
                each(store, number)
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def delta_writes(store: Store, number: int) -> None:
    import deltalake  # noqa: PLC0415

    where = f"{store.uri}.delta{number}"
    deltalake.write_deltalake(where, stream(some_scan(store)))
    assert deltalake.DeltaTable(where).version() == 0
    store.table("copy").overwrite(stream(some_scan(store)))
    deltalake.write_deltalake(where, stream(store.table("copy").scan()), mode="append")
    assert deltalake.DeltaTable(where).version() == 1


def handed_on(store: Store, _number: int) -> None:
    """One scan, of which each page is read by another thread, each while the others wait."""
    pages: Iterator[Page] = iter(some_scan(store))
    found: list[int] = []

    def work() -> None:
        page = next(pages, None)
        if page is not None:
            found.extend(page.rows.column("id").to_pylist())

    for _ in range(THREADS):
        in_threads([work])
    assert sorted(found) == list(range(ROWS))


def abandoned(store: Store, _number: int) -> None:
    """Scans begun here and thrown away half read in other threads, also by the garbage collector."""
    scans = [some_scan(store) for _ in range(40)]
    for scan in scans:
        next(scan.batches())
    circles: list[list[object]] = [[scan] for scan in scans[::2]]
    for circle in circles:
        circle.append(circle)
    lone = scans[1::2]
    scans.clear()
    circles.clear()
    del scan
    in_threads([lambda: lone.pop().close()] * 10 + [lambda: lone.pop() and None] * 10 + [gc.collect] * 5)
    gc.collect()


def written(store: Store, number: int) -> None:
    """Writes, moves and the opening of stores in threads that Python did not start."""

    def write() -> None:
        store.table("copy").upsert(pa.table({"id": [number], "v": [number]}))

    def open_again() -> None:
        with Store.open(store.uri) as other:
            assert other.table("t").scan().to_table().num_rows == ROWS

    def move() -> None:
        with Store.open(store.uri) as other:
            tablet = other.context.placement().tablets[number % 8]
            other.move(tablet.id, "a" if other.context.shard_names()[tablet.shard] == "b" else "b")

    in_threads([write, open_again, write, move, open_again, write])


PROGRAMS: dict[str, Callable[[Store, int], None]] = {
    each.__name__: each
    for each in (
        duckdb_in_several_threads,
        delta_writes,
        handed_on,
        abandoned,
        written,
    )
}


def main(name: str, uri: str, rounds: int) -> None:
    Path(uri).parent.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    with Store.create(uri, shards=["a", "b"], tablets=8) as store:
        for table in ("t", "copy"):
            store.create_table(table, schema, ["id"])
        store.table("t").upsert(pa.table({"id": range(ROWS), "v": [key % 100 for key in range(ROWS)]}))
        for number in range(rounds):
            PROGRAMS[name](store, number)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
