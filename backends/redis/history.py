"""The topology history of a cluster: each placement that a driver saw, as a numbered topology.

A cluster keeps none. A read compares where slots are now with the newest topology before it: slots that are
where they were are base-shard scans, others virtual scans. Rows are the same either way.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field

from elasticscan.backends.redis.cluster_map import UNSERVED, ClusterMap
from elasticscan.topology import Placement, Tablet

_SCHEMA = """CREATE TABLE IF NOT EXISTS topology_history
    (number INTEGER PRIMARY KEY, seen_at REAL NOT NULL, tablets TEXT NOT NULL)"""


@dataclass
class TopologyHistory:
    """The placements of one cluster, oldest first, in memory or in a SQLite file.

    Attributes:
        path: the file; None for memory.
    """

    path: str | None = None
    _kept: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, path: str | None) -> TopologyHistory:
        """Return the history in a file, or the one in the memory of this process."""
        return _IN_MEMORY if path is None else cls(path)

    def record(self, cluster: ClusterMap) -> Placement:
        """Return the base placement of a read, the newest topology before it, and enter the present one."""
        ids = {shard: node.id for shard, node in cluster.nodes.items()}
        now = json.dumps([[t.start, t.end, ids.get(t.shard, "")] for t in cluster.placement.tablets])
        before = self._enter(now)
        if before is None:
            return cluster.placement
        shards = {node_id: shard for shard, node_id in ids.items()}
        tablets = enumerate(json.loads(before), start=1)
        return Placement.of(
            Tablet(number, start, end, shards.get(node, UNSERVED), 0)
            for number, (start, end, node) in tablets
        )

    def _enter(self, now: str) -> str | None:
        """Append a placement if it is another one than the newest; returns the newest before."""
        if self.path is None:
            before = self._kept[-1] if self._kept else None
            self._kept += [now] if now != before else []
            return before
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            connection.execute(_SCHEMA)
            row = connection.execute(
                "SELECT tablets FROM topology_history ORDER BY number DESC LIMIT 1"
            ).fetchone()
            if row is None or row[0] != now:
                connection.execute(
                    "INSERT INTO topology_history (seen_at, tablets) VALUES (?, ?)", (time.time(), now)
                )
            return None if row is None else str(row[0])


_IN_MEMORY = TopologyHistory()
