"""The soak in its short form; its oracle knows right from wrong, and its programs end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from elasticscan.store import Store
from tests.soak import oracle
from tests.soak.killer import PLANT
from tests.soak.processes import PROC, Program, members
from tests.soak.programs import SCHEMA, SOURCE, change
from tests.soak.soak import run

NEEDS_PROC = pytest.mark.skipif(not (PROC / "self" / "stat").exists(), reason="finds processes in /proc")


def test_the_oracle_agrees_with_a_store_and_finds_what_is_missing_repeated_or_altered(
    tmp_path: Path,
) -> None:
    chance = random.Random(3)
    with Store.create(tmp_path / "store", ["s1", "s2"], 4, 64) as store:
        table = store.create_table(SOURCE, SCHEMA, ["id"])
        kinds = ["upsert", "upsert", "delete", "overwrite"] * 5
        said = [change(store, kind, chance.sample(range(90), 30), v) for v, kind in enumerate(kinds)]
        model = oracle.Model(said, snapshot=said[5]["commit"])
        feed = table.changes(said[5]["commit"]).to_table()
        found = oracle.rows_of(feed, "_change_type", "_commit_version")
        snapshot = oracle.rows_of(table.scan(snapshot=said[5]["commit"]).to_table())
        found += Counter((*row, "insert", said[5]["commit"]) for row in snapshot)
        assert list(oracle.differences("feed", found, model.feed)) == []
        assert {row[3] for row in found} == {"insert", "delete", "update_preimage", "update_postimage"}
        assert oracle.rows_of(table.scan().to_table()) == model.rows
    for row in list(found)[::7]:
        key, value, name, kind, commit = row
        others = [(key, -1, name, kind, commit), (key, value, name, "delete", commit + 1)]
        for wrong in (Counter([row]), Counter(others[:1]), Counter(others[1:])):
            assert list(oracle.differences("feed", found + wrong, model.feed))
        assert list(oracle.differences("feed", found - Counter([row]), model.feed))


@pytest.mark.long
@NEEDS_PROC
def test_a_program_takes_all_that_it_started_along(tmp_path: Path) -> None:
    with Store.create(tmp_path / "store", ["s1"]) as store:
        store.create_table(SOURCE, SCHEMA, ["id"])
        ends = Program("tests.soak.programs", "write", store.uri, "1", "1", log=tmp_path / "ends.err")
        dies = Program("tests.soak.programs", "write", store.uri, "1", "2", log=tmp_path / "dies.err")
        try:
            while not (ends.answers("commit") and dies.answers("commit")):
                assert ends.code() is None and dies.code() is None, ends.why() + dies.why()
                time.sleep(0.01)
            assert ends.finish(60) == 0
            assert dies.id in members(dies.id)
            dies.kill()
            assert dies.code() == -signal.SIGKILL
            assert members(dies.id) == []
        finally:
            ends.kill()
            dies.kill()
        known = {said["commit"] for program in (ends, dies) for said in program.said}
        assert known <= {commit.number for commit in store.table(SOURCE).history()}
    assert members(os.getsid(0)), "it finds processes at all"


@pytest.mark.long
def test_every_fault_of_the_soak_still_finds_what_it_breaks() -> None:
    planting = "import soak_faults\nfor name in soak_faults.FAULTS: soak_faults.plant(name)\n"
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(PLANT), *sys.path[1:]])}
    subprocess.run([sys.executable, "-W", "ignore", "-c", planting], env=environment, check=True)
    unknown = environment | {"ELASTICSCAN_SOAK_FAULT": "none_of_them"}
    ended = subprocess.run([sys.executable, "-c", ""], env=unknown, capture_output=True, check=False)
    assert ended.returncode == 2
    assert b"there is no fault 'none_of_them'" in ended.stderr


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(3_600)
@NEEDS_PROC
def test_streams_whose_drivers_are_killed_tell_every_change_once(tmp_path: Path) -> None:
    outcome = run(tmp_path / "soak", seconds=10)
    assert not outcome.wrong, str(outcome)
