"""The errors of databases as ours.

SQLite says                              the caller gets
the disk is full                         DiskFull
it is locked, out of reach               CatalogUnavailable
it may not be written                    ReadOnlyStore
no open files, no memory                 OutOfResources
its file makes no sense                  StoreDamaged; so it says of most reads that failed at the disk, too
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from elasticscan.base.errors import (
    CatalogUnavailable,
    CommitUnknown,
    DiskFull,
    ElasticScanError,
    InvalidOption,
    ReadOnlyStore,
)
from elasticscan.base.resources import lack_in, lack_of_files, lack_of_memory
from elasticscan.catalog.database import Interrupted
from elasticscan.catalog.entries import damaged_log

_FILES: Final = 3  # the database, its log, and the index of that
_ROOM_BYTES: Final = 1 << 16  # twice what the index of a write-ahead log grows by


def unavailable(said: str) -> CatalogUnavailable:
    return CatalogUnavailable(
        f"the catalog could not be used: {said}; check that it is reachable and writable, then try again",
        detail=said,
    )


def interrupted(said: str) -> Interrupted:
    return Interrupted(unavailable(said).message, detail=said)


def replaced_file() -> Interrupted:
    return Interrupted(
        "the catalog's file, or the log alongside it, was replaced or removed while it was used; nothing was "
        "done: try again, with what is there now"
    )


def disk_full(said: str) -> DiskFull:
    return DiskFull(
        f"the catalog's disk is full ({said}); nothing was committed: free some space and try again"
    )


def not_writable(said: str) -> ReadOnlyStore:
    return ReadOnlyStore(
        f"the catalog cannot be written: {said}; nothing was changed, do this as a user who may", why=said
    )


def unfit_value(said: str) -> InvalidOption:
    return InvalidOption(f"the catalog's database cannot hold a value: {said}; nothing was committed")


def commit_unknown(said: str) -> CommitUnknown:
    return CommitUnknown(
        f"the catalog was lost during a commit ({said}): all or nothing was done; look at history() first, "
        "or repeat a write with txn=",
        detail=said,
    )


_SQLITE: Final[dict[type[apsw.Error], Callable[[str], ElasticScanError]]] = {
    apsw.FullError: disk_full,
    apsw.ReadOnlyError: not_writable,
    apsw.TooBigError: unfit_value,
    apsw.RangeError: unfit_value,
    apsw.NoMemError: lambda _: lack_of_memory(),
    apsw.CantOpenError: lambda said: lack_of_files(_FILES) or unavailable(said),
    **dict.fromkeys((apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError), damaged_log),
    **dict.fromkeys((apsw.ConstraintError, apsw.MismatchError, apsw.SchemaChangeError), damaged_log),
}
_NO_MEMORY: Final = (apsw.SQLITE_IOERR_NOMEM, apsw.SQLITE_IOERR_SHMMAP)  # the index is mapped into memory


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors, and the system's about a log's files, into ours."""
    try:
        yield
    except apsw.Error as error:
        raise meaning(error, path) from error
    except UnicodeDecodeError as error:
        raise damaged_log(f"a text cannot be decoded ({error.reason})") from error
    except MemoryError as error:
        raise lack_of_memory() from error


def meaning(error: apsw.Error, path: Path) -> ElasticScanError:
    if getattr(error, "extendedresult", 0) in _NO_MEMORY:
        return lack_of_memory()
    if isinstance(error, apsw.IOError):  # a full disk may be reported as a write that failed
        with suppress(OSError):
            if shutil.disk_usage(path.parent).free < _ROOM_BYTES:
                return disk_full(str(error))
    return _SQLITE.get(type(error), unavailable)(str(error))


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
