"""Times of a page, a plan and a commit if the catalog's server is some milliseconds away.

    python benchmarks/far_catalog.py [MILLISECONDS] [WRITERS]

It starts its own PostgreSQL server, and a proxy that delays all data in each direction by half of the time.
With 0 milliseconds there is no proxy, and scans are compared in turns with those of a store whose catalog is
in SQLite. Commits a second are measured for one writer, and for several processes, each with its own table.
The processor time of a commit, in the writers and in the server, is printed next to them: their sum limits
the commits a second of a machine.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import AF_UNIX, SHUT_RDWR, create_server, socket
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from measure import family_seconds

from elasticscan.store import Store
from tests.base.postgres import start_server

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
REPEATS, PAGE_ROWS, COMMIT_ROWS = 30, 100, 10
SCANNED, ROUNDS = ((2_000_000, 8), (10_000_000, 8), (2_000_000, 184)), 15  # rows, and bytes of a text


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"k": range(first, first + count), "v": [1] * count}, schema=SCHEMA)


def carry(source: socket, target: socket, seconds: float) -> None:
    """Forward data from one socket to the other, each piece after the delay."""
    pieces: deque[tuple[float, bytes]] = deque()
    there = threading.Condition()

    def deliver() -> None:
        while True:
            with there:
                there.wait_for(lambda: bool(pieces))
                due, data = pieces.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            with suppress(OSError):
                if not data:
                    target.shutdown(SHUT_RDWR)
                    return
                target.sendall(data)

    threading.Thread(target=deliver, daemon=True).start()
    data = b"-"
    while data:
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        with there:
            pieces.append((time.monotonic() + seconds, data))
            there.notify()


@contextmanager
def far(server: Path, seconds: float) -> Iterator[int]:
    """Return the port of a proxy that delays each answer of a server."""
    listener = create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                upstream = socket(AF_UNIX)
                upstream.connect(str(server))
                for pair in ((client, upstream), (upstream, client)):
                    threading.Thread(target=carry, args=(*pair, seconds / 2), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield int(listener.getsockname()[1])


def milliseconds(work: Callable[[], Any]) -> float:
    """Return the median of some repetitions."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def write_on(uri: str, number: int, seconds: float, ready: Any, done: Any) -> None:
    with Store.open(uri) as store:
        table, count = store.table(f"t{number}"), 0
        table.upsert(rows(0, COMMIT_ROWS))
        ready.wait()
        end, began = time.monotonic() + seconds, time.process_time()
        while time.monotonic() < end:
            table.upsert(rows(count * COMMIT_ROWS, COMMIT_ROWS))
            count += 1
        done.put((count, time.process_time() - began))


def commits_a_second(uri: str, writers: int, server: int, seconds: float = 5.0) -> float:
    spawn = multiprocessing.get_context("spawn")
    done, ready = spawn.Queue(), spawn.Barrier(writers + 1)
    works = [spawn.Process(target=write_on, args=(uri, n, seconds, ready, done)) for n in range(writers)]
    for work in works:
        work.start()
    ready.wait()
    before = family_seconds(server)
    counts, taken = zip(*(done.get() for _ in works), strict=True)
    at_server = family_seconds(server) - before
    for work in works:
        work.join()
    commits = max(1, sum(counts))
    print(
        f"{writers} at once: {commits / seconds:.1f} commits a second; a commit takes "
        f"{1000 * sum(taken) / commits:.1f} ms of a processor in its writer, "
        f"{1000 * at_server / commits:.1f} in the server"
    )
    return commits / seconds


def compare_scans(uri: str, place: str, count: int, text_bytes: int) -> None:
    """Scan equal stores in turns, with the catalog at a server and in SQLite."""
    ids = pa.array(range(count), pa.int64())
    texts = pc.utf8_lpad(ids.cast(pa.string()), text_bytes, "0")
    rows_there = pa.table({"k": ids, "v": ids, "s": texts})
    with (
        Store.create(uri, {name: f"{place}/{name}" for name in "ab"}, tablets=8) as there,
        Store.create(f"{place}/near.store", ["a", "b"], tablets=8) as near,
    ):
        for store in (there, near):
            store.create_table("t", rows_there.schema, ["k"]).upsert(rows_there)
        took = {clock: ([], []) for clock in (time.perf_counter, time.process_time)}
        for number in range(ROUNDS + 1):
            for turn, store in enumerate((there, near)):
                began = {clock: clock() for clock in took}
                assert sum(page.rows.num_rows for page in store.table("t").scan()) == count
                for clock, times in took.items():
                    if number:  # the first round warms up
                        times[turn].append(clock() - began[clock])
    for clock, name in ((time.perf_counter, "time"), (time.process_time, "time of the processor")):
        server, sqlite = map(statistics.median, took[clock])
        print(
            f"{count:,} rows of {16 + text_bytes} bytes scanned: {1000 * server:.0f} ms, with SQLite "
            f"{1000 * sqlite:.0f}: {sqlite / server:.2f} as fast, by {name}"
        )


def main(delay: float = 10.0, writers: int = 8) -> None:
    with (
        start_server() as server,
        server.database() as database,
        tempfile.TemporaryDirectory() as place,
        far(server.socket, delay / 1000) as port,
    ):
        line = f"127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"
        uri = f"postgresql+psycopg://elasticscan@{line}" if delay else server.url(database)
        with Store.create(uri, {name: f"{place}/{name}" for name in "ab"}, tablets=8, slots=64) as store:
            tables = [store.create_table(f"t{number}", SCHEMA, ["k"]) for number in range(writers)]
            tables[0].upsert(rows(0, 2 * REPEATS * PAGE_ROWS))
            pages = iter(tables[0].scan(page_rows=PAGE_ROWS))
            next(pages)
            print(f"a page: {milliseconds(lambda: next(pages)):.1f} ms")
            tables[0].scan()
            print(f"the plan of a scan: {milliseconds(tables[0].scan):.1f} ms")
            print(f"a commit: {milliseconds(lambda: tables[0].upsert(rows(0, COMMIT_ROWS))):.1f} ms")
        one, many = (commits_a_second(uri, count, server.process) for count in (1, writers))
        print(f"{many / one:.2f} times as many")
        if not delay:
            for count, text_bytes in SCANNED:
                with server.database() as another, tempfile.TemporaryDirectory() as scanned:
                    compare_scans(server.url(another), scanned, count, text_bytes)


if __name__ == "__main__":
    main(*(kind(value) for kind, value in zip((float, int), sys.argv[1:], strict=False)))
