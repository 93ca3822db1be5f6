"""The tour of the README in Spark, and its stream: what they print, and what they promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pages import ROOT, blocks, run


@pytest.mark.long
@pytest.mark.spark
def test_the_tour_goes_on_in_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tour = text[text.index("## A two-minute tour") : text.index("## Spark options")]
    streams = text[text.index("## Streams") : text.index("## Indexes")]
    names: dict[str, Any] = {}
    wrong, printed = [], 0
    for written, output in blocks(tour) + blocks(streams):
        # Spark's processes have directories of their own.
        code = written.replace('"tour.store', f'"{tmp_path}/tour.store').replace('"/data/', f'"{tmp_path}/')
        capsys.readouterr()
        wrong += run(code, names)
        if output is not None and output.startswith("+"):
            assert capsys.readouterr().out.strip() == output.strip()
            printed += 1
    names["query"].awaitTermination()
    assert wrong == []
    assert printed == 2
    copied = names["elasticscan"].open(f"{tmp_path}/copy.store")
    assert copied.table("trips").scan().count() == names["store"].table("trips").scan().count()
    copied.close()
    names["store"].close()
