"""Logs whose disk fails below SQLite, call by call: acknowledged commits stay, other calls raise errors.

Reads, writes, flushes and changes of length of the log's files fail with EIO or ENOSPC, once or during a
whole step. SQLite may report this as damage.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from elasticscan.base.errors import CommitUnknown, ElasticScanError
from elasticscan.catalog import Catalog
from elasticscan.catalog.entries import Append
from elasticscan.catalog.failures import Interrupted
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.metadata import TimeObserved
from tests.catalog.logs import append, begin, entries
from tests.seeds import ranges_of_seeds

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("failing_files.c")
KINDS = (1, 2, 4, 8, 14, 15)  # reads, writes, flushes, changes of length, any of the last three, any
STEPS = 30


@pytest.fixture(scope="module")
def failing_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that replaces functions of the C library in a process."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("calls of SQLite are made to fail on Linux, where there is a C compiler")
    made = tmp_path_factory.mktemp("failing") / "failing_files.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"], check=True)
    return made


@pytest.mark.parametrize("seeds", ranges_of_seeds(3, 10, short=1), ids=str)
def test_a_disk_that_fails_loses_no_commit_and_is_no_damage(
    seeds: range, failing_files: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.catalog.test_failing_disks", str(tmp_path), *map(str, seeds)]
    environment = os.environ | {"LD_PRELOAD": str(failing_files)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    failures, errors = json.loads(done.stdout)
    assert failures, "some calls failed"
    assert errors, "some of that was reported"


def run(path: Path, seed: int) -> tuple[int, set[str]]:
    """Run one program; return the number of failed calls, and the codes of the errors."""
    draw, failing, failures, codes = Random(seed), ctypes.CDLL(None), 0, set[str]()
    log = begin(SqliteHome(path))
    there = {0}
    for step in range(STEPS):
        error = draw.choice((errno.EIO, errno.EIO, errno.ENOSPC))
        failing.fail_at(
            draw.choice(KINDS), int(2 ** draw.uniform(0, 5)) - 1, error, draw.choice((1, 2, 10_000))
        )
        at, may_be, must_be = f"seed {seed}, step {step}", False, None
        try:
            if draw.random() < 0.2:
                log.home.close()
            if draw.random() < 0.1:
                log.write_checkpoint()
            log.forget()
            must_be = append(log, Append(TimeObserved(), metadata="x" * draw.randrange(20_000)))
        except CommitUnknown as unknown:
            may_be = True
            codes.add(unknown.code)
        except ElasticScanError as refused:
            codes.add("interrupted" if isinstance(refused, Interrupted) else refused.code)
        failures += failing.failures()
        failing.fail_at(0, 0, 0, 0)
        recovered = numbers_after_crash(path)
        if draw.random() < 0.5:
            log.home.close()
        found = {entry.number for entry in entries(log.home)}
        assert may_be or recovered == found, f"{at}: another log after a crash"
        assert found >= there | ({must_be} if must_be is not None else set()), f"{at}: lost"
        assert may_be or must_be is not None or found == there, f"{at}: done, and refused"
        there = found
    log.home.close()
    other = Catalog(SqliteHome(path))
    assert other.follow().number == max(there)
    other.check_whole()
    other.home.check_sound()
    other.home.close()
    return failures, codes


def numbers_after_crash(path: Path) -> set[int]:
    """The commit numbers in the files without the write-ahead log's index, as if all processes ended now."""
    copy = path.with_name("crashed.db")
    for end in ("", "-wal", "-shm"):
        Path(f"{copy}{end}").unlink(missing_ok=True)
        if end != "-shm" and Path(f"{path}{end}").exists():  # opened here, it would lose its locks
            subprocess.run(["cp", f"{path}{end}", f"{copy}{end}"], check=True)
    home = SqliteHome(copy)
    numbers = {entry.number for entry in entries(home)}
    home.close()
    return numbers


def main() -> None:
    failures, codes = 0, set[str]()
    for seed in sys.argv[2:]:
        place = Path(sys.argv[1]) / seed
        place.mkdir()
        more, also = run(place / "catalog.db", int(seed))
        failures, codes = failures + more, codes | also
    sys.stdout.write(json.dumps([failures, sorted(codes)]))


if __name__ == "__main__":
    main()
