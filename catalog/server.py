"""Transactions at a database server, which may go away and come back.

A connection ends in the midst of anything: the server is started again, a standby takes over, a proxy or a
network drops it. A transaction here goes on as if nothing had been: it keeps what it asked and what the
answers were, and begins again on another connection, where it asks all of it again. Where all answers are the
same, whatever was concluded from them is still true; else the catalog was changed by others meanwhile, and
callers that can begin again do so (`Interrupted`, `retry_interrupted`). Steps of upkeep
do not: the next round has them.

The answer to a COMMIT may be lost, too. Each transaction that writes therefore enters an id of its own into
the table `outcomes`, with its first statement. To begin again is to enter the same id again: that waits for
the end of the lost transaction, and is refused if it was committed. So its fate is found out for sure. The
server's own numbers of transactions would not do: one that crashed gives them out again.

A client may stand still, too (its machine is out of memory, someone stopped it) while it holds the lock that
all writers wait for. So the server ends the connection of one that says nothing for `ANSWER_SECONDS` during a
transaction that writes, sooner than those who wait for it give up; for the client, should it go on, that is a
connection that was lost.

Tries follow each other in growing pauses, none of them as long as another process's, until
`RECONNECT_SECONDS` are over. What a server refuses for good (a wrong password, no such database) is not tried
again.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections import namedtuple
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Executable
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidRequestError, OperationalError, SQLAlchemyError

from elasticscan.base.errors import CatalogUnavailable, StoreTooNew
from elasticscan.base.limits import ANSWER_SECONDS, RECONNECT_SECONDS
from elasticscan.catalog.connections import check_own, in_transaction, never_free, unsafe_fork
from elasticscan.catalog.exchange import Answer, exchange
from elasticscan.catalog.failures import (
    Interrupted,
    commit_unknown,
    driver_error,
    told_of,
    translate_commit_error,
)
from elasticscan.catalog.pipeline import Question, Sent, is_kept, send_together, table_of
from elasticscan.catalog.tables import FORMAT_VERSION, outcomes, store_state

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 2.0
_PRUNE_EVERY = 256  # transactions, by chance: each removes outcomes that are not needed any more

# SQLSTATE: the server ends connections or takes none now, or has waited long enough for the client;
# deadlocks; a standby that lost a snapshot.
_PASSING_STATES = ("08", "57P01", "57P02", "57P03", "53300", "25P03", "40001", "40P01")
# What a server says when it refuses a connection, and takes one later: the driver tells no SQLSTATE then.
_PASSING_REFUSALS = (
    "starting up",
    "shutting down",
    "recovery",
    "not yet accepting",
    "too many",
    "remaining connection slots",
    "terminating",
)

_StateRow = namedtuple("_StateRow", [column.name for column in store_state.c])  # type: ignore[misc]
_STATE = ", ".join(_StateRow._fields)
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_READ_STATE = f"SELECT {_STATE} FROM {store_state.name}"
_BEGIN_WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"
# How long the server waits for its client; and for the lock, which clients themselves give up sooner, so
# that it does not wait on for one that gave up. Of this transaction alone: behind a proxy the session is
# another's, too.
_BOUND_WAITS = """
SELECT set_config('idle_in_transaction_session_timeout', '{client:.0f}', true),
    set_config('lock_timeout', '{lock:.0f}', true)
"""
# The row is the lock: it makes the order of commit numbers the order in which commits become visible.
_TOUCH_STATE = f"""
WITH mine AS (INSERT INTO {outcomes.name} (id) VALUES ('{{id}}') ON CONFLICT DO NOTHING RETURNING id)
UPDATE {store_state.name} SET layout = layout WHERE format_version <= {FORMAT_VERSION}
RETURNING {_STATE}, (SELECT count(*) FROM mine) AS is_new, pg_backend_pid() AS process,
    pg_current_xact_id()::text AS number
"""
_PRUNE = f"DELETE FROM {outcomes.name} WHERE made_at < now() - interval '1 hour'"  # not needed for longer
_END_LOST = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = $1 AND backend_xid = $2::xid8::xid
"""


def is_passing(error: BaseException) -> bool:
    """Return True for the errors of a connection that was lost, or could not be made yet."""
    if isinstance(error, InvalidRequestError):  # of a connection that was lost a statement ago
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_PASSING_STATES)
    if not error.connection_invalidated and not isinstance(error, (OperationalError, InterfaceError)):
        return False
    said = str(error.orig)
    return "FATAL" not in said or any(words in said for words in _PASSING_REFUSALS)


class Patience:
    """Pauses between tries, until a time is over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._pause = 0.0  # at first it may only be that the server was started again since it was last asked

    def wait(self, error: Exception) -> None:
        """Wait for the next try, or raise the error when there is to be none."""
        left = self._end - time.monotonic()
        if left <= 0 or not is_passing(error):
            raise error
        time.sleep(min(left, self._pause * random.uniform(0.5, 1.0)))
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)


def patiently(work: Callable[[], T], seconds: float) -> T:
    """Do what can be done again, until it is done."""
    patience = Patience(seconds)
    while True:
        try:
            return work()
        except (DBAPIError, InvalidRequestError) as error:
            patience.wait(error)


class ServerTransaction:
    """One transaction, carried over to a new connection when its own is lost.

    It is used as SQLAlchemy's connection is, as far as the catalog does so. What is known to be asked may be
    sent with its beginning (`ahead`), and changes without an awaited answer are sent together (`change`).
    """

    def __init__(self, engine: Engine, writing: bool, ahead: Sequence[Question], at_once: bool) -> None:
        self.dialect, self.engine = engine.dialect, engine
        self._ahead, self._at_once = ahead, at_once
        self._foreseen: dict[Hashable, tuple[str, Answer]] = {}  # the answers to these, and of which table
        self._id = secrets.token_hex(16) if writing else None
        self._connection: Connection | None = None
        self._asked: list[tuple[Sent, Answer]] = []
        self._changes: list[tuple[Sent, Callable[[int], None]]] = []
        self._state: _StateRow | None = None
        self._at_server: tuple[int, str] | None = None  # process and number of the transaction there
        self._state_is_used = self._commit_was_sent = self._is_committed = False

    def begin(self) -> None:
        self._persist(lambda: None)
        for (statement, values), (_, answer) in zip(self._ahead, self._asked, strict=True):
            self._foreseen[_name_of(statement, values)] = table_of(statement), answer

    def take_state(self) -> Any:
        """Return the row of `store_state` from the transaction's beginning, to be checked like any other."""
        self._state_is_used = True
        return self._state

    def execute(self, statement: Executable, parameters: Any = None) -> Answer:
        if self._foreseen:
            foreseen = self._foreseen.get(_name_of(statement, parameters or {}))
            if foreseen is not None:
                return foreseen[1]
        asked: Sent = statement, [parameters or {}]
        if self._changes and is_kept(statement):
            return self._send_changes(asked)[-1]
        self._send_changes()
        answer = self._persist(lambda: self._ask(statement, parameters))
        self._asked.append((asked, answer))
        return answer

    def change(
        self,
        statement: Any,
        rows: Sequence[Mapping[str, Any]],
        check: Callable[[int], None],
    ) -> None:
        """Change rows some time before the next question, or the end.

        Args:
            statement: is kept by who gives it: what it is compiled to is, too.
            rows: values for it, each time that it is carried out.
            check: is called with the number of rows that did change.
        """
        self._changes.append(((statement, rows), check))
        table = statement.table.name
        self._foreseen = {name: of for name, of in self._foreseen.items() if of[0] != table}

    def _send_changes(self, *questions: Sent) -> list[Answer]:
        """Send the changes that wait, if any do, and questions with them; returns the answers to all."""
        if not self._changes:
            return []
        changes, checks = zip(*self._changes, strict=True)
        sent = [*changes, *questions]
        answers = self._persist(lambda: self._together(sent))
        self._changes = []
        self._asked += zip(sent, answers, strict=True)
        for check, answer in zip(checks, answers, strict=False):
            check(answer.rowcount)
        return answers

    def end(self) -> None:
        """End it, with a commit if it writes, which is then done once for sure.

        Raises:
            CommitUnknown: the server could not be asked within the limit.
        """
        if self._id is None:
            self.abandon()
            return
        self._send_changes()
        if random.randrange(_PRUNE_EVERY) == 0:
            self._persist(lambda: self._say(_PRUNE))
        self._persist(self._commit)
        self._release()

    def abandon(self) -> None:
        """End it without a commit."""
        if self._connection is not None:
            try:
                self._say("ROLLBACK")
            except SQLAlchemyError:  # it is lost, or closed: what was said last was broken off
                self._connection.invalidate()
        self._release()

    def forget(self) -> None:
        """Leave it to the parent of this process, which is a fork."""
        never_free(self._connection)
        self._connection = None

    # Connections

    def _persist(self, work: Callable[[], T]) -> T:
        """Do something on a connection, if need be on another one."""
        patience: Patience | None = None
        while True:
            try:
                if self._connection is None:
                    self._begin_anew()
                return work()
            except (DBAPIError, InvalidRequestError) as error:
                if is_passing(error):
                    self._lose()
                patience = patience or Patience(0.0 if self._at_once else RECONNECT_SECONDS)
                try:
                    patience.wait(error)
                except (DBAPIError, InvalidRequestError):
                    if self._commit_was_sent:
                        raise commit_unknown(error) from told_of(error, self.engine)
                    raise

    def _begin_anew(self) -> None:
        """Begin, and ask again what was asked before."""
        self._connection = self.engine.connect()
        asked = list(self._asked)
        if self._id is None:
            rows = self._begin(_BEGIN_READING, _READ_STATE)
        else:
            rows = self._begin_writing(self._id)
            if self._is_committed:
                return
        before, self._state = self._state, _StateRow(*rows[0][: len(_StateRow._fields)]) if rows else None
        if self._state_is_used and self._state != before:
            raise interrupted()
        if self._together([sent for sent, _ in asked]) != [answer for _, answer in asked]:
            raise interrupted()

    def _begin_writing(self, mine: str) -> Sequence[Any]:
        if self._at_server is not None:  # it may be lost to us alone, and hold the lock
            self._say(_END_LOST, self._at_server)
        lock_seconds = 0.001 if self._at_once else 2 * ANSWER_SECONDS
        bounds = _BOUND_WAITS.format(client=ANSWER_SECONDS * 1_000, lock=lock_seconds * 1_000)
        rows = self._begin(_BEGIN_WRITING, bounds, _TOUCH_STATE.format(id=mine))
        if not rows:
            raise StoreTooNew(
                "a newer release has brought the store to a newer format since it was opened; "
                "upgrade elasticscan",
                known=FORMAT_VERSION,
            )
        *_, is_new, process, number = rows[0]
        self._is_committed, self._at_server = not is_new, (process, number)
        return rows

    def _ask(self, statement: Executable, parameters: Any) -> Answer:
        assert self._connection is not None
        if is_kept(statement):
            return self._together([(statement, [parameters or {}])])[0]
        result = self._connection.execute(statement, parameters)
        if not result.returns_rows:
            return Answer((), result.rowcount)
        return Answer(rows := result.all(), len(rows))

    def _begin(self, *words: str) -> Sequence[Any]:
        """Return the rows of the last of some statements, which are sent together to begin a transaction."""
        ahead: list[Sent] = []
        if not self._asked:  # else they are asked again with all the others
            ahead = [(statement, [values]) for statement, values in self._ahead]
        beginning: list[Sent] = [(said, ()) for said in words]
        answer, *answers = self._together([*beginning, *ahead])[len(words) - 1 :]
        self._asked += zip(ahead, answers, strict=True)
        return answer.rows

    def _together(self, statements: Sequence[Sent]) -> list[Answer]:
        if not statements:
            return []
        with self._driver() as driver:
            return send_together(driver, self.dialect, statements)

    def _say(self, words: str, values: Sequence[Any] = ()) -> None:
        with self._driver() as driver:
            exchange(driver, [(words, values)])

    @contextmanager
    def _driver(self) -> Iterator[Any]:
        """Yield the driver's connection; its errors are SQLAlchemy's."""
        assert self._connection is not None
        check_own(self._connection)
        try:
            yield self._connection.connection.driver_connection
        except self.dialect.loaded_dbapi.Error as error:
            raise driver_error(error, self.dialect) from error

    def _commit(self) -> None:
        if self._is_committed:
            return
        self._commit_was_sent = True
        try:
            self._say("COMMIT")
        except DBAPIError as error:
            if is_passing(error):
                raise
            raise translate_commit_error(error, self.engine) from told_of(error, self.engine)

    def _lose(self) -> None:
        """Drop a lost connection, and idle ones, which then are lost too."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):  # it notices, and renews the idle ones before their next use
                connection.exec_driver_sql("ROLLBACK")
            with suppress(SQLAlchemyError):
                connection.invalidate()
                connection.close()

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        with suppress(SQLAlchemyError):
            if connection is not None:
                connection.close()


def _name_of(statement: Executable, values: Mapping[str, Any]) -> Hashable:
    return statement, frozenset((n, tuple(v) if isinstance(v, list) else v) for n, v in values.items())


def interrupted() -> Interrupted:
    return Interrupted(
        "the connection to the catalog was lost and the catalog was changed before there was another one; "
        "nothing was done: try again"
    )


def retry_interrupted(work: Callable[P, T]) -> Callable[P, T]:
    """Return a function that can begin again, and does so when it is interrupted.

    It may have staged files before, and looked at things; what it changed is undone with its transaction. One
    that gives up is not begun again by those that called it: `CatalogUnavailable`.
    """

    @wraps(work)
    def working(*args: P.args, **kwargs: P.kwargs) -> T:
        end: float | None = None
        while True:
            try:
                return work(*args, **kwargs)
            except Interrupted as error:
                if in_transaction():  # its own caller begins again
                    raise
                now = time.monotonic()
                end = end or now + RECONNECT_SECONDS
                if now > end:
                    raise CatalogUnavailable(str(error)) from error

    return working


@contextmanager
def server_transaction(
    engine: Engine, writing: bool, ahead: Sequence[Question], at_once: bool = False
) -> Iterator[ServerTransaction]:
    """Run a transaction at a server; `ahead` is sent with its beginning.

    One `at_once` waits neither for the lock of another nor for a connection that was lost.
    """
    transaction, process = ServerTransaction(engine, writing, ahead, at_once), os.getpid()
    try:
        transaction.begin()
        yield transaction
        if os.getpid() == process:
            transaction.end()
    except BaseException:
        if os.getpid() == process:
            transaction.abandon()
        raise
    finally:
        if os.getpid() != process:
            transaction.forget()
            raise unsafe_fork()
