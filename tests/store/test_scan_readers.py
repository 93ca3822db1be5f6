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

from elasticscan.base.errors import ScanConsumed, ShardUnavailable, UsageError
from elasticscan.store import Scan, Store, Table
from tests.base.examples import examples

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
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s.store", ["s1", "s2"], tablets=4, slots=16) as made:
        made.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": range(ROWS), "s": ["x"] * ROWS}))
        yield made


def at_page(store: Store, number: int, happens: Callable[[], object]) -> None:
    """Let something happen once, when a scan has read its page of that number."""
    pages = iter(range(number))

    def interrupt(point: str) -> None:
        if point == "page read" and next(pages, None) == number - 1:
            happens()

    store.context.checkpoint = interrupt


def fail() -> None:
    raise ShardUnavailable("the shard is away")


# ------------------------------------------------------------------------------ one reader after another


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
        except ScanConsumed:
            assert self.is_over or self.scan._closed or stream in self.failed or is_other
        except ShardUnavailable:
            assert self.fails
            self.failed += [] if stream is None else [stream]
        self.store.context.checkpoint, self.fails = lambda _: None, False

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

    def close() -> None:
        closing = Thread(target=scan.close)
        closing.start()
        closing.join()

    at_page(store, 4, close)
    with pytest.raises(ScanConsumed, match="was closed"):
        ALL[use](scan)
    assert store.resume(scan.key).count() == ROWS


# ------------------------------------------------------------------------------------- several readers


@pytest.mark.parametrize("use", ALL)
@pytest.mark.parametrize("other", [*ALL, "next"])
def test_another_thread_gets_nothing_of_the_rows_of_a_call(
    store: Store, table: Table, use: str, other: str
) -> None:
    scan, outcomes = table.scan(page_rows=7), []

    def read() -> None:
        try:
            outcomes.append(ALL[other](scan) if other in ALL else next(scan))
        except UsageError as error:
            outcomes.append(type(error))

    thread = Thread(target=read)
    at_page(store, 4, thread.start)
    assert ALL[use](scan) == ROWS
    thread.join()
    assert outcomes == [ScanConsumed]


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


def test_a_page_that_is_asked_for_while_the_thread_reads_one_is_refused(store: Store, table: Table) -> None:
    scan, refused = table.scan(page_rows=7), list[ScanConsumed]()

    def ask() -> None:
        with pytest.raises(ScanConsumed) as caught:
            next(scan)
        refused.append(caught.value)

    at_page(store, 2, ask)
    assert sum(page.rows.num_rows for page in scan) == ROWS
    assert len(refused) == 1


# -------------------------------------------------------------------------------------- closed stores


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
