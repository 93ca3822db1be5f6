"""export: rows as Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

Shell = Any


def test_an_export_of_a_snapshot_is_reported_and_is_loaded_again(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table
) -> None:
    shell.ok("delete", uri, "t", "--where", "id < 10")
    words = ("--filter", "id < 20", "--columns", "id,name")
    message = shell.json("export", uri, "t", tmp_path / "out", *words)
    assert (message["rows"], message["files"], message["snapshot"]) == (10, 1, 3)
    assert "20 rows of snapshot 2 written to 1 file in" in shell.ok(
        "export", uri, "t", tmp_path / "older", *words, "--snapshot", "2"
    )
    read = pyarrow.parquet.read_table(tmp_path / "older").sort_by("id")
    assert read.to_pylist() == rows.slice(0, 20).select(["id", "name"]).to_pylist()
    code, why = shell.fails("export", uri, "t", tmp_path / "out")
    assert (code, "holds '_SUCCESS'" in why or "holds 'part-" in why) == (2, True)


def test_an_export_to_one_file_has_the_format_of_its_name(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table
) -> None:
    message = shell.json("export", uri, "t", tmp_path / "t.csv", "--columns", "id")
    assert (message["path"], message["rows"], message["files"]) == (str(tmp_path / "t.csv"), 5_000, 1)
    assert (tmp_path / "t.csv").read_text().startswith('"id"\n')
    assert "written to 1 file at" in shell.ok("export", uri, "t", tmp_path / "t.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").num_rows == rows.num_rows
    code, why = shell.fails("export", uri, "t", tmp_path / "t.csv")
    assert (code, "there already" in why) == (2, True)
