"""Time, behind one narrow protocol, so that tests can turn it by hand.

Leases, retention and grace periods ask a `Clock` and never the `time` module. `SystemClock` is the
real one; `ManualClock` is its in-memory twin, where time passes only when somebody says so.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What the rest of the project may know about time."""

    def now(self) -> float:
        """Seconds since the epoch, UTC. May step back when the machine's clock is set."""

    def sleep(self, seconds: float) -> None:
        """Return when `seconds` (0 or more) have passed."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that stands still until `advance` or `sleep` moves it; nobody ever waits.

        clock = ManualClock(start=1_000.0)
        clock.advance(3_600)
        assert clock.now() == 4_600.0

    Safe to share among threads.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        # The real sleep refuses this too; a twin that allows it would hide the mistake.
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} seconds")
        with self._lock:
            self._now += seconds
