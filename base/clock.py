"""Time, behind one narrow protocol, so that tests can turn it by hand.

Leases, retention and grace periods ask a `Clock` and never the `time` module.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock, as far as the rest of the project may see one."""

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
