"""The demo of a Redis cluster as `make demo-redis` runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.spark
def test_the_demo_reads_every_flight_of_a_cluster_exactly_once(tmp_path: Path) -> None:
    if not (shutil.which("redis-server") and shutil.which("redis-cli")) and not os.environ.get("CI"):
        pytest.skip("no redis server is installed: apt install redis-server redis-tools")
    picture = tmp_path / "map.svg"
    command = [sys.executable, "-m", "examples.redis_demo", "--rows", "20000", "--svg", str(picture)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert "Every flight exactly once" in ended.stdout
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_programs_that_are_missing_are_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.redis_demo"]
    environment = os.environ | {"PATH": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert ended.returncode == 1
    assert "redis-cli or valkey-cli not found" in ended.stderr
    assert "apt install redis-server redis-tools" in ended.stderr
