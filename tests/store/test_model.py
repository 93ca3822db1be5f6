"""Random programs against the real store, compared with a plain dict at every snapshot.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-5000, to run others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.store.soup import Kitchen

CHUNKS, SEEDS_OF_A_CHUNK = 12, 10


def chosen_seeds() -> list[range]:
    text = os.environ.get("ELASTICSCAN_SEEDS")
    if text:
        first, _, last = text.partition("-")
        return [range(int(first), int(last or first) + 1)]
    return [range(n * SEEDS_OF_A_CHUNK, (n + 1) * SEEDS_OF_A_CHUNK) for n in range(CHUNKS)]


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    with Kitchen(tmp_path_factory.mktemp("model")) as kitchen:
        yield kitchen


@pytest.mark.parametrize("seeds", chosen_seeds(), ids=str)
def test_every_scan_of_a_random_program_returns_its_snapshot_exactly_once(
    kitchen: Kitchen, seeds: range
) -> None:
    for seed in seeds:
        kitchen.run(seed)
