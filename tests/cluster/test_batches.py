"""Batch reads and writes at a cluster, while tablets move and processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticscan.store import Store
from tests.base.processes import until
from tests.cluster.conftest import contents, moving
from tests.cluster.standalone import Cluster, Driver, Gate, JobFailed

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]
SMALL = {"batchSize": "500", "splitSize": "60k"}


def test_a_scan_is_exact_though_an_executor_and_then_its_worker_are_killed(
    cluster: Cluster, driver: Driver, store: Store, tmp_path: Path
) -> None:
    before = contents(store)
    for number, kill in enumerate((cluster.kill_executor, cluster.kill_worker)):
        gate = Gate(tmp_path, number)
        with moving(store, number):
            reading = driver.begin("read", path=f"{store.uri}/t", gate=str(gate.place), options=SMALL)
            gate.wait_for_tasks(driver, reading, 2)
            kill()
            gate.open()
            if kill == cluster.kill_worker:
                cluster.workers.append(cluster.add_worker())
            assert driver.answer(reading)["rows"] == before
    until(lambda: len(cluster.executors()) == 2, "no executor at the new worker")
    assert driver.ask("read", path=f"{store.uri}/t", options=SMALL)["rows"] == before


def test_an_executor_that_cannot_read_a_shard_says_who_and_where_it_is(driver: Driver, store: Store) -> None:
    root = Path(store.uri) / "shards"
    (root / "s1").rename(root / "away")
    try:
        with pytest.raises(JobFailed, match=r"ES_SHARD_UNAVAILABLE.*/s1.* \(user \S+ at \S+\)"):
            driver.ask("read", path=f"{store.uri}/t")
    finally:
        (root / "away").rename(root / "s1")
