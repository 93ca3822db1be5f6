"""Children forked alongside busy threads, during scans and during transactions."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine, event

from elasticscan.base.errors import ElasticScanError, UnsafeFork
from elasticscan.base.forks import ForkGate
from elasticscan.catalog import connections
from elasticscan.catalog.connections import ConnectionPool
from elasticscan.storage import LocalDisk
from elasticscan.store import Store
from elasticscan.store.writing import writer

PROGRAM = Path(__file__).with_name("forks.py")
CHILDREN = int(os.environ.get("ELASTICSCAN_FORKS", "20"))
CHILD_SECONDS = 60
ROWS = 10_000

# Python 3.12 and newer warn of forks alongside threads, which is what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.create(tmp_path / "s", shards=["a", "b"], tablets=8) as store:
        store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        store.table("t").upsert(pa.table({"id": range(ROWS)}))
        yield store


@pytest.fixture
def anywhere(catalog_url: Path | str, tmp_path: Path) -> Iterator[Store]:
    """An empty store, with its catalog in a file and at a server."""
    uri = tmp_path / "s" if isinstance(catalog_url, Path) else catalog_url
    with Store.create(uri, {name: str(tmp_path / name) for name in "ab"}) as store:
        store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        yield store


def ids(store: Store) -> list[int]:
    return sorted(store.table("t").scan().to_table()["id"].to_pylist())


def forked(work: Callable[[], None]) -> int:
    """Run something in a forked child, which is killed if it hangs; returns its process id."""
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


def refuses(work: Callable[[], object]) -> None:
    try:
        work()
    except UnsafeFork:
        return
    raise AssertionError("it was not refused")


@pytest.mark.long
def test_children_of_a_busy_process_scan_and_write_and_none_hangs(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path / "s"), str(CHILDREN)],
        capture_output=True,
        text=True,
        timeout=270 if CHILDREN <= 50 else None,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    message = json.loads(ended.stdout)
    assert message["ends"] == {"0": CHILDREN}
    assert message["errors"] == []
    assert message["written"] and message["children"]
    assert all(message["done"][work] > 0 for work in ("_scan", "_write", "_move"))


def test_a_child_forked_amid_a_scan_and_its_parent_both_read_every_row(store: Store) -> None:
    scan, parent, children, found = store.table("t").scan(page_rows=1_000), os.getpid(), [], []
    for page in scan:
        if os.getpid() == parent and len(children) < 3:
            children.append(os.fork())
            if os.getpid() != parent:
                signal.alarm(CHILD_SECONDS)
        found += page.rows.column("id").to_pylist()
    right = sorted(found) == list(range(ROWS))
    if os.getpid() != parent:
        os._exit(0 if right else 1)
    assert right
    assert len(children) == 3 and all(map(ended_well, children))


@pytest.mark.parametrize(
    ("way", "refused"),
    [(SystemExit, False), (ValueError, False), (None, True)],
    ids=["exits", "fails", "goes on"],
)
def test_a_child_forked_amid_the_input_of_a_write_leaves_its_parents_files_alone(
    store: Store, way: type[BaseException] | None, refused: bool
) -> None:
    """However it goes on itself: the parent's staged files are there, and are committed once."""
    parent, children = os.getpid(), []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            if number == 5:
                children.append(os.fork())
                if os.getpid() != parent:
                    signal.alarm(CHILD_SECONDS)
                    if way is not None:
                        raise way
                else:
                    assert ended_well(children[0])
            yield pa.RecordBatch.from_pydict(
                {"id": range(ROWS + number * 100, ROWS + number * 100 + 100)}, table.schema
            )

    table = store.table("t")
    try:
        rows = pa.RecordBatchReader.from_batches(table.schema, batches())
        writer.write(store.context, table.definition, rows, buffer_bytes=1_000)
    except BaseException as error:
        if os.getpid() != parent:
            os._exit(0 if isinstance(error, UnsafeFork if refused else way or ()) else 1)
        raise
    if os.getpid() != parent:
        os._exit(2)
    assert ids(store) == list(range(ROWS + 1_000))
    assert len(store.table("t").history()) == 3
    assert store.verify() == []


@pytest.mark.parametrize(
    ("way", "ends"), [(SystemExit, SystemExit), (None, UnsafeFork)], ids=["exits", "goes on"]
)
def test_a_child_forked_amid_moves_does_not_end_those_of_its_parent(
    store: Store, way: type[BaseException] | None, ends: type[BaseException]
) -> None:
    parent, progress = os.getpid(), []

    def forking(done: int, planned: int) -> None:
        progress.append((done, planned))
        if done == 1:
            child = os.fork()
            if os.getpid() == parent:
                assert ended_well(child)
                return
            signal.alarm(CHILD_SECONDS)
            if way is not None:
                raise way

    try:
        store.expand_with(store.elasticity(on_progress=forking, parallel=1), ["c"], {})
    except BaseException as error:
        if os.getpid() != parent:
            os._exit(0 if isinstance(error, ends) else 1)
        raise
    if os.getpid() != parent:
        os._exit(2)
    assert progress == [(1, 2), (2, 2)], "no move was planned again"
    assert ids(store) == list(range(ROWS))


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_child_forked_amid_an_unfinished_file_leaves_it_to_its_parent(
    tmp_path: Path, goes_on: bool
) -> None:
    disk, parent = LocalDisk(tmp_path), os.getpid()
    try:
        with disk.create("t1/a") as file:
            file.write(b"first")
            child = os.fork()
            if os.getpid() == parent:
                assert ended_well(child)
            elif not goes_on:
                raise SystemExit
            file.write(b", second")
    except (SystemExit, UnsafeFork):
        if os.getpid() != parent:
            os._exit(0)
        raise
    if os.getpid() != parent:
        os._exit(2)
    opened = disk.open("t1/a")
    assert bytes(opened.read_at(0, opened.size))[:5] == b"first"


def test_a_child_that_ends_its_parents_scan_does_not_end_its_lease(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s", shards=["a"], tablets=8, retention_seconds=60)
    store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
    store.table("t").upsert(pa.table({"id": range(ROWS)}))
    scan = store.table("t").scan(page_rows=1_000)
    pages = iter(scan)
    next(pages)
    assert ended_well(forked(lambda: [*pages] and None))
    with store.context.catalog.reading() as tx:
        assert tx.lease_end(scan._state.lease) > 0
    assert sum(page.rows.num_rows for page in pages) > 0
    store.close()


def test_what_a_child_writes_after_its_parent_closed_the_store_is_there(store: Store) -> None:
    ready, go = os.pipe()

    def work() -> None:
        os.read(ready, 1)
        store.table("t").upsert(pa.table({"id": [ROWS]}))
        assert ids(store) == list(range(ROWS + 1))

    child = forked(work)
    store.close()
    os.write(go, b"!")
    assert ids(store)[:ROWS] == list(range(ROWS))
    assert ended_well(child)
    assert ids(store) == list(range(ROWS + 1))
    store.table("t").upsert(pa.table({"id": [ROWS + 1]}))
    with Store.open(store.uri) as other:
        assert ids(other) == list(range(ROWS + 2))


def test_a_pool_of_forked_processes_uses_the_store_of_its_parent(store: Store) -> None:
    _shared.append(store)
    ids(store)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        counts = pool.map(_write_one, range(ROWS, ROWS + 12), chunksize=1)
    assert all(count > ROWS for count in counts)
    assert ids(store) == list(range(ROWS + 12))


_shared: list[Store] = []  # a forked pool finds it as it is here


def _write_one(key: int) -> int:
    store = _shared[-1]
    store.table("t").upsert(pa.table({"id": [key]}))
    return store.table("t").scan().to_table().num_rows


def test_a_child_forked_amid_its_own_threads_transaction_is_refused_and_leaves_it_alone(
    anywhere: Store,
) -> None:
    catalog, parent = anywhere.context.catalog, os.getpid()
    try:
        with catalog.writing() as tx:
            tx.create_table("made", tx.table("t"))
            child = os.fork()
            if not child:
                try:
                    tx.table("t")
                    os._exit(3)
                except UnsafeFork:
                    pass
            elif not ended_well(child):
                pytest.fail("the child was not refused")
    except ElasticScanError as error:
        if os.getpid() != parent:
            right = isinstance(error, UnsafeFork)
            os._exit(0 if right else 1)
        raise
    finally:
        if os.getpid() != parent:
            os._exit(2)
    assert {table.name for table in anywhere.tables()} == {"t", "made"}
    assert anywhere.table("made").upsert(pa.table({"id": [1]})) > 0


def test_a_fork_does_not_wait_for_ever_for_a_transaction(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FORK_WAIT_SECONDS", 0.1)
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with store.context.catalog.writing():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait(60)

    def work() -> None:
        refuses(lambda: store.table("t").scan())
        refuses(store.context.catalog.versions)
        refuses(lambda: Store.open(store.uri))
        assert not threading.active_count() > 1

    child = forked(work)
    assert ids(store) == list(range(ROWS))
    leave.set()
    thread.join()
    assert ended_well(child)
    assert ended_well(forked(lambda: store.table("t").upsert(pa.table({"id": [ROWS]})) and None))
    assert ids(store) == list(range(ROWS + 1))


class _ForksAtLeaving(ForkGate):
    """A gate behind which a fork waits: it goes ahead the moment that the last transaction has ended."""

    forks = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        with super().inside():
            yield
        if not self.is_inside() and self.forks < 20:
            self.forks += 1
            assert ended_well(forked(lambda: None))


def test_a_fork_right_after_a_commit_does_not_put_it_in_doubt(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fork closes the last connection, and SQLite removes its log with that: so the question
    # whether the commit went into the catalog's own files must have been asked before.
    gate = _ForksAtLeaving()
    monkeypatch.setattr(connections, "GATE", gate)
    store.table("t").upsert(pa.table({"id": [ROWS]}))
    assert gate.forks
    assert ids(store) == list(range(ROWS + 1))


def test_connections_to_sqlite_are_closed_only_where_no_fork_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's memory has a lock, which a child forked during the end of a connection finds shut for ever."""
    guarded, dispose, close_idle = list[bool](), Engine.dispose, ConnectionPool.close_idle

    def noted(engine: Engine, close: bool = True) -> None:
        guarded.append(connections.GATE.is_inside())
        dispose(engine, close)

    def noted_too(pool: ConnectionPool) -> None:
        guarded.append(connections.GATE.is_inside())
        close_idle(pool)

    monkeypatch.setattr(Engine, "dispose", noted)
    monkeypatch.setattr(ConnectionPool, "close_idle", noted_too)
    store = Store.create(tmp_path / "s", shards=["a"])
    store.context.catalog.look_afresh()
    store.close()
    with suppress(ElasticScanError):
        Store.open(tmp_path / "no store")
    left = Store.open(tmp_path / "s")  # nobody closes it
    del left
    gc.collect()
    assert len(guarded) >= 4
    assert all(guarded)


def test_a_connection_in_use_while_the_idle_ones_are_closed_is_closed_before_a_fork(store: Store) -> None:
    """SQLite would believe in the child that it has the locks of its parent, and lose commits of either."""
    catalog, opened = store.context.catalog, list[sqlite3.Connection]()
    catalog.look_afresh()  # nothing is open from before
    event.listen(catalog._engine, "connect", lambda connection, _: opened.append(connection))
    with catalog.reading() as tx:
        tx.versions()
        catalog.look_afresh()  # as `verify` and `gc` do in other threads
    assert ended_well(forked(lambda: None))
    assert opened
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.total_changes  # noqa: B018


def test_a_store_that_ends_amid_a_fork_is_closed_after_it(tmp_path: Path) -> None:
    Store.create(tmp_path / "s", shards=["a"]).close()
    ended = Store.open(tmp_path / "s")
    engine = ended.context.catalog._engine
    gate, pool = connections.GATE, engine.pool
    assert gate.shut(1)  # as a fork in another thread does; this one must not wait for it
    try:
        del ended
        gc.collect()
        assert engine.pool is pool
    finally:
        gate.open()
    with Store.open(tmp_path / "s") as store:
        store.tables()
    assert engine.pool is not pool
