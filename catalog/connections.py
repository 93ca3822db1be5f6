"""Connections of this process to catalogs: few, of no thread in particular, and none across a fork.

Nothing here is kept in thread-local storage. A thread that Python did not start (of DuckDB, say)
loses its storage during its own end, when Python can run no finalizer any more: up to Python 3.12 the
process then dies.

SQLite cannot be taken across a fork: it notes in memory which locks the process has on a file, and
a child that opens the file again believes that they are its own; and its memory has a lock, which another
thread may hold. So a fork waits until no thread is in a transaction, or opens or closes a connection, and
closes all connections to SQLite; both sides open new ones when they need them.
Connections to a server are left to the parent, and never closed by the child, since that would end
the parent's session.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from threading import Lock
from time import monotonic
from typing import Any, Final, cast
from weakref import WeakKeyDictionary, WeakSet, finalize

from sqlalchemy import Connection, Engine, QueuePool, Select, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.util.queue import Empty

from elasticscan.base.errors import ElasticScanError, ScanConsumed
from elasticscan.base.limits import FORK_WAIT_SECONDS
from elasticscan.catalog.compiled import own_dialect, sql_of
from elasticscan.catalog.failures import Interrupted, commit_unknown, committing, replaced_file
from elasticscan.catalog.gate import GATE
from elasticscan.catalog.home import OpenedFiles
from elasticscan.catalog.waiting import answer, ask


class ConnectionPool(QueuePool):
    """SQLAlchemy's own pool, whose idle connections can be closed."""

    def close_idle(self) -> None:
        """Close the connections that are not in use; those that are come back here, as all others do.

        `Engine.dispose` would make another pool. They would then come back to an unknown one, and
        stay open across a fork.
        """
        while True:
            try:
                idle = self._pool.get(block=False)
            except Empty:
                return
            idle.close()
            self._dec_overflow()


# Parameters of statements are secrets and rows' values: errors do not tell them.
POOL: Final = {"poolclass": ConnectionPool, "pool_size": 8, "max_overflow": 32, "hide_parameters": True}
# What is kept of a connection, in what SQLAlchemy keeps alongside it: its process; true from the beginning of
# a transaction to its end, unless that came between two steps.
_OPENED_BY, _LEFT_AMID = "opened by", "left during"
# What a watch's question may raise alongside the driver's errors.
_TROUBLE = (SQLAlchemyError, ElasticScanError, OSError, ValueError, TypeError)
WATCHERS, ASKERS = 4, 2  # at most so many connections for each Watch, and for its questions under way


def is_sqlite(engine: Engine) -> bool:
    return engine.dialect.name == "sqlite"


def is_postgres(engine: Engine) -> bool:
    """Return True for a server whose transactions outlive their connections (`server.py`)."""
    return engine.dialect.name == "postgresql" and engine.dialect.driver == "psycopg"


@contextmanager
def transaction(engine: Engine, **options: Any) -> Iterator[Connection]:
    """Begin a transaction, with the execution options of its connection; a fork waits for its end.

    Where the very thread forks that is in it, the child must leave it to its parent: it would else
    end it a second time.
    """
    _FORKS.check(engine)
    with ExitStack() as stack:
        connection = _enter(engine, stack, options)
        if options.get("writing"):
            stack.enter_context(_still_in_place(engine))
            stack.enter_context(committing(connection))
        else:
            stack.enter_context(connection.begin())
        process, info = os.getpid(), connection.info
        info[_LEFT_AMID] = True
        try:
            yield connection
            info[_LEFT_AMID] = False
        except (ElasticScanError, SQLAlchemyError):  # they are raised between two questions
            info[_LEFT_AMID] = False
            raise
        finally:
            if os.getpid() != process:
                never_free(stack.pop_all())
                raise unsafe_fork()


@contextmanager
def _still_in_place(engine: Engine) -> Iterator[None]:
    """Raise `CommitUnknown` where a commit went into files that are not the catalog's any more.

    To be left while the connection is open, and forks wait: SQLite removes its log with the last one.
    """
    files = opened_files(engine)
    yield
    if files is not None and not files.are_there():
        raise commit_unknown("its file was replaced")


def _enter(engine: Engine, stack: ExitStack, options: Mapping[str, Any]) -> Connection:
    """Return a connection, and its place behind the gate of forks, entered into a stack."""
    # Where the files were looked at a moment ago, a new connection may be the first that meets others.
    for at_once in (bool(options), True):
        _FORKS.follow_file(engine, at_once)
        try:
            with ExitStack() as entered:
                entered.enter_context(kept_from_forks(engine))
                _FORKS.close_left()
                connection = entered.enter_context(engine.connect().execution_options(**options))
                stack.push(entered.pop_all())
                return connection
        except Interrupted:
            if at_once:
                raise
    raise AssertionError("unreachable")


class Watch:
    """One small query asked again and again, by any number of threads, on a few connections.

    A scan asks for each page whether anything changed. Going through a transaction
    of the engine costs ten times what the query does.
    """

    def __init__(self, engine: Engine, query: Select[Any]) -> None:
        self.engine = engine
        self._sql = sql_of(query, own_dialect(engine.dialect))
        self._words = self._sql.encode()
        self._kinds = [column.type.python_type for column in query.selected_columns]
        self._slots = [_Slot() for _ in range(WATCHERS)]
        self._turns = count()
        self._askers = [_Slot() for _ in range(ASKERS)]
        self._asked: dict[_Slot, _Question] = {}  # whose a slot is
        for slots in (self._slots, self._askers):
            finalize(self, _close_later, partial(_close_slots, slots)).atexit = False
        _FORKS.watches.add(self)

    def row(self) -> tuple[Any, ...] | None:
        """Return the row, or None when it could not be had this way: then ask in a transaction."""
        with self.asked() as row:
            return row()

    def _row(self) -> tuple[Any, ...] | None:
        _FORKS.check(self.engine)
        _FORKS.follow_file(self.engine)
        slot = self._free()
        with slot.lock:
            try:
                if slot.connection is None and not self._connect(slot):
                    return None
                return self._ask(slot.connection)
            except BaseException as error:
                slot.close()
                self._raise_unless_trouble(error)
                return None

    @contextmanager
    def asked(self) -> Iterator[Callable[[], tuple[Any, ...] | None]]:
        """Ask a server, and give what waits for its answer, as `row`; something else may be done before.

        No caller waits for a connection meanwhile, whatever else is asked: where none is free that may be
        kept for so long, the question is asked when its answer is wanted.
        """
        if not is_postgres(self.engine):
            yield self._row
            return
        process, question = os.getpid(), _Question()
        slot: _Slot | None = None

        def row() -> tuple[Any, ...] | None:
            if slot is None or os.getpid() != process or slot.connection is None:
                return self._row()
            try:
                found = self._values(answer(slot.connection))
                question.is_answered = True
                return found
            except BaseException as error:
                self._raise_unless_trouble(error)
                return None

        try:
            slot = self._asker(question)
            if slot is not None:
                try:
                    slot.connection = slot.connection or _connect(self.engine)
                    ask(slot.connection, self._words)
                except BaseException as error:
                    slot.close()
                    self._raise_unless_trouble(error)
            yield row
        finally:
            if os.getpid() == process:  # the slots of a child are others
                self._end(question)

    def _asker(self, question: _Question) -> _Slot | None:
        """Take the first free slot for a running query; None where none is free."""
        for slot in self._askers:
            if self._asked.setdefault(slot, question) is question:
                return slot
        return None

    def _end(self, question: _Question) -> None:
        """Give the slot of a question to others, if it has one; its remaining answers are dropped."""
        for slot in self._askers:
            if self._asked.get(slot) is question:
                if not question.is_answered:
                    slot.close()
                del self._asked[slot]

    def _raise_unless_trouble(self, error: BaseException) -> None:
        """Raise Ctrl-C and the like; of all else the slow way will say what is wrong."""
        if not isinstance(error, (*_TROUBLE, self.engine.dialect.loaded_dbapi.Error)):
            raise error

    def _values(self, row: list[bytes | None]) -> tuple[Any, ...]:
        return tuple(
            None if value is None else kind(value.decode())
            for kind, value in zip(self._kinds, row, strict=True)
        )

    def _ask(self, connection: Any) -> tuple[Any, ...] | None:
        if is_postgres(self.engine):
            ask(connection, self._words)
            return self._values(answer(connection))
        cursor = connection.cursor()
        cursor.execute(self._sql)
        row: tuple[Any, ...] | None = cursor.fetchone()
        cursor.close()
        connection.rollback()  # a driver that began a transaction must not keep it open
        return row

    def _connect(self, slot: _Slot) -> bool:
        """Open a connection; not while a fork is under way, which waits for the slot."""
        if not is_sqlite(self.engine):
            slot.connection = _connect(self.engine)
            return True
        with GATE.inside_at_once() as entered:
            if entered:
                slot.connection = _connect(self.engine)
            return entered

    def _free(self) -> _Slot:
        """Return the first free slot, so that no more connections are opened than are in use at once.

        Another thread may take it first, and is waited for: to try a lock, and to release it only if it was
        had, would leave it shut where a signal's handler raises between two steps.
        """
        for slot in self._slots:
            if not slot.lock.locked():
                return slot
        return self._slots[next(self._turns) % WATCHERS]

    def close(self) -> None:
        """Close the connections; the next query opens one again."""
        with kept_from_forks(self.engine):
            for slot in self._slots:
                with slot.lock:
                    slot.close()
            for slot in self._askers:
                if self._asked.setdefault(slot, question := _Question()) is question:
                    self._end(question)  # nothing was answered, so it closes

    def hold(self, end: float) -> list[_Slot]:
        """Take all slots that become free until `end`, a time of `monotonic`: no query runs meanwhile."""
        return [slot for slot in self._slots if slot.lock.acquire(timeout=max(0.0, end - monotonic()))]

    def abandon(self) -> None:
        for index, slot in enumerate(self._slots):
            never_free(slot.connection)
            self._slots[index] = _Slot()
        for index, slot in enumerate(self._askers):
            never_free(slot.connection)
            self._askers[index] = _Slot()
        self._asked.clear()


class _Question:
    """One that is under way, until its answer was taken."""

    is_answered = False


class _Slot:
    """A place for a connection, of which one thread at a time makes use."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.connection: Any = None

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(Exception):  # of a connection that is broken already, or whose server is gone
                connection.close()


def kept_from_forks(engine: Engine) -> AbstractContextManager[None]:
    """Hold off forks for the length of a block that opens or closes connections of an engine.

    SQLite's memory has a lock of its own, which a child would find shut for ever.
    """
    return GATE.inside() if is_sqlite(engine) else nullcontext()


def let_go(engine: Engine) -> None:
    """Close the connections of an engine that are not in use."""
    with kept_from_forks(engine):
        cast(ConnectionPool, engine.pool).close_idle()
        forget_closed_files(engine)


def let_go_at_the_end(owner: object, engine: Engine) -> None:
    """Close an engine's connections once `owner` has no reference any more; drivers would warn of each."""
    finalize(owner, _close_later, engine.dispose).atexit = False


def _close_later(close: Callable[[], None]) -> None:
    """Close unused connections: at once or, during a fork, before others are opened."""
    with GATE.inside_at_once() as entered:
        if entered:
            close()
        else:
            _FORKS.left.append(close)


def _close_slots(slots: list[_Slot]) -> None:
    for slot in slots:
        slot.close()


def _connect(engine: Engine) -> Any:
    """Return a driver's connection, made as the pool makes its own but not counted by it."""
    lent = engine.raw_connection()
    connection = lent.dbapi_connection
    lent.detach()
    return connection


def never_free(connection: object) -> None:
    """Keep an object for as long as the process lives, also while the interpreter takes itself down."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def unsafe_fork() -> ScanConsumed:
    return ScanConsumed(
        "this process was forked during a transaction of its parent; fork while the parent rests, or start "
        "processes with 'spawn'",
        process=os.getpid(),
    )


class _Forks:
    """The connections of this process, when it forks and when a file that they have opened is replaced."""

    def __init__(self) -> None:
        self.engines: WeakSet[Engine] = WeakSet()
        self.files: WeakKeyDictionary[Engine, OpenedFiles] = WeakKeyDictionary()
        self.watches: WeakSet[Watch] = WeakSet()
        self.process = os.getpid()
        self.unsafe = False  # this process was forked while SQLite was at work
        self.left: deque[Callable[[], None]] = deque()  # closes what finalizers met during a fork
        self._forking = Lock()
        self._held: list[_Slot] = []
        self._quiet = False  # from before a fork to its end: SQLite is not in use, no connection is open

    def check(self, engine: Engine) -> None:
        """Raise `ScanConsumed` in a child that cannot use SQLite."""
        if (self.unsafe or os.getpid() != self.process) and is_sqlite(engine):
            raise unsafe_fork()

    def follow_file(self, engine: Engine, at_once: bool = False) -> None:
        """Drop all connections to files that are not the catalog's any more.

        No other connection sees their writes. New ones must not be opened meanwhile: they would share a log.
        Who reads may look a moment late: what it reads is what was there a moment ago.
        """
        opened = self.files.get(engine)
        if opened is None or (not at_once and monotonic() < opened.trusted_until) or opened.are_there():
            return
        if GATE.is_inside():  # this thread's own transaction has begun with them
            raise replaced_file()
        with self._forking:
            if self.files.get(engine) is not opened:  # another thread has done it
                return
            path = opened.path

            def same() -> list[Engine]:
                return [other for other, files in list(self.files.items()) if files.path == path]

            try:
                if not self._close_all(same):
                    raise replaced_file()
                for other in same():
                    self.files.pop(other, None)
            finally:
                self._let_go()

    def note_files(self, engine: Engine, opened: OpenedFiles) -> None:
        """Remember what a new connection has opened; it must be the same file as the others'."""
        if not self.files.setdefault(engine, opened).are_there():
            raise replaced_file()

    def before(self) -> None:
        self._forking.acquire()
        self._quiet = self._close_all(lambda: [engine for engine in list(self.engines) if is_sqlite(engine)])

    def close_left(self) -> None:
        """Close what finalizers have left; to be called behind the gate."""
        while self.left:
            with suppress(IndexError):  # another thread was faster
                self.left.popleft()()

    def _close_all(self, chosen: Callable[[], list[Engine]]) -> bool:
        end = monotonic() + FORK_WAIT_SECONDS
        if not GATE.shut(FORK_WAIT_SECONDS):
            return False
        self.close_left()
        engines = chosen()  # no more of them open a connection now
        watches = [watch for watch in list(self.watches) if watch.engine in engines]
        self._held = [slot for watch in watches for slot in watch.hold(end)]
        for slot in self._held:
            slot.close()
        for engine in engines:
            engine.dispose()
        return len(self._held) == len(watches) * WATCHERS

    def in_parent(self) -> None:
        self._let_go()
        self._forking.release()

    def _let_go(self) -> None:
        for slot in self._held:
            slot.lock.release()
        self._held = []
        GATE.open()

    def in_child(self) -> None:
        self.unsafe = self.unsafe or not self._quiet
        self.process = os.getpid()
        self._forking = Lock()
        self._held = []
        self.left.clear()  # those are connections of the parent
        GATE.renew()
        for watch in list(self.watches):
            watch.abandon()
        for engine in list(self.engines):
            never_free(engine.pool)
            engine.dispose(close=False)


_FORKS = _Forks()
os.register_at_fork(before=_FORKS.before, after_in_parent=_FORKS.in_parent, after_in_child=_FORKS.in_child)


def follow_forks(engine: Engine) -> None:
    """To be called once for each engine; it is forgotten with the engine."""
    _FORKS.engines.add(engine)
    if is_sqlite(engine):
        _end_what_is_interrupted(engine)

    @event.listens_for(engine, "connect")
    def note_process(_connection: Any, record: Any) -> None:
        record.info[_OPENED_BY] = os.getpid()

    @event.listens_for(engine, "before_cursor_execute")
    def check_process(connection: Connection, *_: Any) -> None:
        check_own(connection)


def _end_what_is_interrupted(engine: Engine) -> None:
    """Let no connection to SQLite keep a transaction that the handler of a signal broke off.

    What it holds is the lock that all writers of all processes wait for.
    """

    @event.listens_for(engine, "reset")
    def roll_back(connection: Any, record: Any, _state: Any) -> None:
        # SQLAlchemy takes a COMMIT that was broken off before it was sent for one that was done.
        if connection.in_transaction:
            connection.rollback()
        # An answer of which only a part was fetched outlives that, for as long as a traceback has its cursor:
        # the connection would go on to see what there was then.
        if record.info.pop(_LEFT_AMID, False):
            record.invalidate()

    @event.listens_for(engine, "handle_error")
    def keep_open(context: Any) -> None:
        # Ctrl-C and a TimeoutError make it close the connection, but SQLite leaves its transaction open for
        # as long as there is a cursor, which the traceback has. Rolling back ends it.
        if not isinstance(context.original_exception, engine.dialect.loaded_dbapi.Error):
            context.is_disconnect = False


def check_own(connection: Connection) -> None:
    """Raise `ScanConsumed` where a child goes on in a transaction during which its own thread forked it.

    What it sent would get answers that are its parent's, which would wait for them for ever.
    """
    if connection.info.get(_OPENED_BY) != os.getpid():
        raise unsafe_fork()


@contextmanager
def closed_on_error(connection: Any) -> Iterator[None]:
    """Close a connection when a block raises: its file would stay open for as long as the error is kept."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def opens(engine: Engine, open_it: Callable[[], Any], path: str) -> Any:
    """Open a connection to the file that is at a path now, and remember which that was.

    A file that is gone is not made again: its place may be about to be taken by a copy.
    """
    before = OpenedFiles.look(path)
    if before is None:
        raise engine.dialect.loaded_dbapi.OperationalError(f"unable to open database file: no {path}")
    connection = open_it()
    with closed_on_error(connection):
        opened = OpenedFiles.look(path)
        if opened is None or opened.database != before.database:
            raise replaced_file()
        _FORKS.note_files(engine, opened)
    return connection


def opened_files(engine: Engine) -> OpenedFiles | None:
    """Return the files that an engine's connections have opened."""
    return _FORKS.files.get(engine)


def forget_closed_files(engine: Engine) -> None:
    """Run after an engine closed idle connections: with the last one SQLite removes files."""
    opened = _FORKS.files.get(engine)
    if opened is not None and not opened.are_there():
        _FORKS.files.pop(engine, None)
