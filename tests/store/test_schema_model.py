"""Random programs that add columns to tables, compared with a plain dict at every snapshot.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-5000, to run others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.seeds import ranges_of_seeds
from tests.store.schema_soup import SchemaKitchen


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaKitchen]:
    with SchemaKitchen(tmp_path_factory.mktemp("schema_model")) as kitchen:
        yield kitchen


@pytest.mark.parametrize("seeds", ranges_of_seeds(6, 5, short=1), ids=str)
def test_every_scan_of_a_table_that_gains_columns_returns_its_snapshot_exactly_once(
    kitchen: SchemaKitchen, seeds: range
) -> None:
    for seed in seeds:
        kitchen.run(seed)
