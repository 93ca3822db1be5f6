"""The files of a SQLite database: which ones are open, who may write them, and reading without writing.

Closing a file releases all locks that the process has on it, those of SQLite among them. So only SQLite opens
a database's file.
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
_SETTLED_NS: Final = 2_000_000_000  # two changes within a tick of the disk's clock look like one
_PRAGMAS: Final = ("PRAGMA synchronous = FULL", "PRAGMA mmap_size = 0", "PRAGMA journal_mode = WAL")
_OPEN: Final = "SELECT 1 FROM sqlite_master LIMIT 1"  # opens the files alongside it


@dataclass(frozen=True, slots=True)
class OpenedFiles:
    """The files that connections have open, to see whether they are the files that others open now.

    Attributes:
        is_copied: they were copied into memory: so their sizes and times count as well.
        states: of the database, its write-ahead log and that log's index; None for one that was not there.
    """

    path: str
    is_copied: bool
    states: tuple[tuple[int, ...] | None, ...]

    @staticmethod
    def look(path: str, is_copied: bool = False) -> OpenedFiles:
        return OpenedFiles(path, is_copied, tuple(_state_of(path + end, is_copied) for end in _ENDS))

    def are_there(self) -> bool:
        changed_at = max((file[-1] for file in self.states if file is not None), default=0)
        is_settled = not self.is_copied or changed_at < time.time_ns() - _SETTLED_NS
        return is_settled and OpenedFiles.look(self.path, self.is_copied) == self


def _state_of(path: str, is_copied: bool) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for with each page
    except OSError:
        return None
    file = status.st_dev, status.st_ino
    return (*file, status.st_size, status.st_mtime_ns) if is_copied else file


def check_one_name(path: Path) -> None:
    """Raise `ShardMismatch` when a log's file is also that of another directory, by a link.

    What is written through one name would be the other's as well, and SQLite keeps changes for each name.
    """
    with suppress(OSError):  # using it will tell what is wrong
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) or status.st_nlink > 1:
            raise ShardMismatch(
                f"{path} has {max(2, status.st_nlink)} names (links), and a write would change all of them; "
                "make a real copy (`cp -r`) in place of one",
                original=os.path.realpath(path),
            )


def make_file(path: Path, like_directory: bool) -> bool:
    """Make an empty file for a new database; False if it is there, or SQLite is to raise why it cannot be.

    Its mode, which SQLite gives to what it puts alongside, is for its owner, or as the directory's.
    """
    try:
        mode = mode_within(path.parent.stat().st_mode) if like_directory else 0o600
        made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    os.fchmod(made, mode)
    os.close(made)
    return True


def open_lock(path: Path) -> int:
    """Open the file that writers of a database lock, which has the mode and the owner of the database's."""
    name, flags = f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with suppress(FileExistsError):
        handle = os.open(name, flags | os.O_EXCL, 0o600)
        with suppress(OSError):  # only root may give it away
            status = path.stat()
            os.fchmod(handle, status.st_mode & 0o777)
            os.fchown(handle, status.st_uid, status.st_gid)
        return handle
    return os.open(name, flags, 0o600)


def why_not_writable(path: Path) -> str | None:
    """Return the reason why the database in a file cannot be written here; None when it can."""
    effective = os.access in os.supports_effective_ids
    for file in (str(path.parent), *(f"{path}{end}" for end in (*_ENDS, ".lock"))):
        # The last process that closes the log removes two of these, and one that opens it makes them.
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

    A database that is gone is not made again: its place may be about to be taken by a copy.
    """
    before, *_ = OpenedFiles.look(str(path)).states
    if before is None:
        raise unavailable(f"unable to open database file: no {path}")
    made = _connected(str(path), apsw.SQLITE_OPEN_READWRITE, wait_seconds, *_PRAGMAS)
    opened = OpenedFiles.look(str(path))
    if opened.states[0] != before:
        made.close(True)
        raise replaced_file()
    return made, opened


# Reading without changing anything next to the file
#
# SQLite reads a database through the file `-shm` alongside it. While a user who may write has the store open,
# that is there, and a connection that only reads sees what all others see. When the last of them has closed
# it, it is gone, and a reader cannot make it, or must not. Then the database's file is all there is: it is
# copied into memory, whole, and copied again for the first question after it changed.


def connect_read_only(path: Path) -> tuple[apsw.Connection, OpenedFiles]:
    """Return a connection that changes no file, and the files that it shows."""
    opened = OpenedFiles.look(str(path))
    if None not in opened.states:
        with suppress(apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError):  # they went meanwhile
            return _read_only(path, "mode=ro"), opened
    for _ in range(_TRIES):
        opened = OpenedFiles.look(str(path), is_copied=True)
        with translated_system(writing=False), suppress(FileNotFoundError):  # files may go at any time
            copied = _copied(path)
            if OpenedFiles.look(str(path), is_copied=True) == opened:
                return copied, opened
        time.sleep(_PAUSE_SECONDS)
    raise unavailable(f"{path} keeps changing, and this user cannot use the files next to it")


def _copied(path: Path) -> apsw.Connection:
    """Return a copy in memory, with the changes next to the file, which a writer that was killed has left."""
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
    made = apsw.Connection(address, flags=flags)
    try:
        made.set_busy_timeout(int(wait_seconds * 1_000))
        for pragma in pragmas:
            # The mode is one of the file. Two processes that make one log switch to it at once, and SQLite
            # does not let the second wait: then the first has done it for both.
            with suppress(apsw.BusyError):
                made.execute(pragma)
        made.execute(_OPEN).fetchall()
    except BaseException:
        made.close(True)
        raise
    return made


# The errors of SQLite, and of the system, as ours
#
# SQLite says                              the caller gets
# the disk is full                         DiskFull
# it is locked, out of reach               CatalogUnavailable
# it may not be written                    ReadOnlyStore
# no open files, no memory                 OutOfResources
# its file makes no sense                  StoreDamaged; so it says of most reads that failed at the disk, too

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
_NO_MEMORY: Final = (apsw.SQLITE_IOERR_NOMEM, apsw.SQLITE_IOERR_SHMMAP)  # the index is mapped into memory


@contextmanager
def translated() -> Iterator[None]:
    """Turn SQLite's errors into ours."""
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
    """Turn the system's errors about the files of a log into ours."""
    try:
        yield
    except OSError as error:
        meaning_of = _SYSTEM.get(error.errno, unavailable) if writing else unavailable
        raise lack_in(error) or meaning_of(str(error)) from error
