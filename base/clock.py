"""Time, behind one narrow protocol, so that tests can set it.

Leases, retention and grace periods ask a `Clock` and never the `time` module.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Protocol

from elasticscan.base.errors import InvalidOption
from elasticscan.base.formatting import brief

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Clock(Protocol):
    """The interface of clocks."""

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


def seconds_of(option: str, text: str) -> float:
    """Parse `30s`, `90m`, `12h` or `7d`; 0 needs no unit."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)([smhd])|0", text.lower(), re.ASCII)
    if match is None:
        raise InvalidOption(
            f"{option}={brief(text)} must have a unit, as in 30s, 90m, 12h or 7d", option=option
        )
    return float(match[1] or 0) * _SECONDS[match[2] or "s"]


def zoned(option: str, moment: datetime) -> datetime:
    """Return the moment itself, with a zone.

    Raises:
        InvalidOption: it has no zone. Python would assume this machine's zone, SQL the session's, and
            others UTC: only the caller knows.
    """
    if moment.utcoffset() is None:
        plain = moment.replace(tzinfo=None).isoformat()
        raise InvalidOption(
            f"{option}={plain} has no time zone: write '{plain}Z' for UTC, or its offset as in "
            f"'{plain}+02:00'; a datetime takes tzinfo=datetime.UTC",
            option=option,
        )
    return moment
