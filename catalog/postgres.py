"""A log at a PostgreSQL server, for stores that many machines share.

Writers lock the row of the head, so they queue at the server, and conflicts cause no errors. Errors are
distinguished by SQLSTATE, never by their texts, which may be in any language. A server that refuses
connections sends no SQLSTATE.

**Lost connections.** A connection can be lost at any time. A free one may have been lost long ago, so a
transaction that could not begin is begun again on another connection. A transaction that is lost before its
commit was sent has changed nothing (`Interrupted`) and is repeated. An append whose connection was lost may
still run at the server, and may take effect after the log was searched for it. The ids of entries are unique
there, so only one of an append and its repetition takes effect.

**Silence.** A client may stop while it holds the lock, so the server ends a writer's connection that is
silent for `ANSWER_SECONDS`. A client also ends a connection whose server is silent for so long: a stopped
server has no timeouts, and its machine still answers keepalives.

No session state is used: behind a proxy, the next transaction may get another session. Statements that change
rows are sent together with the next query or the commit, so that they cost one round trip.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, Final, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from elasticscan.base.clock import Clock, SystemClock
from elasticscan.base.errors import ElasticScanError
from elasticscan.base.limits import ANSWER_SECONDS, FIRST_CONNECT_SECONDS, RECONNECT_SECONDS
from elasticscan.base.redaction import as_cause, without
from elasticscan.catalog import tables
from elasticscan.catalog.database import NOTHING, LogHome, Row
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.failures import (
    Interrupted,
    commit_unknown,
    disk_full,
    interrupted,
    not_writable,
    retry,
    unavailable,
    unfit_value,
)

# psycopg logs a warning if a pipeline loses its connection. Here this raises an error, which is handled.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

_NOW: Final = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
_NEXT_TIME: Final = f"greatest(time + 1, {_NOW})"

# A database or role may be configured to confirm commits before they are on disk; these commits wait for it.
_DURABLE: Final = """CASE current_setting('synchronous_commit')
    WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"""

# One statement: it locks and updates the head; the inserts use the updated row, so they depend on it.
_APPEND: Final = f"""WITH moved AS (
        UPDATE head SET number = number + 1, time = {_NEXT_TIME},
            digest = sha256(digest || int8send(number + 1) || int8send({_NEXT_TIME}) || :seal)
        WHERE layout = :layout RETURNING number, time, digest),
    logged AS (
        INSERT INTO log SELECT number, time, :id, :kind, :format, :operation, :clock, :table, :rows, :size,
            NULL, NULL, :metadata, :hashes, digest FROM moved),
    kept AS (
        INSERT INTO payload SELECT number, part.name, part.bytes FROM moved,
            unnest(:names::text[], :contents::bytea[]) AS part (name, bytes))
    SELECT number, time, digest, {_DURABLE} FROM moved"""

_BEGIN_READING: Final = f"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; {tables.HEAD}"
_BEGIN_WRITING: Final = f"""BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; SELECT {_DURABLE};
    SET LOCAL lock_timeout = {{lock}}; SET LOCAL idle_in_transaction_session_timeout = {{client}};"""
_LOCK_CREATION: Final = "SELECT pg_advisory_xact_lock(726947331)"
_INSPECT: Final = """SELECT to_regclass('head') IS NOT NULL, pg_is_in_recovery(),
    current_setting('transaction_read_only'), has_table_privilege(to_regclass('head')::oid, 'UPDATE')"""
_TIME: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_INDEX: Final = "CREATE UNIQUE INDEX IF NOT EXISTS log_by_id ON log (id)"

# Timeouts for a server whose machine is gone, unless the address sets them.
_SIGNS_OF_LIFE: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}

_MOST_CHANGES: Final = 256  # statements that wait to be sent together

_ENDED: Final = ("08", "57P01", "57P02", "57P03")  # SQLSTATEs of a connection that ended

# By SQLSTATE or its class. All others mean `unavailable`.
_MEANINGS: Final[dict[str, Callable[[str], ElasticScanError]]] = {
    "53100": disk_full,
    "42501": not_writable,  # insufficient_privilege
    "25006": not_writable,  # read_only_sql_transaction
    "23505": commit_unknown,  # unique_violation: a lost append that took effect after all
    "55P03": lambda text: unavailable(f"it is locked by another writer ({text})"),
    "22": unfit_value,
    "23": damaged_log,  # constraints
    "42": damaged_log,  # undefined
    "XX": damaged_log,  # corruption
    # The client was silent for too long, serialization, deadlock, too many connections: nothing was done.
    **dict.fromkeys(("25P03", "40001", "40P01", "53300"), interrupted),
    # Perhaps after the statement took effect; `_unknown_if_lost` handles commits.
    **dict.fromkeys(_ENDED, interrupted),
}


class ServerClock(SystemClock):
    """The server's time, without a round trip; the machine's time before the first connection.

    Each new connection notes the difference between the server's time and the machine's monotonic clock,
    which cannot be set. So all processes decide by the same clock what has expired.
    """

    _ahead: float | None = None  # server's time minus monotonic clock

    def now(self) -> float:
        return super().now() if self._ahead is None else time.monotonic() + self._ahead

    def note(self, message: float, asked_at: float, answered_at: float) -> None:
        """Note the server's time, assumed to be from the middle between the two monotonic times."""
        self._ahead = message - (asked_at + answered_at) / 2


Statement = tuple[str, Mapping[str, Any]]


class ImpatientConnection(psycopg.Connection[Row]):
    """A connection that ends if its server is silent for `answer_seconds`, and the transaction on it.

    Attributes:
        head: the row of the head in this transaction, until it changes something; spares a query.
        unsent: the statements that were not sent yet.
    """

    answer_seconds = 60.0
    head: Sequence[Row] = ()
    unsent: Sequence[Statement] = ()

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._watched(gen), *args, **kwargs)

    def _watched(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        # The driver's steps yield what they wait for. They also resume now and then without data.
        try:
            wanted = next(steps)
            while True:
                end = time.monotonic() + self.answer_seconds
                while not (ready := (yield wanted)):
                    if time.monotonic() >= end:
                        self.close()
                        why = f"the server gave no answer for {self.answer_seconds:g} seconds"
                        raise psycopg.OperationalError(why)
                wanted = steps.send(ready)
        except StopIteration as done:
            return done.value

    def begin(self, words: str) -> None:
        """Begin a transaction by several statements; the last one reads the head."""
        cursor = self.execute(words.encode())
        while cursor.nextset():
            pass
        self.head, self.unsent = _rows(cursor), ()

    def ask(self, statement: str, values: Mapping[str, Any]) -> Sequence[Row]:
        """Return the rows of a statement; one that changes rows waits and is sent with the next one."""
        if statement is tables.HEAD and self.head:
            return self.head
        self.unsent = (*self.unsent, (statement, values))
        if statement.startswith(("INSERT", "UPDATE", "DELETE", "CREATE")):
            self.head = ()
            if len(self.unsent) < _MOST_CHANGES:
                return ()
        return self.send()

    def send(self) -> list[Row]:
        """Send all waiting statements; return the rows of the last one."""
        statements, self.unsent = self.unsent, ()
        if len(statements) == 1:
            return _rows(_execute(self, *statements[0]))
        with self.pipeline():
            cursors = [_execute(self, *statement) for statement in statements]
        return _rows(cursors[-1])


class PostgresHome(LogHome):
    """A log at a PostgreSQL server.

    Args:
        address: the connection string for libpq, perhaps with a password, which errors never show.
        clock: replaces the server's clock.
        url: the address as the user passed it, if that differs; errors have no secrets of it.

    Attributes:
        answer_seconds: how long a server may be silent, or a client in a writing transaction.
    """

    types = {"BYTES": "BYTEA", "NUMBER": "BIGINT", "GENESIS": "decode(repeat('00', 32), 'hex')"}  # noqa: RUF012

    def __init__(self, address: str, clock: Clock | None = None, url: str = "") -> None:
        super().__init__()
        self._address, self._url = address, url or address
        parameters = conninfo_to_dict(address)
        self._signs_of_life: Any = {n: v for n, v in _SIGNS_OF_LIFE.items() if n not in parameters}
        self.retry_seconds, self.answer_seconds = FIRST_CONNECT_SECONDS, ANSWER_SECONDS
        self.clock = ServerClock() if clock is None or type(clock) is SystemClock else clock
        self.appends_inline = isinstance(self.clock, ServerClock)  # the statement takes the server's time

    def make_tables(self) -> None:
        self.execute("; ".join((_LOCK_CREATION, *self.definitions(), _INDEX)))  # one transaction

    def inspect(self) -> bool:
        ((is_there, self.is_follower, only_reads, may_write),) = self.execute(_INSPECT)
        self.retry_seconds = RECONNECT_SECONDS  # longer from now on: the address is right
        if self.is_follower:
            self.why_read_only = "the database server is a standby, which only reads"
        elif only_reads == "on" or (is_there and not may_write):
            self.why_read_only = "this database user may not change the catalog's tables"
        return bool(is_there)

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        held: ImpatientConnection | None = self.held
        if held is not None:  # in a transaction, which ends if its connection is lost
            with self._translated():
                return list(held.ask(statement, values))

        def attempt() -> list[Row]:
            with self._connection() as connection:
                return _rows(_execute(connection, statement, values))

        return retry(self, attempt)

    @contextmanager
    def reading(self) -> Iterator[Self]:
        with ExitStack() as stack:
            if self.held is None:
                retry(self, lambda: self._begun(stack, _BEGIN_READING))
            yield self

    @contextmanager
    def writing(self) -> Iterator[Self]:
        if self.why_read_only is not None:
            raise not_writable(self.why_read_only)
        assert not self.in_transaction, "this thread is in a transaction"
        milliseconds = int(self.answer_seconds * 1_000)  # a writer does not wait longer than its client
        begin = _BEGIN_WRITING.format(lock=milliseconds // 2, client=milliseconds)
        words = f"{begin} {tables.HEAD} FOR UPDATE"
        with ExitStack() as stack:
            retry(self, partial(self._begun, stack, words))
            yield self
            connection = self.held  # not in a child that was forked meanwhile
            connection.unsent = (*connection.unsent, ("COMMIT", NOTHING))
            with _unknown_if_lost():
                connection.send()

    def _begun(self, stack: ExitStack, words: str) -> None:
        """Begin a transaction on a connection that the stack returns to the pool."""
        with ExitStack() as tried:
            connection = tried.enter_context(self._connection())
            connection.begin(words)
            stack.push(tried.pop_all())

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        parts = values["parts"]
        columns = {**values, "names": [*parts], "contents": [*parts.values()]}
        with self._connection() as connection, _unknown_if_lost():
            rows = _rows(_execute(connection, _APPEND, columns))
        return rows[0][:3] if rows else None

    # Connections

    @contextmanager
    def _connection(self) -> Iterator[ImpatientConnection]:
        with self._translated(), self._lent() as connection:
            yield connection

    def _reset(self, connection: ImpatientConnection) -> bool:
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.execute("ROLLBACK")
        return connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def _connect(self) -> ImpatientConnection:
        with ExitStack() as failed:
            connection = ImpatientConnection.connect(
                self._address, autocommit=True, prepare_threshold=None, **self._signs_of_life
            )
            failed.callback(connection.close)
            connection.answer_seconds = self.answer_seconds
            if isinstance(self.clock, ServerClock):
                asked_at = time.monotonic()
                ((message,),) = _rows(connection.execute(_TIME))
                self.clock.note(message, asked_at, time.monotonic())
            failed.pop_all()
        return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise typed errors in place of the server's, without secrets of its address."""
        try:
            yield
        except psycopg.Error as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            ours = _meaning(error, without(lines[0], self._url))
            if isinstance(ours, Interrupted):  # the free connections are probably lost, too
                self.close()
            raise ours from as_cause(error, self._url)


def _execute(
    connection: ImpatientConnection, statement: str, values: Mapping[str, Any]
) -> psycopg.Cursor[Row]:
    return connection.execute(_sql(statement), values) if values else connection.execute(statement.encode())


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description else []


def _meaning(error: psycopg.Error, text: str) -> ElasticScanError:
    state = error.sqlstate or ""
    meaning = _MEANINGS.get(state) or _MEANINGS.get(state[:2]) or unavailable
    if not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        meaning = interrupted
    return (unfit_value if isinstance(error, psycopg.DataError) else meaning)(text)


@contextmanager
def _unknown_if_lost() -> Iterator[None]:
    """Raise `CommitUnknown` if the connection is lost before the answer to a commit."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        if error.sqlstate is not None and not error.sqlstate.startswith(_ENDED):
            raise
        raise commit_unknown("the connection was lost") from None


@cache
def _sql(statement: str) -> bytes:
    """Return a statement with psycopg's form of parameters."""
    return re.sub(r"(?<!:):([a-z_]+[0-9]*)", r"%(\1)s", statement.replace("%", "%%")).encode()
