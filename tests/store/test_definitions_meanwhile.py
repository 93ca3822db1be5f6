"""Columns that come while a merge is under way, in a schedule as small as can be."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.store import Store
from elasticscan.store.upkeep import compaction

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64())])


def rows(ids: range) -> pa.Table:
    return pa.table({"id": list(ids), "k": [i % 5 for i in ids]}, schema=SCHEMA)


@pytest.mark.usefixtures("rows_in_files")
def test_a_merge_that_began_before_a_column_copies_its_values(tmp_path: Path) -> None:
    with Store.create(tmp_path / "store", ["a"], tablets=2, slots=8) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(range(20)))
        before = table.definition
        table.add_columns([pa.field("n", pa.int64())])
        table.upsert(pa.table({"id": [1], "k": [1], "n": [7]}, schema=table.schema))
        compaction.compact(store.context, before)
        assert table.scan(filter="n = 7").to_table().to_pylist() == [{"id": 1, "k": 1, "n": 7}]
        assert table.scan().count() == 20
