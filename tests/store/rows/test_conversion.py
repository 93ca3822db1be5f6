"""Rows as callers give them. `tests/store/test_table.py` has more."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset

from elasticscan.store import Store


def test_columns_may_be_named_as_what_tells_data_apart(tmp_path: Path) -> None:
    columns = {"id": [1, 2], "scanner": [3, 4], "to_reader": [5, 6]}
    with Store.create(tmp_path / "s", ["a"]) as store:
        table = store.create_table("t", pd.DataFrame(columns), "id")
        table.upsert(pyarrow.dataset.dataset(pa.table(columns)))
        assert table.to_arrow().to_pydict() == columns
