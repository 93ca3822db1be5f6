"""Opening a catalog: the SQL engine, its transactions, and how database errors are told."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, Select, create_engine, event, inspect, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError, SQLAlchemyError

from elasticscan.base.errors import (
    CatalogUnavailable,
    DiskFull,
    StoreDamaged,
    StoreNotFound,
    StoreTooNew,
)
from elasticscan.catalog.tables import FORMAT_VERSION, MIGRATIONS, store_state

BUSY_SECONDS = 120.0


def make_engine(url: str) -> Engine:
    """An engine whose transactions start exactly when asked, and survive a fork.

    SQLite runs in WAL mode, so readers never wait for a writer, with `synchronous=FULL`, so a
    commit that was acknowledged is on the disk.
    """
    parsed = make_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    arguments: dict[str, Any] = {"connect_args": {"timeout": BUSY_SECONDS}} if sqlite else {}
    engine = create_engine(parsed, pool_size=8, max_overflow=32, **arguments)
    if sqlite:
        _prepare_sqlite(engine)
    # A connection must never be shared with a forked child: SQLite forbids it, and two
    # processes would mix their words on one PostgreSQL socket.
    os.register_at_fork(after_in_child=lambda: engine.dispose(close=False))
    return engine


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not begin transactions by itself
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE: a writer waits for the lock at its first statement instead of failing at
        # its first write because somebody else wrote since it began to read.
        mode = "IMMEDIATE" if connection.get_execution_options().get("writing") else "DEFERRED"
        connection.exec_driver_sql(f"BEGIN {mode}")


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of the catalog."""
    with told_plainly(engine), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """The one writing transaction: others wait until it ends.

    It begins by touching the state row. That is the lock on databases with row locks, and makes
    the order of commit numbers the order in which commits become visible.
    """
    with (
        told_plainly(engine),
        engine.connect().execution_options(writing=True) as connection,
        connection.begin(),
    ):
        connection.execute(update(store_state).values(layout=store_state.c.layout))
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
        self._open: list[Any] = []

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
            mine.update(pid=os.getpid(), connection=self._engine.raw_connection())
            self._open.append(mine["connection"])
        return mine["connection"]

    def close(self) -> None:
        for connection in self._open:
            with suppress(Exception):
                connection.close()
        self._open.clear()
        self._local = threading.local()


@contextmanager
def told_plainly(engine: Engine) -> Iterator[None]:
    """Turn a database's errors into ours."""
    try:
        yield
    except OperationalError as error:
        text = str(error.orig)
        if "full" in text:
            raise DiskFull(
                f"the catalog's disk is full ({text}); nothing was committed: free some space and try again"
            ) from error
        raise CatalogUnavailable(
            f"the catalog could not be used: {text}; check that it is reachable and writable, then try again",
            detail=text,
        ) from error
    except DBAPIError as error:
        if type(error) is DatabaseError or "malformed" in str(error.orig):
            raise StoreDamaged(
                f"the catalog cannot be read: {error.orig}; restore it from a backup", detail=str(error.orig)
            ) from error
        raise


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
            migrations[version](connection)
        connection.execute(update(store_state).values(format_version=FORMAT_VERSION))
