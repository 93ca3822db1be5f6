"""Threads whose start comes to an end, also where they die before they begin.

`Thread.start` waits until the new thread says that it has begun. Where the process has no memory left, the
thread may end before that, without a word, and whoever started it would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

START_SECONDS = 20.0


class _Begun(Event):
    """The event that a new thread has begun; to wait for it ends with an error."""

    def __init__(self) -> None:
        super().__init__()
        self._undecided = [True]

    def decide(self) -> bool:
        """True for the first that asks: the thread, which then works, or who waits, and then gives it up."""
        try:
            return self._undecided.pop()
        except IndexError:
            return False

    def wait(self, timeout: float | None = None) -> bool:
        if super().wait(START_SECONDS if timeout is None else timeout) or not self.decide():
            return True
        raise RuntimeError(
            "can't start new thread: it has not begun"
        )  # as Python says of one that is refused


class BoundedThread(Thread):
    """A thread whose `start` raises `RuntimeError` where it does not begin in time; then it never does."""

    def __init__(
        self, work: Callable[[], object], name: str | None = None, daemon: bool | None = None
    ) -> None:
        super().__init__(name=name, daemon=daemon)
        self._work = work
        self._started = _Begun()  # what `start` waits for, in every Python from 3.11 to 3.13

    def run(self) -> None:
        if self._started.decide():
            self._work()
