"""The files of a SQLite database: their identity, permissions, and reading without any write.

If a process closes a file, the system releases all locks that the process has on it, also those of SQLite. So
only SQLite opens a database's file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw

from elasticscan.base.errors import ElasticScanError, ShardMismatch
from elasticscan.base.limits import BUSY_SECONDS
from elasticscan.base.permissions import mode_within
from elasticscan.base.resources import lack_in, lack_of_files, lack_of_memory
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.failures import disk_full, not_writable, replaced_file, unavailable, unfit_value

_ENDS: Final = ("", "-wal", "-shm")  # the database, its log, and the index of that
_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.02
_SETTLED_NS: Final = 2_000_000_000  # two changes within one tick of the disk's clock have equal times
_PRAGMAS: Final = ("PRAGMA synchronous = FULL", "PRAGMA mmap_size = 0", "PRAGMA journal_mode = WAL")
_OPEN: Final = "SELECT 1 FROM sqlite_master LIMIT 1"  # opens the files next to the database


@dataclass(frozen=True, slots=True)
class OpenedFiles:
    """The identity of the files that connections have open, for comparison with the files at the path.

    Attributes:
        is_copied: the connection has a copy in memory, so sizes and times are compared, too.
        states: of the database, its write-ahead log and that log's index; None for a missing file.
    """

    path: str
    is_copied: bool
    states: tuple[tuple[int, ...] | None, ...]

    @staticmethod
    def at(path: str, is_copied: bool = False) -> OpenedFiles:
        return OpenedFiles(path, is_copied, tuple(_state_of(path + end, is_copied) for end in _ENDS))

    def are_there(self) -> bool:
        changed_at = max((file[-1] for file in self.states if file is not None), default=0)
        is_settled = not self.is_copied or changed_at < time.time_ns() - _SETTLED_NS
        return is_settled and OpenedFiles.at(self.path, self.is_copied) == self


def _state_of(path: str, is_copied: bool) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - called for each page
    except OSError:
        return None
    file = status.st_dev, status.st_ino
    return (*file, status.st_size, status.st_mtime_ns) if is_copied else file


def check_one_name(path: Path) -> None:
    """Raise `ShardMismatch` if a log's file has several names, by a symbolic or hard link.

    A write through one name would change the store of the other name, too, and SQLite uses a separate
    write-ahead log for each name.
    """
    with suppress(OSError):  # opening the file raises the error
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) or status.st_nlink > 1:
            raise ShardMismatch(
                f"{path} has {max(2, status.st_nlink)} names (links), and a write would change all of them; "
                "make a real copy (`cp -r`) in place of one",
                original=os.path.realpath(path),
            )


def make_file(path: Path, like_directory: bool) -> bool:
    """Create an empty file for a new database; return False if it exists, or cannot be created.

    Its mode allows only its owner, or the same users as its directory. SQLite gives the same mode to the
    files next to it. If the file cannot be created, SQLite raises the error when it opens it.
    """
    try:
        mode = mode_within(path.parent.stat().st_mode) if like_directory else 0o600
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    os.fchmod(file, mode)
    os.close(file)
    return True


def open_lock(path: Path) -> int:
    """Open the lock file of a database's writers; create it with the database's mode and owner."""
    name, flags = f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with suppress(FileExistsError):
        handle = os.open(name, flags | os.O_EXCL, 0o600)
        with suppress(OSError):  # only root may change the owner
            status = path.stat()
            os.fchmod(handle, status.st_mode & 0o777)
            os.fchown(handle, status.st_uid, status.st_gid)
        return handle
    return os.open(name, flags, 0o600)


def why_not_writable(path: Path) -> str | None:
    """Return the reason why this user cannot write a database, or None."""
    effective = os.access in os.supports_effective_ids
    for file in (str(path.parent), *(f"{path}{end}" for end in (*_ENDS, ".lock"))):
        # Other processes remove and create two of these files, so a missing one is checked again.
        if not any(
            os.access(file, os.W_OK, effective_ids=effective) or not os.path.exists(file)  # noqa: PTH110
            for _ in range(3)
        ):
            with translated_system():
                if os.statvfs(path).f_flag & os.ST_RDONLY:
                    return f"{path} lies on a file system that is mounted read-only"
            return f"this user may not write {file}"
    return None


def connect(path: Path, wait_seconds: float) -> tuple[apsw.Connection, OpenedFiles]:
    """Return a connection that writes, and the files that it has opened.

    A missing database is not created again: perhaps a copy is about to be put in its place.
    """
    before, *_ = OpenedFiles.at(str(path)).states
    if before is None:
        raise unavailable(f"unable to open database file: no {path}")
    connection = _connected(str(path), apsw.SQLITE_OPEN_READWRITE, wait_seconds, *_PRAGMAS)
    opened = OpenedFiles.at(str(path))
    if opened.states[0] != before:
        connection.close(True)
        raise replaced_file()
    return connection, opened


# Reading without changing any file
#
# SQLite needs the file `-shm` next to a database to read it. While a process that may write has the store
# open, this file exists, and a connection that only reads sees the same rows as all others. When the last of
# these processes closes the store, the file is removed, and a reader cannot or must not create it. Then the
# whole database is copied into memory, and copied again at the first read after it changed.


def connect_read_only(path: Path) -> tuple[apsw.Connection, OpenedFiles]:
    """Return a connection that changes no file, and the files that it reads or has copied."""
    opened = OpenedFiles.at(str(path))
    if None not in opened.states:
        with suppress(apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError):  # removed meanwhile
            return _read_only(path, "mode=ro"), opened
    for _ in range(_TRIES):
        opened = OpenedFiles.at(str(path), is_copied=True)
        with translated_system(writing=False), suppress(FileNotFoundError):  # files may vanish
            copied = _copied(path)
            if OpenedFiles.at(str(path), is_copied=True) == opened:
                return copied, opened
        time.sleep(_PAUSE_SECONDS)
    raise unavailable(f"{path} keeps changing, and this user cannot use the files next to it")


def _copied(path: Path) -> apsw.Connection:
    """Return a copy in memory, including a write-ahead log that a killed writer has left."""
    with tempfile.TemporaryDirectory(prefix="elasticscan-") as scratch:
        copy = Path(scratch) / "catalog.db"
        with closing(_read_only(path, "immutable=1")) as file:
            copy.write_bytes(file.serialize("main"))
        with suppress(FileNotFoundError):
            shutil.copyfile(f"{path}-wal", f"{copy}-wal")
        memory = apsw.Connection(":memory:")
        with closing(apsw.Connection(str(copy))) as file, memory.backup("main", file, "main") as backup:
            backup.step()
    return memory


def _read_only(path: Path, how: str) -> apsw.Connection:
    address, flags = f"{path.absolute().as_uri()}?{how}", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return _connected(address, flags, BUSY_SECONDS)


def _connected(address: str, flags: int, wait_seconds: float, *pragmas: str) -> apsw.Connection:
    connection = apsw.Connection(address, flags=flags)
    try:
        connection.set_busy_timeout(int(wait_seconds * 1_000))
        for pragma in pragmas:
            # If two processes switch a new file to WAL at the same time, SQLite does not let the second one
            # wait. The mode is stored in the file, so the first has set it for both.
            with suppress(apsw.BusyError):
                connection.execute(pragma)
        connection.execute(_OPEN).fetchall()
    except BaseException:
        connection.close(True)
        raise
    return connection


# Typed errors for the errors of SQLite and of the system
#
# error of SQLite                          the caller gets
# the disk is full                         DiskFull
# it is locked, out of reach               CatalogUnavailable
# it may not be written                    ReadOnlyStore
# no open files, no memory                 OutOfResources
# the file is malformed                    StoreDamaged; SQLite reports most failed reads of the disk so, too

_SQLITE: Final[dict[type[apsw.Error], Callable[[str], ElasticScanError]]] = {
    apsw.FullError: disk_full,
    apsw.ReadOnlyError: not_writable,
    apsw.TooBigError: unfit_value,
    apsw.RangeError: unfit_value,
    apsw.NoMemError: lambda _: lack_of_memory(),
    apsw.CantOpenError: lambda said: lack_of_files(len(_ENDS)) or unavailable(said),
    **dict.fromkeys((apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError), damaged_log),
    **dict.fromkeys((apsw.ConstraintError, apsw.MismatchError, apsw.SchemaChangeError), damaged_log),
}
_NO_MEMORY: Final = (apsw.SQLITE_IOERR_NOMEM, apsw.SQLITE_IOERR_SHMMAP)  # mapping the log's index


@contextmanager
def translated() -> Iterator[None]:
    """Raise typed errors in place of SQLite's."""
    try:
        yield
    except apsw.Error as error:
        if getattr(error, "extendedresult", 0) in _NO_MEMORY:
            raise lack_of_memory() from error
        raise _SQLITE.get(type(error), unavailable)(str(error)) from error
    except UnicodeDecodeError as error:
        raise damaged_log(f"a text cannot be decoded ({error.reason})") from error
    except MemoryError as error:
        raise lack_of_memory() from error


_SYSTEM: Final[dict[int | None, Callable[[str], ElasticScanError]]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), disk_full),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), not_writable),
}


@contextmanager
def translated_system(writing: bool = True) -> Iterator[None]:
    """Raise typed errors in place of the system's, for the files of a log."""
    try:
        yield
    except OSError as error:
        meaning_of = _SYSTEM.get(error.errno, unavailable) if writing else unavailable
        raise lack_in(error) or meaning_of(str(error)) from error
