"""What a scan asks of a shard and gets back, as values; and who answers, as protocols.

`PageRequest` and `PageRows` cross between the one who scans and the one who holds files. `Shards` answers
requests, `Placements` says where slots are now: in one process both are thin shells around a store, and a
network node would serialize exactly these values.

The continuation key (`ContinuationKey`, `Sealer`) carries cursors, snapshot and the number of the base
topology, sealed with AES-GCM: it holds row values, and nobody may forge one.
"""

from elasticscan.protocol.cursors import Cursor, Cursors, Segment, Segments, merge, restrict, slots_of
from elasticscan.protocol.keys import ContinuationKey, Macs, Sealer
from elasticscan.protocol.requests import (
    ChangeSpan,
    Cluster,
    IndexOrder,
    PageRequest,
    PageRows,
    Placements,
    Shards,
)

__all__ = [
    "ChangeSpan",
    "Cluster",
    "ContinuationKey",
    "Cursor",
    "Cursors",
    "IndexOrder",
    "Macs",
    "PageRequest",
    "PageRows",
    "Placements",
    "Sealer",
    "Segment",
    "Segments",
    "Shards",
    "merge",
    "restrict",
    "slots_of",
]
