"""The words that a scan and a shard exchange, as values; and who answers, as protocols.

`PageRequest` and `PageRows` cross between the one who scans and the one who holds files. `Shards` answers
requests (and a `RowRequest`, for rows by their keys, with a `RowAnswer`), `Placements` says where slots are
now, and a `Cluster` is both: in one process two thin shells around a store, made where it is opened and
handed to every scan. A network node would serialize exactly these values. What a filter leaves possible
travels in the request (`key_sets`, and the ranges of `IndexOrder`), so a shard can prune by the statistics of
its own fragments, and knows nothing of the filter.

cursors   positions of a scan, each with the slots that it holds for
requests  requests and answers, and the protocols of who gives them
keys      the continuation key, sealed and opened

The continuation key (`ContinuationKey`, `Sealer`) carries cursors, snapshot and the number of the base
topology, sealed with AES-GCM: it holds row values and must not be forged.
"""

from elasticscan.protocol.cursors import Cursor, Cursors, Segment, Segments, merge, restrict, slots_of
from elasticscan.protocol.keys import ContinuationKey, Macs, Sealer, pack, unpack
from elasticscan.protocol.requests import (
    ChangeSpan,
    Cluster,
    IndexOrder,
    KeyList,
    KeyRange,
    KeyRanges,
    PageRequest,
    PageRows,
    PlacementLook,
    Placements,
    RowAnswer,
    RowRequest,
    ShardReader,
    Shards,
)

__all__ = [
    "ChangeSpan",
    "Cluster",
    "ContinuationKey",
    "Cursor",
    "Cursors",
    "IndexOrder",
    "KeyList",
    "KeyRange",
    "KeyRanges",
    "Macs",
    "PageRequest",
    "PageRows",
    "PlacementLook",
    "Placements",
    "RowAnswer",
    "RowRequest",
    "Sealer",
    "Segment",
    "Segments",
    "ShardReader",
    "Shards",
    "merge",
    "pack",
    "restrict",
    "slots_of",
    "unpack",
]
