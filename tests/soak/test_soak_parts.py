"""What the soak stands on: its oracle knows right from wrong, and its processes do not stay behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.store import Store
from tests.soak import oracle
from tests.soak.killer import PLANT
from tests.soak.processes import PROC, Program, members
from tests.soak.programs import FIRST_ROWS, SCHEMA, SOURCE, Step, names, rows, step


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, list[oracle.Commit]]:
    """A store that two writers have filled, one after the other, and what they know."""
    store = Store.create(tmp_path_factory.mktemp("soak") / "store", ["s1", "s2"], tablets=4, slots=64)
    store.create_table(SOURCE, SCHEMA, ["id"])
    first = np.arange(FIRST_ROWS)
    known = [oracle.Commit(store.table(SOURCE).upsert(rows(first, 0)), Step("write", first, 0))]
    for number in range(40):
        made = step(3, 1 + number % 2, number)
        if made.kind == "delete":
            commit = store.table(SOURCE).delete(pa.table({"id": made.keys}))
        else:
            table = store.table(SOURCE)
            put = table.overwrite if made.kind == "overwrite" else table.upsert
            commit = put(rows(made.keys, made.value))
        known.append(oracle.Commit(commit, made))
    return store, known


def events_of(store: Store, after: int) -> oracle.Events:
    """What the store itself says has changed."""
    found = store.table(SOURCE).changes(after=after).to_table()
    kinds = np.array([oracle.KINDS.index(kind) for kind in found["_change_type"].to_pylist()])
    keys, values = (found[name].to_numpy() for name in ("id", "v"))
    return oracle.Events(keys, values, kinds, found["_commit_version"].to_numpy())


def test_the_oracle_agrees_with_a_store_that_nobody_disturbs(
    written: tuple[Store, list[oracle.Commit]],
) -> None:
    store, known = written
    assert {commit.step.kind for commit in known} == {"write", "delete", "overwrite"}
    wanted, table = oracle.feed_since(known[::-1], 0)
    assert oracle.differences(wanted, events_of(store, 0)) == []
    assert oracle.table_differences("source", table, store.table(SOURCE).scan().to_table()) == []
    middle = known[20].number
    begun, _ = oracle.feed_since(known, middle)
    snapshot = store.table(SOURCE).scan(snapshot=middle).to_table()
    inserts = oracle.Events.of([(snapshot["id"].to_numpy(), snapshot["v"].to_numpy(), 0, middle)])
    later = events_of(store, middle)
    both = [np.concatenate(pair) for pair in zip(_columns(inserts), _columns(later), strict=True)]
    assert oracle.differences(begun, oracle.Events(*both)) == []


def _columns(events: oracle.Events) -> list[oracle.Longs]:
    return [events.keys, events.values, events.kinds, events.commits]


def test_the_oracle_finds_changes_that_are_missing_too_many_repeated_or_altered(
    written: tuple[Store, list[oracle.Commit]],
) -> None:
    wanted, table = oracle.feed_since(written[1], 0)

    def only(which: oracle.Longs) -> oracle.Events:
        return oracle.Events(*[column[which] for column in _columns(wanted)])

    everything = np.arange(len(wanted))
    (missing,) = oracle.differences(wanted, only(everything[:-1]))
    assert missing.startswith("1 changes of 1 commits were not reported")
    (twice,) = oracle.differences(wanted, only(np.append(everything, 7)))
    assert "reported more than once" in twice
    (extra,) = oracle.differences(only(everything[:-1]), wanted)
    assert "never happened" in extra
    (other,) = oracle.differences(wanted, replace(wanted, values=wanted.values + (everything == 3)))
    assert "other values" in other
    keys, values = (pa.array(column) for column in table.rows())
    found = pa.table([keys, values, names(keys, values)], schema=SCHEMA)
    assert oracle.table_differences("t", table, found) == []
    assert "1 rows are missing" in oracle.table_differences("t", table, found.slice(1))[0]
    twisted = found.set_column(2, SCHEMA.field(2), found["name"].combine_chunks()[::-1])
    assert "several rows" in oracle.table_differences("t", table, twisted)[0]


def test_offsets_tell_how_much_lies_between_them(written: tuple[Store, list[oracle.Commit]]) -> None:
    store, known = written
    wanted, _ = oracle.feed_since(known, known[1].number)
    ends: list[dict[str, Any]] = [
        {"at": known[1].number, "slot": 20, "since": {"at": known[1].number}},
        {"commit": known[1].number, "slot": 0},
        {"commit": known[4].number - 1, "slot": 10},
        {"commit": known[4].number, "slot": 0},
        {"commit": known[-1].number, "slot": 0},
    ]
    sizes = oracle.batch_sizes(ends, wanted, store.context.info.slots)
    assert sum(sizes) == len(wanted)
    by_commit = [int((wanted.commits == commit.number).sum()) for commit in known]
    assert sizes[0] + sizes[1] == by_commit[1]
    assert sizes[2] + sizes[3] == sum(by_commit[2:5])
    assert min(sizes[:2]) > 0


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
