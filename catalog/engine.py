"""Opening a catalog: the SQL engine, and its transactions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, func, inspect, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from elasticscan.base.errors import InvalidOption, StoreNotFound, StoreTooNew
from elasticscan.base.limits import BUSY_SECONDS, FIRST_CONNECT_SECONDS
from elasticscan.base.permissions import mode_within
from elasticscan.base.redaction import as_cause, hides, shown, without
from elasticscan.catalog.compiled import share_compiled
from elasticscan.catalog.connections import (
    POOL,
    close_idle,
    closed_on_error,
    follow_forks,
    is_postgres,
    is_sqlite,
    opened_files,
    opens,
    transaction,
)
from elasticscan.catalog.failures import damaged, is_there, replaced_file, translate_errors
from elasticscan.catalog.near import AnyTransaction, NearTransaction
from elasticscan.catalog.pipeline import Question
from elasticscan.catalog.readonly import read_only_engine
from elasticscan.catalog.server import patiently, server_transaction
from elasticscan.catalog.tables import FORMAT_VERSION, store_state
from elasticscan.catalog.waiting import connection_type

T = TypeVar("T")

# A server whose machine is gone says nothing: when that is noticed, unless a URL says otherwise.
_SIGNS_OF_LIFE: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}


def make_engine(url: str | Path, read_only: bool = False) -> Engine:
    """Return an engine whose transactions start exactly when asked, and survive a fork.

    A path is the file of an SQLite database; it may hold what a URL would take for something else.
    SQLite runs in WAL mode, so readers never wait for a writer, with `synchronous=FULL`, so a
    commit that was acknowledged is on the disk.
    """
    try:
        parsed = _parse(url)
        sqlite = parsed.get_backend_name() == "sqlite"
        if not isinstance(url, Path) and hides(url, parsed.host):
            raise InvalidOption(
                "it is not certain where its host begins; write '/', ':', '@' and '?' in a password as "
                f"%2F, %3A, %40 and %3F: {shown(url)}",
                option="uri",
            )
        if sqlite and parsed.database in (None, "", ":memory:"):
            raise InvalidOption(
                f"{shown(url)} names no file; a catalog has to outlive its process", option="uri"
            )
        if sqlite:
            engine = read_only_engine(Path(str(parsed.database))) if read_only else _sqlite_engine(parsed)
            follow_forks(engine)
            return engine
        arguments: dict[str, Any] = {}
        if parsed.get_driver_name() == "psycopg":
            _check_options(parsed, url)
            # Transactions are begun by hand; prepared statements would not get through every proxy.
            given = {name: seconds for name, seconds in _SIGNS_OF_LIFE.items() if name not in parsed.query}
            arguments = {"isolation_level": "AUTOCOMMIT", "pool_timeout": BUSY_SECONDS}
            arguments["connect_args"] = given | {"prepare_threshold": None}
        engine = create_engine(parsed, **POOL, **arguments)
    except ArgumentError as error:
        raise InvalidOption(
            f"{shown(url)} is neither a directory nor the URL of a database that can hold a catalog "
            f"({without(error, url)}); use one of the two",
            option="uri",
        ) from as_cause(error, url)
    except ValueError as error:
        raise InvalidOption(
            f"{shown(url)} names a port that is no number; in a password, '/', ':', '@' and '?' are written "
            "as %2F, %3A, %40 and %3F",
            option="uri",
        ) from as_cause(error, url)
    except ImportError as error:
        raise InvalidOption(
            f"the driver for {parsed.drivername} is not installed ({error}); for PostgreSQL: "
            "pip install 'elasticscan[postgres]'",
            option="uri",
        ) from error
    if is_postgres(engine):
        _prepare_postgres(engine)
    follow_forks(engine)
    return engine


def _check_options(parsed: URL, url: str | Path) -> None:
    """Refuse options of a connection that PostgreSQL's library would tell by name.

    The rest of a password after an unquoted '?' would be in that error.
    """
    from psycopg.pq import Conninfo  # noqa: PLC0415 - an extra, which not all installations have

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    if not parsed.query.keys() <= known:
        raise InvalidOption(
            "options of the connection that PostgreSQL does not know; write '?', '&' and '=' in a password "
            f"as %3F, %26 and %3D: {shown(url)}",
            option="uri",
        )


def _parse(url: str | Path) -> URL:
    return URL.create("sqlite", database=str(url)) if isinstance(url, Path) else make_url(url)


def file_of(url: str | Path) -> Path | None:
    """Return the file that a catalog is in; None where it is in a database server, or nowhere."""
    try:
        parsed = _parse(url)
        named = parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:")
    except (ArgumentError, ValueError, ImportError):  # the error is raised when the catalog is opened
        return None
    return Path(str(parsed.database)) if named else None


def make_file(path: Path, like_directory: bool) -> None:
    """Make an empty file for a new catalog, for its owner and a group that its directory was opened to.

    Whatever the umask is. What SQLite puts alongside it gets its mode.
    """
    try:
        mode = mode_within(path.parent.stat().st_mode) if like_directory else 0o600
        made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:  # the file is there already, or SQLite raises why it cannot be made
        return
    os.fchmod(made, mode)
    os.close(made)


def why_read_only(engine: Engine) -> str | None:
    """Return the reason why this user may only read a database; None when it may write, or does not say."""
    if engine.dialect.name != "postgresql":
        return None

    def look(connection: Connection) -> tuple[bool, str, bool]:
        may_write = func.has_table_privilege(store_state.name, "UPDATE")
        only_reads = func.current_setting("transaction_read_only")
        row = connection.execute(select(may_write, only_reads, func.pg_is_in_recovery())).one()
        return row[0], row[1], row[2]

    may_write, only_reads, standby = looking(engine, look)
    if standby:
        return "the database server is a standby, which only reads"
    if only_reads == "on":
        return "transactions of this database user only read"
    return None if may_write else "this database user may not change the catalog's tables"


def _sqlite_engine(url: URL) -> Engine:
    def connect() -> Any:
        dialect = engine.dialect
        (path,), options = dialect.create_connect_args(url)

        def open_it() -> Any:
            connection = dialect.connect(path, **options, timeout=BUSY_SECONDS)
            with closed_on_error(connection):
                connection.isolation_level = None  # the driver must not begin transactions by itself
                cursor = connection.cursor()
                for pragma in ("synchronous=FULL", "foreign_keys=ON"):
                    cursor.execute(f"PRAGMA {pragma}")
                # The mode is a property of the file. Two processes that make one store switch to it at
                # once, and SQLite does not let the second wait: then the first has done it for both.
                with suppress(dialect.loaded_dbapi.OperationalError):
                    cursor.execute("PRAGMA journal_mode=WAL")
                cursor.close()
            return connection

        return opens(engine, open_it, path)

    engine = create_engine(url, creator=connect, **POOL)
    share_compiled(engine)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE: a writer waits for the lock at its first statement instead of failing at
        # its first write because another process wrote since it began to read.
        options = connection.get_execution_options()
        mode = "IMMEDIATE" if options.get("writing") else "DEFERRED"
        if not options.get("at_once"):
            connection.exec_driver_sql(f"BEGIN {mode}")
            return
        connection.exec_driver_sql("PRAGMA busy_timeout=0")
        try:
            connection.exec_driver_sql(f"BEGIN {mode}")
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000:.0f}")

    return engine


def _prepare_postgres(engine: Engine) -> None:
    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
        return connection_type().connect(*arguments, **options)


def holds_store(url: str | Path) -> bool:
    """Return whether there is a store's catalog; makes nothing, not even an empty file, and changes none."""
    engine = make_engine(url, read_only=True)
    try:
        file = file_of(url)
        if file is not None and not (is_there(file) and file.stat().st_size):
            return False

        def look(connection: Connection) -> bool:
            there = inspect(connection).has_table(store_state.name)
            return there and connection.execute(select(store_state.c.id)).first() is not None

        return looking(engine, look)
    finally:
        close_idle(engine)


def looking(engine: Engine, look: Callable[[Connection], T]) -> T:
    """Look at something in a transaction of its own, again where the connection was lost."""

    def once() -> T:
        with transaction(engine) as connection:
            return look(connection)

    with translate_errors(engine):
        return once() if is_sqlite(engine) else patiently(once, FIRST_CONNECT_SECONDS)


@contextmanager
def reading(engine: Engine, ahead: Sequence[Question] = ()) -> Iterator[AnyTransaction]:
    """Begin a transaction that sees one state of the catalog.

    SQLite's always do; elsewhere each statement would see its own. A server is asked `ahead` with the
    transaction's beginning.
    """
    if is_postgres(engine):
        with translate_errors(engine), server_transaction(engine, False, ahead) as server:
            yield server
        return
    level = {} if is_sqlite(engine) else {"isolation_level": "REPEATABLE READ"}
    with translate_errors(engine), transaction(engine, **level) as connection:
        yield NearTransaction(connection) if is_sqlite(engine) else connection


@contextmanager
def writing(
    engine: Engine, ahead: Sequence[Question] = (), at_once: bool = False
) -> Iterator[AnyTransaction]:
    """Begin the one writing transaction: others wait until it ends; `ahead` as for `reading`.

    One that has to be begun `at_once` waits for no other, nor for a server that went away: it is refused.
    It begins by touching the state row. That is the lock on databases with row locks, and makes
    the order of commit numbers the order in which commits become visible. A process that had the
    store open when a newer release changed its format stops here.
    """
    if is_postgres(engine):
        with translate_errors(engine), server_transaction(engine, True, ahead, at_once) as server:
            yield server
        return
    with translate_errors(engine), transaction(engine, writing=True, at_once=at_once) as connection:
        files = opened_files(engine)
        readable = store_state.c.format_version <= FORMAT_VERSION
        touch = update(store_state).where(readable).values(layout=store_state.c.layout)
        if not connection.execute(touch).rowcount:
            raise StoreTooNew(
                "a newer release has brought the store to a newer format since it was opened; "
                "upgrade elasticscan",
                known=FORMAT_VERSION,
            )
        yield connection
        if files is not None and not files.are_there():
            raise replaced_file()


def check_format(engine: Engine, where: str) -> None:
    """Refuse a catalog that is none, or of another format."""

    def look(connection: Connection) -> Any:
        if not inspect(connection).has_table(store_state.name):
            raise StoreNotFound(
                f"{where} holds no elasticscan store; "
                "create one with elasticscan.create or `elasticscan create`",
                uri=where,
            )
        return connection.execute(select(store_state.c.format_version)).scalar_one()

    try:
        version = looking(engine, look)
    except SQLAlchemyError as error:
        raise damaged(error) from error
    if not isinstance(version, int) or version < FORMAT_VERSION:
        raise damaged(f"{version!r} is no format version")
    if version > FORMAT_VERSION:
        raise StoreTooNew(
            f"{where} is a store of format {version}, this release reads format {FORMAT_VERSION} alone; use "
            "the release that made it, or a newer one",
            found=version,
            known=FORMAT_VERSION,
        )
