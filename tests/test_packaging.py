"""What is built for users, and what stands around the code for those who change it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = list(PROJECT["tool"]["setuptools"]["package-dir"].values())
OTHERS = ".ci .devcontainer .github benchmarks docs examples scripts spark-conf tests".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel that is made of it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for each in [*FOLDERS, *OTHERS]:
        shutil.copytree(ROOT / each, source / each, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file() and (
            file.suffix or file.name in ("LICENSE", "Makefile", "Dockerfile", ".dockerignore", ".gitignore")
        ):
            shutil.copy(file, source)
    _build("build_sdist", source, out)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(out, filter="data")
    _build("build_wheel", next(out.glob("elasticscan-*/")), out)
    return out


def _build(hook: str, source: Path, out: Path) -> None:
    code = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_sdist_has_tests_and_docs(built: Path) -> None:
    (top,) = built.glob("elasticscan-*/")
    wanted = "Makefile requirements.txt CHANGELOG.md docs/sql.md docs/slot-map.svg .ci/run tests/pages.py"
    wanted += " docs/notebooks/python.ipynb examples/demo.py scripts/notebooks.py .github/workflows/check.yml"
    wanted += " Dockerfile .dockerignore benchmarks/peers.txt spark-conf/README.md tests/faults/seeds.json"
    assert [name for name in wanted.split() if not (top / name).is_file()] == []


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "elasticscan",
        "pyspark_elasticscan.py",
    }
    expected = {
        f"{package.replace('.', '/')}/{path.name}"
        for package in PROJECT["tool"]["setuptools"]["packages"]
        for path in (ROOT / (package.partition(".")[2].replace(".", "/") or "api")).iterdir()
        if path.suffix in (".py", ".html") or path.name == "py.typed"
    }
    assert {name for name in names if name.startswith("elasticscan/")} == expected
    (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    assert "Description-Content-Type: text/markdown" in zipfile.ZipFile(wheel).read(metadata).decode()


def test_the_container_copies_what_the_package_is_made_of() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    assert [folder for folder in FOLDERS if f"!{folder}\n" not in ignored] == []
