"""The clock of tests: time passes only when a test moves it."""

from __future__ import annotations

import threading


class ManualClock:
    """A clock that stands still until `advance` or `sleep` moves it. Its `sleep` returns at once.

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
