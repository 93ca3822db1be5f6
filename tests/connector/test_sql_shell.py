"""Spark's own shell for SQL, `spark-sql`, over views of tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import elasticscan
from tests.base.quick_java import QUICK_JAVA
from tests.pages import ROOT, blocks


@pytest.mark.long
@pytest.mark.spark
def test_the_statements_of_the_page_run_in_spark_sql(tmp_path: Path) -> None:
    with elasticscan.create(tmp_path / "tour.store", shards=["s1", "s2"], tablets=4) as store:
        rows = {"id": [1, 2, 3], "city": ["Oslo", "Lima", "Pune"], "km": [1.5, 1.0, 0.5]}
        table = store.create_table("trips", rows, primary_key="id")
        text = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8").partition("## In `spark-sql`")[2]
        ((script, _),) = blocks(text.partition("\n## ")[0], "sql")
        (tmp_path / "tour.sql").write_text(script)
        command, _, printed = text.partition("$ ")[2].partition("```")[0].partition("\n")
        ended = subprocess.run(
            ["bash", "-c", command],
            check=False,
            cwd=tmp_path,
            env=os.environ
            | {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PYSPARK_PYTHON": sys.executable,
                "JAVA_TOOL_OPTIONS": QUICK_JAVA,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == printed
        assert table.scan().count() == 4
