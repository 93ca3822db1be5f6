"""load: files into tables."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from elasticscan.store import Store
from tests.cli.conftest import Shell


@pytest.fixture
def empty(tmp_path: Path) -> str:
    path = str(tmp_path / "empty.store")
    Store.create(path, ["s1", "s2"], tablets=8).close()
    return path


def read(uri: str, table: str = "t") -> pa.Table:
    with Store.open(uri) as store:
        return store.table(table).scan().to_table().sort_by("id")


def test_what_a_scan_printed_as_csv_loads_as_it_was(shell: Shell, empty: str, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("v", pa.string())])
    rows = [
        {"id": 1, "x": float("inf"), "v": ""},
        {"id": 2, "x": None, "v": None},
        {"id": 3, "x": 0.5, "v": "NULL"},
        {"id": 4, "x": -0.5, "v": 'a,"b"\n'},
    ]
    with Store.open(empty) as store:
        store.create_table("t", schema, ["id"]).upsert([*rows, {"id": 5, "x": float("nan"), "v": "nan"}])
    (tmp_path / "r.csv").write_text(shell.ok("scan", empty, "t", "--format", "csv"))
    shell.ok("load", empty, "t", tmp_path / "r.csv")
    shell.ok("load", empty, "u", tmp_path / "r.csv", "--primary-key", "id")
    for name in ("t", "u"):
        again = read(empty, name).to_pylist()
        assert again[:4] == rows
        assert math.isnan(again[4]["x"])
        assert again[4]["v"] == "nan"
