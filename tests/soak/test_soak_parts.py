"""What the soak stands on: its oracle knows right from wrong, and its processes do not stay behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from elasticscan.store import Store
from tests.soak import oracle
from tests.soak.killer import PLANT
from tests.soak.processes import PROC, Program, members
from tests.soak.programs import SCHEMA, SOURCE, rows


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, pa.Table]:
    """The changes of a table from its first commit on, and the table at the end."""
    chance = np.random.default_rng(3)
    with Store.create(tmp_path_factory.mktemp("soak") / "store", ["s1", "s2"], 4, 64) as store:
        table = store.create_table(SOURCE, SCHEMA, ["id"])
        for value in range(30):
            keys = np.sort(chance.choice(300, 40, replace=False))
            if value % 3 == 2:
                table.delete(pa.table({"id": keys}))
            else:
                table.upsert(rows(keys, value))
        table.overwrite(rows(np.arange(50), 30))
        return table.changes().to_table(), table.scan().to_table()


def test_the_oracle_agrees_with_a_store_that_is_at_rest(written: tuple[pa.Table, pa.Table]) -> None:
    feed, table = written
    assert set(feed["_change_type"].to_pylist()) == set(oracle.KINDS.to_pylist())
    assert oracle.broken_chains(feed, table) == []


def test_the_oracle_finds_every_change_that_is_missing_or_repeated(
    written: tuple[pa.Table, pa.Table],
) -> None:
    feed, table = written
    for at in range(0, feed.num_rows, 7):
        without = pa.concat_tables([feed.slice(0, at), feed.slice(at + 1)])
        assert oracle.broken_chains(without, table), feed.slice(at, 1).to_pylist()
        assert oracle.broken_chains(pa.concat_tables([feed, feed.slice(at, 1)]), table)


def test_the_oracle_finds_a_commit_that_is_missing(written: tuple[pa.Table, pa.Table]) -> None:
    feed, table = written
    for commit in feed["_commit_version"].unique().to_pylist():
        assert oracle.broken_chains(feed.filter(pc.field("_commit_version") != commit), table)


def test_the_oracle_finds_values_and_kinds_that_were_altered(written: tuple[pa.Table, pa.Table]) -> None:
    feed, table = written
    values, kinds = feed["v"].to_pylist(), feed["_change_type"].to_pylist()
    for at in range(0, feed.num_rows, 7):
        another = [*values[:at], -1, *values[at + 1 :]]
        assert oracle.broken_chains(feed.set_column(1, "v", pa.array(another)), table)
        kind = "insert" if kinds[at] == "update_postimage" else "update_postimage"
        place = feed.column_names.index("_change_type")
        altered = pa.array([*kinds[:at], kind, *kinds[at + 1 :]])
        assert oracle.broken_chains(feed.set_column(place, "_change_type", altered), table)


def test_the_oracle_finds_rows_in_which_tables_differ(written: tuple[pa.Table, pa.Table]) -> None:
    table = written[1]
    assert oracle.differences("t", table, table) == []
    assert "1 rows are missing" in oracle.differences("t", table.slice(1), table)[0]
    assert "1 rows are too many" in oracle.differences("t", table, table.slice(1))[0]
    assert "twice" in oracle.differences("t", pa.concat_tables([table, table.slice(0, 1)]), table)[0]
    twisted = table.set_column(2, "name", table["name"].combine_chunks()[::-1])
    assert len(oracle.differences("t", twisted, table)) == 2


@pytest.mark.long
@pytest.mark.skipif(not (PROC / "self" / "stat").exists(), reason="finds processes in /proc")
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
