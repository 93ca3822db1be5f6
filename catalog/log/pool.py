"""Connections of this process to a log's database: few, of no thread in particular, and none across a fork.

SQLite keeps in memory which locks the process has on a file, and a child that opens the file takes them for
its own. So its free connections are closed before a fork. If another thread uses one meanwhile, the fork does
not wait for it, and the child cannot use SQLite. A server's connections are the parent's, and the child never
closes them: that would end the parent's session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from elasticscan.base.errors import ScanConsumed

C = TypeVar("C")


class ConnectionPool(Generic[C]):
    """Connections, opened as they are needed.

    Args:
        connect: opens one.
        is_usable: whether one can be used again after an error.
        close: closes one.
        across_forks: whether a child leaves its parent's connections as they are (a server's); else they are
            closed before the fork.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        is_usable: Callable[[C], bool],
        close: Callable[[C], None],
        across_forks: bool,
    ) -> None:
        self._connect, self._is_usable, self._close = connect, is_usable, close
        self._across_forks = across_forks
        self._lock, self._free, self._used = Lock(), list[C](), 0
        self._inherited: list[list[C]] = []
        self._is_unsafe = False
        _POOLS.add(self)

    @contextmanager
    def connection(self) -> Iterator[C]:
        with self._lock:
            if self._is_unsafe:
                raise ScanConsumed(
                    "this process was forked while another thread used the store; start it by spawn"
                )
            connection = self._free.pop() if self._free else None
            self._used += 1
        process = os.getpid()
        try:
            connection = connection or self._connect()
            yield connection
        finally:
            if os.getpid() == process:
                self._give_back(connection)

    def _give_back(self, connection: C | None) -> None:
        usable = connection is not None and self._is_usable(connection)
        with self._lock:
            self._used -= 1
            if usable and connection is not None:
                self._free.append(connection)
        if connection is not None and not usable:
            self._close(connection)

    def close(self) -> None:
        """Close the connections that are free."""
        with self._lock:
            going, self._free = self._free, []
        for connection in going:
            self._close(connection)

    def before_fork(self) -> None:
        self._lock.acquire()
        if not self._across_forks:
            while self._free:
                self._close(self._free.pop())

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = Lock()
        self._inherited.append(self._free)  # kept, so that nothing closes them
        self._is_unsafe = self._used > 0 and not self._across_forks
        self._free, self._used = [], 0


_POOLS: WeakSet[ConnectionPool[Any]] = WeakSet()
_FORKING: list[ConnectionPool[Any]] = []  # whose locks are held during a fork


def _before() -> None:
    _FORKING[:] = list(_POOLS)
    for pool in _FORKING:
        pool.before_fork()


def _in_parent() -> None:
    for pool in _FORKING:
        pool.after_fork_in_parent()
    _FORKING.clear()


def _in_child() -> None:
    for pool in _FORKING:
        pool.after_fork_in_child()
    _FORKING.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
