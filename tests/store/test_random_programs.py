"""Random programs against the real store, compared with a plain dict at every snapshot.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-5000, to run others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.seeds import ranges_of_seeds
from tests.store.kept_programs import KeptProgram
from tests.store.random_programs import Programs
from tests.store.random_tables import BY_KEY, CHANGING, CHECKING, KEEPERS, KEPT_CHANGING

# How many programs of each style are run.
COUNTS = {None: 20, BY_KEY: 15, CHECKING: 6, KEEPERS: 7, CHANGING: 15, KEPT_CHANGING: 7}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with Programs(
        tmp_path_factory.mktemp("programs"), {KEEPERS: KeptProgram, KEPT_CHANGING: KeptProgram}
    ) as programs:
        yield programs


@pytest.mark.parametrize("seeds", ranges_of_seeds(COUNTS[None], 1, short=1), ids=str)
def test_every_scan_of_a_random_program_returns_its_snapshot_exactly_once(
    programs: Programs, seeds: range
) -> None:
    for seed in seeds:
        programs.run(seed)


@pytest.mark.parametrize("seeds", ranges_of_seeds(COUNTS[BY_KEY] // 3, 3, short=0), ids=str)
def test_rows_read_by_their_keys_are_those_of_the_snapshot(programs: Programs, seeds: range) -> None:
    for seed in seeds:
        programs.run(seed, BY_KEY)


@pytest.mark.parametrize("seeds", ranges_of_seeds(COUNTS[CHECKING], 1, short=1), ids=str)
def test_writes_that_check_lose_nothing_and_are_refused_for_a_reason(
    programs: Programs, seeds: range
) -> None:
    for seed in seeds:
        programs.run(seed, CHECKING)


@pytest.mark.parametrize("seeds", ranges_of_seeds(COUNTS[KEEPERS], 1, short=0), ids=str)
def test_a_kept_store_is_exact_and_nothing_is_left_over(programs: Programs, seeds: range) -> None:
    for seed in seeds:
        programs.run(seed, KEEPERS)


@pytest.mark.parametrize("seeds", ranges_of_seeds(COUNTS[CHANGING] // 3, 3, short=0), ids=str)
def test_columns_change_beside_everything_else(programs: Programs, seeds: range) -> None:
    for seed in seeds:
        programs.run(seed, CHANGING)


@pytest.mark.parametrize("seeds", ranges_of_seeds(COUNTS[KEPT_CHANGING], 1, short=0), ids=str)
def test_columns_change_in_a_kept_store_that_is_tagged_restored_and_backed_up(
    programs: Programs, seeds: range
) -> None:
    for seed in seeds:
        programs.run(seed, KEPT_CHANGING)
