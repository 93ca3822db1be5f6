"""Drivers at a cluster that are killed while they write and stream, and go on with new ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from elasticscan.store import Store
from tests.base.postgres import Server
from tests.base.processes import until
from tests.cluster.conftest import ROWS, SCHEMA, contents, made, moving, tidy
from tests.cluster.standalone import Cluster, Driver, Gate

SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    "spark.executor.cores": "1",
}
pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_write_whose_executors_and_drivers_are_killed_is_done_once_when_it_is_repeated(
    cluster: Cluster, store: Store, tmp_path: Path
) -> None:
    """The first driver while its tasks write; of the second an executor then, and itself after the commit."""
    options = {"txnAppId": "nightly", "txnVersion": "7"}
    given = {"path": f"{store.uri}/t", "ids": [0, 30_000], "v": 5, "options": options}
    for is_first in (True, False):
        gate = Gate(tmp_path, int(is_first))
        with Driver(cluster.master, tmp_path) as doomed, moving(store, int(is_first)):
            writing = doomed.begin("write", **given, gate=str(gate.place))
            gate.wait_for_tasks(doomed, writing, 2)
            if not is_first:
                cluster.kill_executor()
                gate.open()
                until(lambda: len(store.table("t").history()) > 2, "the write did not end")
            doomed.kill()
        assert contents(store) == contents_of(not is_first)
        gate.open()
    with Driver(cluster.master, tmp_path) as following:
        following.ask("write", **given)
    assert len(store.table("t").history()) == 3
    tidy(store)
    assert contents(store) == contents_of(True)


def contents_of(is_written: bool) -> list[list[int]]:
    rows = made(0, 30_000, 5) if is_written else made(0, ROWS, 1)
    return [list(row.values()) for row in rows.to_pylist()]


def test_a_stream_goes_on_where_executors_its_driver_and_the_catalog_s_server_are_killed(
    cluster: Cluster, server_store: Store, postgres: Server, tmp_path: Path
) -> None:
    store = server_store
    store.create_table("copy", SCHEMA, ["id"])
    checkpoint, gate = tmp_path / "checkpoint", Gate(tmp_path)
    given = {"source": f"{store.uri}/t", "target": f"{store.uri}/copy", "checkpoint": str(checkpoint)}
    given |= {"gate": str(gate.place)}
    with moving(store):
        with Driver(cluster.master, tmp_path) as doomed:
            job = doomed.begin("stream", **given, rows=5_000)
            gate.wait_for_tasks(doomed, job, 2)
            cluster.kill_executor()
            postgres.restart()
            gate.open()
            until(lambda: commits(store), "the stream wrote nothing")
            doomed.kill()
        store.table("t").upsert(made(ROWS - 500, ROWS + 500, 2))
        store.table("t").delete(list(range(100)))
        with Driver(cluster.master, tmp_path) as following:
            job = following.begin("stream", **given, rows=20_000)
            for _ in range(4):
                time.sleep(1.0)  # planning, reading, writing: wherever the stream is
                postgres.restart()
            following.answer(job)
    assert contents(store, "copy") == contents(store)
    # One commit for each micro-batch that had rows, whatever was killed.
    assert commits(store) == len(batches_with_rows(checkpoint))


def test_tasks_that_run_twice_and_executors_that_come_and_go_change_nothing(
    cluster: Cluster, store: Store, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    with Driver(cluster.master, tmp_path, SPECULATING) as driver, moving(store):
        job = driver.begin("write", path=f"{store.uri}/t", ids=[0, 30_000], v=5, gate=str(gate.place), slow=1)
        gate.wait_for_tasks(driver, job, 2)  # the slow task, and its second run
        gate.open()
        driver.answer(job)
        until(lambda: not cluster.executors(), "no executor was given back")
        read = driver.ask("read", path=f"{store.uri}/t")
    assert read["rows"] == contents(store) == contents_of(True)
    assert sum(commit.kind != "create" for commit in store.table("t").history()) == 2
    tidy(store)
    assert contents(store) == contents_of(True)


def commits(store: Store) -> int:
    return sum(commit.kind != "create" for commit in store.table("copy").history())


def batches_with_rows(checkpoint: Path) -> set[str]:
    """The ends of micro-batches, each of which brought the stream further."""
    logs = (checkpoint / "offsets").glob("[0-9]*")
    return {log.read_text(encoding="utf-8").splitlines()[2] for log in logs}
