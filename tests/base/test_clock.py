"""The clock and its twin."""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Thread

import pytest

from elasticscan.base.clock import Clock, SystemClock
from tests.base.manual_clock import ManualClock


def test_the_system_clock_counts_seconds_since_the_epoch_in_utc() -> None:
    clock: Clock = SystemClock()
    before = datetime.now(UTC).timestamp()
    clock.sleep(0)
    assert abs(clock.now() - before) < 3_600


def test_the_manual_clock_moves_when_reported_and_passes_a_sleep_at_once() -> None:
    clock = ManualClock(start=1_000.0)
    assert clock.now() == clock.now() == 1_000.0
    clock.advance(60)
    clock.sleep(7 * 86_400)
    assert clock.now() == 1_060.0 + 7 * 86_400


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_no_clock_sleeps_backwards(clock: Clock) -> None:
    with pytest.raises(ValueError):
        clock.sleep(-1)


def test_threads_can_share_a_manual_clock() -> None:
    clock = ManualClock()

    def sleep_often() -> None:
        for _ in range(500):
            clock.sleep(1)

    threads = [Thread(target=sleep_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now() == 2_000
