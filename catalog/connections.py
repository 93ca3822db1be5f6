"""Connections of this process to catalogs: few, of no thread in particular, and none across a fork.

Nothing here is kept in thread-local storage. A thread that Python did not start (of DuckDB, say)
loses its storage during its own end, when Python can run no finalizer any more: up to Python 3.12 the
process then dies.

SQLite cannot be taken across a fork: it notes in memory which locks the process has on a file, and
a child that opens the file again takes them for its own. So all connections to SQLite are closed before a
fork, and both sides open new ones when they need them. Where another thread uses one, the fork does not wait
for it: the child is refused (`ScanConsumed`) when it uses SQLite.
Connections to a server are left to the parent, and never closed by the child, since that would end
the parent's session.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock, Semaphore, get_ident
from time import monotonic, sleep
from typing import Any, Final, cast
from weakref import WeakKeyDictionary, WeakSet, finalize

from sqlalchemy import Connection, Engine, QueuePool, Select, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.util.queue import Empty

from elasticscan.base.errors import ElasticScanError, ScanConsumed
from elasticscan.base.limits import RECONNECT_SECONDS
from elasticscan.catalog.compiled import own_dialect, sql_of
from elasticscan.catalog.failures import Interrupted, commit_unknown, committing, replaced_file
from elasticscan.catalog.home import OpenedFiles
from elasticscan.catalog.waiting import answer, ask

# Parameters of statements are secrets and rows' values: errors do not tell them.
POOL: Final = {"poolclass": QueuePool, "pool_size": 8, "max_overflow": 32, "hide_parameters": True}
_OPENED_BY = "opened by"  # the process of a connection, in what SQLAlchemy keeps with it
# What a watch's question may raise alongside the driver's errors.
_TROUBLE = (SQLAlchemyError, ElasticScanError, OSError, ValueError, TypeError)
WATCHERS, ASKERS = 4, 2  # at most so many connections for each Watch, and for its questions under way
_PAUSE_SECONDS = 0.005
_INSIDE: list[int] = []  # the threads that are in a `transaction`; append and remove are atomic


def is_sqlite(engine: Engine) -> bool:
    return engine.dialect.name == "sqlite"


def is_postgres(engine: Engine) -> bool:
    """Return True for a server whose transactions outlive their connections (`server.py`)."""
    return engine.dialect.name == "postgresql" and engine.dialect.driver == "psycopg"


def in_transaction() -> bool:
    """Return whether this thread is in a `transaction`."""
    return get_ident() in _INSIDE


@contextmanager
def transaction(engine: Engine, **options: Any) -> Iterator[Connection]:
    """Begin a transaction, with the execution options of its connection.

    If this thread forks inside the block, the child must not end the transaction: the parent does.
    """
    _FORKS.check(engine)
    with ExitStack() as stack:
        connection = _enter(engine, stack, options)
        if options.get("writing"):
            stack.enter_context(_still_in_place(engine))
            stack.enter_context(committing(connection))
        else:
            stack.enter_context(connection.begin())
        process, thread = os.getpid(), get_ident()
        _INSIDE.append(thread)
        stack.callback(_INSIDE.remove, thread)
        try:
            yield connection
        finally:
            if os.getpid() != process:
                never_free(stack.pop_all())
                raise unsafe_fork()


@contextmanager
def _still_in_place(engine: Engine) -> Iterator[None]:
    """Raise `CommitUnknown` where a commit went into files that are not the catalog's any more.

    To be left while the connection is open: SQLite removes its log with the last one.
    """
    files = opened_files(engine)
    yield
    if files is not None and not files.are_there():
        raise commit_unknown("its file was replaced")


def _enter(engine: Engine, stack: ExitStack, options: Mapping[str, Any]) -> Connection:
    """Return a connection, entered into a stack."""
    # Where the files were looked at a moment ago, a new connection may be the first that meets others.
    for at_once in (bool(options), True):
        _FORKS.follow_file(engine, at_once)
        try:
            return stack.enter_context(engine.connect().execution_options(**options))
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
        self._trouble = (*_TROUBLE, engine.dialect.loaded_dbapi.Error)
        self._idle, self._in_use = list[Any](), list[None]()
        finalize(self, _close_each, self._idle).atexit = False
        self.renew()
        _FORKS.watches.add(self)

    def renew(self) -> None:
        """Begin without connections; those of a forked child are its parent's."""
        self._idle.clear()
        self._in_use.clear()
        self._turns, self._ahead = Semaphore(WATCHERS), Semaphore(ASKERS)

    def row(self) -> tuple[Any, ...] | None:
        """Return the row, or None when it could not be had this way: then ask in a transaction."""
        _FORKS.check(self.engine)
        _FORKS.follow_file(self.engine)
        try:
            with self._turns, self._lent() as connection:
                return self._ask(connection)
        except self._trouble:
            return None

    @contextmanager
    def asked(self) -> Iterator[Callable[[], tuple[Any, ...] | None]]:
        """Ask a server, and give what waits for its answer, as `row`; something else may be done before.

        No caller waits for a connection meanwhile, whatever else is asked: where none is free that may be
        kept for so long, the question is asked when its answer is wanted.
        """
        ahead = self._ahead
        if not is_postgres(self.engine) or not ahead.acquire(blocking=False):
            yield self.row
            return
        process, is_answered = os.getpid(), False
        connection: Any = None

        def row() -> tuple[Any, ...] | None:
            nonlocal is_answered
            if connection is None or os.getpid() != process:
                return self.row()
            try:
                found = self._values(answer(connection))
            except self._trouble:
                return None
            is_answered = True
            return found

        try:
            with suppress(*self._trouble):
                connection = self._open()
                ask(connection, self._words)
            yield row
        finally:
            if os.getpid() == process:
                ahead.release()
                if is_answered:
                    self._idle.append(connection)
                elif connection is not None:
                    _close_each([connection])

    @contextmanager
    def _lent(self) -> Iterator[Any]:
        """Lend a connection; it is closed if the block raises."""
        self._in_use.append(None)  # before it is open: a fork must not miss it
        try:
            connection = self._open()
            try:
                yield connection
            except BaseException:
                _close_each([connection])
                raise
            self._idle.append(connection)
        finally:
            self._in_use.pop()

    def _open(self) -> Any:
        """Return an idle connection, or a new one."""
        with suppress(IndexError):
            return self._idle.pop()
        return _connect(self.engine)

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

    def close_idle(self) -> bool:
        """Close the connections that are not in use; return whether there are others."""
        _close_each(self._idle)
        return bool(self._in_use)


def _close_each(connections: list[Any]) -> None:
    with suppress(IndexError):
        while True:
            connection = connections.pop()
            with suppress(Exception):  # of a connection that is broken already, or whose server is gone
                connection.close()


def close_idle(engine: Engine) -> bool:
    """Close the connections of an engine that are not in use; return whether there are others.

    `Engine.dispose` would make another pool. Those in use would then come back to an unknown one, and
    stay open across a fork.
    """
    pool = cast(QueuePool, engine.pool)
    with suppress(Empty):
        while True:
            pool._pool.get(block=False).close()
            pool._dec_overflow()
    return pool.checkedout() > 0


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
        self._process = os.getpid()  # the one that may use SQLite
        self._is_clean = False  # during a fork: no connection to SQLite is open
        self._lock = Lock()

    def check(self, engine: Engine) -> None:
        """Raise `ScanConsumed` in a child that cannot use SQLite."""
        if os.getpid() != self._process and is_sqlite(engine):
            raise unsafe_fork()

    def follow_file(self, engine: Engine, at_once: bool = False) -> None:
        """Drop all connections to files that are not the catalog's any more.

        No other connection sees their writes. New ones are refused until the last is closed (`note_files`):
        they would share a log. A reader may look a moment late: it reads what was there a moment ago.
        """
        opened = self.files.get(engine)
        if opened is None or (not at_once and monotonic() < opened.trusted_until) or opened.are_there():
            return
        if in_transaction():  # which has begun with them
            raise replaced_file()
        end = monotonic() + RECONNECT_SECONDS
        with self._lock:
            if self.files.get(engine) is not opened:  # another thread has done it
                return
            same = [other for other, files in list(self.files.items()) if files.path == opened.path]
            while not self._close_all(same):
                if monotonic() > end:
                    raise replaced_file()
                sleep(_PAUSE_SECONDS)
            for other in same:
                self.files.pop(other, None)

    def note_files(self, engine: Engine, opened: OpenedFiles) -> None:
        """Remember what a new connection has opened; it must be the same file as the others'."""
        if not self.files.setdefault(engine, opened).are_there():
            raise replaced_file()

    def _close_all(self, engines: Iterable[Engine]) -> bool:
        """Close idle connections; return whether no other is open."""
        watches = [watch for watch in list(self.watches) if watch.engine in engines]
        in_use = [watch.close_idle() for watch in watches] + [close_idle(engine) for engine in engines]
        return not any(in_use)

    def before(self) -> None:
        self._lock.acquire()
        engines = [engine for engine in list(self.engines) if is_sqlite(engine)]
        self._is_clean = self._close_all(engines) and os.getpid() == self._process

    def in_parent(self) -> None:
        self._is_clean = False
        self._lock.release()

    def in_child(self) -> None:
        if self._is_clean:
            self._process = os.getpid()
        self._is_clean, self._lock = False, Lock()
        _INSIDE.clear()
        for watch in list(self.watches):
            watch.renew()
        for engine in list(self.engines):
            engine.dispose(close=False)


_FORKS = _Forks()
os.register_at_fork(before=_FORKS.before, after_in_parent=_FORKS.in_parent, after_in_child=_FORKS.in_child)


def follow_forks(engine: Engine) -> None:
    """To be called once for each engine; it is forgotten with the engine."""
    _FORKS.engines.add(engine)

    @event.listens_for(engine, "connect")
    def note_process(_connection: Any, record: Any) -> None:
        record.info[_OPENED_BY] = os.getpid()

    @event.listens_for(engine, "before_cursor_execute")
    def check_process(connection: Connection, *_: Any) -> None:
        check_own(connection)


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
