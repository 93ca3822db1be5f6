"""Small stores for the tests of the connector."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.store import Store

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("v", pa.float64())])


def rows(start: int, end: int, v: float = 0.5) -> pa.Table:
    """Rows with the ids from `start` to `end`, end excluded."""
    ids = range(start, end)
    return pa.table({"id": ids, "name": [f"n{i % 7}" for i in ids], "v": [v] * len(ids)}, schema=SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two shards, eight tablets, a table `t` of 1,000 rows."""
    made = Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=8, slots=64)
    made.create_table("t", SCHEMA, ["id"])
    made.table("t").upsert(rows(0, 1_000))
    return made
