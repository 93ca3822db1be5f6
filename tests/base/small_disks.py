"""Disks of a few megabytes, where a test may mount some."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(where: Path, megabytes: int) -> Iterator[Path]:
    """A new directory that is a disk of its own; skips the test where only root may have one."""
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "tmpfs", str(where)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def fill(disk: Path, leave: int) -> None:
    """Take all room of a disk but so many bytes."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    with filler.open("r+b") as file:
        file.truncate(max(0, filler.stat().st_size - leave))


def free(disk: Path) -> None:
    (disk / "filler").unlink()
