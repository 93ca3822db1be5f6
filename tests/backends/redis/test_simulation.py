"""A scan returns each key that stays exactly once, whatever happens to slots between two commands."""

from __future__ import annotations

import pytest

from elasticscan.backends.redis import pages, scan
from elasticscan.base.errors import CoverageBroken
from tests.backends.redis.planted import FAULTS, Plant
from tests.backends.redis.simulated import Program
from tests.seeds import seeds


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan.time, "sleep", lambda _: None)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some slots be large."""
    monkeypatch.setattr(pages, "NAMES_AT_ONCE", 5)


def run_all(numbers: range) -> None:
    for seed in numbers:
        Program(seed).run()


@pytest.mark.parametrize("seed", seeds(200, short=20))
def test_keys_that_stay_come_once(seed: int) -> None:
    Program(seed).run()


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, CoverageBroken)):
        run_all(range(600))
