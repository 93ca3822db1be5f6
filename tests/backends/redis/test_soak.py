"""Many scans of clusters that are never at rest."""

from __future__ import annotations

import random

import pytest

import elasticscan
from tests.backends.redis.servers import KINDS
from tests.backends.redis.soak import SCANS, SCHEMA, soaked


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_each_key_comes_once_while_slots_move_and_masters_are_killed(kind: str) -> None:
    """Scanned from Python with pages of several sizes."""
    chance = random.Random(SCANS)
    with soaked(kind, "Python") as soak, elasticscan.open(soak.cluster.url) as store:
        table = store.table("person", SCHEMA)
        soak.scan(lambda: table.scan(page_rows=chance.choice([137, 1_000, 100_000])).to_table(), SCANS)
