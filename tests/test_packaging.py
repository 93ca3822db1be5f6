"""What is built for users, and what stands around the code for those who change it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = list(PROJECT["tool"]["setuptools"]["package-dir"].values())
OTHERS = [
    ".ci",
    ".devcontainer",
    ".github",
    "benchmarks",
    "docs",
    "examples",
    "scripts",
    "spark-conf",
    "tests",
]


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
    wanted = ["Makefile", "requirements.txt", "CHANGELOG.md", "docs/sql.md", "docs/slot-map.svg", ".ci/run"]
    wanted += ["docs/notebooks/python.ipynb", "tests/pages.py", "examples/demo.py", "scripts/notebooks.py"]
    wanted += [".github/workflows/check.yml", "Dockerfile", ".dockerignore"]
    wanted += ["benchmarks/peers.txt", "spark-conf/README.md", "tests/faults/seeds.json"]
    assert [name for name in wanted if not (top / name).is_file()] == []


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
        for path in _folder(package).iterdir()
        if path.suffix in (".py", ".html") or path.name == "py.typed"
    }
    assert {name for name in names if name.startswith("elasticscan/")} == expected


def _folder(package: str) -> Path:
    parts = package.split(".")[1:]
    return ROOT / "api" if not parts else ROOT.joinpath(*parts)


def test_a_description_with_links_of_the_repository_is_said_to_be_markdown(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    assert "Description-Content-Type: text/markdown" in archive.read(name).decode()


def test_workflows_run_what_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used: list[str] = []
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
        used += [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {word for run in used for word in re.findall(r"make (\w+)", run)}
    assert called == {"postgres", "site", "versions"} & targets
    assert any(".ci/run" in run for run in used)


def test_continuous_integration_installs_what_the_container_for_contributors_has() -> None:
    """Else tests that the one runs are skipped by the other."""
    container = (ROOT / ".devcontainer" / "Dockerfile").read_text(encoding="utf-8")
    has = re.search(r"install -y --no-install-recommends((?:[^&]|\n)*)", container)
    assert has is not None
    packages = set(has[1].replace("\\", "").split())
    installs = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert {package for package in packages if package not in installs} == {"default-jre-headless"}
    assert "openjdk-17-jre-headless" in installs


def test_issue_forms_ask_for_what_is_needed() -> None:
    for name in ("bug.yml", "wish.yml"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        asked = [part for part in form["body"] if part["type"] != "markdown"]
        assert asked and all("label" in part["attributes"] for part in asked)


def test_containers_copy_what_the_package_is_made_of() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    assert [folder for folder in FOLDERS if f"!{folder}\n" not in ignored] == []
    made = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert (ROOT / ".devcontainer" / made["build"]["dockerfile"]).is_file()
