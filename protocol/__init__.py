"""Requests and answers between a scan and shards, as values; and who answers, as protocols.

`Placements` says where slots are, and `Shards` answers a `PageRequest` with `PageRows`, and a `RowRequest`
(for rows by their keys) with a `RowAnswer`; an open store implements both (`Cluster`). A network node would
serialize exactly these values. What a filter leaves possible travels in the request (`key_sets`, and the
ranges of `IndexOrder`), so a shard can prune by the statistics of its own fragments, and knows nothing of
the filter.

cursors   positions of a scan, each with the slots that it holds for
backend   the door to stores of any kind: reads that begin and go on
requests  requests and answers, and the protocols of who gives them
keys      the continuation key, sealed and opened

The continuation key (`ContinuationKey`, `Sealer`) carries cursors, snapshot and the number of the base
topology, sealed with AES-GCM: it holds row values and must not be forged.
"""

from elasticscan.protocol.backend import (
    Backend,
    NamedColumns,
    PartScan,
    ReadableTable,
    ReadRequest,
    ScanStart,
    Weights,
    of_another_read,
)
from elasticscan.protocol.cursors import Cursor, Cursors, Segment, Segments, merge, restrict, slots_of
from elasticscan.protocol.keys import ContinuationKey, Macs, Sealer
from elasticscan.protocol.requests import (
    ChangeSpan,
    Cluster,
    IndexOrder,
    KeyList,
    KeyRange,
    KeyRanges,
    PageRequest,
    PageRows,
    Placements,
    RowAnswer,
    RowRequest,
    ShardReader,
    Shards,
)
