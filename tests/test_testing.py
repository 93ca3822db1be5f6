"""What `docs/testing.md` says about tests is so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.test_architecture import ROOT

GUIDE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
TESTS = ROOT / "tests"


def test_the_guide_names_only_tests_that_exist() -> None:
    named = re.findall(r"`(?:tests/)?((?:\w+/)*\w+\.(?:py|json))", GUIDE)
    assert len(named) > 20
    assert [name for name in named if not ([*TESTS.rglob(Path(name).name)] or (ROOT / name).is_file())] == []


def test_the_tests_that_are_run_on_both_catalogs_exist() -> None:
    command = ["make", "--dry-run", "--no-print-directory", "postgres"]
    said = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    named = re.findall(r"tests/\S+\.py", said.stdout)
    assert len(named) > 10, said.stderr
    assert [name for name in named if not (ROOT / name).is_file()] == []
