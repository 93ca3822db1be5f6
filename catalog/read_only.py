"""Reading a log in SQLite that this process cannot write, or must not.

SQLite reads a database in WAL mode through the file `-shm` alongside it. While a user who may write has the
store open, that file is there, and a connection that only reads sees what all others see. When the last of
them has closed it, it is gone; SQLite would make it again, which a reader must not or cannot. Then the
database's file is all there is: it is copied into memory, whole, and read there. It is copied again for the
first question after it changed, which the file's state shows.

A read-only mount of a disk that is written on the same machine is no special case: both see one `-shm`.
"""

from __future__ import annotations

import errno
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from elasticscan.base.errors import CatalogUnavailable, DiskFull
from elasticscan.base.resources import lack_in
from elasticscan.catalog.place import is_there
from elasticscan.catalog.sqlite_files import connect_read_only, parts_of

_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.02
_BUSY_MILLISECONDS: Final = 120_000
_SETTLED_NS: Final = 2_000_000_000  # two changes within a tick of the disk's clock look like one

Seen = tuple[tuple[int, int, int, int] | None, ...]


class ReadOnlyConnection(apsw.Connection):
    """A connection that knows of which state of the files it is.

    Attributes:
        seen: of a copy in memory; None where SQLite itself looks for changes.
        file, log: device and inode of the database and its log.
    """

    seen: Seen | None = None
    file: tuple[int, int] = (0, 0)
    log: tuple[int, int] = (0, 0)


class ReadOnlySource:
    """The log's file, and the copy of it that is read while it does not change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log, self._index = (Path(f"{path}{end}") for end in ("-wal", "-shm"))
        self._copied: tuple[Seen, bytes] | None = None

    def is_current(self, connection: ReadOnlyConnection) -> bool:
        """Return whether a connection shows the newest state; a new one does."""
        with _telling():
            seen = self._look()
        if seen[0] is None or seen[0][:2] != connection.file:
            return False
        if connection.seen is None:  # SQLite itself looks for changes, in the log that it has opened
            return seen[1] is not None and seen[1][:2] == connection.log
        return connection.seen == seen and _is_settled(seen)

    def connect(self) -> ReadOnlyConnection:
        with _telling():
            file = self._file()
            connection = self._connect_shared() or self._connect_private()
        connection.file = file
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _file(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_dev, status.st_ino

    def _connect_shared(self) -> ReadOnlyConnection | None:
        """Return a connection through the log that writers share; None where this user can read none."""
        log = _stat(self._log)
        if log is None or not is_there(self._index):
            return None
        made: ReadOnlyConnection | None = None
        try:
            made = connect_read_only(self._path, ReadOnlyConnection)
            made.set_busy_timeout(_BUSY_MILLISECONDS)
            made.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError):
            if made is not None:  # the files went meanwhile, or this user may not read them
                made.close(True)
            return None
        except BaseException:
            if made is not None:
                made.close(True)
            raise
        made.log = log[:2]
        return made

    def _connect_private(self) -> ReadOnlyConnection:
        seen, content = self._copy()
        made = ReadOnlyConnection(":memory:")
        try:
            made.deserialize("main", content)
        except BaseException:
            made.close(True)
            raise
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
        return tuple(_stat(path) for path in (self._path, self._log))

    def _content(self, seen: Seen) -> bytes:
        content = b"".join(parts_of(self._path))
        if seen[1] is not None and seen[1][2]:
            return _merge_log(content, self._log.read_bytes())
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
    """Turn what the system says of the log's files into errors of ours.

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
        with closing(apsw.Connection(str(copy))) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            return bytes(connection.serialize("main"))
