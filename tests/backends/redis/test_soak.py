"""Many scans of clusters that are never at rest; and a reader without the guard, which the same finds."""

from __future__ import annotations

import random
from itertools import count

import pytest

import elasticscan
from tests.backends.redis.planted import no_guard
from tests.backends.redis.servers import KINDS
from tests.backends.redis.soak import SCANS, SCHEMA, Soak, soaked


def scan(soak: Soak, times: int) -> Soak:
    """Scan from Python with pages of several sizes."""
    chance = random.Random(times)
    with elasticscan.open(soak.cluster.url) as store:
        table = store.table("person", SCHEMA)
        return soak.scan(lambda: table.scan(page_rows=chance.choice([137, 1_000, 100_000])).to_table(), times)


@pytest.mark.parametrize("kind", KINDS)
def test_each_key_comes_once_while_slots_move_and_masters_are_killed(kind: str) -> None:
    with soaked(kind, "Python") as soak:
        scan(soak, SCANS)
    assert (soak.scans, soak.lost, soak.repeated, soak.wrong) == (SCANS, 0, 0, 0)
    assert soak.moves and soak.left_open and soak.writes and soak.kills


@pytest.mark.parametrize("kind", KINDS)
def test_names_that_are_believed_without_the_guard_are_found(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_guard(monkeypatch)
    with soaked(kind, "without the guard") as soak:
        for _ in count():
            if scan(soak, 1).lost + soak.repeated or soak.scans == 30:
                break
    assert soak.lost + soak.repeated
