"""The clock of the machine."""

from __future__ import annotations

from datetime import UTC, datetime

from elasticscan.base.clock import Clock, SystemClock


def test_the_system_clock_counts_seconds_since_the_epoch_in_utc() -> None:
    clock: Clock = SystemClock()
    before = datetime.now(UTC).timestamp()
    clock.sleep(0)
    assert abs(clock.now() - before) < 3_600
