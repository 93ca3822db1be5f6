"""The files of a SQLite database: which ones are open, who may write them, and reading without writing.

Closing a file releases all locks that the process has on it, those of SQLite among them. So only SQLite opens
a database's file.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw

from elasticscan.base.errors import WrongRoot
from elasticscan.base.limits import BUSY_SECONDS
from elasticscan.base.permissions import mode_within
from elasticscan.catalog.failures import replaced_file, translated_system, unavailable

_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.02
_SETTLED_NS: Final = 2_000_000_000  # two changes within a tick of the disk's clock look like one
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
        states = tuple(_state_of(path + end, is_copied) for end in ("", "-wal", "-shm"))
        return OpenedFiles(path, is_copied, states)

    def are_there(self) -> bool:
        return OpenedFiles.look(self.path, self.is_copied) == self and self._is_settled()

    def _is_settled(self) -> bool:
        newest = max((file[-1] for file in self.states if file is not None), default=0)
        return not self.is_copied or newest < time.time_ns() - _SETTLED_NS


def _state_of(path: str, is_copied: bool) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for with each page
    except OSError:
        return None
    file = status.st_dev, status.st_ino
    return (*file, status.st_size, status.st_mtime_ns) if is_copied else file


def check_one_name(path: Path) -> None:
    """Raise `WrongRoot` when a log's file is also that of another directory, by a link.

    What is written through one name would be the other's as well, and SQLite keeps changes for each name.
    """
    with suppress(OSError):  # using it will tell what is wrong
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) or status.st_nlink > 1:
            raise WrongRoot(
                f"{path} has {max(2, status.st_nlink)} names (links), and a write would change all of them; "
                "make a real copy (`cp -r`) in place of one",
                original=os.path.realpath(path),
            )


def make_file(path: Path, like_directory: bool) -> bool:
    """Make an empty file for a new database; False if it is there, or SQLite is to raise why it cannot be.

    It is its owner's, and that of a group to which its directory was opened, whatever the umask is. What
    SQLite puts alongside it gets its mode.
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
    name = f"{path}.lock"
    try:
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(OSError):
        status = path.stat()
        with suppress(PermissionError):  # only root may give it away
            os.fchown(handle, status.st_uid, status.st_gid)
        os.fchmod(handle, status.st_mode & 0o777)
    return handle


def why_not_writable(path: Path) -> str | None:
    """Return the reason why the database in a file cannot be written here; None when it can."""
    effective = os.access in os.supports_effective_ids
    for file in (str(path.parent), *(f"{path}{end}" for end in ("", "-wal", "-shm", ".lock"))):
        if os.path.exists(file) and not os.access(file, os.W_OK, effective_ids=effective):  # noqa: PTH110
            with translated_system():
                is_mounted_so = os.statvfs(path).f_flag & os.ST_RDONLY
            if is_mounted_so:
                return f"{path} lies on a file system that is mounted read-only"
            return f"this user may not write {file}"
    return None


def connect(path: Path, wait_seconds: float) -> tuple[apsw.Connection, OpenedFiles]:
    """Return a connection that writes, and the files that it has opened.

    A database that is gone is not made again: its place may be about to be taken by a copy.
    """
    before = OpenedFiles.look(str(path))
    if before.states[0] is None:
        raise unavailable(f"unable to open database file: no {path}")
    with _closed_on_error(str(path), apsw.SQLITE_OPEN_READWRITE, wait_seconds) as made:
        made.execute("PRAGMA synchronous = FULL")
        made.execute("PRAGMA mmap_size = 0")
        # The mode is one of the file. Two processes that make one log switch to it at once, and SQLite does
        # not let the second wait: then the first has done it for both.
        with suppress(apsw.BusyError):
            made.execute("PRAGMA journal_mode = WAL")
        made.execute(_OPEN).fetchall()
        opened = OpenedFiles.look(str(path))
        if opened.states[0] != before.states[0]:
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
            return _connected(path, "mode=ro"), opened
    for _ in range(_TRIES):
        opened = OpenedFiles.look(str(path), is_copied=True)
        with translated_system(writing=False), suppress(FileNotFoundError):  # files may go at any time
            content = _content(path, opened)
            if OpenedFiles.look(str(path), is_copied=True) == opened:
                connection = apsw.Connection(":memory:")
                connection.deserialize("main", content)
                return connection, opened
        time.sleep(_PAUSE_SECONDS)
    raise unavailable(f"{path} keeps changing, and this user cannot use the files next to it")


def _connected(path: Path, how: str) -> apsw.Connection:
    address, flags = f"{path.absolute().as_uri()}?{how}", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with _closed_on_error(address, flags, BUSY_SECONDS) as made:
        made.execute(_OPEN).fetchall()
        return made


@contextmanager
def _closed_on_error(address: str, flags: int, wait_seconds: float) -> Iterator[apsw.Connection]:
    made = apsw.Connection(address, flags=flags)
    try:
        made.set_busy_timeout(int(wait_seconds * 1_000))
        yield made
    except BaseException:
        made.close(True)
        raise


def _content(path: Path, opened: OpenedFiles) -> bytes:
    """Return the database with the changes alongside it, which a writer that was killed has left."""
    with closing(_connected(path, "immutable=1")) as file:
        content = bytes(file.serialize("main"))
    log = opened.states[1]
    if log is None or not log[2]:
        # Bytes 18 and 19 say that there is a file of changes alongside it, which memory cannot have.
        return content[:18] + b"\1\1" + content[20:] if content[18:20] == b"\2\2" else content
    with tempfile.TemporaryDirectory(prefix="elasticscan-") as scratch:
        copy = Path(scratch) / "catalog.db"
        copy.write_bytes(content)
        copy.with_name("catalog.db-wal").write_bytes(Path(f"{path}-wal").read_bytes())
        with closing(apsw.Connection(str(copy))) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            return bytes(connection.serialize("main"))
