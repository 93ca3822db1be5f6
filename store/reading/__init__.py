"""Reads of a table: scans, aggregates, rows by key, changes, exports.

What this room promises:

- **A scan returns every row of one snapshot exactly once**, while tablets move. It can be stopped after any
  page, and goes on anywhere from that page's key.
- **The path never changes the rows.** A scan by an index, by primary key and without either returns the same;
  the path is chosen by cost when the scan begins, and found again from its key.
- **Memory follows the page**, for scans, folded aggregates and exports.
- **A read changes nothing**, but for a lease where retention alone would not keep what it reads.

How a scan goes: it begins (`scan`) with a snapshot, a condition and a path; pages are read by the cursor
rule of `elasticscan.reader` at whatever shard has the slots by then; the `Scan` hands them out as pages, a
table or a stream, and ends its lease.

The modules, from the bottom up:

changes       scans of what commits changed, and the list of commits
ordering      `order_by`, the indexes that give it, and the first rows of an order that none gives
access_paths  paths, chosen and found again
paged_scan    rows, given out once as pages, a table or a stream
scan          a scan as users hold it, and how scans of rows and of changes begin
aggregating   aggregates, folded page by page; the number of rows, where fragments tell it
rows_by_key   rows by their primary keys, many at once
exporting     rows as files, one or several, of kinds by the ends of their names
streams       what planning a micro-batch has to know, in one look; streams by their leases

It leaves out: the cursor rule (`elasticscan.reader`), the choice by cost (`elasticscan.optimizer`), files
(`elasticscan.storage`). Nothing here writes rows.
"""
