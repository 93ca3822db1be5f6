"""The choice of an access path on real tables: estimates where they are enough, counts where they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.store import Store

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("k", pa.int64()), ("v", pa.float64())])
ROWS = 400_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """`k` is mostly small; a few rows in a million-fold wider tail."""
    place: Path = tmp_path_factory.mktemp("access") / "s"
    made = Store.create(place, ["a", "b"], tablets=8)
    made.create_table("t", SCHEMA, ["id"])
    numbers = np.arange(ROWS)
    k = np.where(numbers % 40_000 == 0, 1_000_000 + numbers, numbers % 100)
    made.write("t", pa.table({"id": numbers, "k": k, "v": numbers / 7}, schema=SCHEMA))
    made.create_index("t", "by_k", ["k"])
    return made


@pytest.mark.parametrize(
    ("condition", "rows"), [("k > 1000", 10), ("k = 1040000", 1), ("k IN (7, -1)", 4_000)]
)
def test_rare_values_are_counted_and_found_through_the_index(store: Store, condition: str, rows: int) -> None:
    scan = store.scan("t", ["id", "k"], condition)
    told = scan.explain()
    assert told["access"] == "by_k"
    (by_k,) = (each for each in told["candidates"] if each["access"] == "by_k")
    assert by_k["rows_scanned"] == rows
    assert scan.to_table().num_rows == rows
    assert scan.explain()["actual"]["rows_scanned"] == rows


def test_what_keeps_most_rows_is_read_directly(store: Store) -> None:
    assert store.scan("t", None, "k < 90").explain()["access"] == "direct"


def test_an_index_that_is_damaged_does_not_keep_others_from_being_chosen(tmp_path: Path) -> None:
    made = Store.create(tmp_path / "s", ["a"])
    made.create_table("t", SCHEMA, ["id"])
    numbers = np.arange(ROWS)
    made.write("t", pa.table({"id": numbers, "k": numbers % 7, "v": numbers / 7}, schema=SCHEMA))
    made.create_index("t", "by_k", ["k"])
    with made.context.catalog.reading() as tx:
        (run,) = tx.runs(made.table("t").id)
    (tmp_path / "s" / "shards" / "a" / run.path).unlink()
    scan = made.scan("t", None, "k < 6")
    assert scan.explain()["access"] == "direct"
    assert scan.to_table().num_rows == np.count_nonzero(numbers % 7 < 6)
