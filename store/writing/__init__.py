"""Writes: staged at the shards, then visible on all of them by one commit, or not at all.

What this room promises:

- **All or nothing.** When a write returned, its rows are on the disks and in every new snapshot. When its
  process died before, nothing of it is visible; what it staged is garbage.
- **No write is lost to a move.** The commit checks where slots are. What has moved meanwhile is staged again,
  at last under the catalog's lock, so a writer cannot starve.
- **A write may require something of its keys**: that they are unchanged since a snapshot, or that they are
  not there. This is checked up to the very transaction that commits.
- **Once is enough.** With an `IdempotencyKey` a write that was committed before is not done again.

How a write goes: `stage` writes files that nothing refers to, with runs of every index; `publish` refers to
them in one transaction, under a precondition if need be. Few rows are staged in memory, and become part of
the commit's record. Deletes are tombstones (`elasticscan.store.rows`); updates, merges and overwrites read
(`elasticscan.store.reading`), stage, and require that what they read still holds.

The modules, from the bottom up:

definitions    tables: checked, reserved for a first write, entered with it; their columns; dropped
indexing       indexes, built alongside writers and moves, and their runs for each fragment; files in the
               place of others
preconditions  what a write may require of its keys
publishing     rows become files that nothing refers to yet, or wait in memory for the log; and a commit
transactions   rows read, and what becomes of them committed, if no other commit changed them meanwhile; else
               all is done again. So rows that meet a condition are deleted, updated or replaced, and a table
               is made again what it was at an older snapshot
merging        rows that meet those with the same keys: updated, deleted, inserted
loading        files into a table, as one commit or piece by piece

It leaves out: who owns a slot (`elasticscan.store.moves`), and how files are written (`elasticscan.storage`).
"""
