"""The errors of SQLite as ours.

SQLite says                              the caller gets
the disk is full                         DiskFull
it is locked, out of reach               CatalogUnavailable
it may not be written                    ReadOnlyStore
no open files, no memory                 OutOfResources
its file makes no sense                  StoreDamaged, or CatalogUnavailable where its disk fails

A disk that fails (EIO) says nothing of what it holds, but SQLite reports most failures of its reads as
"database disk image is malformed". So its files are read once more, byte by byte, and where the system gives
them all, by SQLite.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from elasticscan.base.errors import CatalogUnavailable, ElasticScanError, StoreDamaged
from elasticscan.base.resources import lack_in, lack_of_files, lack_of_memory
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.home import disk_full, not_writable, unavailable, unfit_value
from elasticscan.catalog.sqlite_files import has_room, is_sound, why_unreadable

_FILES: Final = 3  # the database, its log, and the index of that
_NO_MEMORY: Final = (apsw.SQLITE_IOERR_NOMEM, apsw.SQLITE_IOERR_SHMMAP)  # the index is mapped into memory
_DAMAGE: Final = (
    *(apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError),
    *(apsw.ConstraintError, apsw.MismatchError, apsw.SchemaChangeError),
)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except apsw.Error as error:
        raise meaning(error, path) from error
    except StoreDamaged as error:
        failing = _failing_disk(path)
        if failing is None:
            raise
        raise failing from error
    except UnicodeDecodeError as error:
        raise _failing_disk(path) or damaged_log(f"a text cannot be decoded ({error.reason})") from error
    except MemoryError as error:
        raise lack_of_memory() from error


def meaning(error: apsw.Error, path: Path) -> ElasticScanError:
    said = str(error)
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and not has_room(path)):
        return disk_full(said)
    if isinstance(error, apsw.ReadOnlyError):
        return not_writable(said)
    if isinstance(error, apsw.NoMemError) or getattr(error, "extendedresult", 0) in _NO_MEMORY:
        return lack_of_memory()
    if isinstance(error, apsw.CantOpenError):
        return lack_of_files(_FILES) or unavailable(said)
    if isinstance(error, (apsw.TooBigError, apsw.RangeError)):
        return unfit_value(said)
    if not isinstance(error, _DAMAGE):
        return unavailable(said)
    failing = _failing_disk(path)
    if failing is not None:
        return failing
    if isinstance(error, apsw.CorruptError) and is_sound(path):
        return CatalogUnavailable(
            f"the catalog {path} could not be read ({said}) for a moment: its disk, mount or network "
            "failed; try again, check the system's log",
            detail=said,
        )
    return damaged_log(said)


def _failing_disk(path: Path) -> CatalogUnavailable | None:
    """Return the error to tell in place of damage: the system does not give the file; None where it does."""
    reason = why_unreadable(path)
    if reason is None:
        return None
    return CatalogUnavailable(
        f"the catalog {path} could not be read: {reason}; its disk, mount or network fails: check the "
        "system's log, then try again",
        detail=reason,
    )


@contextmanager
def translated_system() -> Iterator[None]:
    """Turn the system's errors about the file of the writers' lock into ours."""
    try:
        yield
    except OSError as error:
        raise lack_in(error) or _meaning_of_system(error) from error


def _meaning_of_system(error: OSError) -> ElasticScanError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(str(error))
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return not_writable(str(error))
    return unavailable(str(error))
