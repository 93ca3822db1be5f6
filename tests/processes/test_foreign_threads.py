"""Scans read by threads that Python did not start: of DuckDB, and bare ones.

    python test_foreign_threads.py PROGRAM URI ROUNDS     runs one of the programs below so many times

Such a thread is known to Python only while it calls it, over and over again. A mistake in what it
leaves behind ends the whole process by a signal, so each program is a process of its own.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.store import Page, Scan, Store

ROWS = 30_000
TOTAL = ROWS * (ROWS - 1) // 2
THREADS = 100

_pthreads = ctypes.CDLL(None)
_Start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def some_scan(store: Store) -> Scan:
    return store.table("t").scan(page_rows=2_000)


def in_threads(works: list[Callable[[], object]]) -> None:
    """Run each in a thread of the operating system alone, all at a time."""
    errors: list[str] = []

    def entry(work: Callable[[], object]) -> Any:
        def start(_argument: int | None) -> None:
            try:
                work()
            except BaseException:
                errors.append(traceback.format_exc())

        return _Start(start)

    threads = [(ctypes.c_ulong(), entry(work)) for work in works]
    for handle, start in threads:
        assert _pthreads.pthread_create(ctypes.byref(handle), None, start, None) == 0
    for handle, _ in threads:
        assert _pthreads.pthread_join(handle, None) == 0
    assert not errors, errors[0]


def duckdb_in_several_threads(store: Store, number: int) -> None:
    """Some readers are let go of before their end, by whichever thread that happens to be in."""
    import duckdb  # noqa: PLC0415

    def work() -> None:
        for query, answer in (
            ("SELECT count(*), sum(id), count(DISTINCT v) FROM trips", (ROWS, TOTAL, 100)),
            ("SELECT count(*) FROM (SELECT id FROM trips LIMIT 5)", (5,)),
        ):
            with duckdb.connect(config={"threads": 2 + number % 3}) as connection:
                scan = some_scan(store)
                # Page by page, as DuckDB asks for them.
                trips = pa.RecordBatchReader.from_batches(scan.schema, (page.rows for page in scan))
                assert connection.execute(query).fetchall() == [answer]
                del trips

    in_threads([work] * 4)


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
    works: list[Callable[[], object]] = [lambda: lone.pop().close(), lone.pop]
    in_threads(works * 10 + [gc.collect] * 5)
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


PROGRAMS = (duckdb_in_several_threads, handed_on, abandoned, written)


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_threads_that_python_did_not_start_use_a_store(
    program: Callable[[Store, int], None], tmp_path: Path
) -> None:
    pytest.importorskip("duckdb")
    rounds = os.environ.get("ELASTICSCAN_ROUNDS", "2")
    ended = subprocess.run(
        [sys.executable, "-W", "error", __file__, program.__name__, str(tmp_path / "s"), rounds],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def main(name: str, uri: str, rounds: int) -> None:
    Path(uri).parent.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    with Store.create(uri, shards=["a", "b"], tablets=8) as store:
        for table in ("t", "copy"):
            store.create_table(table, schema, ["id"])
        store.table("t").upsert(pa.table({"id": range(ROWS), "v": [key % 100 for key in range(ROWS)]}))
        for number in range(rounds):
            globals()[name](store, number)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
