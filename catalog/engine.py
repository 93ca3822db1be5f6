"""Opening a catalog: the SQL engine, its transactions, and how database errors are told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, func, inspect, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    MultipleResultsFound,
    NoResultFound,
    OperationalError,
    SQLAlchemyError,
    TimeoutError,  # noqa: A004 - of waiting for a connection
)

from elasticscan.base.errors import (
    CatalogUnavailable,
    DiskFull,
    InvalidOption,
    ReadOnlyStore,
    StoreDamaged,
    StoreNotFound,
    StoreTooNew,
)
from elasticscan.base.redaction import shown, without
from elasticscan.catalog.connections import follow_forks, is_sqlite, transaction
from elasticscan.catalog.readonly import read_only_engine
from elasticscan.catalog.tables import FORMAT_VERSION, MIGRATIONS, store_state

BUSY_SECONDS = 120.0
_READ_ONLY_STATES = ("42501", "25006")  # PostgreSQL: insufficient_privilege, read_only_sql_transaction


def make_engine(url: str | Path, read_only: bool = False) -> Engine:
    """An engine whose transactions start exactly when asked, and survive a fork.

    A path is the file of an SQLite database; it may hold what a URL would take for something else.
    SQLite runs in WAL mode, so readers never wait for a writer, with `synchronous=FULL`, so a
    commit that was acknowledged is on the disk.
    """
    try:
        parsed = _parsed(url)
        sqlite = parsed.get_backend_name() == "sqlite"
        if sqlite and parsed.database in (None, "", ":memory:"):
            raise InvalidOption(
                f"{shown(url)} names no file; a catalog has to outlive its process", option="uri"
            )
        if sqlite and read_only:
            engine = read_only_engine(Path(str(parsed.database)))
            follow_forks(engine)
            return engine
        arguments: dict[str, Any] = {"connect_args": {"timeout": BUSY_SECONDS}} if sqlite else {}
        # Parameters of statements are secrets and rows' values: errors do not tell them.
        engine = create_engine(parsed, pool_size=8, max_overflow=32, hide_parameters=True, **arguments)
    except ArgumentError as error:
        raise InvalidOption(
            f"{shown(url)} is neither a directory nor the URL of a database that can hold a catalog "
            f"({without(error, url)}); shards may be anywhere, but a catalog needs one of the two",
            option="uri",
        ) from None  # its text may have the URL's password in it
    except ValueError:
        raise InvalidOption(
            f"{shown(url)} names a port that is no number; in a password, '/', ':', '@' and '?' are written "
            "as %2F, %3A, %40 and %3F",
            option="uri",
        ) from None
    except ImportError as error:
        raise InvalidOption(
            f"the driver for {parsed.drivername} is not installed ({error}); for PostgreSQL: "
            "pip install 'elasticscan[postgres]'",
            option="uri",
        ) from error
    if sqlite:
        _prepare_sqlite(engine)
    follow_forks(engine)
    return engine


def _parsed(url: str | Path) -> URL:
    return URL.create("sqlite", database=str(url)) if isinstance(url, Path) else make_url(url)


def file_of(url: str | Path) -> Path | None:
    """The file that a catalog is in; None where it is in a database server, or nowhere."""
    try:
        parsed = _parsed(url)
        named = parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:")
    except (ArgumentError, ValueError, ImportError):  # told when it is opened
        return None
    return Path(str(parsed.database)) if named else None


def make_file(path: Path, like_directory: bool) -> None:
    """An empty file for a new catalog: its owner's, or also of those who may read its directory.

    Whatever the umask is. What SQLite puts beside it gets its mode.
    """
    try:
        mode = path.parent.stat().st_mode & 0o666 if like_directory else 0
        made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:  # it is there already; or cannot be made, which SQLite tells
        return
    os.fchmod(made, mode | 0o600)
    os.close(made)


def why_read_only(engine: Engine) -> str | None:
    """Why a database server lets this user only read; None when it may write, or does not say."""
    if engine.dialect.name != "postgresql":
        return None
    with reading(engine) as connection:
        may_write, only_reads, standby = connection.execute(
            select(
                func.has_table_privilege(store_state.name, "UPDATE"),
                func.current_setting("transaction_read_only"),
                func.pg_is_in_recovery(),
            )
        ).one()
    if standby:
        return "the database server is a standby, which only reads"
    if only_reads == "on":
        return "transactions of this database user only read"
    return None if may_write else "this database user may not change the catalog's tables"


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not begin transactions by itself
        cursor = connection.cursor()
        for pragma in ("synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        # The mode is a property of the file. Two processes that make one store switch to it at
        # once, and SQLite does not let the second wait: then the first has done it for both.
        with suppress(engine.dialect.loaded_dbapi.OperationalError):
            cursor.execute("PRAGMA journal_mode=WAL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE: a writer waits for the lock at its first statement instead of failing at
        # its first write because somebody else wrote since it began to read.
        mode = "IMMEDIATE" if connection.get_execution_options().get("writing") else "DEFERRED"
        connection.exec_driver_sql(f"BEGIN {mode}")


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of the catalog.

    SQLite's always do; elsewhere each statement would see its own.
    """
    level = {} if is_sqlite(engine) else {"isolation_level": "REPEATABLE READ"}
    with told_plainly(engine), transaction(engine, **level) as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """The one writing transaction: others wait until it ends.

    It begins by touching the state row. That is the lock on databases with row locks, and makes
    the order of commit numbers the order in which commits become visible. A process that had the
    store open when a newer release migrated it stops here.
    """
    with told_plainly(engine), transaction(engine, writing=True) as connection:
        known = store_state.c.format_version <= FORMAT_VERSION
        touched = connection.execute(update(store_state).where(known).values(layout=store_state.c.layout))
        if not touched.rowcount:
            raise StoreTooNew(
                "a newer release has brought the store to a newer format since it was opened; "
                "upgrade elasticscan",
                known=FORMAT_VERSION,
            )
        yield connection


@contextmanager
def told_plainly(engine: Engine) -> Iterator[None]:
    """Turn a database's errors into ours."""
    try:
        yield
    except OperationalError as error:
        text = str(error.orig)
        if "is full" in text or "No space left" in text:
            raise DiskFull(
                f"the catalog's disk is full ({text}); nothing was committed: free some space and try again"
            ) from error
        if "readonly database" in text:
            raise _read_only(text) from error
        if "no such table" in text or "no such column" in text:
            raise _damaged(text) from error
        raise CatalogUnavailable(
            f"the catalog could not be used: {text}; check that it is reachable and writable, then try again",
            detail=text,
        ) from error
    except DBAPIError as error:
        if type(error) is DatabaseError or "malformed" in str(error.orig):
            raise _damaged(error.orig) from error
        if getattr(error.orig, "sqlstate", None) in _READ_ONLY_STATES:
            raise _read_only(str(error.orig).strip()) from error
        raise
    except (NoResultFound, MultipleResultsFound) as error:
        raise _damaged(error) from error
    except TimeoutError as error:
        raise CatalogUnavailable(
            f"too many threads of this process use the catalog at once ({error}); try again",
            detail=str(error),
        ) from error


def _read_only(why: str) -> ReadOnlyStore:
    return ReadOnlyStore(
        f"the catalog cannot be written: {why}; nothing was changed, do this as a user who may", why=why
    )


def _damaged(why: object) -> StoreDamaged:
    return StoreDamaged(f"the catalog cannot be read: {why}; restore it from a backup", detail=str(why))


def check_format(
    engine: Engine, where: str, migrations: Mapping[int, Callable[[Connection], None]] = MIGRATIONS
) -> None:
    """Refuse a catalog that is none or too new; bring an older one up to date."""
    try:
        with reading(engine) as connection:
            if not inspect(connection).has_table(store_state.name):
                raise StoreNotFound(
                    f"{where} holds no elasticscan store; "
                    "create one with Store.create or `elasticscan create`",
                    uri=where,
                )
            found = connection.execute(select(store_state.c.format_version)).scalar_one()
    except SQLAlchemyError as error:
        raise StoreDamaged(f"the catalog of {where} cannot be read: {error}", uri=where) from error
    if not isinstance(found, int):
        raise _damaged(f"{found!r} is no format version")
    if found > FORMAT_VERSION:
        raise StoreTooNew(
            f"{where} is a store of format {found}, this release knows formats up to {FORMAT_VERSION}; "
            "upgrade elasticscan",
            found=found,
            known=FORMAT_VERSION,
        )
    if found < FORMAT_VERSION:
        migrate(engine, migrations)


def migrate(engine: Engine, migrations: Mapping[int, Callable[[Connection], None]]) -> None:
    """Run the missing steps in one transaction; whoever comes second finds nothing to do."""
    with writing(engine) as connection:
        found = connection.execute(select(store_state.c.format_version)).scalar_one()
        for version in range(found, FORMAT_VERSION):
            if version not in migrations:
                raise _damaged(f"nothing is known of a store of format {version}")
            migrations[version](connection)
        connection.execute(update(store_state).values(format_version=FORMAT_VERSION))
