"""Reads of a table: scans, aggregates, rows by key, changes, exports.

What this folder promises:

- **A scan returns every row of one snapshot exactly once**, while tablets move. It can be stopped after any
  page, and resumed in any process from that page's key.
- **The access path never changes the rows.** A direct scan, a scan through an index and reads by primary key
  return the same rows. The path is chosen by cost when the scan begins, and derived again from its key.
- **Memory is bounded by the page size**, for scans and exports; aggregates also hold a row per group.
- **A read writes nothing**, except a lease if retention alone would not keep its snapshot.

A scan begins with a snapshot, a condition and an access path (`scan`). It reads pages by the cursor rule of
`elasticscan.reader` from the shards that have the slots at that time. The `Scan` returns them as pages, a
table or a stream, and removes its lease at the end.

The modules, from the bottom up:

changes       scans of the changes that commits made, and the list of commits
ordering      `order_by`: the indexes in its order, and the first rows of an order without an index
access_paths  access paths: chosen by cost, and derived from a continuation key
paged_scan    the part of a scan that returns each row once, as pages, a table or a stream
scan          `Scan`, and how scans of rows and of changes begin
aggregating   aggregates, folded page by page; the number of rows, if the fragments have it
rows_by_key   rows by their primary keys, many at once
exporting     rows as files; the ending of the name decides the format
streams       the state of the catalog that planning a micro-batch needs; the list of streams

Elsewhere: the cursor rule (`elasticscan.reader`), the choice by cost (`elasticscan.optimizer`), files
(`elasticscan.storage`). Nothing here writes rows.
"""
