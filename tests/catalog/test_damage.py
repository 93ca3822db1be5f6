"""Damage of each kind to a log in SQLite (`damage.py`).

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-999, to run others.
"""

from __future__ import annotations

import pytest

from tests.catalog.damage import DAMAGES, OF_FILES, OF_ROWS, RARE, Lived
from tests.seeds import ranges_of_seeds


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "trimmed"])
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return Lived(tmp_path_factory.mktemp("damage"), 7, request.param)


@pytest.mark.parametrize("name", [damage.__name__ for damage in (*OF_ROWS, *OF_FILES)])
@pytest.mark.parametrize("seeds", ranges_of_seeds(6, 12, short=1), ids=str)
def test_what_is_read_of_a_damaged_log_is_what_was_written_or_a_typed_error(
    lived: Lived, name: str, seeds: range
) -> None:
    for seed in seeds:
        lived.befall(DAMAGES[name], seed)


@pytest.mark.long
@pytest.mark.parametrize("name", [damage.__name__ for damage in RARE])
def test_a_checkpoint_of_another_log_is_not_used(lived: Lived, name: str) -> None:
    lived.befall(DAMAGES[name], 1)
