"""Processes that fork while they have a store open."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import apsw
import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidCall
from elasticscan.catalog import sqlite, tables
from elasticscan.storage.disk import local
from elasticscan.store import Scan, Store
from elasticscan.store.context.leases import lease_end
from elasticscan.store.writing import publishing
from elasticscan.store.writing.definitions import enter

CHILD_SECONDS = 60
ROWS = 10_000

# Python 3.12 and newer warn of forks alongside threads; libraries have some.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def anywhere(catalog_url: Path | str, tmp_path: Path) -> Iterator[Store]:
    """A store with its catalog in a file and at a server, whose snapshots are kept by leases."""
    yield from made(tmp_path / "s" if isinstance(catalog_url, Path) else catalog_url, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    yield from made(tmp_path / "s", tmp_path)


def made(uri: Path | str, place: Path) -> Iterator[Store]:
    with Store.create(uri, {name: str(place / name) for name in "ab"}, retention_seconds=60) as store:
        store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        store.table("t").upsert(pa.table({"id": range(ROWS)}))
        yield store


def ids(store: Store) -> list[int]:
    return sorted(store.table("t").scan().to_table()["id"].to_pylist())


def upsert(store: Store, key: int) -> int:
    return store.table("t").upsert(pa.table({"id": [key]}))


def forked(work: Callable[[], object]) -> int:
    """Run something in a forked child, which is killed if it hangs; return its process id."""
    process = os.fork()
    if process:
        return process
    signal.alarm(CHILD_SECONDS)
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def ended_well(process: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


@contextmanager
def child_ends_with(error: type[BaseException]) -> Iterator[None]:
    """Let a child that is forked within the block end in it: well if this is raised there."""
    parent = os.getpid()
    try:
        yield
    except error:
        if os.getpid() == parent:
            raise
        os._exit(0)
    finally:
        if os.getpid() != parent:
            os._exit(1)


def test_a_forked_child_opens_the_store_again_and_its_parent_goes_on(anywhere: Store) -> None:
    table = anywhere.table("t")
    scan = table.scan(page_rows=1_000)
    taken = next(scan).rows.num_rows
    reads: list[Callable[[Scan], object]] = [
        next,
        Scan.to_table,
        Scan.count,
        lambda scan: next(scan.batches()),
        lambda scan: scan.to_reader().read_all(),
    ]

    def work() -> None:
        for read in reads:
            with pytest.raises(InvalidCall, match=r"Store.resume\(scan.key\)"):
                read(scan)
        scan.close()
        tx = anywhere.context.catalog.newest()
        assert lease_end(tx, scan.standing.lease) > tx.now
        assert scan.key is not None
        assert anywhere.resume(scan.key).count() == ROWS - taken
        assert anywhere.context is not parents
        assert table.upsert(pa.table({"id": [ROWS]})) == 3
        assert ids(anywhere) == list(range(ROWS + 1))
        anywhere.rebalance()
        anywhere.close()

    parents = anywhere.context
    child = forked(work)
    table.scan().count()
    assert ended_well(child)
    assert taken + scan.count() == ROWS
    table.upsert(pa.table({"id": [ROWS + 1]}))
    assert ids(anywhere) == list(range(ROWS + 2))
    assert anywhere.context is parents
    assert anywhere.verify() == []


@pytest.mark.parametrize("way", [SystemExit, ValueError, None], ids=["exits", "fails", "goes on"])
def test_a_child_forked_by_the_input_of_a_write_leaves_its_parents_files_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch, way: type[BaseException] | None
) -> None:
    """However it goes on itself: the parent's staged files are there, and are committed once."""
    monkeypatch.setattr(publishing, "WRITE_BUFFER_BYTES", 1_000)
    table = store.table("t")

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(ROWS, ROWS + 1_000, 100):
            if start == ROWS + 500:
                child = os.fork()
                if child:
                    assert ended_well(child)
                else:
                    signal.alarm(CHILD_SECONDS)
                    if way is not None:
                        raise way
            yield pa.RecordBatch.from_pydict({"id": range(start, start + 100)}, table.schema)

    with child_ends_with(way or InvalidCall):
        rows = pa.RecordBatchReader.from_batches(table.schema, batches())
        table.upsert(rows)
    assert ids(store) == list(range(ROWS + 1_000))
    assert len(table.history()) == 3
    assert store.verify() == []


def test_what_a_child_writes_after_its_parent_closed_the_store_is_there(store: Store) -> None:
    ready, go = os.pipe()
    child = forked(lambda: os.read(ready, 1) and upsert(store, ROWS))
    store.close()
    os.write(go, b"!")
    assert ids(store)[:ROWS] == list(range(ROWS))
    assert ended_well(child)
    assert ids(store) == list(range(ROWS + 1))
    upsert(store, ROWS + 1)
    with Store.open(store.uri) as other:
        assert ids(other) == list(range(ROWS + 2))


def test_a_child_forked_by_a_thread_in_a_transaction_is_refused_and_leaves_it_alone(
    anywhere: Store,
) -> None:
    with child_ends_with(InvalidCall), anywhere.context.catalog.writing() as tx:
        enter(tx, replace(tx.state.table_named("t"), name="made"))
        child = os.fork()
        if not child:
            with pytest.raises(InvalidCall):
                enter(tx, replace(tx.state.table_named("t"), name="more"))
        elif not ended_well(child):
            pytest.fail("the child was not refused")
    assert {table.name for table in anywhere.tables()} == {"t", "made"}
    assert anywhere.table("made").upsert(pa.table({"id": [1]})) > 0


def test_a_child_forked_while_another_thread_uses_the_file_opens_nothing_in_it(
    store: Store, tmp_path: Path
) -> None:
    """What SQLite knows of locks is the parent's then, for each connection to the file."""
    is_in, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with store.context.catalog.leasing():
            is_in.set()
            may_end.wait(CHILD_SECONDS)

    def work() -> None:
        uses: list[Callable[[], object]] = [
            lambda: ids(store),
            lambda: upsert(store, ROWS),
            lambda: Store.open(tmp_path / "s"),
            lambda: Store.create(tmp_path / "other", ["a"]),
        ]
        for use in uses:
            with pytest.raises(InvalidCall, match="spawn"):
                use()

    with Store.open(tmp_path / "s") as second:  # whose own connections rest
        assert len(ids(second)) == ROWS
        thread = threading.Thread(target=hold)
        thread.start()
        assert is_in.wait(CHILD_SECONDS)
        child = forked(work)
        may_end.set()
        thread.join()
        assert ended_well(child)
        assert ended_well(forked(lambda: ids(second))), "now no one uses it"
    upsert(store, ROWS + 1)
    assert len(ids(store)) == ROWS + 1
    assert store.verify() == []


def test_a_connection_in_use_while_the_idle_ones_are_closed_is_closed_before_a_fork(store: Store) -> None:
    """SQLite would take the locks of its parent for the child's own, and lose commits of either."""
    home = store.context.catalog.home
    assert isinstance(home, sqlite.SqliteHome)
    with home.reading() as transaction:
        transaction.execute(tables.HEAD)
        home.close()  # as `verify` and `gc` do in other threads
        opened = home.held
    assert ended_well(forked(lambda: None))
    with pytest.raises(apsw.ConnectionClosedError):
        opened.total_changes()


def test_a_child_finds_the_locks_of_modules_unlocked(store: Store) -> None:
    """Threads of the store's own, which read ahead, may hold them while the parent's threads rest."""
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with local._lock(), sqlite._following():
            held.set()
            leave.wait(CHILD_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(CHILD_SECONDS)
    child = forked(lambda: upsert(store, ROWS) and ids(store))
    leave.set()
    thread.join()
    assert ended_well(child)
    assert ids(store) == list(range(ROWS + 1))
