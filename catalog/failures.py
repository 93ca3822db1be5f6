"""The errors of a database, translated in one place.

the database says                                      the caller gets
its disk is full                                       DiskFull
it is locked, out of reach, not writable, went away    CatalogUnavailable
it cannot be opened for want of open files             OutOfResources
it went away while it committed, and stayed so         CommitUnknown
a row, page or text makes no sense, a key is twice     StoreDamaged
the same, but its disk does not give its file          CatalogUnavailable
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack
from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    InterfaceError,
    InvalidRequestError,
    MultipleResultsFound,
    NoResultFound,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as NoFreeConnection

from elasticscan.base.errors import (
    RESTORE,
    CatalogUnavailable,
    CommitUnknown,
    DiskFull,
    ElasticScanError,
    InvalidOption,
    ReadOnlyStore,
    StoreDamaged,
)
from elasticscan.base.redaction import as_cause, without
from elasticscan.base.resources import lack_of_files, lack_of_memory, lacks_memory
from elasticscan.catalog.probe import has_room, is_sound, why_unreadable

# Messages of SQLite after which trying again does not help, although their class is that of "locked".
_NO_SENSE = (
    "no such table",
    "no such column",
    "has no column",
    "no such index",
    "malformed",
    "could not decode",
    "not a database",
    "unsupported file format",
    "unsupported schema",
    "unknown database",
    "corrupt",
    "near ",
    "no such collation",
    "too big",
)
# SQLite's names of errors of which its messages say less: the index of a log is mapped into memory.
_NO_MEMORY = ("SQLITE_NOMEM", "SQLITE_IOERR_NOMEM", "SQLITE_IOERR_SHMMAP")
_SQLITE_FILES = 3  # the database, its log, and the index of that
_FULL = ("is full", "no space left", "could not write init file")  # the last: of a new connection
_NOT_DONE = ("locked", "busy")  # said by a commit that was refused
_FULL_STATE = "53100"  # PostgreSQL: disk_full, in whatever words
_READ_ONLY_STATES = ("42501", "25006")  # PostgreSQL: insufficient_privilege, read_only_sql_transaction


class Interrupted(CatalogUnavailable):
    """The catalog became another while it was out of reach: nothing was done, and all may begin again."""


def driver_error(error: Exception, dialect: Dialect) -> Exception:
    """Return the error of a driver that was asked directly, as SQLAlchemy would have raised it."""
    base = dialect.loaded_dbapi.Error
    return DBAPIError.instance(None, None, error, base, hide_parameters=True, dialect=dialect)


@contextmanager
def translate_errors(engine: Engine) -> Iterator[None]:
    """Turn a database's errors into ours."""
    try:
        yield
    except StoreDamaged as error:
        failing = failing_disk(engine)
        if failing is None:
            raise
        raise failing from error
    except ElasticScanError:
        raise
    except DBAPIError as error:
        raise _meaning(error, engine) from told_of(error, engine)
    except UnicodeDecodeError as error:  # SQLite's own message quotes the damage
        raise failing_disk(engine) or damaged(error) from error
    except (NoResultFound, MultipleResultsFound) as error:
        raise failing_disk(engine) or damaged(error) from error
    except NoFreeConnection as error:
        raise CatalogUnavailable(
            f"too many threads of this process use the catalog at once ({error}); try again",
            detail=str(error),
        ) from error
    except InvalidRequestError as error:  # of a connection that was lost a statement ago
        raise _unavailable(str(error)) from error


def _url(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def told_of(error: BaseException, engine: Engine) -> BaseException | None:
    """Return an error of an engine as the cause of one of ours: without what connects to its server."""
    return as_cause(error, _url(engine))


def failing_disk(engine: Engine) -> CatalogUnavailable | None:
    """Return the error to tell in place of damage: the system does not give the file; None where it does."""
    path = _file(engine)
    reason = None if path is None else why_unreadable(path)
    if reason is None:
        return None
    return CatalogUnavailable(
        f"the catalog {path} could not be read: {reason}; its disk, mount or network fails: check the "
        "system's log, then try again",
        detail=str(reason),
        errno=reason.errno,
    )


def _file(engine: Engine) -> Path | None:
    file = engine.url.database if engine.dialect.name == "sqlite" else None
    return None if file is None else Path(file)


def _damage(error: DBAPIError, said: str, engine: Engine) -> ElasticScanError:
    """Return the error for what a database takes for damage: of its disk, where that fails or has failed."""
    failing, path = failing_disk(engine), _file(engine)
    if failing is not None:
        return failing
    number = getattr(error.orig, "sqlite_errorcode", None) or 0
    if path is not None and number & 0xFF == sqlite3.SQLITE_CORRUPT and is_sound(path):
        return CatalogUnavailable(
            f"the catalog {path} could not be read ({said}) for a moment: its disk, mount or network "
            "failed; try again, check the system's log",
            detail=said,
        )
    return damaged(said)


def _meaning(error: DBAPIError, engine: Engine) -> ElasticScanError:
    said = without(error.orig, _url(engine))  # drivers quote parameters that they do not understand
    words, state = said.lower(), getattr(error.orig, "sqlstate", None)
    is_full = state == _FULL_STATE or any(word in words for word in _FULL)
    if is_full or (_failed_at_its_disk(error) and not has_room(_file(engine))):
        return DiskFull(
            f"the catalog's disk is full ({said}); nothing was committed: free some space and try again"
        )
    if "readonly database" in words or state in _READ_ONLY_STATES:
        return ReadOnlyStore(
            f"the catalog cannot be written: {said.strip()}; nothing was changed, do this as a user who may",
            why=said,
        )
    lacking = lack_of_files(_SQLITE_FILES) if "unable to open" in words else None
    if lacking is not None:
        return lacking
    if getattr(error.orig, "sqlite_errorname", "") in _NO_MEMORY:
        return lack_of_memory()
    lost = error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError))
    if any(word in words for word in _NO_SENSE):
        return _damage(error, said, engine)
    if isinstance(error, DataError):
        return InvalidOption(
            f"the catalog's database cannot hold a value: {said.strip()}; nothing was committed"
        )
    if lost or "closed" in words:
        return _unavailable(said)
    return _damage(error, said, engine)


def _failed_at_its_disk(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_IOERR")


def is_damage(error: DBAPIError, engine: Engine) -> bool:
    """Return True for the error of a database that cannot make sense of its own file."""
    return isinstance(_meaning(error, engine), StoreDamaged)


def _unavailable(said: str) -> CatalogUnavailable:
    return CatalogUnavailable(
        f"the catalog could not be used: {said}; check that it is reachable and writable, then try again",
        detail=said,
    )


def is_there(file: Path) -> bool:
    """Return whether there is a file of a catalog; raises `CatalogUnavailable` where that is unknown."""
    try:
        return file.exists()
    except OSError as error:
        raise cannot_look(file, error) from error


def cannot_look(file: Path, error: OSError) -> CatalogUnavailable:
    """Return the error for a file of a catalog of which the system does not even tell that it is there."""
    return CatalogUnavailable(
        f"the catalog {file} could not be looked at: {error.strerror or error}; check that its disk is "
        "mounted and well, then try again",
        detail=str(error),
        errno=error.errno,
    )


@contextmanager
def committing(connection: Connection) -> Iterator[None]:
    """Commit at the end of the block; the error of a refused commit is not that of a lost answer."""
    transaction = connection.begin()
    try:
        yield
    except BaseException:
        if transaction.is_active:  # its connection may be closed, where a generator is ended late
            transaction.rollback()
        raise
    try:
        transaction.commit()
    except DBAPIError as error:
        with suppress(SQLAlchemyError):
            transaction.rollback()
        raise translate_commit_error(error, connection.engine) from told_of(error, connection.engine)


def translate_commit_error(error: DBAPIError, engine: Engine) -> ElasticScanError:
    """Translate the error of a COMMIT: refused for sure, or unknown."""
    meaning = _meaning(error, engine)
    words = str(error.orig).lower()
    if _failed_at_its_disk(error) and isinstance(meaning, DiskFull):
        return commit_unknown(error)  # all may have been written but the last flush
    if not isinstance(meaning, CatalogUnavailable) or any(word in words for word in _NOT_DONE):
        return meaning
    return commit_unknown(error)


def replaced_file() -> Interrupted:
    return Interrupted(
        "the catalog's file, or the log alongside it, was replaced or removed while it was used; nothing was "
        "done: try again, with what is there now"
    )


def commit_unknown(error: SQLAlchemyError | str) -> CommitUnknown:
    said = error.orig if isinstance(error, DBAPIError) else error
    return CommitUnknown(
        f"the catalog was lost during a commit ({said}): all or nothing was done; look at history() first, "
        "or repeat a write with txn=",
        detail=str(said),
    )


def damaged(why: object) -> StoreDamaged:
    return StoreDamaged(
        f"the catalog cannot be read: {why} (`elasticscan verify` checks all of it); {RESTORE}",
        detail=str(why),
    )


def not_whole(problem: str, **fields: Any) -> StoreDamaged:
    return StoreDamaged(
        f"the catalog is damaged: {problem} (`elasticscan verify` checks all of it); {RESTORE}",
        **fields,
    )


@contextmanager
def decoding(subject: str) -> Iterator[None]:
    """Raise `StoreDamaged` where a stored value cannot be decoded."""
    try:
        yield
    except (
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        AssertionError,
        MemoryError,
        OSError,
        msgpack.UnpackException,
    ) as error:
        if isinstance(error, MemoryError) and lacks_memory():
            raise lack_of_memory() from error
        raise StoreDamaged(
            f"{subject} cannot be read from the catalog: {error!r}; {RESTORE}", what=subject
        ) from error
