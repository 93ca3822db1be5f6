"""Random programs against the real store, compared with a plain dict at every snapshot.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-5000, to run others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.seeds import ranges_of_seeds
from tests.store.soup import Kitchen


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    with Kitchen(tmp_path_factory.mktemp("model")) as kitchen:
        yield kitchen


@pytest.mark.parametrize("seeds", ranges_of_seeds(12, 10, short=2), ids=str)
def test_every_scan_of_a_random_program_returns_its_snapshot_exactly_once(
    kitchen: Kitchen, seeds: range
) -> None:
    for seed in seeds:
        kitchen.run(seed)
