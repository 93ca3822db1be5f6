"""Upkeep: background work that keeps a store fast although it is written in small commits for years.

Pure functions plan the steps that are pending: flushes, merges, splits, joins, moves and garbage collection.
An executor owns steps and carries them out: bounded work after a commit for writers, all pending steps for
keepers. What this folder promises:

- **The store stays fast automatically**, by writers alone or with any number of keepers in parallel.
- **A step is atomic.** It becomes visible in one transaction. It has one owner in the catalog, and another
  process takes it over if the owner is gone.
- **No plan undoes another one.** When nothing is written, nothing is pending after a few rounds.
- **Nothing is deleted without proof.** A file that the catalog does not know may only be unknown to a wrong
  catalog. So such a file, or one without a readable manifest, is kept for a week. A file that another store
  or shard wrote is never deleted.

A *step* is one merge, one flush, one round of balancing or one garbage collection. A file is *dropped* if its
fragment or run serves no slot any more, an *orphan* if the catalog never knew or has forgotten it, and
*condemned* if no commit may name it again.

The modules, from the bottom up:

planning       bounds of upkeep, and plans of merges; for tablets, see `elasticscan.store.moves.balancing`
compaction     merges, flushes, and the horizon: the oldest snapshot that must stay readable
garbage        decisions about files, as a pure function; `collector` carries them out
executor       steps with owners, and the rounds of a keeper
after_commit   upkeep by writers

Damaged files are reported by `verify` and replaced by `elasticscan.store.repair`.
"""
