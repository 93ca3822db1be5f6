"""Pages whose blocks need Spark, run block by block."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import elasticscan
from elasticscan.cli.app import app
from elasticscan.connector import register
from tests.pages import ROOT, blocks, run, steps, stripped

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


@pytest.mark.long
@pytest.mark.spark
def test_the_block_of_security_finds_the_store_that_a_variable_names(tmp_path: Path) -> None:
    """In a process of its own: Spark's own processes have the variables with which it was started."""
    with elasticscan.create(tmp_path / "flights.store", shards=["s1"]) as store:
        store.create_table("flights", {"id": [1, 2]}, primary_key="id")
    ((code, _),) = blocks((ROOT / "docs" / "security.md").read_text(encoding="utf-8"))
    opened, read = code.splitlines()
    script = f"""
import elasticscan
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
with {opened} as store:
    print("opened", store.table("flights").scan().count())
print("read", {read}.count())
"""
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | python | {"FLIGHTS": str(tmp_path / "flights.store")},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["opened 2", "read 2"]
