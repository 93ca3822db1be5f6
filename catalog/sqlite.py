"""A log in SQLite: a file on a local disk.

Writers queue for a lock on another file, since SQLite's own waiting pauses up to 100 ms and may starve a
writer. Every commit is flushed (`synchronous=FULL`), the file is never mapped into memory, and no read
transaction stays open between calls.

**A file that is replaced.** A connection continues to use the file that it opened, even if another file is at
its path now; no other process would see what it writes. So writers check before and after a transaction that
the database, its write-ahead log and the log's index are still the files that were opened. Readers check
every 10 ms. If a file was replaced, all connections of this process are closed before a new one is opened:
the old and the new database would share the path of the write-ahead log.

**A commit that fails at its disk** may be invisible now, and appear when another process recovers the log. So
the next transaction of this process overwrites it, before its absence is taken as a failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any, Final, Self

import apsw

from elasticscan.base.clock import Clock, SystemClock
from elasticscan.base.concurrency import renewed_in_child
from elasticscan.base.errors import CatalogUnavailable
from elasticscan.base.file_locks import locked
from elasticscan.base.limits import BUSY_SECONDS, RECONNECT_SECONDS
from elasticscan.catalog.database import HOMES, NOTHING, LogHome, Row
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.failures import (
    commit_unknown,
    not_writable,
    replaced_file,
    retry_interrupted,
)
from elasticscan.catalog.sqlite_files import (
    OpenedFiles,
    check_one_name,
    connect,
    connect_read_only,
    open_lock,
    translated,
    translated_system,
    why_not_writable,
)

_TRUSTED_SECONDS: Final = 0.01  # saves readers a tenth of the time of a first page
_PAUSE_SECONDS: Final = 0.005


class SqliteHome(LogHome):
    """A log in a SQLite database.

    Args:
        path: the database's file.

    Attributes:
        wait_seconds: how long a writer waits for the lock.
    """

    retry_seconds = 0.0  # a local file is not retried
    types = {"BYTES": "BLOB", "NUMBER": "INTEGER", "GENESIS": "zeroblob(32)"}  # noqa: RUF012 - a `ClassVar`

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        super().__init__()
        self.path, self.file, self.clock = path, path, clock or SystemClock()
        self.wait_seconds = BUSY_SECONDS
        self._opened: OpenedFiles | None = None
        self._trusted_until = 0.0  # by `monotonic`; until then readers do not check the files
        self._must_touch = False  # after a commit that failed at its disk

    def make_tables(self) -> None:
        self.path.touch()
        with self.writing():
            for statement in self.definitions():
                self.execute(statement)

    def inspect(self) -> bool:
        self.why_read_only = self.why_read_only or why_not_writable(self.path)
        return bool(self.execute("SELECT 1 FROM sqlite_master WHERE name = 'head'"))

    @retry_interrupted
    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        with self._connection() as connection:
            return connection.execute(statement, dict(values)).fetchall()

    @contextmanager
    def reading(self) -> Iterator[Self]:
        with self._connection() as connection:
            if not connection.in_transaction:
                connection.execute("BEGIN")
            yield self

    @contextmanager
    def writing(self) -> Iterator[Self]:
        if self.why_read_only is not None:
            raise not_writable(self.why_read_only)
        assert not self.in_transaction, "this thread is in a transaction"
        check_one_name(self.path)
        with self._queue(), self._connection(writing=True) as connection:
            opened = self._opened
            assert opened is not None
            connection.release_memory()  # cached pages may be older than the file
            connection.execute("BEGIN IMMEDIATE")
            if self._must_touch:
                connection.execute("UPDATE head SET id = id")
            yield self
            if not opened.are_there():
                raise replaced_file()
            self._commit(self.held)  # not in a child that was forked meanwhile
            if not opened.are_there():
                raise commit_unknown("its file was replaced")

    def _commit(self, connection: apsw.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except (apsw.BusyError, apsw.FullError):
            raise  # the page that makes it a commit was not written
        except apsw.Error as error:
            self._must_touch = True
            raise commit_unknown(str(error)) from error
        self._must_touch = False

    def check_sound(self) -> None:
        problems = self.execute("PRAGMA integrity_check(5)")
        if problems != [("ok",)]:
            raise damaged_log("; ".join(str(row[0]) for row in problems))
        defined = {text for (text,) in self.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        definitions = [text.replace("IF NOT EXISTS ", "") for text in self.definitions()]
        if not defined.issuperset(text for text in definitions if text.startswith("CREATE")):
            raise damaged_log("the definitions of its tables or indexes were changed")

    def remove_empty(self) -> None:
        """Remove the files of a log without records, unless another process has begun one in them."""
        with self._queue():
            if not (self.inspect() and self.is_begun()):
                self.close()
                for end in ("", "-wal", "-shm", ".lock"):
                    Path(f"{self.path}{end}").unlink(missing_ok=True)

    @contextmanager
    def _queue(self) -> Iterator[None]:
        """Hold the lock of writers, which the system releases if the process dies."""
        seconds = self.wait_seconds

        def held_by_another() -> CatalogUnavailable:
            return CatalogUnavailable(
                f"the catalog is locked: another writer has held {self.path}.lock for {seconds:.0f} seconds; "
                "try again, or end that process"
            )

        with ExitStack() as lock:
            with translated_system():
                lock.enter_context(locked(open_lock(self.path), seconds, held_by_another))
            yield

    # Connections

    @contextmanager
    def _connection(self, writing: bool = False) -> Iterator[apsw.Connection]:
        with translated(), ExitStack() as lent:
            if self.held is None and (writing or monotonic() >= self._trusted_until):
                self._follow_file()
            yield lent.enter_context(self._lent())

    def _follow_file(self) -> None:
        """Close the connections of this process if the log's files were replaced."""
        opened, now = self._opened, monotonic()
        if opened is None:
            return
        if opened.are_there():
            self._trusted_until = 0.0 if opened.is_copied else now + _TRUSTED_SECONDS
            return
        with _following():
            if self._opened is not opened:  # another thread has closed them
                return
            # A reader's connections change no file, so it does not wait until all are returned.
            others = [self] if self.why_read_only else list(HOMES)
            homes = [home for home in others if isinstance(home, SqliteHome) and home.path == self.path]
            while True in [home.close() for home in homes] and not self.why_read_only:
                if monotonic() > now + RECONNECT_SECONDS:
                    raise replaced_file()
                sleep(_PAUSE_SECONDS)
            for home in homes:
                home._opened = None

    def _reset(self, connection: apsw.Connection) -> bool:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return not connection.in_transaction

    def _end(self, connection: apsw.Connection) -> None:
        connection.close(True)

    def _connect(self) -> apsw.Connection:
        """Open the file at the path, and remember which file it is."""
        reads = self.why_read_only is not None
        connection, opened = connect_read_only(self.path) if reads else connect(self.path, self.wait_seconds)
        self._opened = self._opened or opened
        if self._opened != opened:
            connection.close(True)
            self._trusted_until = 0.0
            raise replaced_file()
        return connection


_following = renewed_in_child(Lock)
