"""The topology history of a cluster: each placement that a driver saw, as a numbered topology.

A cluster keeps none. A read compares where slots are now with the newest topology before it: slots that are
where they were are base-shard scans, others virtual scans. Rows are the same either way.
"""

from __future__ import annotations

import json

from elasticscan.backends.redis.cluster_map import UNSERVED, ClusterMap
from elasticscan.catalog import ForeignTopologies
from elasticscan.topology import Placement, Tablet

_IN_MEMORY: dict[str, ForeignTopologies] = {}


def record_topology(cluster: ClusterMap, path: str | None) -> Placement:
    """Enter the placement of a cluster into its history; return the newest before it, else itself.

    `path` is a SQLite file; None for the memory of this process.
    """
    ids = {shard: node.id for shard, node in cluster.nodes.items()}
    now = json.dumps([[t.start, t.end, ids.get(t.shard, "")] for t in cluster.placement.tablets])
    before = _history_of(cluster, path).enter(now)
    if before is None:
        return cluster.placement
    shards = {node_id: shard for shard, node_id in ids.items()}
    tablets = enumerate(json.loads(before), start=1)
    return Placement.of(
        Tablet(number, start, end, shards.get(node, UNSERVED), 0) for number, (start, end, node) in tablets
    )


def _history_of(cluster: ClusterMap, path: str | None) -> ForeignTopologies:
    """Return the history in a file, or the one in memory that belongs to any node of the cluster."""
    if path is not None:
        return ForeignTopologies(path)
    known = next((_IN_MEMORY[node] for node in cluster.members if node in _IN_MEMORY), ForeignTopologies())
    _IN_MEMORY.update(dict.fromkeys(cluster.members, known))
    return known
