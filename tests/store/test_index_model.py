"""Random programs with secondary indexes against the real store, compared with a plain dict.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-5000, to run others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.seeds import ranges_of_seeds
from tests.store.index_soup import IndexKitchen


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexKitchen]:
    kitchen = IndexKitchen(tmp_path_factory.mktemp("model"))
    with kitchen:
        yield kitchen


@pytest.mark.parametrize("seeds", ranges_of_seeds(4, 3, short=1), ids=str)
def test_every_scan_through_any_index_returns_its_snapshot_exactly_once(
    kitchen: IndexKitchen, seeds: range
) -> None:
    for seed in seeds:
        kitchen.run(seed)
