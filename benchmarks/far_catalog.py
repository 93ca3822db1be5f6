"""Times of a page, a plan and a commit whose catalog's server is some milliseconds away.

    python benchmarks/far_catalog.py [MILLISECONDS] [WRITERS]

It starts a PostgreSQL server of its own, and a line to it which holds back all that is sent, both ways, for
half of the time. Commits a second are those of one writer, and of several processes, each with its own table.
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

from elasticscan.store import Store
from tests.base.postgres import start_server

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
REPEATS, PAGE_ROWS, COMMIT_ROWS = 30, 100, 10


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"k": range(first, first + count), "v": [1] * count}, schema=SCHEMA)


def carry(source: socket, target: socket, seconds: float) -> None:
    """Carry what is sent, each piece when its time has come."""
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
    """The port of a line to a server from which each answer takes so long."""
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
    """The median of some repetitions."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def write_on(uri: str, number: int, seconds: float, done: Any) -> None:
    with Store.open(uri) as store:
        table, count = store.table(f"t{number}"), 0
        table.upsert(rows(0, COMMIT_ROWS))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            table.upsert(rows(count * COMMIT_ROWS, COMMIT_ROWS))
            count += 1
        done.put(count / seconds)


def commits_a_second(uri: str, writers: int, seconds: float = 5.0) -> float:
    spawn = multiprocessing.get_context("spawn")
    done = spawn.Queue()
    works = [spawn.Process(target=write_on, args=(uri, n, seconds, done)) for n in range(writers)]
    for work in works:
        work.start()
    rates = [done.get() for _ in works]
    for work in works:
        work.join()
    return float(sum(rates))


def main(delay: float = 10.0, writers: int = 8) -> None:
    with (
        start_server() as server,
        server.database() as database,
        tempfile.TemporaryDirectory() as place,
        far(server.socket, delay / 1000) as port,
    ):
        uri = (
            f"postgresql+psycopg://elasticscan@127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"
        )
        with Store.create(uri, {name: f"{place}/{name}" for name in "ab"}, tablets=8, slots=64) as store:
            tables = [store.create_table(f"t{number}", SCHEMA, ["k"]) for number in range(writers)]
            tables[0].upsert(rows(0, 2 * REPEATS * PAGE_ROWS))
            pages = iter(tables[0].scan(page_rows=PAGE_ROWS))
            next(pages)
            print(f"a page: {milliseconds(lambda: next(pages)):.1f} ms")
            tables[0].scan()
            print(f"the plan of a scan: {milliseconds(tables[0].scan):.1f} ms")
            print(f"a commit: {milliseconds(lambda: tables[0].upsert(rows(0, COMMIT_ROWS))):.1f} ms")
        one, many = commits_a_second(uri, 1), commits_a_second(uri, writers)
        print(f"commits a second: {one:.1f} of one writer, {many:.1f} of {writers}, {many / one:.2f} times")


if __name__ == "__main__":
    main(*(kind(value) for kind, value in zip((float, int), sys.argv[1:], strict=False)))
