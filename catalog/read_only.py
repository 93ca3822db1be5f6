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
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from elasticscan.base.errors import CatalogUnavailable
from elasticscan.base.resources import lack_in
from elasticscan.catalog.home import disk_full
from elasticscan.catalog.sqlite_files import OpenedFiles, connect_read_only, parts_of

_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.02
_BUSY_MILLISECONDS: Final = 120_000
_SETTLED_NS: Final = 2_000_000_000  # two changes within a tick of the disk's clock look like one

_State = tuple[tuple[int, int, int, int] | None, ...]  # of the database and its log


class ReadOnlyConnection(apsw.Connection):
    """A connection that knows of which files it is.

    Attributes:
        opened: the files, of which SQLite itself sees the changes; None for a copy in memory.
        copied: their state when they were copied.
    """

    opened: OpenedFiles | None = None
    copied: _State = ()


class ReadOnlySource:
    """The log's file, and the copy of it that is read while it does not change."""

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, Path(f"{path}-wal")
        self._copied: tuple[_State, bytes] | None = None

    def is_current(self, connection: ReadOnlyConnection) -> bool:
        """Return whether a connection shows the newest state; a new one does."""
        if connection.opened is not None:
            return connection.opened.are_there()
        with _translated():
            state = self._state()
        return connection.copied == state and _is_settled(state)

    def connect(self) -> ReadOnlyConnection:
        with _translated():
            connection = self._connect_shared() or self._connect_private()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _connect_shared(self) -> ReadOnlyConnection | None:
        """Return a connection through the log that writers share; None where this user can read none."""
        opened = OpenedFiles.look(str(self._path))
        if opened is None or opened.log is None or opened.index is None:
            return None
        with ExitStack() as undone:
            try:
                made = connect_read_only(self._path, ReadOnlyConnection)
                undone.callback(made.close, True)
                made.set_busy_timeout(_BUSY_MILLISECONDS)
                made.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
            except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError):
                return None  # the files went meanwhile, or this user may not read them
            undone.pop_all()
        made.opened = opened
        return made

    def _connect_private(self) -> ReadOnlyConnection:
        state, content = self._copy()
        with ExitStack() as undone:
            made = ReadOnlyConnection(":memory:")
            undone.callback(made.close, True)
            made.deserialize("main", content)
            undone.pop_all()
        made.copied = state
        return made

    def _copy(self) -> tuple[_State, bytes]:
        for _ in range(_TRIES):
            state = self._state()
            if self._copied is not None and self._copied[0] == state and _is_settled(state):
                return self._copied
            with suppress(FileNotFoundError):  # the file alongside it may go at any time
                content = self._content(state)
                if self._state() == state:
                    self._copied = state, content
                    return self._copied
            time.sleep(_PAUSE_SECONDS)
        raise CatalogUnavailable(
            f"{self._path} keeps changing, and this user cannot use the files next to it; let this user "
            "read them, or try again"
        )

    def _state(self) -> _State:
        return tuple(_stat(path) for path in (self._path, self._log))

    def _content(self, state: _State) -> bytes:
        content = b"".join(parts_of(self._path))
        if state[1] is not None and state[1][2]:
            return _merge_log(content, self._log.read_bytes())
        # Bytes 18 and 19 say that there is a file of changes alongside it, which memory cannot have.
        return content[:18] + b"\1\1" + content[20:] if content[18:20] == b"\2\2" else content


def _stat(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_settled(state: _State) -> bool:
    newest = max((file[3] for file in state if file is not None), default=0)
    return newest < time.time_ns() - _SETTLED_NS


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the system's errors about the log's files, or a temporary copy of them, into ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(f"{error}, where TMPDIR lies") from error
        raise lack_in(error) or CatalogUnavailable(
            f"the catalog could not be read: {error}; check disk and TMPDIR, or its owner can let a "
            "group read it: docs/security.md"
        ) from error


def _merge_log(content: bytes, changes: bytes) -> bytes:
    """Return the database with the changes alongside it, which a writer that was killed has left."""
    with tempfile.TemporaryDirectory(prefix="elasticscan-") as scratch:
        copy = Path(scratch) / "catalog.db"
        copy.write_bytes(content)
        copy.with_name("catalog.db-wal").write_bytes(changes)
        with closing(apsw.Connection(str(copy))) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            return bytes(connection.serialize("main"))
