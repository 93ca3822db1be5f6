"""Damage of each kind to a log in SQLite (`damage.py`), and what is seen of an older one that is put back.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-999, to let others befall it.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from elasticscan.base.errors import CatalogOutdated
from elasticscan.catalog import Catalog
from tests.base.manual_clock import ManualClock
from tests.catalog.damage import DAMAGES, OF_FILES, OF_ROWS, RARE, Lived
from tests.catalog.small_store import add_commit, add_table, make
from tests.seeds import ranges_of_seeds

CLOCK = ManualClock(1_700_000_000.0)


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "trimmed"])
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return Lived(tmp_path_factory.mktemp("damage"), 7, request.param)


@pytest.mark.parametrize("name", [damage.__name__ for damage in (*OF_ROWS, *OF_FILES)])
@pytest.mark.parametrize("seeds", ranges_of_seeds(8, 12, short=1), ids=str)
def test_what_is_read_of_a_damaged_log_is_what_was_written_or_a_typed_error(
    lived: Lived, name: str, seeds: range
) -> None:
    for seed in seeds:
        lived.befall(DAMAGES[name], seed)


@pytest.mark.long
@pytest.mark.parametrize("name", [damage.__name__ for damage in RARE])
def test_a_checkpoint_of_another_log_is_not_used(lived: Lived, name: str) -> None:
    lived.befall(DAMAGES[name], 1)


def test_a_catalog_that_reads_everything_again_still_knows_how_far_it_was(tmp_path: Path) -> None:
    where = tmp_path / "catalog.db"
    with closing(make(where, CLOCK)) as catalog:
        table = add_table(catalog)
    older = Path(shutil.copy(where, tmp_path / "older.db"))
    with closing(Catalog(where, CLOCK, "catalog")) as catalog:
        add_commit(catalog, table)
        catalog.close()
        older.replace(where)
        with pytest.raises(CatalogOutdated):
            catalog.check_whole()
