"""Catalogs whose disk fails below SQLite, call by call: what was acknowledged is there, the rest is reported.

Reads, writes, flushes and changes of length of the catalog's files meet EIO, or a disk without room, once
or for as long as a step takes. Each step ends well or with a typed error, the same handle goes on, and so
does a store that is opened again. ELASTICSCAN_FAILING_SEEDS is one seed or a range such as 0-999.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds import ranges_of_seeds

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("failing_files.c")


@pytest.fixture(scope="module")
def failing_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that is put before the C library of a process."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("calls of SQLite are made to fail on Linux, where there is a C compiler")
    made = tmp_path_factory.mktemp("failing") / "failing_files.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"], check=True)
    return made


@pytest.mark.long
@pytest.mark.parametrize("seeds", ranges_of_seeds(5, 8, 1, "ELASTICSCAN_FAILING_SEEDS"), ids=str)
def test_whatever_call_on_a_catalogs_files_fails_what_was_acknowledged_is_there(
    seeds: range, failing_files: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.store.failing_catalogs", str(tmp_path), *map(str, seeds)]
    environment = os.environ | {"LD_PRELOAD": str(failing_files)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=290
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [line["failed"] for line in lines if "failed" in line]
    assert (failed, done.returncode, done.stderr) == ([], 0, "")
    assert [line["seed"] for line in lines] == list(seeds)
    assert any(line["failures"] for line in lines), "some calls failed"
    assert any(line["reported"] for line in lines), "some of that was reported"
