"""A log at a PostgreSQL server, for stores that many machines share.

Writers lock the row of the head, so waiters queue at the server, and a conflict is no error there. Each
reading question is one statement, or a transaction that sees one snapshot. Errors are told apart by SQLSTATE,
never by their texts, which have languages; only a server that lets nobody in gives none.

A connection is lost in the midst of anything. One that was free may have been lost long before, so a
transaction begins again on another one. Once it has begun, and until its commit is sent, nothing was done
(`Interrupted`): whoever began it begins again. An append whose connection was lost may still be under way at
the server, and be done after it was looked for. The ids of entries are unique there, so of an append and its
repetition only the first is done.

A client may stand still while it holds the lock. So the server ends a writer's connection that says nothing
for `ANSWER_SECONDS`. No state of a session is relied upon: behind a proxy the next transaction has another.

What changes rows is sent with the next question, or with the commit: one wait for all.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from elasticscan.base.clock import Clock, SystemClock
from elasticscan.base.errors import CommitUnknown, ElasticScanError
from elasticscan.base.limits import ANSWER_SECONDS, BUSY_SECONDS, FIRST_CONNECT_SECONDS, RECONNECT_SECONDS
from elasticscan.base.redaction import as_cause, without
from elasticscan.catalog import tables
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.home import (
    NOTHING,
    Interrupted,
    Refused,
    Row,
    commit_unknown,
    disk_full,
    head_in,
    make_tables,
    not_writable,
    retry,
    unavailable,
    unfit_value,
)
from elasticscan.catalog.pool import ConnectionPool, forked_amid_use
from elasticscan.catalog.timeouts import ImpatientConnection

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

_BEGIN_READING: Final = f"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; {tables.HEAD}"
_BEGIN_WRITING: Final = """BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE;
    SET LOCAL lock_timeout = {lock}; SET LOCAL idle_in_transaction_session_timeout = {client};"""
# A question about a table lets the server hear of those that others have made while it waited.
_LOCK_CREATION: Final = """SELECT pg_advisory_xact_lock(726947331);
    SELECT count(*) > 0 FROM pg_class WHERE oid = to_regclass('head')"""
_LOOK: Final = """SELECT to_regclass('head') IS NOT NULL, pg_is_in_recovery(),
    current_setting('transaction_read_only'), has_table_privilege(to_regclass('head')::oid, 'UPDATE')"""
_TIME: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_INDEX: Final = "CREATE UNIQUE INDEX log_by_id ON log (id)"

# A server whose machine is gone says nothing: when that is noticed, unless the address says otherwise.
_SIGNS_OF_LIFE: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}

_MOST_CHANGES: Final = 256  # are held back

_READ_ONLY: Final = ("42501", "25006")  # insufficient_privilege, read_only_sql_transaction
_FULL: Final = "53100"  # disk_full
_UNIQUE: Final = "23505"  # unique_violation
_LOCKED: Final = "55P03"  # lock_not_available
_DAMAGED: Final = ("23", "XX0", "42")  # classes: constraints, corruption, undefined
_ENDED: Final = ("08", "57P01", "57P02", "57P03")  # the connection, perhaps after it did what was asked
# The client was silent for too long, serialization, deadlock, too many connections: nothing was done.
_UNDONE: Final = ("25P03", "40001", "40P01", "53300")
# What a server says when it refuses a connection, and takes one later: it gives no SQLSTATE then.
_PASSING_REFUSALS: Final = (
    *("starting up", "shutting down", "recovery", "not yet accepting", "too many"),
    *("remaining connection slots", "terminating"),
)


class ServerClock(SystemClock):
    """A server's time, as of the newest connection made to it; the machine's before the first.

    From then on the machine's monotonic clock counts, which nobody sets. So nothing waits for the time, and
    what ends with time ends for every process by the same clock.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None  # of the monotonic clock

    def now(self) -> float:
        ahead = self._ahead
        return super().now() if ahead is None else time.monotonic() + ahead

    def note(self, message: float, asked_at: float, answered_at: float) -> None:
        """Follow the server's answer, between two readings of the monotonic clock.

        The answer is as old as its way back, at most as the whole wait: it counts as given in the middle.
        """
        self._ahead = message - (asked_at + answered_at) / 2


Statement = tuple[str, Mapping[str, Any]]


class _PostgresTransaction:
    """A transaction that has begun; `head` is the row of the head as of its beginning."""

    def __init__(self, connection: ImpatientConnection, head: list[Row]) -> None:
        self._connection, self._process = connection, os.getpid()
        self._head, self._changes = head, list[Statement]()
        connection.transaction = self

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        self.check_process()
        if statement is tables.HEAD and self._head:
            return self._head
        self._changes.append((statement, values))
        if statement.startswith(("INSERT", "UPDATE", "DELETE", "CREATE")):
            self._head = []
            return [] if len(self._changes) < _MOST_CHANGES else self.send()
        return self.send()

    def send(self) -> list[Row]:
        """Send all statements that were not sent; returns the rows of the last."""
        statements, self._changes = self._changes, []
        if len(statements) == 1:
            return _rows(_execute(self._connection, *statements[0]))
        with self._connection.pipeline():
            cursors = [_execute(self._connection, *statement) for statement in statements]
        return _rows(cursors[-1])

    def commit(self) -> None:
        self.check_process()
        self._changes.append(("COMMIT", NOTHING))
        with _unknown_if_lost():
            self.send()

    def check_process(self) -> None:
        if self._process != os.getpid():
            raise forked_amid_use()


class PostgresHome:
    """A log at a PostgreSQL server. Safe to use from several threads, and after a fork.

    Args:
        address: as libpq takes it, with the password if there is one; errors never show that.
        clock: in place of the server's.
        url: what errors have of `address`, without its secrets; the address itself if it is empty.
        making: the name of a store whose tables are made in the first transaction that writes.

    Attributes:
        answer_seconds: for how long a server may be silent, or a client in a transaction that writes.
    """

    file: Path | None = None
    why_read_only: str | None = None
    is_follower = False

    def __init__(
        self,
        address: str,
        clock: Clock | None = None,
        url: str = "",
        making: str | None = None,
        retry_seconds: float = RECONNECT_SECONDS,
    ) -> None:
        self._address, self._url, self._making = address, url or address, making
        given = conninfo_to_dict(address)
        self._signs_of_life: Any = {n: v for n, v in _SIGNS_OF_LIFE.items() if n not in given}
        self.retry_seconds, self.answer_seconds = retry_seconds, ANSWER_SECONDS
        self.clock: Clock = ServerClock() if clock is None or type(clock) is SystemClock else clock
        self._pool = ConnectionPool[ImpatientConnection](
            self._connected,
            _is_usable,
            lambda connection: connection.close(),
            BUSY_SECONDS,
            across_forks=True,
        )

    @classmethod
    def create(cls, address: str, **how: Any) -> PostgresHome:
        """Make the tables of a log in a database that has none."""
        home = cls(address, making="the database", **how)
        with home.writing():
            pass
        return home

    def look(self) -> bool:
        """Return whether the tables of a log are there, and note who may write to them.

        An address that is wrong is not tried for long.
        """
        patient, self.retry_seconds = self.retry_seconds, min(self.retry_seconds, FIRST_CONNECT_SECONDS)
        try:
            ((is_there, is_standby, only_reads, may_write),) = self.execute(_LOOK)
        finally:
            self.retry_seconds = patient
        self.is_follower = is_standby
        if is_standby:
            self.why_read_only = "the database server is a standby, which only reads"
        elif only_reads == "on":
            self.why_read_only = "transactions of this database user only read"
        elif is_there and not may_write:
            self.why_read_only = "this database user may not change the catalog's tables"
        return bool(is_there)

    def close(self) -> None:
        self._pool.close()

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        held = self._pool.held
        if held is not None:  # in a transaction, which cannot go on without it
            with self._translated():
                transaction: _PostgresTransaction = held.transaction
                return transaction.execute(statement, values)

        def attempt() -> list[Row]:
            with self._connection() as connection:
                return _rows(_execute(connection, statement, values))

        return retry(self, attempt)

    @contextmanager
    def reading(self) -> Iterator[_PostgresTransaction]:
        held = self._pool.held
        if held is not None:
            with self._translated():
                yield held.transaction
            return
        with ExitStack() as stack:
            connection, head = retry(self, lambda: self._begun(stack, _BEGIN_READING))
            with _ended(connection):
                transaction = _PostgresTransaction(connection, head)
                yield transaction
                transaction.check_process()

    @contextmanager
    def writing(self, at_once: bool = False) -> Iterator[_PostgresTransaction]:
        if self.why_read_only is not None:
            raise not_writable(self.why_read_only)
        assert self._pool.held is None, "this thread is in a transaction"
        with self._settled_creation(), ExitStack() as stack:
            words = self._lock(at_once)
            if at_once:
                connection, rows = self._begun(stack, words)
            else:
                connection, rows = retry(self, lambda: self._begun(stack, words))
            with _ended(connection):
                if self._making is not None:
                    yield from self._made(connection, self._making, bool(rows[0][0]))
                    return
                transaction = _PostgresTransaction(connection, rows)
                yield transaction
                transaction.commit()

    def _lock(self, at_once: bool) -> str:
        """Return the words that begin a writer's transaction; it waits no longer than its client does."""
        milliseconds = int(self.answer_seconds * 1_000)
        begin = _BEGIN_WRITING.format(lock=milliseconds // 2, client=milliseconds)
        if self._making is not None:
            return f"{begin} {_LOCK_CREATION}"
        return f"{begin} {tables.HEAD} FOR UPDATE{' NOWAIT' if at_once else ''}"

    def _begun(self, stack: ExitStack, words: str) -> tuple[ImpatientConnection, list[Row]]:
        """Begin a transaction on a connection that the stack gives back; returns the last rows."""
        with ExitStack() as tried:
            connection = tried.enter_context(self._connection())
            try:
                cursor = connection.execute(words.encode())
                while cursor.nextset():
                    pass
                rows = _rows(cursor)
            except psycopg.Error:
                _roll_back(connection)
                raise
            stack.push(tried.pop_all())
            return connection, rows

    # A new log

    def _made(
        self, connection: ImpatientConnection, where: str, are_there: bool
    ) -> Iterator[_PostgresTransaction]:
        """Yield the transaction that makes the tables, and commit it."""
        transaction = _PostgresTransaction(connection, [])
        make_tables(transaction, are_there, where, BYTES="BYTEA", NUMBER="BIGINT")
        if not are_there:
            transaction.execute(_INDEX)
        yield transaction
        self._expected = head_in(transaction.execute(tables.HEAD))
        transaction.commit()
        self._making = None

    @contextmanager
    def _settled_creation(self) -> Iterator[None]:
        """Find out whether a new log is there if the answer to its commit was lost."""
        try:
            yield
        except CommitUnknown:
            if self._making is None:
                raise
            if not retry(self, self._is_made):
                raise Interrupted("the server was lost, and nothing was made; try again") from None
            self._making = None

    def _is_made(self) -> bool:
        with ExitStack() as stack:
            connection, rows = self._begun(stack, self._lock(at_once=False))
            with _ended(connection):
                head = _rows(connection.execute(tables.HEAD.encode())) if rows[0][0] else []
                return head == [self._expected]

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        if not isinstance(self.clock, ServerClock):  # the statement takes the server's time
            return None
        names: dict[str, list[Any]] = {"tables": [], "names": [], "contents": []}
        for table, name, content in values["parts"]:
            names["tables"].append(table)
            names["names"].append(name)
            names["contents"].append(content)
        asked = {name: value for name, value in values.items() if name != "parts"} | names
        with self._connection() as connection, _unknown_if_lost():
            rows = _rows(_execute(connection, _APPEND, asked))
        return rows[0] if rows else None

    def check_sound(self) -> None:
        """Do nothing: the server checks its files by itself."""

    # Connections

    @contextmanager
    def _connection(self) -> Iterator[ImpatientConnection]:
        with self._translated(), self._pool.connection() as connection:
            yield connection

    def _connected(self) -> ImpatientConnection:
        connection = ImpatientConnection.connect(
            self._address, autocommit=True, prepare_threshold=None, **self._signs_of_life
        )
        connection.answer_seconds = self.answer_seconds
        if isinstance(self.clock, ServerClock):
            try:
                asked_at = time.monotonic()
                ((message,),) = _rows(connection.execute(_TIME))
                self.clock.note(message, asked_at, time.monotonic())
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the server's errors into ours, without what connects to it."""
        try:
            yield
        except psycopg.Error as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            ours = _meaning(error, without(lines[0], self._url))
            if isinstance(ours, Interrupted):  # those that are free are lost, too
                self._pool.close()
            raise ours from as_cause(error, self._url)


def _execute(
    connection: ImpatientConnection, statement: str, values: Mapping[str, Any]
) -> psycopg.Cursor[Row]:
    return connection.execute(_own(statement), values) if values else connection.execute(statement.encode())


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description else []


def _meaning(error: psycopg.Error, text: str) -> ElasticScanError:
    state = error.sqlstate or ""
    if state == _FULL or "could not write init file" in text:  # the latter greets a new connection
        return disk_full(text)
    if state in _READ_ONLY:
        return not_writable(text)
    if state == _UNIQUE:  # an append that was lost, and arrived
        return commit_unknown(text)
    if isinstance(error, psycopg.DataError):
        return unfit_value(text)
    if state.startswith(_DAMAGED):
        return damaged_log(text)
    if state == _LOCKED:
        return unavailable(f"it is locked by another writer ({text})")
    is_lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    if state and not state.startswith((*_ENDED, *_UNDONE)):
        return unavailable(text)
    refused = "FATAL" in text and not any(words in text for words in _PASSING_REFUSALS)
    kind = Interrupted if state or (is_lost and not refused) else Refused
    return kind(unavailable(text).message, detail=text)


@contextmanager
def _ended(connection: ImpatientConnection) -> Iterator[None]:
    """Undo what was not committed; in a forked child it is its parent's."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == process:
            _roll_back(connection)


def _roll_back(connection: ImpatientConnection) -> None:
    if not connection.closed and not _is_usable(connection):
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK")


@contextmanager
def _unknown_if_lost() -> Iterator[None]:
    """Raise `CommitUnknown` if the connection is lost before the answer to a commit."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        if error.sqlstate is not None and not error.sqlstate.startswith(_ENDED):
            raise
        raise commit_unknown("the connection was lost") from None


def _is_usable(connection: ImpatientConnection) -> bool:
    return not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@cache
def _own(statement: str) -> bytes:
    """Return a statement with parameters as psycopg writes them."""
    return re.sub(r"(?<!:):([a-z_]+[0-9]*)", r"%(\1)s", statement.replace("%", "%%")).encode()
