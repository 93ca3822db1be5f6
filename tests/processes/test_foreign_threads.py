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


# With the library that each needs.
NEEDS = {
    "duckdb_in_several_threads": "duckdb",
    "delta_writes": "deltalake",
    **dict.fromkeys(["handed_on", "abandoned", "written"], "pyarrow"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_threads_that_python_did_not_start_use_a_store(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name])
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), name, str(tmp_path / "s"), str(ROUNDS)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
