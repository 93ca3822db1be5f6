"""The README from its first line to its last: what it prints, and what it promises."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from benchmarks.peer_bars import drawn
from elasticscan.cli.app import app
from tests.pages import ROOT, run, steps, stripped

README = (ROOT / "README.md").read_text(encoding="utf-8")
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
PLACES = re.compile(r'"(tour\.store|copy\.store|replica\.checkpoint)')


@pytest.mark.long
@pytest.mark.spark
def test_the_readme_from_its_first_line_to_its_last(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    wrong, shown = [], 0
    for kind, typed, output in steps(README):
        capsys.readouterr()
        if kind == "python":
            # Spark's processes have directories of their own.
            wrong += run(PLACES.sub(rf'"{tmp_path}/\1', typed), names)
            seen = capsys.readouterr().out
        else:
            seen = CliRunner().invoke(app, shlex.split(typed)[1:]).stdout
        if output:
            assert stripped(TIMES.sub("then", seen)) == stripped(TIMES.sub("then", output))
            shown += 1
    assert wrong == []
    assert shown == 3
    for each in ("store", "copy"):
        names[each].close()


def test_the_bars_are_those_of_the_figures() -> None:
    """Where this fails, `make peers ARGUMENTS="--into docs"`, and its table belongs into docs/peers.md."""
    message = json.loads((ROOT / "docs" / "peers.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "peers-bars.svg").read_text(encoding="utf-8") == drawn(message["figures"])
