"""Scans read by threads that Python did not start; each program is a process, so a signal is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("foreign.py")
ROUNDS = int(os.environ.get("ELASTICSCAN_ROUNDS", "2"))
SECONDS = 240

pytestmark = pytest.mark.long


def run(name: str, directory: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), name, str(directory / "s"), str(ROUNDS)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(
    "name", ["duckdb_aggregates", "duckdb_joins", "duckdb_limits", "duckdb_in_several_threads"]
)
def test_duckdb_reads_scans_with_several_threads(name: str, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    run(name, tmp_path)


def test_delta_rs_writes_a_table_from_a_scan(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    run("delta_writes", tmp_path)


def test_polars_reads_scans(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    run("polars_reads", tmp_path)


@pytest.mark.parametrize("name", ["bare_threads", "handed_on", "abandoned", "written"])
def test_threads_of_the_operating_system_use_a_store(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)
