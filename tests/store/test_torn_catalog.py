"""Catalogs whose own files were torn, in child processes: rows of an acknowledged commit, or a typed error.

ELASTICSCAN_TORN_SEEDS is one seed or a range such as 0-999: other programs.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import StoreDamaged
from elasticscan.catalog import kept_logs
from elasticscan.store import Store
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


@pytest.mark.long
@pytest.mark.parametrize("seeds", ranges_of_seeds(2, 2 * len(TEARS), 1, "ELASTICSCAN_TORN_SEEDS"), ids=str)
def test_a_torn_catalog_answers_as_an_acknowledged_commit_or_with_a_typed_error(
    seeds: range, tmp_path: Path
) -> None:
    came = Counter(line["came"] for line in run_in_child(seeds, tmp_path))
    if len(seeds) >= len(TEARS):
        assert came["newest"], "some lose nothing"
        assert came["older"], "some lose commits"


@pytest.mark.long
def test_a_log_that_the_system_takes_a_part_of_holds_what_was_acknowledged(tmp_path: Path) -> None:
    (line,) = run_in_child(range(-1, 0), tmp_path)
    assert line["came"] == "True", "some writes were refused"


@pytest.mark.parametrize(
    ("torn", "newer"),
    [("the number of the newest commit", "name = 'store_state'"), ("all but indexes", "type = 'table'")],
)
def test_some_newer_pages_in_an_older_catalog_are_noticed(tmp_path: Path, torn: str, newer: str) -> None:
    """Each page is what was written once, whole; no log tells of the others any more."""
    place, moments = tmp_path / "store", list[bytes]()
    catalog = place / "catalog.db"
    with Store.create(place, ["s1", "s2"], tablets=4, slots=64, upkeep="off") as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
        for value in range(2):
            if value or torn != "all but indexes":  # their groups are not there yet
                table.upsert(pa.table({"id": range(100), "v": [value] * 100}))
            with closing(sqlite3.connect(catalog)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                (size,) = database.execute("PRAGMA page_size").fetchone()
                pages = f"SELECT rootpage FROM sqlite_master WHERE {newer} ORDER BY 1"
                roots = [root for (root,) in database.execute(pages)]
            moments.append(catalog.read_bytes())
    older, newest = moments
    assert len(older) == len(newest)
    mixed = bytearray(older)
    for at in ((root - 1) * size for root in roots):
        mixed[at : at + size] = newest[at : at + size]
    catalog.write_bytes(mixed)
    with pytest.raises(StoreDamaged, match="sums of groups"), Store.open(place) as store:
        assert store.table("t").scan().count() == 100
    catalog.write_bytes(newest)
    with Store.open(place) as store:
        assert store.table("t").scan(filter="v = 1").count() == 100


def test_a_log_that_could_be_copied_in_part_alone_is_not_taken_for_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = tmp_path / "catalog.db"
    kept_logs.log_of(catalog).write_bytes(b"x" * 1_000)

    def full(source: Any, target: Any) -> None:
        target.write(source.read(500))
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(kept_logs.shutil, "copyfileobj", full)
        kept_logs.keep_log(catalog, "7")
    assert kept_logs.kept_logs(catalog) == []
    assert [path.name for path in tmp_path.iterdir()] == ["catalog.db-wal"]
    kept_logs.keep_log(catalog, "7")
    (kept,) = kept_logs.kept_logs(catalog)
    assert kept.read_bytes() == b"x" * 1_000


@pytest.mark.parametrize("name", ["catalog.db", "a [1] *.db"])
def test_parts_of_logs_that_killed_processes_left_go_when_the_next_one_is_kept(
    tmp_path: Path, name: str
) -> None:
    catalog, now = tmp_path / name, time.time()
    kept_logs.log_of(catalog).write_bytes(b"x" * 1_000)
    others = {f"{name}-wal.part-young": 60, f"{name}-wal.kept-6": 9_000, "a 1 b.db-wal.part-other": 9_000}
    for file, seconds in {f"{name}-wal.part-old": 9_000, **others}.items():
        (tmp_path / file).write_bytes(b"half")
        os.utime(tmp_path / file, (now - seconds, now - seconds))
    kept_logs.keep_log(catalog, "7")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"{name}-wal", f"{name}-wal.kept-7", *others}
    assert [path.name for path in kept_logs.kept_logs(catalog)] == [
        f"{name}-wal.kept-6",
        f"{name}-wal.kept-7",
    ]
