"""Requests and answers between a scan and shards, as values, and the protocols of the objects that answer.

`Placements` returns where slots are. `Shards` answers a `PageRequest` with `PageRows`, and a `RowRequest`
(rows by their keys) with a `RowAnswer`. An open store implements both (`Cluster`). A network node would
serialize exactly these values. A request does not carry the filter. It carries the values that the filter
allows (`key_sets`, and the ranges of `IndexOrder`), so a shard can prune by the statistics of its fragments.

cursors   positions of a scan, each with its slots
backend   the interface to stores of any kind: begin and resume reads
requests  requests and answers, and the protocols of those who answer
keys      the continuation key, sealed and opened

The continuation key (`ContinuationKey`, `Sealer`) carries cursors, snapshot and the number of the base
topology. It is sealed with AES-GCM because it contains row values and must not be forged.
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
