"""The scan protocol: how a scan returns every row exactly once while tablets move.

A scan is a set of cursors over disjoint slots. A cursor means: "all rows of these slots up to this
position were returned". Each page takes three steps:

1. Read the placement, choose a shard, and request the slots of the cursors that live there
   (`plan_read`, pure). If the slots were at this shard when the scan began, this is a base-shard
   scan, otherwise a virtual scan; the request is the same.
2. Read one page at this shard: rows after each slot's position, at the scan's snapshot, up to a limit
   in rows and bytes (`Shards.read_page`, a protocol for the I/O).
3. Read the placement again. Drop the rows of slots whose (shard, epoch) changed, and keep the positions
   of these slots; advance all others (`accept_page`, pure). Only then return the page.

The placement of step 3 may be used for step 1 of the next page (`Placements.recent`). This is safe because
the two placements of a page are compared: an older first one can only drop more rows. The second placement
is read for each page, always after the page.

The protocol is exact because the layers around it keep three invariants: the order of rows is the same
at every shard, the rows of a slot at a snapshot are the same wherever the slot lives, and a
slot's epoch changes before its rows stop being readable at the source. A cursor never stores
where its slots live, so a tablet that moves again, returns, or fails to move is no special case.

`drive` is the thin loop around the pure functions. It also fills a second record, `Coverage`, from the
pages alone, and raises an error at the end unless every slot was finished exactly once.

Rows with given primary keys need no cursor (`read_by_key`): each shard answers for all of its keys in one
request, and keys whose slots moved in between are requested again at their new shard.

cursor       the rule as pure functions; coverage: the proof that every slot was read once
scan         the loop around the rule; sorted_scan: the same, with rows in the order of an index
by_key       rows with given primary keys

Source: the continuation key, base topology and virtual scans are Oracle NoSQL's design for queries
during elasticity. Three things differ here: a shard is read in one pass instead of one pass for each moved
partition, a page loses only the rows that moved instead of being read again, and no query is aborted.
"""

from elasticscan.reader.by_key import read_by_key
from elasticscan.reader.cursor import Accepted, ShardRead
from elasticscan.reader.scan import ScanPlan, ScanStats, drive
from elasticscan.reader.sorted_scan import SortKey, drive_sorted
