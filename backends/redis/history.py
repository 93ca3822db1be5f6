"""The topology history of a cluster: each placement that a driver saw, as a numbered topology.

A cluster keeps no history. A read compares the placement with the newest earlier topology: slots that have
not moved become base-shard scans, others virtual scans. The rows are the same in both cases.

Clusters may share a history. A cluster has no name, so its topologies are stored under the id of one of its
nodes, and found by the ids of all its present nodes.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime

import pyarrow as pa

from elasticscan.backends.redis.cluster_map import UNSERVED, ClusterMap
from elasticscan.backends.redis.names import SLOTS
from elasticscan.base.errors import AlreadyExists, InvalidOption
from elasticscan.store import Store
from elasticscan.topology import Placement, Tablet

_TABLE = "topology_history"
_COLUMNS = pa.schema(
    {"cluster": "string", "number": "int64", "seen_at": pa.timestamp("us", "UTC"), "tablets": "string"}
)
_IN_MEMORY: dict[str, str] = {}  # the newest placement, under the id of each node


def record_topology(cluster: ClusterMap, place: str | None) -> Placement:
    """Append a cluster's placement to its history; return the one recorded before, or else this one.

    Args:
        place: a store, by its directory or URL, or `env:NAME` for one that an environment variable holds;
            None for the memory of this process.
    """
    now = json.dumps([[t.start, t.end, cluster.ids.get(t.shard, "")] for t in cluster.placement.tablets])
    before = _enter(cluster.members, now, place)
    if before is None:
        return cluster.placement
    shards = {node_id: shard for shard, node_id in cluster.ids.items()}
    try:
        tablets = enumerate(json.loads(before), start=1)
        base = Placement.of(
            Tablet(number, start, end, shards.get(node, UNSERVED), 0)
            for number, (start, end, node) in tablets
        )
        if base.slot_count != SLOTS:
            raise ValueError(f"{base.slot_count} slots")
    except (ValueError, TypeError, ArithmeticError, AssertionError, RecursionError):
        raise InvalidOption(
            "the newest entry of the topologyHistory is no placement; remove it, or name a new history",
            option="topologyHistory",
        ) from None
    return base


def _enter(nodes: Collection[str], tablets: str, place: str | None) -> str | None:
    """Append a placement unless it equals the last one of these nodes; return that last one, or None."""
    if place is None:
        before = next((_IN_MEMORY[node] for node in nodes if node in _IN_MEMORY), None)
        _IN_MEMORY.update(dict.fromkeys(nodes, tablets))
        return before
    with Store.open(place) as store:
        with suppress(AlreadyExists):
            store.create_table(_TABLE, _COLUMNS, ["cluster", "number"])
        table, these = store.table(_TABLE), {"nodes": list(nodes)}
        while True:  # an insert fails only if another driver inserted a placement meanwhile
            scan = table.scan(None, "cluster IN :nodes", parameters=these, order_by="number DESC", limit=1)
            (newest,) = scan.to_table().to_pylist() or [{"cluster": min(nodes), "number": 0, "tablets": None}]
            if tablets == newest["tablets"]:
                return tablets
            changed = {"number": newest["number"] + 1, "seen_at": datetime.now(UTC), "tablets": tablets}
            with suppress(AlreadyExists):
                table.insert([newest | changed])
                known: str | None = newest["tablets"]
                return known
