"""Opening a catalog: the SQL engine, its transactions, and how database errors are told."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sqlalchemy import URL, Connection, Engine, Select, create_engine, event, inspect, select, update
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
    StoreDamaged,
    StoreNotFound,
    StoreTooNew,
)
from elasticscan.catalog.tables import FORMAT_VERSION, MIGRATIONS, store_state

BUSY_SECONDS = 120.0


# Engines of this process, for as long as somebody holds them.
_ENGINES: WeakSet[Engine] = WeakSet()


def _forget_connections() -> None:
    for engine in list(_ENGINES):
        engine.dispose(close=False)


# A connection must never be shared with a forked child: SQLite forbids it, and two processes
# would mix their words on one PostgreSQL socket.
os.register_at_fork(after_in_child=_forget_connections)


def make_engine(url: str | Path) -> Engine:
    """An engine whose transactions start exactly when asked, and survive a fork.

    A path is the file of an SQLite database; it may hold what a URL would take for something else.
    SQLite runs in WAL mode, so readers never wait for a writer, with `synchronous=FULL`, so a
    commit that was acknowledged is on the disk.
    """
    try:
        parsed = URL.create("sqlite", database=str(url)) if isinstance(url, Path) else make_url(url)
        sqlite = parsed.get_backend_name() == "sqlite"
        if sqlite and parsed.database in (None, "", ":memory:"):
            raise InvalidOption(f"{url} names no file; a catalog has to outlive its process", option="uri")
        arguments: dict[str, Any] = {"connect_args": {"timeout": BUSY_SECONDS}} if sqlite else {}
        engine = create_engine(parsed, pool_size=8, max_overflow=32, **arguments)
    except ArgumentError as error:
        raise InvalidOption(
            f"{url} is neither a directory nor the URL of a database that can hold a catalog ({error}); "
            "shards may be anywhere, but a catalog needs one of the two",
            option="uri",
        ) from error
    except ImportError as error:
        raise InvalidOption(
            f"the driver for {parsed.drivername} is not installed ({error}); for PostgreSQL: "
            "pip install 'elasticscan[postgres]'",
            option="uri",
        ) from error
    if sqlite:
        _prepare_sqlite(engine)
    _ENGINES.add(engine)
    return engine


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


def holds_store(url: str | Path) -> bool:
    """Whether there is a store's catalog; makes nothing, not even an empty file."""
    engine = make_engine(url)
    try:
        path = engine.url.database
        if engine.dialect.name == "sqlite" and not (path and Path(path).exists()):
            return False
        with reading(engine) as connection:
            there = inspect(connection).has_table(store_state.name)
            return there and connection.execute(select(store_state.c.id)).first() is not None
    finally:
        engine.dispose()


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of the catalog.

    SQLite's always do; elsewhere each statement would see its own.
    """
    level = {} if engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
    with (
        told_plainly(engine),
        engine.connect().execution_options(**level) as connection,
        connection.begin(),
    ):
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """The one writing transaction: others wait until it ends.

    It begins by touching the state row. That is the lock on databases with row locks, and makes
    the order of commit numbers the order in which commits become visible. A process that had the
    store open when a newer release migrated it stops here.
    """
    with (
        told_plainly(engine),
        engine.connect().execution_options(writing=True) as connection,
        connection.begin(),
    ):
        known = store_state.c.format_version <= FORMAT_VERSION
        touched = connection.execute(update(store_state).where(known).values(layout=store_state.c.layout))
        if not touched.rowcount:
            raise StoreTooNew(
                "a newer release has brought the store to a newer format since it was opened; "
                "upgrade elasticscan",
                known=FORMAT_VERSION,
            )
        yield connection


class Watch:
    """One small query asked again and again, on a connection of each thread's own.

    A scan asks three times for each page whether anything changed. Going through a transaction
    of the engine costs ten times what the query does.
    """

    def __init__(self, engine: Engine, query: Select[Any]) -> None:
        self._engine = engine
        self._sql = str(query.compile(engine))
        self._local = threading.local()
        self._open: WeakSet[_Own] = WeakSet()

    def row(self) -> tuple[Any, ...] | None:
        """The row, or None when it could not be had this way: then ask in a transaction."""
        try:
            connection = self._connection()
            cursor = connection.cursor()
            cursor.execute(self._sql)
            found: tuple[Any, ...] | None = cursor.fetchone()
            cursor.close()
            connection.rollback()  # a driver that began a transaction must not keep it open
        except Exception:  # whatever the driver raises, the slow way will say what is wrong
            self._local.__dict__.clear()
            return None
        return found

    def _connection(self) -> Any:
        mine = self._local.__dict__
        if mine.get("pid") != os.getpid():  # a forked child must not use its parent's connection
            mine.update(pid=os.getpid(), own=_Own(self._engine))
            self._open.add(mine["own"])
        return mine["own"].connection

    def close(self) -> None:
        for own in list(self._open):
            own.close()
        self._local = threading.local()


class _Own:
    """A connection that a thread keeps until it ends; not one of the pool's, which has only so many."""

    def __init__(self, engine: Engine) -> None:
        self._pid = os.getpid()
        self.connection: Any = engine.raw_connection()
        self.connection.detach()

    def close(self) -> None:
        if self._pid == os.getpid():
            with suppress(Exception):
                self.connection.close()

    __del__ = close


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
        if "no such table" in text or "no such column" in text:
            raise _damaged(text) from error
        raise CatalogUnavailable(
            f"the catalog could not be used: {text}; check that it is reachable and writable, then try again",
            detail=text,
        ) from error
    except DBAPIError as error:
        if type(error) is DatabaseError or "malformed" in str(error.orig):
            raise _damaged(error.orig) from error
        raise
    except (NoResultFound, MultipleResultsFound) as error:
        raise _damaged(error) from error
    except TimeoutError as error:
        raise CatalogUnavailable(
            f"too many threads of this process use the catalog at once ({error}); try again",
            detail=str(error),
        ) from error


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
