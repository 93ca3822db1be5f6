"""A scan returns each key that stays exactly once, whatever happens to slots between two commands."""

from __future__ import annotations

import pytest

from tests.backends.redis.simulated import run_program
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(200, short=20))
def test_keys_that_stay_come_once(seed: int) -> None:
    run_program(seed)
