"""A flipped bit in the catalog changes nothing that is read, or is told as what it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from elasticscan.base.errors import StoreDamaged
from elasticscan.store import Store
from tests.store.catalog_damage import flip, look, make

FLIPS = int(os.environ.get("ELASTICSCAN_CATALOG_FLIPS", "120"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.parametrize("name", ["catalog.db", "catalog.db-wal"])
def test_a_flipped_bit_gives_the_same_rows_or_an_error_of_ours(tmp_path: Path, name: str) -> None:
    """In a process of its own: a signal or a hang is a failure, too."""
    paths = os.pathsep.join([str(ROOT / "typing"), str(ROOT)])
    ran = subprocess.run(
        [sys.executable, "-m", "tests.store.catalog_damage", str(tmp_path / "s"), "7", str(FLIPS), name],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        timeout=120 + 2 * FLIPS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    counts = Counter(json.loads(ran.stdout))
    assert sum(counts.values()) == FLIPS
    bad = [said for said in counts if said.startswith(("WRONG", "UNTYPED"))]
    assert not bad, (counts, ran.stderr)
    assert counts["ES_STORE_DAMAGED"], "some bits matter"


def test_verify_tells_of_a_damaged_catalog(tmp_path: Path) -> None:
    make(tmp_path / "s")
    look(tmp_path / "s")
    path = tmp_path / "s" / "catalog.db"
    with Store.open(tmp_path / "s") as store:
        assert store.verify() == []
        path_of_a_fragment = store.context.table_state(1, store.status()["snapshot"]).fragments[0].path
    place = path.read_bytes().index(path_of_a_fragment.encode())
    flip(path, place * 8)
    with Store.open(tmp_path / "s") as store:
        assert any("ES_STORE_DAMAGED" in said and "fragments" in said for said in store.verify())
        with pytest.raises(StoreDamaged):
            store.table("t").scan().to_table()
