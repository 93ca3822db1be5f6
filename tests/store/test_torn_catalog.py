"""Catalogs whose own files were torn, in child processes: rows of an acknowledged commit, or a typed error.

ELASTICSCAN_TORN_SEEDS is one seed or a range such as 0-999: other programs.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import StoreDamaged
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


@pytest.mark.parametrize("seeds", ranges_of_seeds(2, 2 * len(TEARS), 1, "ELASTICSCAN_TORN_SEEDS"), ids=str)
def test_a_torn_catalog_answers_as_an_acknowledged_commit_or_with_a_typed_error(
    seeds: range, tmp_path: Path
) -> None:
    came = Counter(line["came"] for line in run_in_child(seeds, tmp_path))
    if len(seeds) >= len(TEARS):
        assert came["newest"], "some lose nothing"
        assert came["older"], "some lose commits"


def test_a_log_that_the_system_takes_a_part_of_holds_what_was_acknowledged(tmp_path: Path) -> None:
    (line,) = run_in_child(range(-1, 0), tmp_path)
    assert line["came"] == "True", "some writes were refused"


def test_the_number_of_the_newest_commit_beside_older_pages_is_noticed(tmp_path: Path) -> None:
    """All pages but one are those of an older commit, whole and in order; no log tells of it any more."""
    place, moments = tmp_path / "store", list[bytes]()
    catalog = place / "catalog.db"
    with Store.create(place, ["s1", "s2"], tablets=4, slots=64, upkeep="off") as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
        for value in range(2):
            table.upsert(pa.table({"id": range(100), "v": [value] * 100}))
            with closing(sqlite3.connect(catalog)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                (page,) = database.execute("PRAGMA page_size").fetchone()
                of_state = "SELECT rootpage FROM sqlite_master WHERE name = 'store_state'"
                (root,) = database.execute(of_state).fetchone()
            moments.append(catalog.read_bytes())
    older, newer = moments
    assert len(older) == len(newer)
    state = slice((root - 1) * page, root * page)
    catalog.write_bytes(older[: state.start] + newer[state] + older[state.stop :])
    with pytest.raises(StoreDamaged, match="sums of groups"), Store.open(place) as store:
        store.table("t").scan().to_table()
    catalog.write_bytes(newer)
    with Store.open(place) as store:
        assert store.table("t").scan(filter="v = 1").count() == 100
