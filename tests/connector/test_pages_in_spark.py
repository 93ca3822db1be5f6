"""Pages whose blocks need Spark, run as by somebody who follows a page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from elasticscan.cli.app import app
from elasticscan.connector import register
from tests.pages import ROOT, run, steps, stripped

PLACES = re.compile(r'"(\w+\.store)')


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    ("page", "shown"),
    [("sql.md", 5), ("cookbook.md", 4), ("writes.md", 0), ("schema-changes.md", 0), ("options.md", 0)],
)
def test_the_blocks_of_a_page_do_what_it_says(
    page: str,
    shown: int,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    monkeypatch.chdir(tmp_path)
    register(spark)
    before = {table.name for table in spark.catalog.listTables()}
    names: dict[str, Any] = {}
    wrong = []
    for kind, typed, output in steps((ROOT / "docs" / page).read_text(encoding="utf-8")):
        capsys.readouterr()
        if kind == "python":
            # Spark's processes have directories of their own.
            wrong += run(PLACES.sub(rf'"{tmp_path}/\1', typed), names)
            seen = capsys.readouterr().out
        elif page == "cookbook.md":
            seen = CliRunner().invoke(app, shlex.split(typed)[1:]).output
        else:
            continue
        if seen and output:
            assert stripped(seen) == stripped(output)
            shown -= 1
    names["store"].close()
    for table in spark.catalog.listTables():
        if table.name not in before:
            spark.catalog.dropTempView(table.name)
    assert wrong == []
    assert shown == 0
