"""The scan protocol: how a scan returns every row once while tablets move.

A scan is a set of cursors over disjoint slots; a cursor says "all rows of these slots up to this
position were returned". Each page takes three steps:

1. Look up where the slots of the cursors are now, choose a shard, and ask it for the slots that
   live there (`plan_read`, pure). At the shard where they were when the scan began this is a
   base-shard scan, elsewhere a virtual scan; the request is the same.
2. Read one page there: rows beyond each slot's position, at the scan's snapshot, up to a limit
   in rows and bytes (`Shards.read_page`, a protocol with I/O behind it).
3. Look up again. Rows of slots whose (shard, epoch) changed are dropped and their slots stay
   where they were; all others advance (`accept_page`, pure). Only then does the page leave.

It is right because of three things that the layers around it keep: the order of rows is the same
at every shard, the rows of a slot at a snapshot are the same wherever the slot lives, and a
slot's epoch changes before its rows stop being readable at the source. A cursor never stores
where its slots live; so a tablet that moves again, returns, or fails to move needs no rule.

`drive` is the thin loop around the pure functions. It keeps a second book, `Coverage`, filled
from the pages alone, and refuses to end unless every slot was finished exactly once.

The continuation key (`ContinuationKey`, `Sealer`) carries cursors, snapshot and the number of the
base topology, sealed with AES-GCM: it holds row values, and nobody may forge one.

`Predicate` is the filter: SQL text parsed with sqlglot into a small typed tree, evaluated with
Arrow kernels in three-valued logic; what cannot be evaluated exactly as Spark would is refused.

What a filter means for reading is found out by pure functions: `value_set` gives the values of one
column with which it can be true, `may_match` the record batches that can have such rows, `bind` the
key ranges of an index and what remains to be checked, and `choose` the cheapest way by estimates
from statistics. A wrong estimate costs time; a wrong set would cost rows, so sets are held against
the evaluator by tests.

Source: the continuation key, base topology and virtual scans are Oracle NoSQL's design for queries
during elasticity. Changed here: one pass a shard instead of one for each moved partition, pages
lose only the rows that moved instead of being repeated whole, and no query is ever ended.
Binding of indexes and the cost formula follow Hazelcast's distributed scan; changed there: value sets
take the place of the normal form, and estimates come from histograms.
"""

from elasticscan.reader.access import IndexCondition, bind, covered
from elasticscan.reader.choice import Candidate, Choice, choose
from elasticscan.reader.coverage import Coverage
from elasticscan.reader.cursor import (
    Accepted,
    Cursor,
    Cursors,
    ShardRead,
    accept_page,
    merge,
    plan_lowest,
    plan_read,
    restrict,
    slots_of,
)
from elasticscan.reader.estimates import key_sets, may_match
from elasticscan.reader.key_sets import KeySet
from elasticscan.reader.keys import ContinuationKey, Sealer
from elasticscan.reader.predicate import Predicate
from elasticscan.reader.protocol import ChangeSpan, IndexOrder, PageRequest, PageRows, Placements, Shards
from elasticscan.reader.scan import ScannedPage, ScanPlan, ScanStats, drive
from elasticscan.reader.sorted_scan import SortKey, drive_sorted
from elasticscan.reader.value_sets import Found, value_set

__all__ = [
    "Accepted",
    "Candidate",
    "ChangeSpan",
    "Choice",
    "ContinuationKey",
    "Coverage",
    "Cursor",
    "Cursors",
    "Found",
    "IndexCondition",
    "IndexOrder",
    "KeySet",
    "PageRequest",
    "PageRows",
    "Placements",
    "Predicate",
    "ScanPlan",
    "ScanStats",
    "ScannedPage",
    "Sealer",
    "ShardRead",
    "Shards",
    "SortKey",
    "accept_page",
    "bind",
    "choose",
    "covered",
    "drive",
    "drive_sorted",
    "key_sets",
    "may_match",
    "merge",
    "plan_lowest",
    "plan_read",
    "restrict",
    "slots_of",
    "value_set",
]
