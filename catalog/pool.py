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
from threading import Condition, Lock, get_ident
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from elasticscan.base.errors import CatalogUnavailable, ScanConsumed

C = TypeVar("C")

MOST: Final = 40  # connections; threads that find none free wait
_MOST_FREE: Final = 8  # are kept


class ConnectionPool(Generic[C]):
    """Connections, opened as they are needed.

    Args:
        connect: opens one.
        is_usable: whether one can be used again by others.
        close: closes one.
        wait_seconds: for how long a thread waits for a free one.
        across_forks: whether a child leaves its parent's connections as they are (a server's); else they are
            closed before the fork.
        is_current: whether a free one still shows the newest state; others are closed.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        is_usable: Callable[[C], bool],
        close: Callable[[C], None],
        wait_seconds: float,
        across_forks: bool,
        is_current: Callable[[C], bool] = lambda _: True,
    ) -> None:
        self._connect, self._is_usable, self._close = connect, is_usable, close
        self._wait, self._across_forks, self._is_current = wait_seconds, across_forks, is_current
        self._lock, self._free, self._used = Lock(), list[C](), 0
        self._returned = Condition(self._lock)
        self._held = dict[int, tuple[int, C]]()  # process and connection, by the thread that has one
        _POOLS.add(self)

    @property
    def held(self) -> C | None:
        """The connection that this thread has; raises `ScanConsumed` in a child that was forked meanwhile."""
        held = self._held.get(get_ident())
        if held is None:
            return None
        if held[0] != os.getpid():
            raise forked_amid_use()
        return held[1]

    @contextmanager
    def connection(self) -> Iterator[C]:
        """Lend a connection; to a thread that has one, the same."""
        held = self.held
        if held is not None:
            yield held
            return
        connection = self._take()
        process, thread = os.getpid(), get_ident()
        try:
            if connection is not None and not self._is_current(connection):
                self._close_one(connection)
                connection = None
            if connection is None:
                connection = self._connect()
            self._held[thread] = process, connection
            yield connection
        finally:
            self._held.pop(thread, None)
            if os.getpid() != process:  # the parent ends what was begun
                _never_free(connection)
                raise forked_amid_use()
            self._give_back(connection)

    def _take(self) -> C | None:
        """Return a free connection, or None for leave to open one."""
        with self._lock:
            if _FORKED_AMID_USE and not self._across_forks:
                raise forked_amid_use()
            if not self._returned.wait_for(lambda: self._free or self._used < MOST, self._wait):
                raise CatalogUnavailable(
                    "too many threads of this process use the catalog at once; try again, or use fewer"
                )
            self._used += 1
            return self._free.pop() if self._free else None

    def _give_back(self, connection: C | None) -> None:
        usable = connection is not None and self._is_usable(connection)
        with self._lock:  # which a fork waits for: no connection is open then that is not counted
            if usable and connection is not None and len(self._free) < _MOST_FREE:
                self._free.append(connection)
            elif connection is not None:
                self._close_one(connection)
            self._used -= 1
            self._returned.notify()

    def close(self) -> bool:
        """Close the connections that are free; return whether there are others."""
        with self._lock:
            while self._free:
                self._close_one(self._free.pop())
            return self._used > 0

    def _close_one(self, connection: C) -> None:
        with suppress(Exception):  # one that is broken already
            self._close(connection)

    def before_fork(self) -> None:
        self._lock.acquire()
        if not self._across_forks:
            while self._free:
                self._close_one(self._free.pop())

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> bool:
        """Begin anew; return True if another thread of the parent used a file that it has open."""
        self._lock = Lock()
        self._returned = Condition(self._lock)
        for connection in self._free:
            _never_free(connection)
        mine = self._held.get(get_ident())  # the other threads are not in this process
        self._held = {} if mine is None else {get_ident(): mine}
        is_amid_use = self._used > 0 and not self._across_forks
        self._free, self._used = [], 0
        return is_amid_use


def forked_amid_use() -> ScanConsumed:
    return ScanConsumed(
        "this process was forked during a transaction of its parent; fork while the parent rests, or start "
        "processes with 'spawn'",
        process=os.getpid(),
    )


def _never_free(connection: object) -> None:
    """Keep an object for as long as the process lives, also while the interpreter takes itself down."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


_POOLS: WeakSet[ConnectionPool[Any]] = WeakSet()
_FORKING: list[ConnectionPool[Any]] = []  # whose locks are held during a fork
# Has an entry in a process that was forked while another thread used SQLite. What SQLite knows of locks is
# the parent's then, for each connection to a file: also for those that are opened anew.
_FORKED_AMID_USE: list[bool] = []


def _before() -> None:
    _FORKING[:] = list(_POOLS)
    for pool in _FORKING:
        pool.before_fork()


def _in_parent() -> None:
    for pool in _FORKING:
        pool.after_fork_in_parent()
    _FORKING.clear()


def _in_child() -> None:
    _FORKED_AMID_USE.extend(pool.after_fork_in_child() for pool in _FORKING)
    _FORKED_AMID_USE[:] = [True for is_amid_use in _FORKED_AMID_USE if is_amid_use]
    _FORKING.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
