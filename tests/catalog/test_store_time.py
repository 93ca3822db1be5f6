"""What a store believes of the time, whatever single clocks say."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticscan.base.limits import CLAIM_SECONDS, TRUSTED_JUMP_SECONDS
from elasticscan.catalog import open_catalog
from elasticscan.catalog.store_time import Belief, observe
from elasticscan.store.moves.owners import beat, enter_moves, moves_in
from elasticscan.topology import Move
from tests.base.manual_clock import ManualClock
from tests.catalog.small_store import make

DAY, HOUR = 86_400.0, 3_600.0


@pytest.mark.parametrize(
    ("belief", "clock", "after"),
    [
        (Belief(1_000.0), 900.0, Belief(1_000.0)),
        (Belief(1_000.0), 1_000.0 + DAY, Belief(1_000.0 + DAY)),
        (Belief(1_000.0), 1_001.0 + DAY, Belief(1_000.0, 1_001.0 + DAY)),
        (Belief(0.0, 9 * DAY), 5.0, Belief(5.0)),
        (Belief(0.0, 9 * DAY), 8 * DAY, Belief(0.0, 8 * DAY)),
        (Belief(0.0, 9 * DAY), 9 * DAY + HOUR - 1, Belief(0.0, 9 * DAY)),
        (Belief(0.0, 9 * DAY), 9 * DAY + HOUR, Belief(9 * DAY + HOUR)),
        (Belief(0.0, 9 * DAY), 20 * DAY, Belief(9 * DAY, 20 * DAY)),
    ],
)
def test_the_table_of_what_is_believed(belief: Belief, clock: float, after: Belief) -> None:
    assert observe(belief, clock) == after


times = st.floats(0, 1e9)


@given(times, st.none() | times, times)
def test_belief_never_goes_back_and_never_beyond_the_clock_that_moved_it(
    accepted: float, claimed: float | None, clock: float
) -> None:
    after = observe(Belief(accepted, claimed), clock)
    assert after.accepted_at >= accepted
    assert after.accepted_at == accepted or after.accepted_at <= clock
    if claimed is None or clock < claimed + CLAIM_SECONDS:
        assert after.accepted_at <= accepted + TRUSTED_JUMP_SECONDS


@given(times, st.lists(st.sampled_from([0.0, 30 * DAY]), min_size=1, max_size=30))
def test_a_clock_ahead_beside_others_is_never_believed(start: float, skews: list[float]) -> None:
    belief = Belief(start)
    for minute, skew in enumerate(skews):  # the others write once a minute, too
        belief = observe(observe(belief, start + 60 * minute), start + 60 * minute + skew)
        assert belief.accepted_at <= start + 60 * minute


# ------------------------------------------------------------------------------ in the catalog


def test_a_sign_of_life_of_a_process_behind_is_no_old_one(catalog_url: Path | str) -> None:
    make(catalog_url, ManualClock(1e9)).close()
    with (
        closing(open_catalog(catalog_url, ManualClock(1e9), "here")) as catalog,
        closing(open_catalog(catalog_url, ManualClock(1e9 - 2 * DAY), "here")) as behind,
    ):
        with catalog.writing() as tx:
            tx.observe_time()
        with behind.writing() as tx:
            enter_moves(tx, [Move(1, 1, 1)], "other/machine:1:1:1")
            beat(tx, "other/machine:1:1:1")
        tx = catalog.newest()
        assert moves_in(tx)[0].heartbeat_at == tx.times.expiry
