"""Creation of stores, backups of whole stores, and creation of a store from a backup.

What this folder promises:

- **All or nothing.** The catalog of a new store is written last, and a failed creation removes what it made.
  The list of a backup's files is written last; without it there is no backup.
- **Existing files are safe.** Nothing that existed before is overwritten or removed.
- **Every copy is verified.** Each copied file is read back and compared with the checksum in the catalog,
  when a backup is made and when a store is made from it.

A backup stores one state of the catalog as plain values, then copies the files of that state, which
retention and leases keep meanwhile, then writes the list. A store from a backup is independent of the
original: it has its own roots, incarnation, continuation keys and secrets.

creation  a new store with its shards
backup    a backup of a store, and a store from a backup

Elsewhere: stores made from damaged files (`elasticscan.store.repair`), and catalogs that were restored by
hand (`RootMarks.adopt` in `elasticscan.store.context`).
"""
