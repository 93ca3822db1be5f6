"""Stores as wholes: made, backed up, and made of a backup.

What this room promises:

- **Wholly or not at all.** A store gets its catalog last, and one that could not be made leaves nothing
  behind; a backup counts when its list is written, which happens last.
- **Nothing of others is touched.** What was there before is neither written over nor taken back.
- **A copy is compared with what it is a copy of.** Every file of a backup is read back, and has the checksum
  that the catalog knows, here as there.

How a backup goes: one look at the catalog is written down as plain values, the files that it refers to are
copied while retention and leases keep them, and the list makes it one. A store that is made of it is another
copy from its first moment, with roots, keys and secrets of its own.

creation  a new store with its shards
backup  a store copied to a place of its own, and made of one

It leaves out: stores made again from damaged files (`elasticscan.store.repair`), and catalogs that were
put back by hand (`RootMarks.adopt` of `elasticscan.store.context`).
"""
