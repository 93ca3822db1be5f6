"""A database server that keeps its connections and says nothing: it stands still, or others hold its lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import CatalogUnavailable, CommitUnknown
from elasticscan.catalog import postgres as catalog_server
from elasticscan.catalog.postgres import PostgresHome
from elasticscan.store import Store
from tests.base.postgres import Server

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
WRITERS = 3


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    with postgres.database() as database:
        yield f"{postgres.url(database)}&connect_timeout=2"


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    roots = {name: str(tmp_path / name) for name in "ab"}
    with Store.create(url, roots, tablets=4, slots=16, upkeep="off") as store:
        store.create_table("t", SCHEMA, ["k"])
        store.table("t").upsert(rows(0, 20))
        yield store


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"k": range(first, last), "v": range(last - first)}, schema=SCHEMA)


def keys(store: Store) -> list[int]:
    return sorted(store.table("t").scan(page_rows=50).to_table()["k"].to_pylist())


def make_impatient(store: Store, answer_seconds: float, retry_seconds: float) -> None:
    """Have the connections that a store opens from now on wait no longer than this."""
    home = store.context.catalog._home
    assert isinstance(home, PostgresHome)
    home.close()
    home.answer_seconds, home.retry_seconds = answer_seconds, retry_seconds


class Writers:
    """Threads that write rows one by one until one of theirs fails, or all are to end.

    Attributes:
        done: the keys that were acknowledged.
        reported: of writes that failed, the errors by their keys.
    """

    def __init__(self, store: Store) -> None:
        self.done, self.errors, self._store = set[int](), dict[int, Exception](), store
        self._ending = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with ThreadPoolExecutor(WRITERS) as pool:
            works = [pool.submit(self._write, 1_000 * (number + 1)) for number in range(WRITERS)]
            try:
                yield
            finally:
                self._ending.set()
            for work in works:
                work.result()

    def written(self, more: int) -> None:
        """Wait for more rows."""
        wanted = len(self.done) + more
        while len(self.done) < wanted and not self.errors:
            self._ending.wait(0.01)

    def failed(self) -> None:
        """Wait until all writers have met an error."""
        while len(self.errors) < WRITERS:
            self._ending.wait(0.05)

    def _write(self, key: int) -> None:
        while not self._ending.is_set():
            try:
                self._store.table("t").upsert(rows(key, key + 1))
            except (CatalogUnavailable, CommitUnknown) as error:
                self.errors[key] = error
                return
            self.done.add(key)
            key += 1


@pytest.mark.long
def test_work_goes_on_when_a_server_goes_on(store: Store, postgres: Server) -> None:
    writers = Writers(store)
    with writers.at_work():
        for _ in range(3):
            writers.written(5)
            with postgres.paused():
                threading.Event().wait(0.7)
            placed = {tablet["id"]: tablet["shard"] for tablet in store.status()["tablets"]}
            store.move(1, "b" if placed[1] == "a" else "a")
            assert set(range(20)) <= set(keys(store))
        writers.written(5)
    assert not writers.errors
    assert keys(store) == sorted({*range(20)} | writers.done)
    assert sum(commit.kind == "write" for commit in store.table("t").history()) == 1 + len(writers.done)


@pytest.mark.long
def test_a_server_that_stands_still_is_reported_within_the_limits_and_nothing_is_lost(
    store: Store, url: str, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_impatient(store, 1.0, 1.0)
    monkeypatch.setattr(catalog_server, "FIRST_CONNECT_SECONDS", 1.0)
    monkeypatch.setattr("elasticscan.catalog.retrying.RECONNECT_SECONDS", 1.0)
    writers, scan = Writers(store), store.table("t").scan(page_rows=5)
    seen = next(scan).rows["k"].to_pylist()
    with writers.at_work():
        writers.written(5)
        with postgres.paused():
            with pytest.raises(CatalogUnavailable):
                next(scan)
            with pytest.raises(CatalogUnavailable):
                store.status()
            with pytest.raises(CatalogUnavailable):
                Store.open(url)
            writers.failed()
    unsure = {key for key, error in writers.errors.items() if isinstance(error, CommitUnknown)}
    there = set(keys(store))
    assert {*range(20)} | writers.done <= there <= {*range(20)} | writers.done | unsure
    assert sorted(seen + [key for page in scan for key in page.rows["k"].to_pylist()]) == list(range(20))
    for key in writers.errors:
        store.table("t").upsert(rows(key, key + 1))
    assert set(keys(store)) == {*range(20)} | writers.done | writers.errors.keys()
    store.context.catalog.check_whole()
