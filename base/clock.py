"""Time, behind one narrow protocol, so that tests can turn it by hand.

Leases, retention and grace periods ask a `Clock` and never the `time` module.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Protocol

from elasticscan.base.errors import InvalidOption


class Clock(Protocol):
    """A clock, as far as the rest of the project may see one."""

    def now(self) -> float:
        """Return seconds since the epoch, UTC. May step back when the machine's clock is set."""

    def sleep(self, seconds: float) -> None:
        """Return when `seconds` (0 or more) have passed."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def zoned(option: str, moment: datetime) -> datetime:
    """Return the moment itself, with a zone.

    Raises:
        InvalidOption: it has no zone. Python would take it for this machine's, SQL for the session's, and
            others for UTC: only the caller knows.
    """
    if moment.utcoffset() is None:
        plain = moment.replace(tzinfo=None).isoformat()
        raise InvalidOption(
            f"{option}={plain} has no time zone: write '{plain}Z' for UTC, or its offset as in "
            f"'{plain}+02:00'; a datetime takes tzinfo=datetime.UTC",
            option=option,
        )
    return moment
