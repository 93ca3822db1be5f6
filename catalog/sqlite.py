"""A log in SQLite: a file on a local disk.

Writers wait in a queue of their own, for a lock on another file: SQLite's back-off grows to 100 ms, and lets
some wait for ever. Only its holder copies the write-ahead log into the database. Every commit is flushed
(`synchronous=FULL`), the file is never mapped into memory, and no read transaction stays open between calls.

Only SQLite opens the database: closing a file that SQLite has open as well would drop its locks.

**A file that is replaced.** A connection goes on with the file that it has opened, whatever lies at its path,
and no other process sees what it writes there. So writers look before and after a transaction whether the
database, its log and the log's index are those that were opened, and readers look every 10 ms. If they are
not, all connections of this process are closed before a new one is opened: old and new would share a log.

**A commit that fails at its disk** may be found by whoever recovers the log, although it is not seen now. Its
process writes over it with its next transaction, before anything is concluded from its absence.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any, Final
from weakref import WeakSet

import apsw

from elasticscan.base.clock import Clock, SystemClock
from elasticscan.base.concurrency import renewed_in_child
from elasticscan.base.errors import CatalogUnavailable, NotSupported
from elasticscan.base.limits import BUSY_SECONDS, RECONNECT_SECONDS
from elasticscan.catalog import tables
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.failures import meaning, translated, translated_system
from elasticscan.catalog.home import (
    NOTHING,
    Interrupted,
    Row,
    commit_unknown,
    make_tables,
    not_writable,
    unavailable,
)
from elasticscan.catalog.pool import ConnectionPool, forked_amid_use
from elasticscan.catalog.read_only import ReadOnlySource
from elasticscan.catalog.sqlite_files import OpenedFiles, open_lock, replaced_file

_LOWEST_SQLITE: Final = (3, 51, 3)  # older ones can lose a page when a write meets a checkpoint of the WAL
_WAL_PAGES: Final = 1_000  # of 4 KiB: more are copied into the database
_PAUSE_SECONDS: Final = 0.005
_ARE_THERE: Final = "SELECT 1 FROM sqlite_master WHERE name = 'head'"
_TOUCH: Final = "UPDATE head SET id = id"

_TYPES: Final = {"BYTES": "BLOB", "NUMBER": "INTEGER"}
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
        self._connection, self._process = connection, os.getpid()

    def check_process(self) -> None:
        if self._process != os.getpid():
            raise forked_amid_use()

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        self.check_process()
        return self._connection.execute(statement, dict(values)).fetchall()


class SqliteHome:
    """A log in a SQLite database. Safe to use from several threads, and after a fork.

    Args:
        path: of the database's file, which is there.
        wait_seconds: for how long a writer waits for its turn.
        why_read_only: why nothing is written: not to the file, nor next to it.
        making: the name of a store whose tables are made in the first transaction that writes.
    """

    retry_seconds = 0.0  # what it says the first time holds
    is_follower = False

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        wait_seconds: float | None = None,
        why_read_only: str | None = None,
        making: str | None = None,
    ) -> None:
        found = tuple(map(int, apsw.sqlite_lib_version().split(".")))
        if found < _LOWEST_SQLITE:
            raise NotSupported(
                f"SQLite {apsw.sqlite_lib_version()} can lose pages of a log; install a newer apsw"
            )
        self.path, self.clock = path, clock or SystemClock()
        self.file: Path | None = path
        self.why_read_only = why_read_only
        self._wait = BUSY_SECONDS if wait_seconds is None else wait_seconds
        self._making = making
        self._opened: OpenedFiles | None = None
        self._pool = self._pool_of(None if why_read_only is None else ReadOnlySource(path))
        self._wal_pages = 0  # that the write-ahead log had after the newest commit
        self._must_touch = False  # after a commit of which the disk did not say whether it took it
        _HOMES.add(self)

    def _pool_of(self, source: ReadOnlySource | None) -> ConnectionPool[Any]:
        how: dict[str, Any] = {
            "is_usable": lambda connection: not connection.in_transaction,
            "close": lambda connection: connection.close(True),
            "wait_seconds": BUSY_SECONDS,
            "across_forks": False,
        }
        if source is None:
            return ConnectionPool(self._connected, **how)
        return ConnectionPool(source.connect, is_current=source.is_current, **how)

    @classmethod
    def create(cls, path: Path, clock: Clock | None = None) -> SqliteHome:
        """Make the tables of a log in a file, which is made if it is not there."""
        path.touch()
        home = cls(path, clock, making=str(path))
        with home.writing():
            pass
        return home

    def close(self) -> None:
        self._pool.close()

    def has_tables(self) -> bool:
        """Return whether the tables of a log are there."""
        return bool(self.execute(_ARE_THERE))

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        with self._connection() as connection:
            return connection.execute(statement, dict(values)).fetchall()

    @contextmanager
    def reading(self) -> Iterator[_SqliteTransaction]:
        with self._connection() as connection:
            if connection.in_transaction:
                yield _SqliteTransaction(connection)
                return
            connection.execute("BEGIN")
            with _rolled_back(connection):
                yield _SqliteTransaction(connection)

    @contextmanager
    def writing(self, at_once: bool = False) -> Iterator[_SqliteTransaction]:
        if self.why_read_only is not None:
            raise not_writable(self.why_read_only)
        assert self._pool.held is None, "this thread is in a transaction"
        with self._queue(at_once), self._connection(writing=True) as connection:
            opened = self._opened
            assert opened is not None
            self._begin(connection, at_once)
            with _rolled_back(connection):
                transaction = _SqliteTransaction(connection)
                if self._making is not None:
                    are_there = bool(transaction.execute(_ARE_THERE))
                    make_tables(transaction, are_there, self._making, **_TYPES)
                yield transaction
                transaction.check_process()
                if not opened.are_there():
                    raise replaced_file()
                self._commit(connection)
            if not opened.are_there():
                raise commit_unknown("its file was replaced")
            if self._wal_pages > _WAL_PAGES:
                with suppress(apsw.Error):  # the next writer tries again
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _begin(self, connection: apsw.Connection, at_once: bool) -> None:
        connection.release_memory()  # pages read before: the file may have been written over since
        connection.set_busy_timeout(0 if at_once else self._busy_milliseconds)
        try:
            connection.execute("BEGIN IMMEDIATE")
        finally:
            connection.set_busy_timeout(self._busy_milliseconds)
        if self._must_touch:
            connection.execute(_TOUCH)

    def _commit(self, connection: apsw.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except (apsw.BusyError, apsw.FullError):
            raise  # the last page, which would make it a commit, was not written
        except apsw.Error as error:
            self._must_touch = True
            raise commit_unknown(str(error)) from error
        self._must_touch, self._making = False, None

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        return None  # a transaction takes no round trips here

    def check_sound(self) -> None:
        said = self.execute("PRAGMA integrity_check(5)")
        if said != [("ok",)]:  # of a read that failed, too
            raise meaning(apsw.CorruptError("; ".join(str(row[0]) for row in said)), self.path)
        found = {text for (text,) in self.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        made = {statement.format(**_TYPES) for statement in tables.CREATE}
        if not made <= found:  # SQLite reads them when it opens the file
            raise damaged_log("its database defines tables in another way than they were made")

    def remove_empty(self) -> None:
        """Remove the file of a log that was not begun, unless another process has begun one in it."""
        with self._queue(at_once=False):
            with self._connection(writing=True) as connection:
                if connection.execute("SELECT 1 FROM sqlite_master").fetchall():
                    return
            self.close()
            for end in ("", "-wal", "-shm", ".lock"):
                Path(f"{self.path}{end}").unlink(missing_ok=True)

    # The queue of writers

    @contextmanager
    def _queue(self, at_once: bool) -> Iterator[None]:
        """Hold the lock of writers; it ends with the process."""
        process = os.getpid()
        with translated_system():
            handle = open_lock(self.path)
        _HANDLES.add(handle)
        try:
            with translated_system():
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._wait_for_lock(handle, 0.0 if at_once else self._wait)
            yield
        finally:
            if os.getpid() == process:
                fcntl.flock(handle, fcntl.LOCK_UN)  # a child that is being forked may have it, too
                _close(handle)

    def _wait_for_lock(self, handle: int, seconds: float) -> None:
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
            has_waited.get(timeout=seconds)
        except Empty:
            raise CatalogUnavailable(
                f"the catalog is locked: another writer has held {self.path}.lock for {seconds:.0f} seconds; "
                "try again, or end that process"
            ) from None

    # Connections

    @property
    def _busy_milliseconds(self) -> int:
        return int(self._wait * 1_000)

    @contextmanager
    def _connection(self, writing: bool = False) -> Iterator[apsw.Connection]:
        with translated(self.path), ExitStack() as lent:
            yield self._lend(lent, writing)

    def _lend(self, lent: ExitStack, writing: bool) -> apsw.Connection:
        if self._pool.held is None:
            self._follow_file(writing)
        connection: apsw.Connection
        try:
            connection = lent.enter_context(self._pool.connection())
        except Interrupted:  # a new connection was the first that met other files
            self._follow_file(at_once=True)
            connection = lent.enter_context(self._pool.connection())
        return connection

    def _follow_file(self, at_once: bool) -> None:
        """Close all connections to files that are not the log's any more.

        A reader may look a moment late: it reads what was there a moment ago.
        """
        opened = self._opened
        if opened is None or (not at_once and monotonic() < opened.trusted_until) or opened.are_there():
            return
        until = monotonic() + RECONNECT_SECONDS
        with _following():
            if self._opened is not opened:  # another thread has done it
                return
            same = [home for home in list(_HOMES) if home._opened is not None and home.path == self.path]
            while True in [home._pool.close() for home in same]:
                if monotonic() > until:
                    raise replaced_file()
                sleep(_PAUSE_SECONDS)
            for home in same:
                home._opened = None

    def _connected(self) -> apsw.Connection:
        """Open the file that is at the path now, and remember which that was.

        One that is gone is not made again: its place may be about to be taken by a copy.
        """
        before = OpenedFiles.look(str(self.path))
        if before is None:
            raise unavailable(f"unable to open database file: no {self.path}")
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            self._prepare(connection)
            opened = OpenedFiles.look(str(self.path))
            if opened is None or opened.database != before.database:
                raise replaced_file()
            if self._opened is None:
                self._opened = opened
            elif not self._opened.are_there():
                raise replaced_file()
        except BaseException:
            connection.close(True)
            raise
        return connection

    def _prepare(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(self._busy_milliseconds)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA mmap_size = 0")
        if self._making is not None:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # The mode is one of the file. Two processes that make one log switch to it at once, and SQLite does
        # not let the second wait: then the first has done it for both.
        with suppress(apsw.BusyError):
            connection.execute("PRAGMA journal_mode = WAL")
        connection.set_wal_hook(self._note_pages)  # in place of SQLite's own checkpoints

    def _note_pages(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK


_HOMES: WeakSet[SqliteHome] = WeakSet()
_following = renewed_in_child(Lock)


@contextmanager
def _rolled_back(connection: apsw.Connection) -> Iterator[None]:
    """End a transaction that is not committed; in a forked child it is its parent's."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == process and connection.in_transaction:
            with suppress(apsw.Error):
                connection.execute("ROLLBACK")
