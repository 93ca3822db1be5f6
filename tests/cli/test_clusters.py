"""Redis and Valkey clusters in the terminal: scans that stop and go on, and the slot map."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.backends.redis.servers import ServerCluster
from tests.cli.conftest import Shell

ROWS = {f"person:{n}": {"name": f"n{n}", "age": str(n)} for n in range(500)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ServerCluster]:
    with ServerCluster("redis") as started:
        started.load(ROWS)
        yield started


def test_a_scan_stops_at_pages_and_goes_on_by_its_key(
    shell: Shell, cluster: ServerCluster, tmp_path: Path
) -> None:
    url = f"{cluster.url}/person"
    found = shell.ok("scan", url, "--filter", "age > 489", "--columns", "key,age", "--json")
    assert sorted(json.loads(line)["age"] for line in found.splitlines()) == list(range(490, 500))
    _, first, told = shell.run("scan", url, "--page-rows", "100", "--pages", "2", "--json")
    rest = shell.ok("scan", url, "--key", json.loads(told)["continuation_key"], "--json")
    ages = [json.loads(line)["age"] for line in (*first.splitlines(), *rest.splitlines())]
    assert sorted(ages) == list(range(500))
    assert shell.json("count", url, "person", "--filter", "age < 10")["rows"] == 10
    assert "there are more" in shell.ok("scan", cluster.url, "person")
    shell.ok("scan", url, "--output", str(tmp_path / "p.parquet"))
    assert pq.read_table(tmp_path / "p.parquet").num_rows == 500


def test_what_is_wrong_is_an_error_with_its_code(shell: Shell, cluster: ServerCluster) -> None:
    url = f"{cluster.url}/person"
    assert "scan(snapshot=) is not" in shell.fails("scan", url, "--snapshot", "1")[1]
    assert "model" in shell.fails("scan", url, "--option", "model=binary")[1]
    assert "one table must be named" in shell.fails("scan", cluster.url)[1]


def test_the_slot_map_shows_what_moved(shell: Shell, cluster: ServerCluster, tmp_path: Path) -> None:
    (line,) = shell.ok("topologies", cluster.url, "--json").splitlines()
    assert sum(json.loads(line)["slots"].values()) == 16_384
    drawn = tmp_path / "slots.svg"
    shown = shell.ok("topologies", cluster.url, "--watch", "--limit", 1, "--svg", drawn)
    assert all(f":{server.port}" in shown for server in cluster.masters)
    assert drawn.read_text(encoding="utf-8").startswith("<svg")
