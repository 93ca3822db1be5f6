"""Writes: rows are staged at the shards, and one commit makes them visible at all shards, or not at all.

What this folder promises:

- **All or nothing.** When a write has returned, its rows are on disk and in every new snapshot. If its
  process dies earlier, nothing of it is visible, and garbage collection removes its staged files.
- **No write is lost to a move.** The commit checks at which shard each slot is. Rows of slots that moved
  meanwhile are staged again. The last attempts do this under the catalog's lock, so a writer cannot starve.
- **A write may have preconditions on its keys**: that they are unchanged since a snapshot, or that they do
  not exist. The check covers all commits up to the write's own.
- **Writes can be idempotent.** A write whose `IdempotencyKey` was committed before is not done again.

How a write works: `stage` writes files with runs of every index, which no record names yet. `publish` commits
a record that names them, under a precondition if there is one. A few rows are staged in memory instead, and
become part of the commit's record. Deletes are tombstones (`elasticscan.store.rows`). Updates, merges and
overwrites read rows (`elasticscan.store.reading`), stage new ones, and require that the read rows are
unchanged.

The modules, from the bottom up:

definitions    tables: definition, reservation for a first write, creation, changes of columns, drop
indexing       indexes: builds while writers and moves work, and the runs of new fragments
preconditions  checks of a write's keys against other commits
publishing     staging of rows, and their commit
transactions   writes that depend on rows that they read, repeated until no other commit changed these:
               delete, update and replace by a condition, and restore of an older snapshot
merging        merge: update, delete or insert by primary key
loading        loads of files into a table, as one commit or one commit for each file

Which shard owns a slot is decided in `elasticscan.store.moves`; files are written by `elasticscan.storage`.
"""
