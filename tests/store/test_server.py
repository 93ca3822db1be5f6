"""A catalog at a database server: lost connections, crashes, standstills and standbys."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    LimitExceeded,
    NotFound,
    ReadOnlyStore,
)
from elasticscan.base.limits import MAX_KEY_BYTES
from elasticscan.catalog.postgres import ServerClock
from elasticscan.store import Scan, Store
from tests.base.postgres import Server, start_server
from tests.base.severed_line import SeveredLine
from tests.store.test_lost_connections import WORKS, move

pytestmark = pytest.mark.long

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
MOST_TRIPS = 400
WRITERS = 3


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"id": range(first, last), "v": range(last - first)}, schema=SCHEMA)


def made(url: str, place: Path) -> Store:
    """A store with the keys 0 to 29, and an index."""
    roots = {name: str(place / name) for name in ("s1", "s2")}
    store = Store.create(url, roots, tablets=2, slots=8, upkeep="off")
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(rows(0, 20))
    table.create_index("by_v", ["v"])
    table.upsert(rows(10, 30))
    return store


def keys(store: Store) -> list[int]:
    store.context.catalog.check_whole()
    table = store.table("t")
    keys: list[int] = sorted(table.scan(index="none").to_table()["id"].to_pylist())
    assert sorted(table.scan(index="by_v", filter="v >= 0").to_table()["id"].to_pylist()) == keys
    return keys


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    with postgres.database() as name:
        yield name


@pytest.fixture
def store(database: str, line: SeveredLine, tmp_path: Path) -> Iterator[Store]:
    line.cut_at()
    with made(line.url(database), tmp_path) as store:
        assert isinstance(store.context.clock, ServerClock), "leases of all processes end by one clock"
        yield store
    line.cut_at()


# Connections that break


# How many of its messages lie between two at which an operation is cut.
STEPS = {"insert": 1, "scan": 4, "move": 13, "compact": 7}


@pytest.mark.parametrize("answered", [False, True], ids=["request lost", "answer lost"])
@pytest.mark.parametrize("work", STEPS)
def test_a_connection_that_breaks_anywhere_is_made_anew_and_nobody_notices(
    store: Store, line: SeveredLine, work: str, answered: bool
) -> None:
    table = store.table("t")
    expected = WORKS[work](store, table)
    for first in range(1, MOST_TRIPS, STEPS[work]):
        commits = len(table.history())
        line.cut_at(first, first + 2, answered=answered)
        assert WORKS[work](store, table) == expected
        done = line.cuts == 0
        line.cut_at()
        assert len(table.history()) == commits + (2 if work == "insert" else 0), "a commit is done once"
        if done:
            break
    assert done, "every request was cut once"
    assert keys(store) == list(range(30))
    assert store.status()["moves"] == []


def test_a_small_commit_is_checked_against_an_index_that_was_made_meanwhile(store: Store) -> None:
    store.create_table("texts", SCHEMA.append(pa.field("s", pa.string())), ["id"])
    indexed = list[str]()

    def make_index(point: str) -> None:
        if not indexed:
            indexed.append(point)
            store.table("texts").create_index("by_s", ["s"])

    with Store.open(store.uri) as other:
        other.context.sync_point = make_index
        with pytest.raises(LimitExceeded):
            other.table("texts").upsert([{"id": 1, "v": 1, "s": "x" * (MAX_KEY_BYTES + 1)}])
    assert indexed


# Servers that crash, stand still, or are lost


Wait = Callable[[], None]


def check_work_goes_on(store: Store, disturb: Callable[[Wait], object]) -> None:
    """Whatever happens while some write, move and scan, each acknowledged write is there, and was done once.

    `disturb` gets a function that waits until more rows were written.
    """
    table, done, ending = store.table("t"), set[int](), threading.Event()

    def write(key: int) -> None:
        while not ending.is_set():
            table.upsert(rows(key, key + 1))
            done.add(key)
            key += 1

    def move_and_scan() -> None:
        while not ending.is_set():
            move(store)
            found = table.scan(page_rows=50).to_table()["id"].to_pylist()
            assert len(found) == len(set(found)) and set(range(30)) <= set(found)

    def wait() -> None:
        wanted, until = len(done) + 5, time.monotonic() + 60
        while len(done) < wanted and time.monotonic() < until:
            time.sleep(0.01)

    with ThreadPoolExecutor(WRITERS + 1) as pool:
        works = [pool.submit(write, 1_000 * (number + 1)) for number in range(WRITERS)]
        works.append(pool.submit(move_and_scan))
        try:
            wait()
            disturb(wait)
            wait()
        finally:
            ending.set()
    for work in works:
        work.result()
    assert keys(store) == sorted({*range(30)} | done)
    assert sum(commit.kind == "write" for commit in table.history()) == 2 + len(done)


def crash(server: Server, wait: Wait) -> None:
    for _ in range(4):
        time.sleep(0.7)
        server.restart()


def stand_still(server: Server, wait: Wait) -> None:
    for _ in range(3):
        wait()
        with server.paused():
            time.sleep(0.7)


@pytest.mark.parametrize("disturb", [crash, stand_still])
def test_work_goes_on_when_a_server_does(
    database: str, postgres: Server, tmp_path: Path, disturb: Callable[[Server, Wait], None]
) -> None:
    with made(f"{postgres.url(database)}&connect_timeout=2", tmp_path) as store:
        check_work_goes_on(store, partial(disturb, postgres))


def test_no_commit_is_lost_or_repeated_when_a_standby_takes_over(tmp_path: Path) -> None:
    """The standby is synchronous: it has what was acknowledged. Both are named in the URL."""
    with start_server() as primary, start_server(primary) as standby:
        primary.execute("CREATE DATABASE catalog")
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        hosts = f"host={primary.directory}&host={standby.directory}"
        url = f"postgresql+psycopg://elasticscan@/catalog?{hosts}&target_session_attrs=read-write"

        def take_over(_: Wait) -> None:
            primary.stop()
            time.sleep(1)
            standby.promote()

        with made(url, tmp_path) as store:
            check_follower(f"postgresql+psycopg://elasticscan@/catalog?host={standby.directory}")
            check_work_goes_on(store, take_over)
            assert store.verify() == []


def check_follower(url: str) -> None:
    """Read at a standby, which has the rows as soon as it has applied what it has received."""
    for _ in range(1_000):
        with Store.open(url) as reader, suppress(NotFound):
            if reader.table("t").scan().count() == 30:
                assert reader.context.catalog.home.is_follower
                with pytest.raises(ReadOnlyStore, match="a standby, which only reads"):
                    reader.table("t").drop()
                return
        time.sleep(0.01)
    raise AssertionError("the standby lacks the rows")


# What lies alongside it, and how often it is asked


def test_a_schema_holds_one_store_and_a_database_many(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    url = postgres.url(database)
    postgres.execute("CREATE SCHEMA other", database)
    with made(url, tmp_path / "one") as one:
        with pytest.raises(AlreadyExists):
            Store.create(url, {"a": str(tmp_path / "again")})
        with made(f"{url}&options=-csearch_path%3Dother", tmp_path / "two") as two:
            two.table("t").upsert(rows(30, 40))
            assert (keys(one), keys(two)) == ([*range(30)], [*range(40)])
            assert one.context.known.store_id != two.context.known.store_id
    postgres.execute("DROP SCHEMA other CASCADE", database)


def test_a_scan_and_a_commit_wait_for_few_answers_of_the_server(store: Store, line: SeveredLine) -> None:
    def trips(work: Callable[[], object]) -> int:
        line.cut_at()
        work()
        return line.trips

    table = store.table("t")
    table.scan()
    assert trips(table.scan) <= 2
    begun, fresh = (iter(table.scan(page_rows=5)) for _ in range(2))
    next(begun)
    for pages in (begun, fresh):
        assert [trips(partial(next, pages)) for _ in range(3)] == [1] * 3
    assert trips(store.backend.versions) == 1
    assert trips(lambda: table.delete([1, 2])) <= 6
    assert trips(lambda: table.upsert(rows(5, 15))) <= 6
    with Store.open(store.uri) as kept:  # with upkeep, of which none is pending
        kept.table("t").upsert(rows(0, 10))
        assert trips(lambda: kept.table("t").upsert(rows(0, 10))) <= 6
        kept.table("t").compact()
    assert trips(lambda: table.upsert(rows(5, 15))) <= 6, "another one's merge changes files alone"


def test_a_store_that_nobody_closes_leaves_no_connection_behind(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    made(postgres.url(database), tmp_path).close()
    store = Store.open(postgres.url(database))
    scans = [store.table("t").scan() for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:  # several connections, idle ones and those that look
        assert {*pool.map(Scan.count, scans)} == {30}
    del store, scans, pool
    with warnings.catch_warnings(record=True) as message:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(warning.message) for warning in message] == []
    ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    with psycopg.connect(host=str(postgres.directory), user="elasticscan", dbname=database) as connection:
        for _ in range(1_000):  # a server needs a moment
            ((left,),) = connection.execute(ours, (database,)).fetchall()
            if not left:
                break
            time.sleep(0.01)
        assert left == 0
