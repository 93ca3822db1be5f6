"""Connections of this process to a log's database: few, one a thread at a time, and none across a fork.

SQLite keeps in memory which locks the process has on a file, and a child that opens the file takes them for
its own. So its free connections are closed before a fork. If another thread uses one meanwhile, the fork does
not wait for it, and the child cannot use SQLite. A server's connections are the parent's, and the child never
closes them: that would end the parent's session.

What a thread asks while it has a connection, in a transaction for example, goes over the same one: a pooler
may have few, and in all others threads wait for that transaction to end.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Condition, RLock, get_ident
from typing import Any, ClassVar, Final, Generic, TypeVar
from weakref import WeakSet

from elasticscan.base.errors import CatalogUnavailable, ScanConsumed
from elasticscan.base.limits import BUSY_SECONDS

C = TypeVar("C")

MOST: Final = 40  # connections; threads that find none free wait
_MOST_FREE: Final = 8  # are kept
# Of all pools. A fork holds it: no connection is open then that is not counted. Finalizers may enter again.
_LOCK: Final = RLock()


class ConnectionPool(Generic[C]):
    """Connections, opened as they are needed.

    Args:
        connect: opens one.
        reset: ends the transaction of one that was lent; returns whether it can be lent again.
        close: closes one.
        of_file: they are SQLite's, and are closed before a fork.
    """

    is_barred: ClassVar = False  # a child whose parent used SQLite in another thread, of all files

    def __init__(
        self,
        connect: Callable[[], C],
        reset: Callable[[C], bool],
        close: Callable[[C], object],
        of_file: bool,
    ) -> None:
        self._connect, self._reset, self._close, self._of_file = connect, reset, close, of_file
        self._free, self._closings = list[C](), 0
        self._returned = Condition(_LOCK)
        # Process and connection, by the thread that has one; none while it is opened.
        self._held = dict[int, tuple[int, C | None]]()
        with _LOCK:
            _POOLS.add(self)

    @property
    def held(self) -> C | None:
        """The connection that this thread has; raises `ScanConsumed` in a child that was forked meanwhile."""
        process, connection = self._held.get(get_ident(), (os.getpid(), None))
        if process != os.getpid():
            raise forked_amid_use()
        return connection

    def check_process(self) -> None:
        """Raise `ScanConsumed` in a child that was forked while this thread had a connection."""
        assert self.held is not None, "this thread has a connection"

    @contextmanager
    def connection(self) -> Iterator[C]:
        """Lend a connection; to a thread that has one, the same."""
        held = self.held
        if held is not None:
            yield held
            return
        process, thread = os.getpid(), get_ident()
        with _LOCK:
            if self.is_barred and self._of_file:
                raise forked_amid_use()
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
                raise forked_amid_use()
            self._give_back(thread, closings)

    def _give_back(self, thread: int, closings: int) -> None:
        (_, connection), is_usable = self._held[thread], False
        with suppress(Exception):
            is_usable = connection is not None and self._reset(connection)
        with _LOCK:
            del self._held[thread]
            self._returned.notify()
            back = [] if connection is None else [connection]
            if is_usable and closings == self._closings and len(self._free) < _MOST_FREE:
                self._free += back
            else:
                self.close_all(back)

    def close(self) -> bool:
        """Close the connections that are free, and others once they are; return whether there are others."""
        with _LOCK:
            self._closings += 1
            self.close_all(self._free)
            return bool(self._held)

    def close_all(self, connections: list[C]) -> None:
        while connections:
            with suppress(Exception):  # one that is broken already
                self._close(connections.pop())

    def after_fork(self) -> None:
        """Begin again, in a child: what its parent has stays as it is."""
        for connection in (*self._free, *(connection for _, connection in self._held.values())):
            _never_free(connection)
        if self._held and self._of_file:
            ConnectionPool.is_barred = True
        mine = get_ident()  # the other threads are not in this process
        self._held = {mine: self._held[mine]} if mine in self._held else {}
        self._free, self._returned = [], Condition(_LOCK)


def forked_amid_use() -> ScanConsumed:
    return ScanConsumed(
        "this process was forked during a transaction of its parent; fork while the parent rests, or start "
        "processes with 'spawn'",
        process=os.getpid(),
    )


def _never_free(connection: object) -> None:
    """Keep an object for as long as the process lives, also while the interpreter takes itself down."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


_POOLS: Final[WeakSet[ConnectionPool[Any]]] = WeakSet()


def in_transaction() -> bool:
    """Return whether this thread is in a transaction of any log; a second one could deadlock."""
    with _LOCK:
        return any(get_ident() in pool._held for pool in _POOLS)


def _before() -> None:
    _LOCK.acquire()
    for pool in list(_POOLS):
        if pool._of_file:
            pool.close_all(pool._free)


def _in_child() -> None:
    for pool in list(_POOLS):
        pool.after_fork()
    _LOCK.release()


os.register_at_fork(before=_before, after_in_parent=_LOCK.release, after_in_child=_in_child)
