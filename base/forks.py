"""Locks, and work that must not be cut in two, when a process is forked.

A forked child has one thread, that of the fork, and the memory of all: a lock that another thread
held stays shut in it for ever. So locks that are held for a moment are made again in the child
(`ChildSafeLock`), and work whose inner state nobody but its library can make again is waited for
before a fork (`ForkGate`): a gate lets work in, a fork shuts it, waits until nobody is inside, and
opens it again on both sides. Work that calls a user's code, which may fork, remembers whose it is
(`Birthplace`), so that the child neither finishes nor cleans up what its parent goes on with. Where
no lock is needed there is none (`cached_property`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock, get_ident
from time import monotonic
from typing import Any, Self, TypeVar, overload
from weakref import WeakSet

from elasticscan.base.errors import UnsafeFork
from elasticscan.base.interrupted import forget, note

T = TypeVar("T")


class ChildSafeLock:
    """A lock for short steps that are whole one by one; a forked child finds it open."""

    def __init__(self) -> None:
        self._lock = Lock()
        _LOCKS.add(self)

    # `with` calls the inner lock's own methods. In one of Python's the handler of a signal may raise
    # before the first step or behind the last one, and the lock would stay shut for ever.
    @property
    def __enter__(self) -> Callable[[], bool]:
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:  # noqa: PLE0302 - a property
        return self._lock.__exit__

    def _renew(self) -> None:
        self._lock = Lock()


_LOCKS: WeakSet[ChildSafeLock] = WeakSet()


def _renew_locks() -> None:
    for lock in list(_LOCKS):
        lock._renew()


os.register_at_fork(after_in_child=_renew_locks)


class cached_property(functools.cached_property[T]):  # noqa: TID251 - in its place
    """Python's own without its lock, which up to Python 3.11 all instances share, and no child can open.

    Where two threads ask at once, both may compute; they get what the first one has.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | T:
        if instance is None:
            return self
        kept, name = instance.__dict__, str(self.attrname)
        if name not in kept:
            kept.setdefault(name, self.func(instance))
        value: T = kept[name]
        return value


class Birthplace:
    """The process that began something."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._process

    def check(self) -> None:
        """Raise `UnsafeFork` in a child that was forked before the work was done."""
        if not self.is_here:
            raise UnsafeFork(
                "this process was forked during a write or a move of its parent, which alone continues it; "
                "nothing was changed here: write or move in the child by a call of its own",
                process=os.getpid(),
            )


class ForkGate:
    """Lets threads in to work, and keeps them out while the process forks."""

    def __init__(self) -> None:
        self.renew()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Hold off forks for the length of a block. A thread may enter again, also while a fork waits."""
        with self._entry() as (me, entry):
            with self._lock:
                while self._shut and me not in self._inside:
                    self._changed.wait()
                self._add(me, entry)
            yield

    @contextmanager
    def inside_at_once(self) -> Iterator[bool]:
        """The same without waiting: False where a fork is under way, or the gate just changes.

        For whoever holds what a fork waits for, and for finalizers, which may run during anything, and so
        in the thread that changes the gate.
        """
        entered = False
        with self._entry() as (me, entry):
            if not self._lock.locked():
                with self._lock:
                    entered = not self._shut or me in self._inside
                    if entered:
                        self._add(me, entry)
            yield entered

    @contextmanager
    def _entry(self) -> Iterator[tuple[int, object]]:
        """This thread and a new entry, which is taken out in the end, whatever comes between."""
        me, entry = get_ident(), object()

        def leave() -> None:
            if entry not in self._inside.get(me, ()):
                return  # not yet, or in a child; and a finalizer may run where this thread has the lock
            with self._lock:
                self._changed.notify_all()  # before the last step, behind which nothing is done again
                left = self._inside[me] - {entry}
                if left:
                    self._inside[me] = left
                else:
                    del self._inside[me]

        try:
            note(leave)
            yield me, entry
        finally:
            try:
                leave()
            except BaseException:  # of a signal's handler
                leave()
                raise
            finally:
                forget(leave)

    def _add(self, thread: int, entry: object) -> None:
        self._inside[thread] = self._inside.get(thread, frozenset()) | {entry}  # whole, or not at all

    def is_inside(self) -> bool:
        """True if this thread is at work."""
        return get_ident() in self._inside

    def shut(self, seconds: float) -> bool:
        """Keep threads out and wait until none is inside; False if one still is after `seconds`.

        A thread that forks while it is inside would wait for itself for ever, so it does not wait.
        """
        end = monotonic() + seconds
        with self._lock:
            self._shut = get_ident() not in self._inside
            while self._shut and self._inside:
                left = end - monotonic()
                if left <= 0:
                    self._shut = False
                    self._changed.notify_all()
                else:
                    self._changed.wait(left)
            return self._shut

    def open(self) -> None:
        with self._lock:
            self._shut = False
            self._changed.notify_all()

    def renew(self) -> None:
        """Begin again in a forked child: no thread is inside there, and none waits."""
        self._lock = Lock()  # entered by itself: Condition's own way in is not proof against signals
        self._changed = Condition(self._lock)
        self._inside: dict[int, frozenset[object]] = {}  # thread -> its entries
        self._shut = False
