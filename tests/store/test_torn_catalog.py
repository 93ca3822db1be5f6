"""Catalogs whose own files were torn, in child processes: rows of an acknowledged commit, or a typed error.

ELASTICSCAN_TORN_SEEDS is one seed or a range such as 0-999: other programs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
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
    [
        ("the head", "name = 'head'"),
        ("all but indexes", "type = 'table'"),
        ("all but the head", "name <> 'head'"),
    ],
)
@pytest.mark.usefixtures("rows_in_files")
def test_some_newer_pages_in_an_older_catalog_are_noticed(tmp_path: Path, torn: str, newer: str) -> None:
    """Each page is what was written once, whole; no log tells of the others any more."""
    place, moments = tmp_path / "store", list[bytes]()
    catalog = place / "catalog.db"
    with Store.create(place, ["s1", "s2"], tablets=4, slots=64, upkeep="off") as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
        for value in range(2):
            table.upsert(pa.table({"id": range(100), "v": [value] * 100}))
            with closing(apsw.Connection(str(catalog))) as database:
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
    with pytest.raises(StoreDamaged), Store.open(place) as store:
        assert store.table("t").scan().count() == 100
    catalog.write_bytes(newest)
    with Store.open(place) as store:
        assert store.table("t").scan(filter="v = 1").count() == 100
