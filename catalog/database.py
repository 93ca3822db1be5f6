"""The home of a log: the interface that the log needs of a database, and its pool of connections.

SqliteHome     a file on a local disk, for the processes of one machine
PostgresHome   a server, for many machines

A thread uses one connection at a time, and a forked child uses none of its parent's. SQLite remembers in
memory which locks the process has on a file, and a child that opens the file would believe that these are its
own. So the free SQLite connections are closed before a fork. If another thread uses one during the fork, the
fork does not wait for it, and the child cannot use SQLite. Connections to a server belong to the parent. The
child never closes them, since that would end the parent's session.

A thread that has a connection, for a transaction for example, executes all its statements on it. With a
second one it could wait for itself: a pooler may have few connections, and the threads that have the others
may wait for this transaction to end.
"""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Condition, RLock, get_ident
from typing import Any, ClassVar, Final, Self
from weakref import WeakSet

from elasticscan.base.clock import Clock
from elasticscan.base.errors import CatalogUnavailable, InvalidCall
from elasticscan.base.limits import BUSY_SECONDS
from elasticscan.catalog import tables
from elasticscan.catalog.entries import damaged_log

Row = tuple[Any, ...]
NOTHING: Final[Mapping[str, Any]] = {}

MOST: Final = 40  # connections of a home; more threads wait
_MOST_FREE: Final = 8  # unused connections that a home keeps open
# One lock for all homes. A fork holds it, so that no thread opens a connection during the fork. Reentrant,
# since a finalizer may run in a thread that holds it.
_LOCK: Final = RLock()


class LogHome(ABC):
    """A database with the tables of a log. Safe to use from several threads, and after a fork.

    Raises `CatalogUnavailable` (try again), `CommitUnknown` (the transaction may have been committed),
    `DiskFull`, `StoreDamaged` and `ReadOnlyStore` in place of the database's errors.

    Attributes:
        retry_seconds: how long an unreachable database is tried again.
        clock: the clock for leases and expiry; at a server, the server's.
        file: the database's file; None for a server.
        why_read_only: the reason why nothing can be written, or None.
        is_follower: the server is a standby, which may lag behind a state that was seen before.
        appends_inline: the home implements `append_inline`.
        types: the database's SQL for the types of columns, and for the digest before the first record.
    """

    retry_seconds: float
    clock: Clock
    file: Path | None = None
    why_read_only: str | None = None
    is_follower = appends_inline = False
    types: ClassVar[Mapping[str, str]]
    _is_barred = False  # in a child whose parent used SQLite during the fork; for all files

    def __init__(self) -> None:
        self._free, self._closings = list[Any](), 0
        self._returned = Condition(_LOCK)
        # (process, connection) by thread; the connection is None while it is being opened.
        self._held = dict[int, tuple[int, Any]]()
        with _LOCK:
            HOMES.add(self)

    @abstractmethod
    def make_tables(self) -> None:
        """Create the tables of a log that do not exist yet."""

    def remove_empty(self) -> None:
        """Remove the files of a log without records; keep a log that another process has begun meanwhile."""
        return

    @abstractmethod
    def inspect(self) -> bool:
        """Return whether the tables of a log exist; set `why_read_only` and `is_follower`."""

    @abstractmethod
    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        """Execute a statement and return all rows, in this thread's transaction if there is one.

        Outside of a transaction the statement is retried, so it must be safe to repeat.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[Self]:
        """Begin a transaction that reads: all statements of this thread see one snapshot."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Self]:
        """Begin a transaction under the log's lock, of which all processes have one; commit at the end."""

    def check_sound(self) -> None:
        """Raise `StoreDamaged` if SQLite's own check of the file fails; a server does nothing here."""
        return

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        """Append an entry with its parts in one statement, if the head's layout is `values["layout"]`.

        Returns (number, time, digest); None, with nothing appended, if the layout differs.
        """
        raise NotImplementedError

    def is_begun(self) -> bool:
        """Return whether the log has a record."""
        return bool(head_in(self.execute(tables.HEAD))[0] != -1)

    def definitions(self) -> list[str]:
        """Return the statements that make the tables."""
        return [statement.format(**self.types) for statement in tables.CREATE]

    # Connections

    @abstractmethod
    def _connect(self) -> Any:
        """Open a connection."""

    @abstractmethod
    def _reset(self, connection: Any) -> bool:
        """Roll back the transaction of a connection that is returned; return whether it can be used again."""

    def _end(self, connection: Any) -> None:
        connection.close()

    @property
    def in_transaction(self) -> bool:
        """True if this thread is in a transaction of this log."""
        return self.held is not None

    @property
    def held(self) -> Any:
        """This thread's connection, or None. Raises `InvalidCall` in a child that was forked meanwhile."""
        process, connection = self._held.get(get_ident(), (os.getpid(), None))
        if process != os.getpid():
            raise _forked_during_use()
        return connection

    @contextmanager
    def _lent(self) -> Iterator[Any]:
        """Lend this thread a connection: the one that it has, or a free or a new one."""
        held = self.held
        if held is not None:
            yield held
            return
        process, thread = os.getpid(), get_ident()
        with _LOCK:
            if self._is_barred and self.file is not None:
                raise _forked_during_use()
            if not self._returned.wait_for(lambda: len(self._held) < MOST, BUSY_SECONDS):
                raise CatalogUnavailable(
                    "too many threads of this process use the catalog at once; try again, or use fewer"
                )
            connection, closings = self._free.pop() if self._free else None, self._closings
            self._held[thread] = process, connection
        try:
            if connection is None:
                connection = self._connect()
                self._held[thread] = process, connection
            yield connection
        finally:
            if os.getpid() != process:  # a forked child: the parent ends the transaction
                self._held.pop(thread, None)
                _never_free(connection)
                raise _forked_during_use()
            self._give_back(thread, closings)

    def _give_back(self, thread: int, closings: int) -> None:
        (_, connection), is_usable = self._held[thread], False
        with suppress(Exception):
            is_usable = connection is not None and self._reset(connection)
        with _LOCK:
            del self._held[thread]
            self._returned.notify()
            if is_usable and closings == self._closings and len(self._free) < _MOST_FREE:
                self._free.append(connection)
            elif connection is not None:
                self._close_all([connection])

    def close(self) -> bool:
        """Close free connections now, and others when they are returned; return whether there are others."""
        with _LOCK:
            self._closings += 1
            self._close_all(self._free)
            return bool(self._held)

    def _close_all(self, connections: list[Any]) -> None:
        while connections:
            with suppress(Exception):  # a connection that is already broken
                self._end(connections.pop())

    def _after_fork(self) -> None:
        """Forget the parent's connections, in a forked child, without closing them."""
        for connection in (*self._free, *(connection for _, connection in self._held.values())):
            _never_free(connection)
        if self._held and self.file is not None:
            LogHome._is_barred = True
        thread = get_ident()  # the other threads are not in this process
        self._held = {thread: self._held[thread]} if thread in self._held else {}
        self._free, self._returned = [], Condition(_LOCK)


HOMES: Final[WeakSet[LogHome]] = WeakSet()


def in_transaction() -> bool:
    """Return whether this thread is in a transaction of any log; a second one could cause a deadlock."""
    with _LOCK:
        return any(get_ident() in home._held for home in HOMES)


def micros(seconds: float) -> int:
    """Return a time in seconds since 1970 in microseconds, the unit of the log."""
    return round(seconds * 1e6)


def head_in(rows: Sequence[Row]) -> Row:
    """Return (number, digest, time, layout) of the head."""
    if len(rows) == 1:
        return rows[0]
    raise damaged_log(f"it has {len(rows)} heads")


def _forked_during_use() -> InvalidCall:
    return InvalidCall(
        "this process was forked during a transaction of its parent; fork while the parent rests, or start "
        "processes with 'spawn'",
        process=os.getpid(),
    )


def _never_free(connection: object) -> None:
    """Keep an object alive until the process ends, even while the interpreter shuts down."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _before_fork() -> None:
    _LOCK.acquire()
    for home in list(HOMES):
        if home.file is not None:
            home._close_all(home._free)


def _after_fork() -> None:
    for home in list(HOMES):
        home._after_fork()
    _LOCK.release()


os.register_at_fork(before=_before_fork, after_in_parent=_LOCK.release, after_in_child=_after_fork)
