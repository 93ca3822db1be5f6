"""A log in SQLite: a file on a local disk.

Writers wait in a queue of their own, for a lock on another file: SQLite's back-off grows to 100 ms, and lets
some wait for ever. Only its holder copies the write-ahead log into the database. Every commit is flushed
(`synchronous=FULL`), the file is never mapped into memory, and no read transaction stays open between calls.

Only SQLite opens the database: closing a file that SQLite has open as well would drop its locks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, Final

import apsw

from elasticscan.base.clock import Clock, SystemClock
from elasticscan.base.errors import (
    CatalogUnavailable,
    CommitUnknown,
    DiskFull,
    ElasticScanError,
    NotSupported,
    ReadOnlyStore,
)
from elasticscan.base.limits import BUSY_SECONDS
from elasticscan.catalog.log import tables
from elasticscan.catalog.log.entries import GENESIS, damaged_log
from elasticscan.catalog.log.home import NOTHING, Row
from elasticscan.catalog.log.pool import ConnectionPool

_LOWEST_SQLITE: Final = (3, 51, 3)  # older ones can lose a page when a write meets a checkpoint of the WAL
_WAL_PAGES = 1_000  # of 4 KiB: more are copied into the database


_HANDLES: Final[set[int]] = set()  # of files whose locks this process holds, or waits for


def _close(handle: int) -> None:
    _HANDLES.discard(handle)
    os.close(handle)


def _leave_locks() -> None:
    """Close a forked child's handles of its parent's locks, which it would hold for as long as it lives."""
    while _HANDLES:
        _close(next(iter(_HANDLES)))


os.register_at_fork(after_in_child=_leave_locks)


class _SqliteTransaction:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        return self._connection.execute(statement, dict(values)).fetchall()


class SqliteHome:
    """A log in a SQLite database. Safe to use from several threads, and after a fork."""

    retry_seconds = 0.0  # what it says the first time holds

    def __init__(self, path: Path, clock: Clock | None = None, wait_seconds: float = BUSY_SECONDS) -> None:
        found = tuple(map(int, apsw.sqlite_lib_version().split(".")))
        if found < _LOWEST_SQLITE:
            raise NotSupported(
                f"SQLite {apsw.sqlite_lib_version()} can lose pages of a log; install a newer apsw"
            )
        self.path, self._clock, self._wait = path, clock or SystemClock(), wait_seconds
        self._pool = ConnectionPool(
            self._connected, lambda c: not c.in_transaction, lambda c: c.close(True), across_forks=False
        )
        self._wal_pages = 0  # that the write-ahead log had after the newest commit

    @classmethod
    def create(cls, path: Path, clock: Clock | None = None) -> SqliteHome:
        """Make the tables of a log in a new file."""
        home = cls(path, clock)
        with _translated():
            connection = apsw.Connection(str(path))
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            with connection:
                for statement in tables.CREATE:
                    connection.execute(statement.format(BYTES="BLOB", NUMBER="INTEGER"))
                connection.execute(tables.INSERT_HEAD, {"digest": GENESIS})
            connection.close()
        return home

    def close(self) -> None:
        self._pool.close()

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        with self._connection() as connection:
            return connection.execute(statement, dict(values)).fetchall()

    @contextmanager
    def reading(self) -> Iterator[_SqliteTransaction]:
        with self._connection() as connection:
            connection.execute("BEGIN")
            try:
                yield _SqliteTransaction(connection)
            finally:
                _roll_back(connection)

    @contextmanager
    def writing(self) -> Iterator[_SqliteTransaction]:
        with self._queue(), self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield _SqliteTransaction(connection)
                _commit(connection)
            finally:
                _roll_back(connection)
            if self._wal_pages > _WAL_PAGES:
                with suppress(apsw.Error):  # the next writer tries again
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        return None  # a transaction takes no round trips here

    def now(self) -> int:
        return round(self._clock.now() * 1e6)

    @contextmanager
    def _queue(self) -> Iterator[None]:
        """Hold the lock of writers; it ends with the process."""
        process = os.getpid()
        handle = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _HANDLES.add(handle)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._wait_for_lock(handle)
            yield
        finally:
            if os.getpid() == process:
                fcntl.flock(handle, fcntl.LOCK_UN)  # a child that is being forked may have it, too
                _close(handle)

    def _wait_for_lock(self, handle: int) -> None:
        """Wait for the lock of writers, in the order of the system's queue, and not for ever.

        Another thread waits, with a handle of its own to the same lock. The lock ends when both are closed.
        """
        has_waited = Queue[None](1)

        def wait(own: int) -> None:
            try:
                fcntl.flock(own, fcntl.LOCK_EX)
            finally:
                _close(own)
                has_waited.put(None)

        again = os.dup(handle)
        _HANDLES.add(again)
        Thread(target=wait, args=(again,), daemon=True).start()
        try:
            has_waited.get(timeout=self._wait)
        except Empty:
            raise CatalogUnavailable(
                f"another process has held the lock of {self.path} for {self._wait:.0f} seconds; try again, "
                "or end that process"
            ) from None

    @contextmanager
    def _connection(self) -> Iterator[apsw.Connection]:
        with _translated(), self._pool.connection() as connection:
            yield connection

    def _note_pages(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _connected(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(10_000)
        connection.execute("PRAGMA synchronous = FULL")
        connection.set_wal_hook(self._note_pages)  # in place of SQLite's own checkpoints
        connection.execute("PRAGMA mmap_size = 0")
        return connection


def _commit(connection: apsw.Connection) -> None:
    try:
        connection.execute("COMMIT")
    except (apsw.BusyError, apsw.FullError):
        raise  # the last page, which would make it a commit, was not written
    except apsw.Error as error:
        raise CommitUnknown(
            f"it is not known whether the disk has taken a commit ({error}); look whether it is there"
        ) from error


def _roll_back(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        with suppress(apsw.Error):
            connection.execute("ROLLBACK")


@contextmanager
def _translated() -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except apsw.Error as error:
        raise _meaning(error) from error
    except UnicodeDecodeError as error:
        raise damaged_log(f"a text cannot be decoded ({error.reason})") from error


def _meaning(error: apsw.Error) -> ElasticScanError:
    if isinstance(error, apsw.FullError):
        return DiskFull(f"the disk of the log is full ({error}); make room and try again")
    if isinstance(error, apsw.ReadOnlyError):
        return ReadOnlyStore(f"the log cannot be written ({error}); check the permissions of its directory")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.ConstraintError)):
        return damaged_log(str(error))
    return CatalogUnavailable(f"the log cannot be reached ({error}); try again")
