"""Reading an SQLite catalog that this process cannot write, or must not.

SQLite reads a database in WAL mode through the file `-shm` alongside it. While a user who may write
has the store open, that file is there, and a connection with `mode=ro` sees what all others see.
When the last of them has closed it, it is gone; SQLite would make it again, which a reader must not
or cannot. Then the database's file is all there is: it is copied into memory, whole, and read there.
It is copied again for the first transaction after it changed, which the file's state shows.

A read-only mount of a disk that is written on the same machine is no special case: both see one `-shm`.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DisconnectionError

from elasticscan.base.errors import CatalogUnavailable, DiskFull
from elasticscan.base.resources import lack_in
from elasticscan.catalog.compiled import share_compiled
from elasticscan.catalog.connections import POOL, closed_on_error
from elasticscan.catalog.failures import cannot_look, is_there
from elasticscan.catalog.probe import parts_of

_TRIES, _PAUSE_SECONDS = 50, 0.02
_SETTLED_NS = 2_000_000_000  # two changes within a tick of the disk's clock look like one

Seen = tuple[tuple[int, int, int, int] | None, ...]


def why_not_writable(path: Path) -> str | None:
    """Return the reason why the catalog in a file cannot be written here; None when it can.

    Raises:
        CatalogUnavailable: its disk or mount does not say.
    """
    others = [path.with_name(path.name + end) for end in ("-wal", "-shm")]
    needed = [path.parent, path, *(file for file in others if is_there(file))]
    effective = os.access in os.supports_effective_ids
    barred = [place for place in needed if not os.access(place, os.W_OK, effective_ids=effective)]
    if not barred:
        return None
    try:
        mounted = os.statvfs(path).f_flag
    except OSError as error:
        raise cannot_look(path, error) from error
    if mounted & os.ST_RDONLY:
        return f"{path} lies on a file system that is mounted read-only"
    return f"this user may not write {barred[0]}"


def read_only_engine(path: Path) -> Engine:
    """Return an engine that reads the catalog in a file and changes nothing alongside it either."""
    source = _Source(path)
    engine = create_engine(
        URL.create("sqlite", database=str(path)),  # for code that asks where the file lies
        creator=source.connect,
        **POOL,
    )
    share_compiled(engine)

    @event.listens_for(engine, "checkout")
    def _checkout(connection: Any, _record: Any, _proxy: Any) -> None:
        if not source.is_current(connection):
            raise DisconnectionError("the catalog has changed")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN DEFERRED")

    return engine


class _Connection(sqlite3.Connection):
    """A connection that knows of which state of the files it is."""

    seen: Seen | None = None  # None where SQLite itself looks for changes
    file: tuple[int, int] = (0, 0)
    log: tuple[int, int] = (0, 0)
    fresh = True


class _Source:
    """The catalog's file, and the copy of it that is read while it does not change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wal, self._shm = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
        self._copied: tuple[Seen, bytes] | None = None

    def is_current(self, connection: _Connection) -> bool:
        """Return whether a connection would show the newest state; a new one does."""
        if connection.fresh:
            connection.fresh = False
            return True
        with _telling():
            seen = self._look()
        if seen[0] is None or seen[0][:2] != connection.file:
            return False
        if connection.seen is None:  # SQLite itself looks for changes, in the log that it has opened
            return seen[1] is not None and seen[1][:2] == connection.log
        return connection.seen == seen and _is_settled(seen)

    def connect(self) -> _Connection:
        with _telling():
            file = self._file()
            connection = self._connect_shared() or self._connect_private()
        connection.file = file
        with closed_on_error(connection):
            connection.isolation_level = None
            connection.execute("PRAGMA query_only=ON")
        return connection

    def _file(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise CatalogUnavailable(
                f"the catalog could not be used: {error}; check that it is reachable, then try again"
            ) from error
        return status.st_dev, status.st_ino

    def _connect_shared(self) -> _Connection | None:
        """Return a connection through the log that writers share; None where this user can read none."""
        log = _stat(self._wal)
        if log is None or not is_there(self._shm):
            return None
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        made = sqlite3.connect(uri, uri=True, factory=_Connection, check_same_thread=False, timeout=120)
        try:
            with closed_on_error(made):
                made.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        except sqlite3.OperationalError:  # they went meanwhile, or this user may not read them
            return None
        made.log = log[:2]
        return made

    def _connect_private(self) -> _Connection:
        seen, content = self._copy()
        made = sqlite3.connect(":memory:", factory=_Connection, check_same_thread=False)
        with closed_on_error(made):
            made.deserialize(content)
        made.seen = seen
        return made

    def _copy(self) -> tuple[Seen, bytes]:
        for _ in range(_TRIES):
            seen, cached = self._look(), self._copied
            if cached is not None and cached[0] == seen and _is_settled(seen):
                return cached
            with suppress(FileNotFoundError):  # the file alongside it may go at any time
                content = self._content(seen)
                if self._look() == seen:
                    self._copied = (seen, content)
                    return seen, content
            time.sleep(_PAUSE_SECONDS)
        raise CatalogUnavailable(
            f"{self._path} keeps changing, and this user cannot use the files next to it; let this user "
            "read them, or try again"
        )

    def _look(self) -> Seen:
        return tuple(_stat(path) for path in (self._path, self._wal))

    def _content(self, seen: Seen) -> bytes:
        content = b"".join(parts_of(self._path))
        if seen[1] is not None and seen[1][2]:
            return _merge_log(content, self._wal.read_bytes())
        # Bytes 18 and 19 say that there is a file of changes alongside it, which memory cannot have.
        return content[:18] + b"\1\1" + content[20:] if content[18:20] == b"\2\2" else content


def _stat(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_settled(seen: Seen) -> bool:
    newest = max((state[3] for state in seen if state is not None), default=0)
    return newest < time.time_ns() - _SETTLED_NS


@contextmanager
def _telling() -> Iterator[None]:
    """Turn what the system says of the catalog's files into errors of ours.

    Raises:
        CatalogUnavailable: their disk or mount does not give them, or this user may not read all of them.
    """
    try:
        yield
    except OSError as error:
        if (lack := lack_in(error)) is not None:
            raise lack from error
        what_to_do = "check that it is reachable, then try again"
        if isinstance(error, PermissionError):
            what_to_do = "its owner can let a group read it: docs/security.md says how"
        raise CatalogUnavailable(f"the catalog could not be read: {error}; {what_to_do}") from error


@contextmanager
def _telling_of_scratch() -> Iterator[None]:
    """Turn what the system says of the temporary directory into errors of ours.

    Raises:
        DiskFull: it has no room.
        CatalogUnavailable: there is none that can be written.
    """
    try:
        yield
    except OSError as error:
        if (lack := lack_in(error)) is not None:
            raise lack from error
        said = (
            "the catalog has a log of changes, which are applied to a copy of it in the temporary directory, "
            f"and this cannot be made: {error}; name another directory in TMPDIR"
        )
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(said + ", or make room there") from error
        raise CatalogUnavailable(said) from error


def _merge_log(content: bytes, changes: bytes) -> bytes:
    """Return the database with the changes alongside it, which a writer that was killed has left."""
    with _telling_of_scratch(), tempfile.TemporaryDirectory(prefix="elasticscan-") as scratch:
        copy = Path(scratch) / "catalog.db"
        copy.write_bytes(content)
        copy.with_name("catalog.db-wal").write_bytes(changes)
        with closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
            return connection.serialize()
