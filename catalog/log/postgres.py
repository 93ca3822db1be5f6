"""A log at a PostgreSQL server, for stores that many machines share.

Writers lock the row of the head, so waiters queue at the server, and a conflict is no error there. Each
reading question is one statement, or a transaction that sees one snapshot. Errors are told apart by SQLSTATE,
never by their texts, which have languages.

An append whose connection was lost may still be under way at the server, and be done after it was looked for.
The ids of entries are unique there, so of an append and its repetition only the first is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import psycopg

from elasticscan.base.errors import (
    CatalogUnavailable,
    CommitUnknown,
    DiskFull,
    ElasticScanError,
    ReadOnlyStore,
)
from elasticscan.base.limits import ANSWER_SECONDS, BUSY_SECONDS, FIRST_CONNECT_SECONDS, RECONNECT_SECONDS
from elasticscan.base.redaction import without
from elasticscan.catalog.log import tables
from elasticscan.catalog.log.entries import GENESIS, damaged_log
from elasticscan.catalog.log.home import NOTHING, Row, retry
from elasticscan.catalog.log.pool import ConnectionPool

_NOW: Final = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
_NEXT_TIME: Final = f"greatest(time + 1, {_NOW})"

# One statement: the row of the head is locked, moved and read; what is inserted hangs on it.
_APPEND: Final = f"""WITH moved AS (
        UPDATE head SET number = number + 1, time = {_NEXT_TIME},
            digest = sha256(digest || int8send(number + 1) || int8send({_NEXT_TIME}) || :seal)
        WHERE layout = :layout RETURNING number, time, digest),
    logged AS (
        INSERT INTO log SELECT number, time, :id, :kind, :format, :operation, :clock, :table, :rows, :size,
            NULL, NULL, :metadata, :hashes, digest FROM moved),
    kept AS (
        INSERT INTO payload SELECT number, part.table_id, part.name, part.bytes FROM moved,
            unnest(:tables::bigint[], :names::text[], :contents::bytea[]) AS part (table_id, name, bytes))
    SELECT number, time, digest FROM moved"""

_READ_ONLY: Final = ("42501", "25006")  # insufficient_privilege, read_only_sql_transaction
_FULL: Final = "53100"  # disk_full
_UNIQUE: Final = "23505"  # unique_violation
_DAMAGED: Final = ("22", "23", "XX0", "42")  # classes: data, constraints, corruption, undefined


class _PostgresTransaction:
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        cursor = self._connection.execute(_own(statement), values)
        return cursor.fetchall() if cursor.description else []


class PostgresHome:
    """A log at a PostgreSQL server. Safe to use from several threads, and after a fork.

    Args:
        address: as libpq takes it, with the password if there is one; errors never show that.
        wait_seconds: for how long a writer waits for its turn.
    """

    def __init__(
        self, address: str, wait_seconds: float = BUSY_SECONDS, retry_seconds: float = RECONNECT_SECONDS
    ) -> None:
        self._address, self._wait, self.retry_seconds = address, wait_seconds, retry_seconds
        self._pool = ConnectionPool(
            self._connected, _is_usable, lambda connection: connection.close(), across_forks=True
        )

    @classmethod
    def create(cls, address: str, **how: float) -> PostgresHome:
        """Make the tables of a log in a database that has none."""
        home = cls(address, **how)
        with home.reading(write=True) as transaction:
            for statement in tables.CREATE:
                transaction.execute(statement.format(BYTES="BYTEA", NUMBER="BIGINT"))
            transaction.execute("CREATE UNIQUE INDEX log_by_id ON log (id)")
            transaction.execute(tables.INSERT_HEAD, {"digest": GENESIS})
        return home

    def close(self) -> None:
        self._pool.close()

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        def attempt() -> list[Row]:
            with self._connection() as connection:
                return _PostgresTransaction(connection).execute(statement, values)

        return retry(self, attempt)

    @contextmanager
    def reading(self, write: bool = False) -> Iterator[_PostgresTransaction]:
        with self._connection() as connection:
            connection.execute("BEGIN" if write else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield from _done(connection)

    @contextmanager
    def writing(self) -> Iterator[_PostgresTransaction]:
        with self._connection() as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT number FROM head FOR UPDATE")  # each statement sees what was committed
            yield from _done(connection)

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        names: dict[str, list[Any]] = {"tables": [], "names": [], "contents": []}
        for table, name, content in values["parts"]:
            names["tables"].append(table)
            names["names"].append(name)
            names["contents"].append(content)
        asked = {name: value for name, value in values.items() if name != "parts"} | names
        with self._connection() as connection, _unknown_if_lost():
            rows = _PostgresTransaction(connection).execute(_APPEND, asked)
        return rows[0] if rows else None

    def now(self) -> int:
        ((now,),) = self.execute(f"SELECT {_NOW}")
        return int(now)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Row]]:
        with self._translated(), self._pool.connection() as connection:
            yield connection

    def _connected(self) -> psycopg.Connection[Row]:
        connection = psycopg.connect(
            self._address,
            autocommit=True,
            connect_timeout=int(FIRST_CONNECT_SECONDS),
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=3,
            tcp_user_timeout=int(ANSWER_SECONDS * 1000),
            options=f"-c lock_timeout={int(self._wait * 1000)} -c idle_in_transaction_session_timeout=60000",
        )
        return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the server's errors into ours, without what connects to it."""
        try:
            yield
        except psycopg.Error as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise _meaning(error, without(said[0], self._address)) from None


def _meaning(error: psycopg.Error, text: str) -> ElasticScanError:
    state = error.sqlstate or ""
    if state == _FULL:
        return DiskFull(f"the disk of the log's server is full ({text}); make room and try again")
    if state in _READ_ONLY:
        return ReadOnlyStore(f"the log's server takes no writes ({text}); use its primary, or grant them")
    if state == _UNIQUE:  # an append that was lost, and arrived
        return CommitUnknown(f"the log has this record already ({text}); look whether it is there")
    if state.startswith(_DAMAGED):
        return damaged_log(text)
    return CatalogUnavailable(f"the log's server cannot be reached ({text}); try again")


def _done(connection: psycopg.Connection[Row]) -> Iterator[_PostgresTransaction]:
    """Yield a transaction that was begun, and end it."""
    try:
        yield _PostgresTransaction(connection)
    except BaseException:
        if not connection.broken:
            connection.execute("ROLLBACK")
        raise
    with _unknown_if_lost():
        connection.execute("COMMIT")


@contextmanager
def _unknown_if_lost() -> Iterator[None]:
    """Raise `CommitUnknown` if the connection is lost before the answer to a commit."""
    try:
        yield
    except psycopg.OperationalError as error:
        if error.sqlstate in {"55P03", "40P01", "57014"}:  # not the lock, a deadlock, cancelled: nothing done
            raise
        raise CommitUnknown(
            "the connection to the log's server was lost during a commit; look whether it is there"
        ) from None


def _is_usable(connection: psycopg.Connection[Row]) -> bool:
    return not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@cache
def _own(statement: str) -> str:
    """Return a statement with parameters as psycopg writes them."""
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", statement.replace("%", "%%"))
