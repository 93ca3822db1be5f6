"""Reads in the driver: which they are, without Spark; `test_sql_spark.py` is about what they give."""

from __future__ import annotations

import pytest

from elasticscan.connector.options import parse_options
from elasticscan.connector.sql import driver_reads
from elasticscan.connector.sql.limits import RowLimit
from elasticscan.store import Store

COUNT = '{"values": ["count(*)"]}'
BY_NAME = '{"by": ["name"]}'


def rows_here(store: Store, limit: RowLimit | None = None, **options: str) -> int | None:
    """How many rows are read here; None if that is left to tasks."""
    few = driver_reads.read_few(parse_options({"store": store.uri, "table": "t", **options}), limit)
    return None if few is None else few.rows.num_rows


@pytest.mark.parametrize(
    ("bound", "most", "here", "left"),
    [
        ("FEW_ROWS", 20, RowLimit(20), RowLimit(21)),
        ("FEW_ROWS", 20, RowLimit(20, ("name",)), RowLimit(21, ("name",))),
        ("FEW_BYTES", 800, RowLimit(20), RowLimit(200)),
        ("MOST_FOLDED", 100, RowLimit(20), RowLimit(20, ("name",))),
    ],
)
def test_few_rows_are_read_here_and_more_are_left_to_tasks(
    store: Store, monkeypatch: pytest.MonkeyPatch, bound: str, most: int, here: RowLimit, left: RowLimit
) -> None:
    monkeypatch.setattr(driver_reads, bound, most)
    assert rows_here(store, here) == here.rows
    assert rows_here(store, left) is None
    assert rows_here(store) == (1_000 if bound == "MOST_FOLDED" else None)


def test_few_groups_are_folded_here_and_more_are_left_to_tasks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows_here(store, partialAggregates=BY_NAME) == 7
    assert rows_here(store, partialAggregates=COUNT) == 1
    for name, most in (("FEW_ROWS", 6), ("MOST_FOLDED", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(driver_reads, name, most)
            assert rows_here(store, partialAggregates=BY_NAME) is None


def test_a_read_that_finds_too_little_or_fails_is_left_to_tasks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows_here(store, RowLimit(5), filter="name LIKE '%z%'") == 0
    assert rows_here(store, RowLimit(3), filter="1 / (id - id) = 1") is None
    monkeypatch.setattr(driver_reads, "MOST_SCANNED", 200)
    assert rows_here(store, RowLimit(5), filter="name LIKE '%z%'") is None
    assert rows_here(store, RowLimit(500), filter="name = 'n1'") is None
