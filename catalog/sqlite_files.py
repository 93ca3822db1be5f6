"""The files of a SQLite database: which ones are open, who may write them, and whether their disk gives them.

Closing a file releases all locks that the process has on it, those of SQLite among them. So only SQLite opens
a database's file, also to read its plain bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

import apsw

from elasticscan.base.permissions import mode_within
from elasticscan.catalog.home import Interrupted
from elasticscan.catalog.place import cannot_look, is_there

_TRUSTED_SECONDS: Final = 0.01
_READ_BYTES: Final = 1 << 24
_ROOM_BYTES: Final = 1 << 16  # twice what the index of a write-ahead log grows by

FileId = tuple[int, int]  # device and inode
C = TypeVar("C", bound=apsw.Connection)


@dataclass(slots=True)
class OpenedFiles:
    """The files that connections have open, to see whether they are the files that others open now.

    Attributes:
        log, index: the write-ahead log and its index; None for one that was not there yet.
        trusted_until: a time of `monotonic`; readers need not look again before.
    """

    path: str
    database: FileId
    log: FileId | None
    index: FileId | None
    trusted_until: float = 0.0

    @staticmethod
    def look(path: str) -> OpenedFiles | None:
        """Return the files at a path; None where there is no database."""
        database = _id_of(path)
        if database is None:
            return None
        return OpenedFiles(path, database, _id_of(path + "-wal"), _id_of(path + "-shm"))

    def are_there(self) -> bool:
        now = monotonic()
        if _id_of(self.path) != self.database:
            return False
        for end, file in (("-wal", self.log), ("-shm", self.index)):
            if file is not None and _id_of(self.path + end) != file:
                return False
        self.trusted_until = now + _TRUSTED_SECONDS
        return True


def _id_of(path: str) -> FileId | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for with each page
    except OSError:
        return None
    return status.st_dev, status.st_ino


def replaced_file() -> Interrupted:
    return Interrupted(
        "the catalog's file, or the log alongside it, was replaced or removed while it was used; nothing was "
        "done: try again, with what is there now"
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
    """Return the reason why the database in a file cannot be written here; None when it can.

    Raises:
        CatalogUnavailable: its disk or mount does not say.
    """
    others = [Path(f"{path}{end}") for end in ("-wal", "-shm", ".lock")]
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


def parts_of(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a database, in parts, whichever process has it open; raises SQLite's errors."""
    flags = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0]
    with closing(_DatabaseFile("", str(path), flags)) as file:
        size = file.xFileSize()
        for at in range(0, size, _READ_BYTES):
            yield file.xRead(min(_READ_BYTES, size - at), at)


class _DatabaseFile(apsw.VFSFile):
    def close(self) -> None:
        self.xClose()


def why_unreadable(path: Path) -> str | None:
    """Return the error of reading a database or its log; None if both can be read, or are not there."""
    log = Path(f"{path}-wal")
    try:
        for _ in parts_of(path):
            pass
        if log.exists():
            log.read_bytes()
    except apsw.CantOpenError:
        return None
    except FileNotFoundError:
        return None
    except (apsw.Error, OSError) as error:
        return str(error)
    return None


def connect_read_only(path: Path, connection_type: type[C]) -> C:
    """Return a connection that changes no file, and reads the log where that and its index are there."""
    has_log = Path(f"{path}-wal").exists() and Path(f"{path}-shm").exists()
    how = "mode=ro" if has_log else "immutable=1"
    uri = f"{path.absolute().as_uri()}?{how}"
    return connection_type(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def has_room(path: Path) -> bool:
    """Return False where the disk of a database is full: SQLite may report that as a failed write."""
    try:
        return shutil.disk_usage(path.parent).free >= _ROOM_BYTES
    except OSError:
        return True


def is_sound(path: Path) -> bool:
    """Return whether SQLite can make sense of all of a database, now: whatever it met before has passed."""
    try:
        with closing(connect_read_only(path, apsw.Connection)) as connection:
            if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
                return False
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in tables:
                for _ in connection.execute(f'SELECT * FROM "{name}"'):
                    pass
    except (apsw.Error, UnicodeDecodeError):
        return False
    return True
