"""Streams whose drivers are killed with -9, alongside writers, a mover and a compactor: the short form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.processes import PROC
from tests.soak.soak import run

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(not (PROC / "self" / "stat").exists(), reason="finds processes in /proc"),
]


def test_streams_whose_drivers_are_killed_tell_every_change_once(tmp_path: Path) -> None:
    outcome = run(tmp_path / "soak", seconds=10)
    assert not outcome.wrong, str(outcome)
