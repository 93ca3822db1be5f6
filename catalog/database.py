"""The place that keeps a log: what the log needs of a database, and connections to that.

SqliteHome     a file on a local disk, for the processes of one machine
PostgresHome   a server, for many machines

Connections are few, one a thread at a time, and none crosses a fork. SQLite keeps in memory which locks the
process has on a file, and a child that opens the file takes them for its own. So its free connections are
closed before a fork. If another thread uses one meanwhile, the fork does not wait for it, and the child
cannot use SQLite. A server's connections are the parent's, and the child never closes them: that would end
the parent's session.

What a thread asks while it has a connection, in a transaction for example, goes over the same one: a pooler
may have few, and in all others threads wait for that transaction to end.
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

MOST: Final = 40  # connections; threads that find none free wait
_MOST_FREE: Final = 8  # are kept
# Of all homes. A fork holds it: no connection is open then that is not counted. Finalizers may enter again.
_LOCK: Final = RLock()


class LogHome(ABC):
    """A database with the tables of a log. Safe to use from several threads, and after a fork.

    Its errors are ours: `CatalogUnavailable` (try again), `CommitUnknown` (the transaction may have been
    committed), `DiskFull`, `StoreDamaged`, `ReadOnlyStore`.

    Attributes:
        retry_seconds: for how long what cannot be reached is tried again.
        clock: by which things end; a server's is its own.
        file: the one that it lies in; None for a server.
        why_read_only: why nothing can be written; None if something can.
        is_follower: it is a standby of a server, which may show less than was seen.
        appends_inline: it has a statement that appends a small commit, `append_inline`.
        types: the database's words for the types of columns, and for the digest before the first record.
    """

    retry_seconds: float
    clock: Clock
    file: Path | None = None
    why_read_only: str | None = None
    is_follower = appends_inline = False
    types: ClassVar[Mapping[str, str]]
    _is_barred = False  # in a child whose parent used SQLite in another thread; of all files

    def __init__(self) -> None:
        self._free, self._closings = list[Any](), 0
        self._returned = Condition(_LOCK)
        # Process and connection, by the thread that has one; none while it is opened.
        self._held = dict[int, tuple[int, Any]]()
        with _LOCK:
            HOMES.add(self)

    @abstractmethod
    def make_tables(self) -> None:
        """Make the tables of a log, as far as they are not there."""

    def remove_empty(self) -> None:
        """Remove a log that was not begun, as far as it takes a place; not what others have begun there."""
        return

    @abstractmethod
    def look(self) -> bool:
        """Return whether the tables of a log are there, and note who may write to them."""

    @abstractmethod
    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        """Return all rows of a statement: within the transaction of this thread, if it has one.

        Else the statement is a transaction of its own, which reads, and is tried again.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[Self]:
        """Have this thread see one snapshot in all that it executes."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Self]:
        """Hold the log's lock, one thread of all processes at a time; commit at the end."""

    def check_sound(self) -> None:
        """Raise `StoreDamaged` unless the database finds its own file sound; a server checks by itself."""
        return

    def append_inline(self, values: Mapping[str, Any]) -> Row | None:
        """Append an entry with its parts in one statement, if the layout is `values["layout"]`.

        Returns (number, time, digest); None if the layout is another one.
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
        """End the transaction of a connection that was lent; returns whether it can be lent again."""

    def _end(self, connection: Any) -> None:
        connection.close()

    @property
    def in_transaction(self) -> bool:
        """True if this thread is in a transaction of this log."""
        return self.held is not None

    @property
    def held(self) -> Any:
        """The connection that this thread has; raises `InvalidCall` in a child that was forked meanwhile."""
        process, connection = self._held.get(get_ident(), (os.getpid(), None))
        if process != os.getpid():
            raise _forked_during_use()
        return connection

    @contextmanager
    def _lent(self) -> Iterator[Any]:
        """Lend a connection; to a thread that has one, the same."""
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
            if os.getpid() != process:  # the parent ends what was begun
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
        """Close the connections that are free, and others once they are; return whether there are others."""
        with _LOCK:
            self._closings += 1
            self._close_all(self._free)
            return bool(self._held)

    def _close_all(self, connections: list[Any]) -> None:
        while connections:
            with suppress(Exception):  # one that is broken already
                self._end(connections.pop())

    def _after_fork(self) -> None:
        """Begin again, in a child: what its parent has stays as it is."""
        for connection in (*self._free, *(connection for _, connection in self._held.values())):
            _never_free(connection)
        if self._held and self.file is not None:
            LogHome._is_barred = True
        mine = get_ident()  # the other threads are not in this process
        self._held = {mine: self._held[mine]} if mine in self._held else {}
        self._free, self._returned = [], Condition(_LOCK)


HOMES: Final[WeakSet[LogHome]] = WeakSet()


def in_transaction() -> bool:
    """Return whether this thread is in a transaction of any log; a second one could deadlock."""
    with _LOCK:
        return any(get_ident() in home._held for home in HOMES)


def micros(seconds: float) -> int:
    """Return a time in seconds since 1970 as the log has it."""
    return round(seconds * 1e6)


def head_in(rows: Sequence[Row]) -> Row:
    """Return number, digest, time and layout of the head."""
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
    """Keep an object for as long as the process lives, also while the interpreter takes itself down."""
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
