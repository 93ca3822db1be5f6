"""A store of two shards, for tests of writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticscan.store import Store
from tests.base.manual_clock import ManualClock


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=4, slots=16, clock=clock) as made:
        yield made
