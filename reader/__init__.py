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

The placement of step 3 may serve as the next page's step 1 (`Placements.recent`): epochs before and after a
page are compared, so an older first placement can only drop more rows. The second placement is read for each
page, and only after the page was read.

It is right because of three things that the layers around it keep: the order of rows is the same
at every shard, the rows of a slot at a snapshot are the same wherever the slot lives, and a
slot's epoch changes before its rows stop being readable at the source. A cursor never stores
where its slots live; so a tablet that moves again, returns, or fails to move needs no rule.

`drive` is the thin loop around the pure functions. It keeps a second book, `Coverage`, filled
from the pages alone, and refuses to end unless every slot was finished exactly once.

Rows with some primary keys need no cursor (`read_by_key`): each shard answers for all keys at once, and what
moved between the two looks is asked for again, wherever it is then.

cursor       the rule as pure functions; coverage: the proof that every slot was read once
scan         the loop around it; sorted_scan: the same where rows leave in the order of an index
by_key       rows with some primary keys

Source: the continuation key, base topology and virtual scans are Oracle NoSQL's design for queries
during elasticity. Changed here: one pass a shard instead of one for each moved partition, pages
lose only the rows that moved instead of being repeated whole, and no query is ever ended.
"""

from elasticscan.reader.by_key import read_by_key
from elasticscan.reader.cursor import Accepted, ShardRead
from elasticscan.reader.scan import ScanPlan, ScanStats, drive
from elasticscan.reader.sorted_scan import SortKey, drive_sorted
