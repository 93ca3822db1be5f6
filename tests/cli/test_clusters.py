"""Redis and Valkey clusters in the terminal: scans and the slot map."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.redis.servers import ServerCluster
from tests.cli.conftest import Shell

ROWS = {f"person:{n}": {"name": f"n{n}", "age": str(n)} for n in range(500)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ServerCluster]:
    with ServerCluster("redis") as started:
        started.load(ROWS)
        yield started


def test_a_table_of_a_cluster_is_scanned_counted_and_continued_by_its_key(
    shell: Shell, cluster: ServerCluster
) -> None:
    url = f"{cluster.url}/person"
    found = shell.ok("scan", url, "--filter", "age > 489", "--columns", "key,age", "--json")
    assert sorted(json.loads(line)["age"] for line in found.splitlines()) == list(range(490, 500))
    assert len(shell.ok("scan", url, "--format", "csv").splitlines()) == 501
    assert shell.json("count", url, "person", "--filter", "age < 10")["rows"] == 10
    assert "there are more" in shell.ok("scan", cluster.url, "person")
    _, first, err = shell.run("scan", url, "--page-rows", "100", "--pages", "2", "--json")
    rest = shell.ok("scan", url, "--key", json.loads(err)["continuation_key"], "--json")
    ages = [json.loads(line)["age"] for line in (*first.splitlines(), *rest.splitlines())]
    assert sorted(ages) == list(range(500))
    assert "scan(snapshot=) is not" in shell.fails("scan", url, "--snapshot", "1")[1]
    assert "model" in shell.fails("scan", url, "--option", "model=binary")[1]
    assert "one table must be named" in shell.fails("scan", cluster.url)[1]


def test_the_slot_map_is_listed_and_drawn(shell: Shell, cluster: ServerCluster, tmp_path: Path) -> None:
    drawn = tmp_path / "slots.svg"
    (found,) = shell.json("topologies", cluster.url, "--svg", drawn)
    assert sum(found["shards"].values()) == 16_384
    assert len(found["shards"]) == 3
    assert "seen" in shell.ok("topologies", cluster.url)
    assert drawn.read_text(encoding="utf-8").startswith("<svg")
    shown = shell.ok("topologies", cluster.url, "--watch", "--limit", 1)
    assert all(f"{name} " in shown for name in found["shards"])
    assert "--watch is for clusters" in shell.fails("topologies", tmp_path, "--watch")[1]
