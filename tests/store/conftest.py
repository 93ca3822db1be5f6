"""What tests of stores share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elasticscan.store import Store, Table
from tests.base.manual_clock import ManualClock


@pytest.fixture
def other(store: Store) -> Iterator[Store]:
    """The same store as another process has it: with caches of its own, filled before anything changes."""
    with Store.open(store.uri) as opened:
        opened.table("t").scan().to_table()
        yield opened


@pytest.fixture
def table(store: Store) -> Table:
    return store.table("t")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)
