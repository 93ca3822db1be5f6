"""Upkeep: what keeps a store fast that is written in small pieces for years.

Pure plans say which steps are pending: a flush, merges, splits, joins and moves, a collection of garbage. One
executor owns steps and carries them out: for writers bounded work after a commit, for keepers all that is
pending. What this room promises:

- **The store stays fast automatically**, by writers alone or with any number of keepers in parallel.
- **A step is done or it is not.** It becomes visible in one transaction, has one owner in the catalog, and
  one whose owner is gone is taken over.
- **No plan undoes another**, and plans settle when nothing is written.
- **Nothing is deleted without proof.** That the catalog does not know a file proves little: such a file stays
  for a week, as does one without a readable manifest. One that another store or shard wrote stays for good.

The words: a *step* is one merge, one flush, one round of balancing or one collection; a file is *dropped*
when no fragment or run is in it any more, an *orphan* when the catalog never knew it, or forgot it, and
*condemned* when no commit may refer to it again.

The modules, from the bottom up:

planning       the bounds, and merges, as a pure function; tablets: `elasticscan.store.moves.balancing`
compaction     fragments merged, and rows in the log copied to files; the oldest snapshots that are needed
garbage        what becomes of each file, as a pure function; collector: carries it out
executor       steps carried out, each with an owner; all of them, by a keeper
after_commit   upkeep by writers

It leaves out files that are damaged, which `verify` tells and `elasticscan.store.repair` replaces.
"""
