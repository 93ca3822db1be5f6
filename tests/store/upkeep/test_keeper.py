"""The pace of keepers. What they do is in `tests/transcripts/keeper*.txt`; random programs kill them."""

from __future__ import annotations

from pathlib import Path

from elasticscan.store import Store
from elasticscan.store.upkeep.keeper import _Pace
from tests.base.manual_clock import ManualClock

START = 4_000_000_000.0


def test_a_keeper_keeps_to_its_speed_and_rests_while_others_commit(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with Store.create(tmp_path / "s", ["a"], clock=clock) as store:
        pace = _Pace(store.context, 1_000)
        pace(5_000)
        assert clock.now() == START + 5
        unbounded = _Pace(store.context, None)
        clock.advance(0.25)
        unbounded(1 << 30)
        assert clock.now() == START + 5.25
        store.create_table("t", [{"id": 1}], primary_key="id")
        clock.advance(0.25)
        unbounded(1)
        assert clock.now() > START + 5.5
