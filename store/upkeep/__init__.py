"""Upkeep, carried out: merges, splits and moves that are due, and garbage that is proven to be some.

What this room promises:

- **The store stays fast automatically.** Writers do bounded work after a commit; keepers do all of it,
  any number of them in parallel.
- **A step is done or it is not.** It becomes visible in one transaction, has one owner in the catalog, and
  one whose owner is gone is taken over.
- **Nothing is deleted without proof.** That the catalog does not know a file proves nothing: such a file goes
  to the trash first, and may come back. `garbage` decides, as a pure function, and everything else only does
  it.
- **A keeper gives way**: while others commit, it rests for as long as it works.

The words: a *step* is one merge, one round of balancing or one collection; *amplification* is what reads,
writes and space cost beyond their rows; a file is *dropped* when the catalog let it go, *condemned* when no
commit can take it any more, and in the *trash* until it is old enough.

The modules, from the bottom up:

compaction     fragments merged: some of a shard's, or all of them
flushing       rows in the log copied to files
garbage        what becomes of each file, as a pure function; collector: carries it out
steps          steps as the catalog knows them, with their owners
amplification  what is due, what runs, what was done
after_commit   upkeep by writers
keeper         all of it, by a process that does nothing else

It leaves out: what is due (`elasticscan.upkeep`, which plans in pure code), and files that are damaged, which
`verify` tells and `elasticscan.store.repair` replaces.
"""
