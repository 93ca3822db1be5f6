"""Check of a catalog's files in SQLite before they are reported as damaged.

A disk that fails (EIO) says nothing of what it holds, but SQLite tells most failures of its reads as
"database disk image is malformed". So its files are read once more, byte by byte, and where the system
gives them all, by SQLite.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Lock

from elasticscan.base.concurrency import renewed_in_child

_READ_BYTES = 1 << 24
_ROOM_BYTES = 1 << 16  # twice what the index of a log grows by

# Files that were opened to be read. They stay open: closing one would release all locks that this
# process has on the file, those of SQLite in a store that is open for writing among them.
_held: dict[tuple[int, int], int] = {}
_lock = renewed_in_child(Lock)


def parts_of(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a database, in parts, whichever process has it open."""
    file, at = _open(path), 0
    while part := os.pread(file, _READ_BYTES, at):
        yield part
        at += len(part)


def _open(path: Path) -> int:
    with _lock():
        status = path.stat()
        file = _held.get((status.st_dev, status.st_ino))
        if file is None:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            opened = os.fstat(file)
            _held[opened.st_dev, opened.st_ino] = file
        return file


def why_unreadable(path: Path) -> OSError | None:
    """Return the system's error for reading a database or its log; None if both can be read."""
    try:
        for file in (path, path.with_name(f"{path.name}-wal")):
            if file == path or file.exists():
                for _ in parts_of(file):
                    pass
    except FileNotFoundError:  # it is another matter that it is not there
        return None
    except OSError as error:
        return error
    return None


def has_room(path: Path | None) -> bool:
    """Return False where the disk of a database is full: SQLite may report that as a failed write."""
    try:
        return path is None or shutil.disk_usage(path.parent).free >= _ROOM_BYTES
    except OSError:
        return True


def is_sound(path: Path) -> bool:
    """Return whether SQLite can make sense of all of a database, now: whatever it met before has passed."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
                return False
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in tables:
                for _ in connection.execute(f'SELECT * FROM "{name}"'):
                    pass
    except (sqlite3.Error, UnicodeDecodeError):
        return False
    return True
