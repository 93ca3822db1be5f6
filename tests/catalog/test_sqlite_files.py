"""A log's files in SQLite: replaced or removed while they are open, read only, and shared with children.

`tests/store/test_older_catalog.py` and `test_readonly.py` test the same for stores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from elasticscan.base.clock import SystemClock
from elasticscan.base.errors import CatalogUnavailable, ShardMismatch
from elasticscan.catalog import Catalog, open_catalog
from elasticscan.catalog.failures import Interrupted
from elasticscan.catalog.opening import make_home, open_home
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.catalog.sqlite_files import why_not_writable
from elasticscan.metadata import TimeObserved
from tests.catalog.logs import append, begin
from tests.processes.test_forks import ended_well, forked

# Python 3.12 and newer warn of a fork in a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with make_home(tmp_path / "log.db", SystemClock()) as home:
        begin(home)
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[Catalog]:
    with closing(SqliteHome(path)) as home:
        yield Catalog(home)


def copied(source: Path, target: Path) -> Path:
    """Copy a database with all of its write-ahead log."""
    with (
        closing(apsw.Connection(str(source))) as one,
        closing(apsw.Connection(str(target))) as two,
        two.backup("main", one, "main") as backup,
    ):
        backup.step()
    return target


def files_of(path: Path) -> list[Path]:
    return [Path(f"{path}-wal"), Path(f"{path}-shm")]


def replace(path: Path, copy: Path) -> None:
    copy.replace(path)
    for file in files_of(path):
        file.unlink(missing_ok=True)


def test_a_commit_into_a_file_that_is_just_being_replaced_is_not_acknowledged(
    path: Path, tmp_path: Path
) -> None:
    copies = [tmp_path / "copy.db"]

    class Slow(SqliteHome):
        def _commit(self, connection: apsw.Connection) -> None:
            while copies:
                replace(path, copied(path, copies.pop()))
            super()._commit(connection)

    with closing(Slow(path)) as home, pytest.raises(Interrupted), Catalog(home).appending() as tx:
        tx.append(TimeObserved())
    with closing(SqliteHome(path)) as home:
        assert Catalog(home).follow().number == 0


def test_an_older_file_that_is_put_back_is_refused(path: Path, tmp_path: Path) -> None:
    """A check, which reads everything again, refuses it, too."""
    older = copied(path, tmp_path / "older.db")
    with closing(open_catalog(path, SystemClock(), "here")) as catalog:
        with catalog.writing() as tx:
            tx.append(TimeObserved())
        replace(path, older)
        for use in (lambda: catalog.writing().__enter__(), catalog.check_whole):
            with pytest.raises(ShardMismatch):
                use()


def test_a_reader_follows_to_another_file(log: Catalog, path: Path, tmp_path: Path) -> None:
    with closing(open_home(path, SystemClock(), "here", read_only=True)) as home:  # type: ignore[type-var]
        assert Catalog(home).follow().number == 0
        assert append(log) == 1
        newer = copied(path, tmp_path / "newer.db")
        log.home.close()
        replace(path, newer)
        assert Catalog(home).follow().number == 1


# ----------------------------------------------------------------------------------------- the lock


@contextmanager
def held(log: Catalog) -> Iterator[None]:
    """Hold the lock in another thread."""
    holds, ends = threading.Event(), threading.Event()

    def transact() -> None:
        with log.home.writing():
            holds.set()
            ends.wait()

    thread = threading.Thread(target=transact)
    thread.start()
    holds.wait()
    yield
    ends.set()
    thread.join()


def test_a_child_that_was_forked_during_a_transaction_keeps_no_writer_from_its_turn(log: Catalog) -> None:
    reading, writing = os.pipe()
    with held(log):
        child = forked(lambda: os.read(reading, 1))
    with closing(SqliteHome(log.home.path)) as other:
        other.wait_seconds = 2
        assert append(Catalog(other)) == 1  # while the child lives
    os.write(writing, b"x")
    assert ended_well(child)
    os.close(reading)
    os.close(writing)


def test_a_writer_whose_wait_ended_leaves_the_lock_to_others(log: Catalog) -> None:
    with closing(SqliteHome(log.home.path)) as impatient:
        impatient.wait_seconds = 0.05
        with held(log), pytest.raises(CatalogUnavailable):
            append(Catalog(impatient))
        for _ in range(3):
            append(log)
        assert append(Catalog(impatient)) == 4


def test_a_log_that_another_process_closes_at_this_moment_can_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, access = Path(f"{path}-shm"), os.access
    index.touch()

    def closing(file: str, mode: int, **how: bool) -> bool:
        if file == str(index):
            index.unlink(missing_ok=True)
        return access(file, mode, **how)

    monkeypatch.setattr(os, "access", closing)
    assert why_not_writable(path) is None
