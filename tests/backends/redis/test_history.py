"""Histories of clusters in memory and in a store."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import pytest

from elasticscan.backends.redis.cluster_map import ClusterMap, parse_map
from elasticscan.backends.redis.history import record_topology
from elasticscan.backends.redis.names import SLOTS
from elasticscan.backends.redis.options import ClusterOptions, read_options
from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.store import Store
from elasticscan.topology import SlotSet

_NEW = count(1)  # nodes of no other test, for the history in memory is that of the process


class Cluster:
    """A cluster of two nodes."""

    def __init__(self) -> None:
        self.ids = [f"{next(_NEW):040x}" for _ in range(2)]
        self.shards: dict[str, int] = {}

    def seen(self, slots: int) -> ClusterMap:
        """Return the cluster whose second node has the first slots, and the other one the rest."""
        nodes = [
            (self.ids[0], 1, f"{slots}-{SLOTS - 1}"),
            (self.ids[1], 2, f"0-{slots - 1}" if slots else ""),
        ]
        lines = (f"{node} 10.0.0.1:7001@1 master - 0 0 {epoch} connected {at}" for node, epoch, at in nodes)
        return parse_map("\n".join(lines), ("h", 1), self.shards)


def record_all(cluster: Cluster, place: str, numbers: range) -> None:
    """Be a driver that sees placements which no other sees."""
    for slots in numbers:
        record_topology(cluster.seen(slots), place)


@pytest.fixture(params=["memory", "store", "variable", pytest.param("server", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    if request.param == "memory":
        return None
    server = request.param == "server"
    uri = request.getfixturevalue("postgres_url") if server else str(tmp_path / "h.store")
    Store.create(uri, {"a": str(tmp_path / "a")}).close()
    monkeypatch.setenv("HISTORY", uri)
    return uri if request.param == "store" else "env:HISTORY"


def test_a_second_read_knows_where_slots_were(place: str | None) -> None:
    cluster, other = Cluster(), Cluster()
    assert record_topology(cluster.seen(0), place).at(1) == SlotSet.span(0, SLOTS)
    now, base = cluster.seen(100).placement, record_topology(cluster.seen(100), place)
    assert now.at(1) & base.at(1) == SlotSet.span(100, SLOTS), "base-shard scans"
    assert now.at(2) - base.at(2) == SlotSet.span(0, 100), "virtual scans"
    assert record_topology(other.seen(7), place) == other.seen(7).placement, "clusters share a history"
    again = [record_topology(cluster.seen(100), place) for _ in range(2)]
    assert [base.at(2) for base in again] == [SlotSet.span(0, 100)] * 2


def test_two_drivers_at_once_lose_and_repeat_no_number(tmp_path: Path) -> None:
    uri, most = str(tmp_path / "history"), 10
    Store.create(uri, ["a"]).close()
    seen = [range(first, first + most) for first in (100, 200)]
    with ProcessPoolExecutor(2, get_context("spawn")) as drivers:
        list(drivers.map(record_all, [Cluster()] * 2, [uri] * 2, seen))
    with Store.open(uri) as store:
        rows = store.table("topology_history").to_arrow(["number", "tablets"]).to_pylist()
    assert sorted(row["number"] for row in rows) == list(range(1, 2 * most + 1))
    assert sorted(json.loads(row["tablets"])[0][1] for row in rows) == [*seen[0], *seen[1]]


@pytest.mark.parametrize("kind", ["no store", "a file", "a cluster", "damaged store"])
def test_a_history_that_cannot_be_used_is_an_error_with_a_next_step(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "history"
    if kind == "no store":
        path.mkdir()
    elif kind == "a file":
        path.write_bytes(b"x" * 4_096)
    elif kind == "damaged store":
        Store.create(path, ["a"]).close()
        (path / "catalog.db").write_bytes(b"x" * 4_096)
    uri = "redis://localhost:1" if kind == "a cluster" else str(path)
    with pytest.raises(ElasticScanError, match=";"):
        record_topology(Cluster().seen(0), uri)


@pytest.mark.parametrize("text", ["[[0, 16383, 1]]", "[[0, 1e400, 1]]", "{", "7", "[[0, 1]]"])
def test_an_entry_that_is_no_placement_is_an_error(tmp_path: Path, text: str) -> None:
    cluster, path = Cluster(), str(tmp_path / "h.store")
    with Store.create(path, ["a"]) as store:
        record_topology(cluster.seen(0), path)
        store.table("topology_history").update({"tablets": f"'{text}'"})
    with pytest.raises(InvalidOption, match="remove it"):
        record_topology(cluster.seen(100), path)


def test_a_password_is_refused_where_plans_would_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "mysql+pymysql://ann:s3cret@localhost:1/x"
    with pytest.raises(InvalidOption, match="env:NAME") as refused:
        read_options({"topologyHistory": uri}, ClusterOptions)
    monkeypatch.setenv("HISTORY", uri)
    (options,) = read_options({"topologyHistory": "env:HISTORY"}, ClusterOptions)
    with pytest.raises(ElasticScanError) as unknown:
        record_topology(Cluster().seen(0), options["topology_history"])
    for text in (repr(refused.value), repr(unknown.value), repr(unknown.value.fields), repr(options)):
        assert "s3cret" not in text
