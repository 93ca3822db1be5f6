"""The demos, as `make demo` and `make demo-redis` run them, in processes of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.base.quick_java import QUICK_JAVA
from tests.pages import ROOT


def run(module: str, *words: object, path: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, words)]
    environment = os.environ | {"JAVA_TOOL_OPTIONS": QUICK_JAVA} | ({} if path is None else {"PATH": path})
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


@pytest.mark.long
@pytest.mark.spark
def test_the_demo_reads_every_flight_exactly_once() -> None:
    ended = run("examples.demo", "--rows", 60_000, "--seconds", 6, "--page", 0)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert "Every flight exactly once" in ended.stdout
    assert re.search(r"The page: http://127\.0\.0\.1:\d+/", ended.stdout)


@pytest.mark.long
@pytest.mark.spark
def test_the_demo_reads_every_flight_of_a_cluster_exactly_once(tmp_path: Path) -> None:
    if not (shutil.which("redis-server") and shutil.which("redis-cli")) and not os.environ.get("CI"):
        pytest.skip("no redis server is installed: apt install redis-server redis-tools")
    ended = run("examples.redis_demo", "--rows", 20_000, "--svg", tmp_path / "map.svg")
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert "Every flight exactly once" in ended.stdout
    assert (tmp_path / "map.svg").read_text(encoding="utf-8").startswith("<svg")


def test_programs_that_are_missing_are_named(tmp_path: Path) -> None:
    ended = run("examples.redis_demo", path=str(tmp_path))
    assert ended.returncode == 1
    assert "redis-cli or valkey-cli not found" in ended.stderr
    assert "apt install redis-server redis-tools" in ended.stderr
