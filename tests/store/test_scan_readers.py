"""Readers of one scan: each gets all rows that remain, or an error, and no row goes to two of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidCall, ShardUnavailable
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.store import Scan, Store, Table
from tests.base.connections import call_at_statements
from tests.base.examples import examples
from tests.base.manual_clock import ManualClock

ROWS = 100
SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string())])
ALL: dict[str, Callable[[Scan], int]] = {
    "to_table": lambda scan: int(scan.to_table().num_rows),
    "count": lambda scan: scan.count(),
}
STREAMS: dict[str, Callable[[Scan], Any]] = {
    "to_reader": lambda scan: scan.to_reader(),
    "batches": lambda scan: scan.batches(),
}


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "s.store", ["s1", "s2"], tablets=4, slots=16, clock=clock) as made:
        made.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": range(ROWS), "s": ["x"] * ROWS}))
        yield made


def at_page(store: Store, number: int, happens: Callable[[], object]) -> None:
    """Let something happen once, when a scan has read its page of that number."""
    pages = iter(range(number))

    def interrupt(point: str) -> None:
        if point == "page read" and next(pages, None) == number - 1:
            happens()

    store.context.sync_point = interrupt


def fail() -> None:
    raise ShardUnavailable("the shard is away")


class Readers:
    """All who read one scan, and what they got."""

    def __init__(self, store: Store) -> None:
        self.store, self.scan = store, store.table("t").scan(page_rows=17)
        self.taken = set[int]()
        self.streams: list[tuple[Any, int]] = []  # each with how many rows were taken before it
        self.owner: Any = None  # a stream that took rows, or the scan itself for a call
        self.is_over = self.fails = False
        self.failed: list[Any] = []

    def give(self, ids: list[int] | None, is_rest: bool = False) -> None:
        """Take rows, or None at an end, which must not come before all rows were given out."""
        assert self.taken.isdisjoint(ids or []), "a row was given out twice"
        self.taken.update(ids or [])
        assert len(self.taken) == ROWS or not (is_rest or ids is None), "it ended early"
        self.is_over |= ids is None or is_rest

    def attempt(self, work: Callable[[], object], stream: Any = None, before: int | None = None) -> None:
        """Let someone read, who is refused where the rows that are left are not his, and nowhere else."""
        is_other = self.owner is not stream and (self.owner is not None or before != len(self.taken))
        is_other &= before is not None  # else nothing is read yet
        if self.fails:
            at_page(self.store, 1, fail)
        try:
            work()
            assert not (is_other or stream in self.failed), "it took rows of another reader, or lost some"
        except InvalidCall:
            assert self.is_over or self.scan._closed or stream in self.failed or is_other
        except ShardUnavailable:
            assert self.fails
            self.failed += [] if stream is None else [stream]
        self.store.context.sync_point, self.fails = lambda _: None, False

    def step(self, step: str, at: int) -> None:
        scan, left = self.scan, [key for key in range(ROWS) if key not in self.taken]

        def of_stream() -> None:
            batch = next(stream, None)
            self.owner = stream if batch is not None else self.owner
            self.give(None if batch is None else batch["id"].to_pylist())

        def of_page() -> None:
            page = next(scan, None)
            self.give(None if page is None else page.rows["id"].to_pylist())

        def of_call() -> None:
            ids = left[: scan.count()] if step == "count" else scan.to_table()["id"].to_pylist()
            self.give(ids, is_rest=True)
            self.owner = scan

        if step == "fail":
            self.fails = True
        elif step == "close":
            scan.close()
        elif step in STREAMS:
            self.fails = False
            self.attempt(lambda: self.streams.append((STREAMS[step](scan), len(self.taken))))
        elif step != "batch":
            self.attempt(of_page if step == "page" else of_call, before=len(self.taken))
        elif self.streams:
            stream, before = self.streams[at % len(self.streams)]
            self.attempt(of_stream, stream, before)


STEPS = [*["page"] * 3, "to_table", "count", *STREAMS, *["batch"] * 4, "fail", "close"]


def test_whoever_comes_to_an_end_knows_that_all_rows_were_given_out_and_none_twice(store: Store) -> None:
    for seed in range(examples(600)):
        draw, readers = random.Random(seed), Readers(store)
        try:
            for _ in range(12):
                readers.step(draw.choice(STEPS), draw.randrange(4))
            key, left = readers.scan.key, ROWS - len(readers.taken)
            assert left == 0 if key is None else store.resume(key).count() == left
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("use", ALL)
def test_a_failed_call_leaves_the_lease_and_the_rows_returned_as_they_were(
    store: Store, table: Table, use: str
) -> None:
    table.set_retention("60s")
    scan = table.scan(page_rows=7)
    at_page(store, 4, fail)
    with pytest.raises(ShardUnavailable):
        ALL[use](scan)
    assert [lease["purpose"] for lease in store.status()["leases"]] == ["scan"]
    assert scan.explain()["actual"]["rows_returned"] == 0
    assert ALL[use](scan) == scan.explain()["actual"]["rows_returned"] == ROWS
    assert store.status()["leases"] == []


@pytest.mark.parametrize("use", ALL)
def test_a_call_during_which_the_scan_is_closed_raises(store: Store, table: Table, use: str) -> None:
    scan = table.scan(page_rows=7)
    at_page(store, 4, scan.close)
    with pytest.raises(InvalidCall, match="was closed"):
        ALL[use](scan)
    assert store.resume(scan.key or "").count() == ROWS


def test_a_page_whose_lease_cannot_be_renewed_is_read_again_not_lost(
    store: Store, table: Table, clock: ManualClock
) -> None:
    """The catalog fails between reading a page and giving it out: the scan stands before that page."""
    table.set_retention("0s")
    scan, is_read = table.scan(page_rows=7), list[str]()
    got = next(scan).rows["id"].to_pylist()
    clock.advance(LEASE_SECONDS / 2)

    def lose_connection(statement: str) -> None:
        if is_read and "lease" in statement:
            fail()

    at_page(store, 1, lambda: is_read.append("a page"))
    connect = call_at_statements(store.context.catalog, lose_connection)
    with pytest.raises(ShardUnavailable):
        next(scan)
    connect()
    assert is_read and scan.key is not None
    assert sorted(got + store.resume(scan.key).to_table()["id"].to_pylist()) == list(range(ROWS))


# Who reads, who comes in meanwhile, and whether in a thread of its own; threads may share pages.
MEETINGS = [(use, other, in_thread) for use in ALL for other in (*ALL, "next") for in_thread in (True, False)]
MEETINGS += [("next", other, False) for other in (*ALL, "next")]


@pytest.mark.parametrize(("use", "other", "in_thread"), MEETINGS)
def test_no_other_reader_gets_rows_of_a_call_or_of_the_page_that_a_thread_reads(
    store: Store, table: Table, use: str, other: str, in_thread: bool
) -> None:
    readers = ALL | {"next": lambda scan: sum(page.rows.num_rows for page in scan)}
    scan, refused = table.scan(page_rows=7), list[str]()

    def read() -> None:
        with pytest.raises(InvalidCall) as caught:
            ALL[other](scan) if other in ALL else next(scan)
        refused.append(str(caught.value))

    thread = Thread(target=read)
    at_page(store, 4, thread.start if in_thread else read)
    assert readers[use](scan) == ROWS
    if in_thread:
        thread.join()
    assert len(refused) == 1


def test_threads_share_pages_and_each_goes_to_one_of_them(table: Table) -> None:
    pages = iter(table.scan(page_rows=7))
    taken = list[list[int]]()

    def read() -> None:
        while (page := next(pages, None)) is not None:
            taken.append(page.rows["id"].to_pylist())

    threads = [Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for page in taken for key in page) == list(range(ROWS))


def open_files(directory: Path) -> list[str]:
    links = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
    return [path for path in links if path.startswith(str(directory))]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells which files are open")
@pytest.mark.usefixtures("rows_in_files")
def test_a_store_that_is_closed_has_no_file_open_and_still_reads(tmp_path: Path, store: Store) -> None:
    table = store.table("t")
    pages = iter(table.scan(page_rows=10))
    next(pages)
    assert any(path.endswith(".arrow") for path in open_files(tmp_path))
    del pages
    store.close()
    assert open_files(tmp_path) == []
    assert table.scan().count() == ROWS
