"""Pages whose blocks need Spark, from their first line to their last: what they print and promise."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import elasticscan
import scripts.notebooks
from benchmarks.peer_bars import drawn
from elasticscan.cli.app import app
from elasticscan.connector import register
from tests.base.processes import outcome
from tests.pages import ROOT, blocks, run, steps, stripped

PLACES = re.compile(r'"(\w+\.store|replica\.checkpoint)|"/data/')
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
SHELLS = ("README.md", "docs/cookbook.md")


@pytest.fixture
def forgetful(spark: SparkSession) -> Iterator[None]:
    """The session forgets what a page did to it and to the log."""
    register(spark)
    log, root = logging.getLogger("elasticscan"), logging.getLogger()
    level, handlers = log.level, list(root.handlers)
    yield
    for query in spark.streams.active:
        query.stop()
    log.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("README.md", 3),
        ("docs/sql.md", 5),
        ("docs/cookbook.md", 4),
        ("docs/writes.md", 0),
        ("docs/schema-changes.md", 0),
        ("docs/options.md", 0),
        ("docs/streaming.md", 1),
    ],
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
    names: dict[str, Any] = {}
    wrong = []
    for kind, typed, output in steps((ROOT / page).read_text(encoding="utf-8")):
        capsys.readouterr()
        if kind == "python":
            # Spark's processes have directories of their own.
            wrong += run(PLACES.sub(lambda match: f'"{tmp_path}/{match[1] or ""}', typed), names)
            seen = capsys.readouterr().out
        elif page in SHELLS:
            ended = CliRunner().invoke(app, shlex.split(typed)[1:])
            seen = ended.stdout if page == "README.md" else ended.output
        else:
            continue
        if seen and output:
            assert stripped(TIMES.sub("then", seen)) == stripped(TIMES.sub("then", output))
            shown -= 1
    for name in {"store", "copy"} & names.keys():
        if isinstance(names[name], elasticscan.Store):
            names[name].close()
    assert wrong == []
    assert shown == 0


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("notebook", ["spark", "flights"])
def test_a_notebook_gives_what_it_says(notebook: str) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    text = (ROOT / "docs" / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8")
    assert scripts.notebooks.differences(json.loads(text)) == []


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
    given = {"PYSPARK_PYTHON": sys.executable, "FLIGHTS": str(tmp_path / "flights.store")}
    printed = outcome([sys.executable, "-c", script], tmp_path, **given).splitlines()
    assert {"opened 2", "read 2"} <= set(printed)


def test_the_bars_are_those_of_the_figures() -> None:
    """Where this fails, `make peers ARGUMENTS="--into docs"`, and its table belongs into docs/peers.md."""
    message = json.loads((ROOT / "docs" / "peers.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "peers-bars.svg").read_text(encoding="utf-8") == drawn(message["figures"])
