"""The gate through which SQLite is used, so that no fork meets it during its work: see `connections`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock, get_ident
from time import monotonic
from typing import Final


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

        For a thread that holds something a fork waits for, and for finalizers: these run at any moment, also
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
        """This thread and a new entry, which is taken out in the end."""
        me, entry = get_ident(), object()
        try:
            yield me, entry
        finally:
            # Not yet, or in a child; and a finalizer may run where this thread has the lock.
            if entry in self._inside.get(me, ()):
                with self._lock:
                    self._changed.notify_all()
                    left = self._inside[me] - {entry}
                    if left:
                        self._inside[me] = left
                    else:
                        del self._inside[me]

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


GATE: Final = ForkGate()
