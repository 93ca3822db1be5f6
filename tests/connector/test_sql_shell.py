"""Spark's own shell for SQL, `spark-sql`, over views of tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import elasticscan
from elasticscan.base.errors import InvalidOption
from elasticscan.connector import spark_tables
from tests.base.quick_java import quick_java
from tests.pages import ROOT, blocks

NESTED = {"spark.sql.execution.id": "3", "spark.sql.execution.root.id": "2"}


class Task:
    """A task that knows what Spark reported it of the query."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.getLocalProperty = properties.get


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        (NESTED, True),
        (NESTED | {"spark.sql.hive.version": "2.3.10"}, False),
        (NESTED | {"spark.sql.execution.root.id": "3"}, False),
        ({}, False),
    ],
    ids=["saveAsTable", "INSERT in spark-sql", "a write", "no query"],
)
def test_a_statement_of_the_shell_is_no_table_of_sparks(
    properties: Mapping[str, str], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task: Any = Task(properties)
    monkeypatch.setattr(spark_tables.TaskContext, "get", lambda: task)
    if refused:
        with pytest.raises(InvalidOption, match="saveAsTable"):
            spark_tables.check_not_for_a_spark_table()
    else:
        spark_tables.check_not_for_a_spark_table()


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
                "JAVA_TOOL_OPTIONS": quick_java(make=False),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == printed
        assert table.scan().count() == 4
