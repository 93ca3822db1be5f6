"""A log at a PostgreSQL server, for stores that many machines share.

Writers lock the row of the head, so waiters queue at the server, and a conflict is no error there. Errors are
distinguished by SQLSTATE, never by their texts, which may be in any language; a server that refuses
connections gives none.

A connection is lost in the midst of anything. One that was free may have been lost long before, so a
transaction begins again on another one. Once it has begun, and until its commit is sent, nothing was done
(`Interrupted`): it is begun again. An append whose connection was lost may still be under way at
the server, and be done after it was looked for. The ids of entries are unique there, so of an append and its
repetition only the first is done.

A client may stand still while it holds the lock. So the server ends a writer's connection that says nothing
for `ANSWER_SECONDS`, and so does a client whose server says nothing: one that is stopped has no timeouts, and
its machine answers keepalives. No state of a session is relied upon: behind a proxy the next transaction has
another.

What changes rows is sent with the next question, or with the commit: one wait for all.
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

# Of a pipeline whose connection was lost it warns; the same is an error here, and is dealt with.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

_NOW: Final = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
_NEXT_TIME: Final = f"greatest(time + 1, {_NOW})"

# A database or role may answer commits before they are written to its disk; these wait for it all the same.
_DURABLE: Final = """CASE current_setting('synchronous_commit')
    WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"""

# One statement: the row of the head is locked, moved and read; what is inserted hangs on it.
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
_LOOK: Final = """SELECT to_regclass('head') IS NOT NULL, pg_is_in_recovery(),
    current_setting('transaction_read_only'), has_table_privilege(to_regclass('head')::oid, 'UPDATE')"""
_TIME: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_INDEX: Final = "CREATE UNIQUE INDEX IF NOT EXISTS log_by_id ON log (id)"

# A server whose machine is gone says nothing: when that is noticed, unless the address says otherwise.
_SIGNS_OF_LIFE: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}

_MOST_CHANGES: Final = 256  # are held back

# By SQLSTATE, or its class; what is not here is unavailable.
_MEANINGS: Final[dict[str, Callable[[str], ElasticScanError]]] = {
    "53100": disk_full,
    "42501": not_writable,  # insufficient_privilege
    "25006": not_writable,  # read_only_sql_transaction
    "23505": commit_unknown,  # unique_violation: an append that was lost, and arrived
    "55P03": lambda text: unavailable(f"it is locked by another writer ({text})"),
    "22": unfit_value,
    "23": damaged_log,  # constraints
    "42": damaged_log,  # undefined
    "XX": damaged_log,  # corruption
    # The client was silent for too long, serialization, deadlock, too many connections: nothing was done.
    **dict.fromkeys(("25P03", "40001", "40P01", "53300"), interrupted),
    # The connection ended, perhaps after it did what was asked; `_unknown_if_lost` looks at it first.
    **dict.fromkeys(("08", "57P01", "57P02", "57P03"), interrupted),
}
_ENDED: Final = ("08", "57P01", "57P02", "57P03")


class ServerClock(SystemClock):
    """A server's time, as of the newest connection made to it; the machine's before the first.

    From then on the machine's monotonic clock counts, which cannot be set. So nothing waits for the time, and
    what ends with time ends for every process by the same clock.
    """

    _ahead: float | None = None  # of the monotonic clock

    def now(self) -> float:
        return super().now() if self._ahead is None else time.monotonic() + self._ahead

    def note(self, message: float, asked_at: float, answered_at: float) -> None:
        """Follow the server's answer: it counts as given in the middle between two monotonic times."""
        self._ahead = message - (asked_at + answered_at) / 2


Statement = tuple[str, Mapping[str, Any]]


class ImpatientConnection(psycopg.Connection[Row]):
    """A connection whose server may be silent for `answer_seconds`, and the transaction on it.

    Each piece of an answer begins the time again. The driver resumes its steps now and then without data.

    Attributes:
        head: the row of the head as the transaction sees it, until it changes something.
        unsent: its statements that were not sent yet.
    """

    answer_seconds = 60.0
    head: Sequence[Row] = ()
    unsent: Sequence[Statement] = ()

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._watched(gen), *args, **kwargs)

    def _watched(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        try:
            wanted = next(steps)
            while True:
                end = time.monotonic() + self.answer_seconds
                while not (ready := (yield wanted)):
                    if time.monotonic() >= end:
                        self.close()
                        said = f"the server gave no answer for {self.answer_seconds:g} seconds"
                        raise psycopg.OperationalError(said)
                wanted = steps.send(ready)
        except StopIteration as done:
            return done.value

    def begin(self, words: str) -> None:
        """Begin a transaction by statements of which the last one reads the head."""
        cursor = self.execute(words.encode())
        while cursor.nextset():
            pass
        self.head, self.unsent = _rows(cursor), ()

    def ask(self, statement: str, values: Mapping[str, Any]) -> Sequence[Row]:
        """Return all rows of a statement of the transaction; one that changes rows is sent with the next."""
        if statement is tables.HEAD and self.head:
            return self.head
        self.unsent = (*self.unsent, (statement, values))
        if statement.startswith(("INSERT", "UPDATE", "DELETE", "CREATE")):
            self.head = ()
            if len(self.unsent) < _MOST_CHANGES:
                return ()
        return self.send()

    def send(self) -> list[Row]:
        """Send all statements that were not sent; returns the rows of the last."""
        statements, self.unsent = self.unsent, ()
        if len(statements) == 1:
            return _rows(_execute(self, *statements[0]))
        with self.pipeline():
            cursors = [_execute(self, *statement) for statement in statements]
        return _rows(cursors[-1])


class PostgresHome(LogHome):
    """A log at a PostgreSQL server.

    Args:
        address: as libpq takes it, with the password if there is one; errors never show that.
        clock: in place of the server's.
        url: what errors have of `address`, without its secrets; the address itself if it is empty.

    Attributes:
        answer_seconds: for how long a server may be silent, or a client in a transaction that writes.
    """

    types = {"BYTES": "BYTEA", "NUMBER": "BIGINT", "GENESIS": "decode(repeat('00', 32), 'hex')"}  # noqa: RUF012

    def __init__(self, address: str, clock: Clock | None = None, url: str = "") -> None:
        super().__init__()
        self._address, self._url = address, url or address
        given = conninfo_to_dict(address)
        self._signs_of_life: Any = {n: v for n, v in _SIGNS_OF_LIFE.items() if n not in given}
        self.retry_seconds, self.answer_seconds = FIRST_CONNECT_SECONDS, ANSWER_SECONDS
        self.clock = ServerClock() if clock is None or type(clock) is SystemClock else clock
        self.appends_inline = isinstance(self.clock, ServerClock)  # the statement takes the server's time

    def make_tables(self) -> None:
        self.execute("; ".join((_LOCK_CREATION, *self.definitions(), _INDEX)))  # one transaction

    def look(self) -> bool:
        ((is_there, self.is_follower, only_reads, may_write),) = self.execute(_LOOK)
        self.retry_seconds = RECONNECT_SECONDS  # an address that is wrong is not tried for so long
        if self.is_follower:
            self.why_read_only = "the database server is a standby, which only reads"
        elif only_reads == "on" or (is_there and not may_write):
            self.why_read_only = "this database user may not change the catalog's tables"
        return bool(is_there)

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        held: ImpatientConnection | None = self.held
        if held is not None:  # in a transaction, which cannot go on without it
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
        milliseconds = int(self.answer_seconds * 1_000)  # a writer waits no longer than its client does
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
        """Begin a transaction on a connection that the stack gives back."""
        with ExitStack() as tried:
            connection = tried.enter_context(self._connection())
            connection.begin(words)
            stack.push(tried.pop_all())

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        parts = values["parts"]
        asked = {**values, "names": [*parts], "contents": [*parts.values()]}
        with self._connection() as connection, _unknown_if_lost():
            rows = _rows(_execute(connection, _APPEND, asked))
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
        """Turn the server's errors into ours, without what connects to it."""
        try:
            yield
        except psycopg.Error as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            ours = _meaning(error, without(lines[0], self._url))
            if isinstance(ours, Interrupted):  # free connections are lost, too
                self.close()
            raise ours from as_cause(error, self._url)


def _execute(
    connection: ImpatientConnection, statement: str, values: Mapping[str, Any]
) -> psycopg.Cursor[Row]:
    return connection.execute(_own(statement), values) if values else connection.execute(statement.encode())


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description else []


def _meaning(error: psycopg.Error, text: str) -> ElasticScanError:
    state = error.sqlstate or ""
    found = _MEANINGS.get(state) or _MEANINGS.get(state[:2]) or unavailable
    if not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        found = interrupted
    return (unfit_value if isinstance(error, psycopg.DataError) else found)(text)


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
def _own(statement: str) -> bytes:
    """Return a statement with parameters as psycopg writes them."""
    return re.sub(r"(?<!:):([a-z_]+[0-9]*)", r"%(\1)s", statement.replace("%", "%%")).encode()
