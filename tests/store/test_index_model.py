"""Random programs with secondary indexes against the real store, compared with a plain dict.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-5000, to run others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.store.index_soup import IndexKitchen
from tests.store.test_model import chosen_seeds

# Each takes as long as several programs without indexes.
SEEDS = chosen_seeds() if os.environ.get("ELASTICSCAN_SEEDS") else [range(6), range(6, 12)]


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexKitchen]:
    kitchen = IndexKitchen(tmp_path_factory.mktemp("model"))
    with kitchen:
        yield kitchen


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_every_scan_through_any_index_returns_its_snapshot_exactly_once(
    kitchen: IndexKitchen, seeds: range
) -> None:
    for seed in seeds:
        kitchen.run(seed)
