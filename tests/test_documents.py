"""Blocks of Python in the README and in docs/, run in their order: what the remarks in them promise is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import elasticscan
from tests.pages import ROOT, blocks, promised, run, statements

SPARK = ("spark.", "frame.", "attach(")  # blocks that need a session


@pytest.mark.parametrize(
    ("page", "remarks"),
    [
        ("tour.md", 13),
        ("writes.md", 0),
        ("history.md", 2),
        ("moving-data.md", 2),
        ("indexes.md", 2),
        ("schema-changes.md", 2),
    ],
)
def test_the_blocks_of_a_page_do_what_it_says(
    page: str, remarks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    monkeypatch.chdir(tmp_path)
    found = [code for code, _ in blocks((ROOT / "docs" / page).read_text(encoding="utf-8"))]
    found = [code for code in found if not any(word in code for word in SPARK)]
    if page == "moving-data.md":  # its first block is of a shell, and takes files that somebody has
        (tmp_path / "in").mkdir()
        pq.write_table(pa.table({"id": range(100_000)}), tmp_path / "in" / "trips.parquet")
        elasticscan.create("trips.store", shards=["s1"]).close()
    names: dict[str, Any] = {}
    wrong = [each for code in found for each in run(code, names)]
    names["store"].close()
    assert wrong == []
    told = [remark for code in found for _, remark in statements(code) if remark]
    assert sum(not promised(remark, object()) for remark in told) >= remarks


def test_a_remark_that_promises_something_else_is_found() -> None:
    assert run("1 + 1  # 2\n[3]  # [3]\n", {}) == []
    assert run("1 + 1  # 3\n", {}) == ["1 + 1 is 2, not 3"]
