"""Readers of one scan: each gets all rows that remain, or an error, and no row goes to two of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import ScanConsumed, ShardUnavailable, UsageError
from elasticscan.store import Scan, Store, Table

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


def rest(stream: Any) -> int:
    return sum(batch.num_rows for batch in stream)


def at_page(store: Store, number: int, happens: Callable[[], object]) -> None:
    """Let something happen once, when a scan has read its page of that number."""
    pages = iter(range(number))

    def interrupt(point: str) -> None:
        if point == "page read" and next(pages, None) == number - 1:
            happens()

    store.context.checkpoint = interrupt


def fail() -> None:
    raise ShardUnavailable("the shard is away")


# ----------------------------------------------------------------------------------- after an error


@pytest.mark.parametrize("use", ALL)
@pytest.mark.parametrize("pages", [0, 2])
def test_a_call_that_failed_can_be_called_again(store: Store, table: Table, use: str, pages: int) -> None:
    scan = table.scan(page_rows=7)
    taken = sum(next(scan).rows.num_rows for _ in range(pages))
    standing = scan.standing
    at_page(store, 4, fail)
    with pytest.raises(ShardUnavailable):
        ALL[use](scan)
    assert scan.standing == standing
    assert ALL[use](scan) == ROWS - taken


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


@pytest.mark.parametrize("use", STREAMS)
def test_a_stream_that_failed_does_not_end_as_if_complete(store: Store, table: Table, use: str) -> None:
    scan = table.scan(page_rows=7)
    stream = STREAMS[use](scan)
    at_page(store, 4, fail)
    with pytest.raises(ShardUnavailable):
        list(stream)
    with pytest.raises(ScanConsumed, match="failed before"):
        list(stream)
    for again in (*ALL.values(), lambda scan: rest(scan.to_reader()), next):
        with pytest.raises(ScanConsumed, match=r"Store.resume\(scan.key\)"):
            again(scan)
    assert 0 < store.resume(scan.key).count() < ROWS


def test_a_stream_that_failed_before_its_first_page_leaves_the_scan_to_others(
    store: Store, table: Table
) -> None:
    scan = table.scan(page_rows=7)
    at_page(store, 1, fail)
    with pytest.raises(ShardUnavailable):
        list(scan.batches())
    assert rest(scan.to_reader()) == ROWS


# ------------------------------------------------------------------------------------------- closed


@pytest.mark.parametrize("use", STREAMS)
@pytest.mark.parametrize("begun", [True, False])
def test_a_stream_of_a_closed_scan_raises(table: Table, use: str, begun: bool) -> None:
    with table.scan(page_rows=7) as scan:
        stream = STREAMS[use](scan)
        if begun:
            assert next(iter(stream)).num_rows > 0
    with pytest.raises(ScanConsumed, match="was closed"):
        rest(stream)


def test_a_scan_that_is_closed_after_its_last_page_was_read_whole(table: Table) -> None:
    scan, taken = table.scan(page_rows=7), 0
    for page in scan:
        taken += page.rows.num_rows
        if page.key is None:
            scan.close()
    assert taken == ROWS


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
def test_other_readers_get_nothing_of_a_stream_that_has_begun(table: Table, use: str) -> None:
    scan = table.scan(page_rows=7)
    stream = scan.batches()
    first = next(stream).num_rows
    for other in (ALL[use], next):
        with pytest.raises(ScanConsumed, match="another reader takes rows"):
            other(scan)
    assert first + rest(stream) == ROWS


def test_a_stream_raises_where_pages_were_taken_before_its_first_batch(table: Table) -> None:
    scan = table.scan(page_rows=7)
    stream = scan.to_reader()
    next(scan)
    with pytest.raises(ScanConsumed, match="another reader takes rows"):
        stream.read_next_batch()
    assert rest(scan.to_reader()) < ROWS


@pytest.mark.parametrize("use", ALL)
def test_pages_end_with_an_error_where_another_call_has_taken_the_rest(table: Table, use: str) -> None:
    scan = table.scan(page_rows=7)
    pages = iter(scan)
    taken = next(pages).rows.num_rows
    assert ALL[use](scan) == ROWS - taken
    with pytest.raises(ScanConsumed, match="hand over the table itself"):
        next(pages)


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
