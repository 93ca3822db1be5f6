"""Catalogs whose own files were torn, in child processes: rows of an acknowledged commit, or a typed error.

ELASTICSCAN_TORN_SEEDS is one seed or a range such as 0-999: other programs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import ranges_of_seeds
from tests.store.torn_catalogs import TEARS

ROOT = Path(__file__).resolve().parents[2]


def run_in_child(seeds: range, directory: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.store.torn_catalogs", str(directory), *map(str, seeds)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=290)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [line["failed"] for line in lines if "failed" in line]
    assert (failed, done.returncode, done.stderr) == ([], 0, "")
    return lines


@pytest.mark.parametrize("seeds", ranges_of_seeds(2, 2 * len(TEARS), 1, "ELASTICSCAN_TORN_SEEDS"), ids=str)
def test_a_torn_catalog_answers_as_an_acknowledged_commit_or_with_a_typed_error(
    seeds: range, tmp_path: Path
) -> None:
    came = Counter(line["came"] for line in run_in_child(seeds, tmp_path))
    if len(seeds) >= len(TEARS):
        assert came["newest"], "some lose nothing"
        assert came["older"], "some lose commits"


def test_a_log_that_the_system_takes_a_part_of_holds_what_was_acknowledged(tmp_path: Path) -> None:
    (line,) = run_in_child(range(-1, 0), tmp_path)
    assert line["came"] == "True", "some writes were refused"
