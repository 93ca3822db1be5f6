"""A stream whose drivers are killed over and over, above a table that is written, moved and compacted.

    ELASTICSCAN_SOAK_SECONDS=600 python -m pytest tests/cluster/test_soak.py

The stream enters each change of the table into another one under the change's own key, with `insertOnly`: so
none is entered twice, and at the end every one is there. Changes are kept for half a minute, beyond that by
the stream's lease alone, and large commits have more rows than a micro-batch.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import NamedTuple

import pyarrow as pa
import pytest

from elasticscan.base.errors import TryAgain
from elasticscan.store import Store, Table
from tests.base.processes import kill, until
from tests.cluster.conftest import SCHEMA, contents, moving, tidy
from tests.cluster.standalone import Driver

SECONDS = float(os.environ.get("ELASTICSCAN_SOAK_SECONDS", "10"))
SEED = int(os.environ.get("ELASTICSCAN_SOAK_SEED", "1"))
SCALE = min(1.0, SECONDS / 120)  # of the times that a driver lives
LEAST_KILLS = 2
MASTER, SETTINGS = "local[2,4]", {"spark.driver.memory": "1g"}  # a task may lose its worker three times
LOG = pa.schema([("id", pa.int64()), ("number", pa.int64()), ("kind", pa.string()), ("v", pa.int64())])

KEYS, HOT_KEYS, FIRST_ROWS = 60_000, 1_500, 30_000
# How often a commit is of a kind, and its fewest and most rows.
COMMITS = [
    (0.005, "overwrite", 10_000, 40_000),
    (0.025, "upsert", 10_000, 30_000),
    (0.01, "delete", 5_000, 20_000),
    (0.26, "delete", 1, 300),
    (0.7, "upsert", 1, 300),
]


class Said(NamedTuple):
    """A commit as its writer knows it."""

    number: int
    kind: str
    rows: dict[int, int]


def change(table: Table, kind: str, keys: Sequence[int], value: int) -> Said:
    rows = {key: value * KEYS + key for key in keys}  # no two commits write the same
    if kind == "delete":
        return Said(table.delete(list(keys)), kind, rows)
    given = pa.table({"id": list(rows), "v": list(rows.values())}, schema=SCHEMA)
    return Said((table.upsert if kind == "upsert" else table.overwrite)(given), kind, rows)


def write(uri: str, writer: int, stopping: Event) -> list[Said]:
    chance, said = random.Random(f"{SEED} {writer}"), list[Said]()
    with Store.open(uri) as store:
        while not stopping.wait(chance.random() ** 2 * 3):
            ((_, kind, least, most),) = chance.choices(COMMITS, [share for share, *_ in COMMITS])
            among = HOT_KEYS if most <= 300 and chance.random() < 0.5 else KEYS
            keys = chance.sample(range(among), chance.randrange(least, most))
            said.append(change(store.table("t"), kind, keys, writer * 1_000_000 + len(said)))
    return said


def compact(uri: str, stopping: Event) -> None:
    chance = random.Random(SEED)
    with Store.open(uri) as store:
        while not stopping.wait(chance.uniform(0.3, 2.0)):
            with suppress(TryAgain):
                store.compact()
                if chance.random() < 0.3:
                    store.collect_garbage(grace_seconds=120.0)


def live(driver: Driver, way: str, log: Table, chance: random.Random) -> None:
    """Let a driver live until the moment that its way to die asks for."""

    def grows() -> None:
        before = len(log.history())
        until(lambda: driver.answers("error") or len(log.history()) > before, "the stream does not move")

    if way == "start":
        time.sleep(chance.uniform(0.0, 8.0))
        return
    grows()
    time.sleep(chance.uniform(5.0, 25.0) * SCALE)
    if way == "written":  # and Spark has perhaps not noted it
        grows()
    for _ in range(3 if way == "workers" else 0):
        for worker in driver.workers()[:1]:
            kill(worker)
        time.sleep(chance.uniform(2.0, 8.0) * SCALE)


def folded(said: list[Said], snapshot: int) -> tuple[dict[int, int], set[tuple[int, int, str, int]]]:
    """The rows after all commits, and the changes after a snapshot, whose rows are the first of them."""
    state, log = dict[int, int](), set[tuple[int, int, str, int]]()
    for number, kind, rows in sorted(said):
        if kind == "delete":
            gone = {key: state[key] for key in rows.keys() & state.keys()}
            changes = [("delete", gone)]
        else:
            gone = {k: v for k, v in state.items() if kind == "overwrite" and k not in rows}
            old = {key: state[key] for key in rows.keys() & state.keys()}
            changes = [("delete", gone), ("update_preimage", old)]
            changes.append(("update_postimage", {key: rows[key] for key in old}))
            changes.append(("insert", {key: rows[key] for key in rows.keys() - old.keys()}))
        state = {key: v for key, v in state.items() if key not in gone}
        state |= rows if kind != "delete" else {}
        if number <= snapshot:
            log = {(key, snapshot, "insert", v) for key, v in state.items()}
        else:
            log |= {(key, number, what, v) for what, found in changes for key, v in found.items()}
    return state, log


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1_800 + 10 * SECONDS)
def test_a_stream_whose_drivers_are_killed_tells_every_change_once(tmp_path: Path) -> None:
    chance, stopping, end = random.Random(SEED * 7), Event(), time.monotonic() + SECONDS
    with Store.create(tmp_path / "soak.store", ["s1", "s2", "s3"], 12, 256) as store:
        table, log = store.create_table("t", SCHEMA, ["id"]), store.create_table("log", LOG, [*LOG.names[:3]])
        for each in (table, log):
            each.set_retention("30s")
        said = [change(table, "upsert", range(FIRST_ROWS), 0)]
        given = {"source": f"{store.uri}/t", "target": f"{store.uri}/log", "checkpoint": str(tmp_path / "c")}
        with ThreadPoolExecutor(3) as pool, moving(store, SEED, pause=0.5):
            others = [pool.submit(write, store.uri, writer, stopping) for writer in (1, 2)]
            merging = pool.submit(compact, store.uri, stopping)
            try:
                kills = 0
                while time.monotonic() < end or kills < LEAST_KILLS:
                    way = ("written", "workers", "start", "any time")[kills % 4]
                    with Driver(MASTER, tmp_path, SETTINGS) as doomed:
                        doomed.begin("follow", **given)
                        live(doomed, way, log, chance)
                        errors = doomed.answers("error")
                        assert not errors or (way == "workers" and "[ES_" not in errors[0]), errors
                        assert doomed.code() is None, doomed.why()
                        doomed.kill()
                        assert doomed.code() == -signal.SIGKILL
                    kills += 1
                    assert not merging.done() and not any(writing.done() for writing in others), (
                        "a writer ended"
                    )
            finally:
                stopping.set()
            said += [each for other in others for each in other.result()]
            merging.result()
        with Driver(MASTER, tmp_path, SETTINGS) as last:
            last.ask("follow", **given, ends=True)
        rows = log.scan().to_table().select(LOG.names)
        state, wanted = folded(said, min(rows["number"].to_pylist()))
        found = set(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        assert (found - wanted, wanted - found) == (set(), set())
        assert contents(store) == sorted(map(list, state.items()))
        assert {commit.number for commit in table.history() if commit.kind != "create"} == {
            commit.number for commit in said
        }
        assert [stream["name"] for stream in store.status()["streams"]] == ["soak"]
        assert store.status()["moves"] == []
        tidy(store)
        assert store.verify() == []
