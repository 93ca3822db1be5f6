"""What `docs/testing.md` says about tests is so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.test_architecture import CODE, ROOT

GUIDE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
TESTS = ROOT / "tests"


def modules() -> set[str]:
    paths = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    return {str(path.relative_to(ROOT).with_suffix("")) for path in paths if path.stem != "__init__"}


def places_of_tests() -> dict[str, list[str]]:
    """The table of the guide: modules, and the tests of each."""
    table = GUIDE.partition("## Where a module is tested")[2].partition("```\n")[2].partition("```")[0]
    lines = [line.partition(":") for line in table.splitlines()]
    return {
        module: [
            *(tests for others, _, named in lines if module in named.split() for tests in others.split())
        ]
        for _, _, names in lines
        for module in names.split()
    }


def test_every_module_has_tests_of_its_name_or_says_where_they_are() -> None:
    own = {name for name in modules() if (TESTS / Path(name).parent / f"test_{Path(name).name}.py").exists()}
    elsewhere = places_of_tests()
    assert modules() - own - elsewhere.keys() == set(), "add them to the table in docs/testing.md"
    assert elsewhere.keys() - modules() == set(), "these are gone"
    files = {file for tests in elsewhere.values() for file in tests}
    assert [file for file in files if not (TESTS / file).is_file()] == []


def test_the_guide_names_only_tests_that_exist() -> None:
    named = re.findall(r"`(?:tests/)?((?:\w+/)*\w+\.(?:py|json))", GUIDE)
    assert len(named) > 20
    assert [name for name in named if not ([*TESTS.rglob(Path(name).name)] or (ROOT / name).is_file())] == []


def test_the_tests_that_are_run_on_both_catalogs_exist() -> None:
    command = ["make", "--dry-run", "--no-print-directory", "postgres"]
    said = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    named = re.findall(r"tests/\S+\.py", said.stdout)
    assert len(named) > 20, said.stderr
    assert [name for name in named if not (ROOT / name).is_file()] == []
