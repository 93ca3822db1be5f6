"""An open store, as all that work on it share it.

What this room promises:

- **One look, one truth.** A look at the catalog gives one state of it. A question that names the layout of a
  look just made is answered from the same one.
- **Nothing is written where it does not belong.** `Context.writable_disk` reads the marker of a root first,
  and the mark tells whether the catalog is an older copy (`elasticscan.store.roots`).
- **What is read stays readable**: by retention, by a lease that ends, or by a tag that does not.
- **A key is valid only with its seal**, and opened by any process with the store's secrets.

The words:

context     the catalog, the clock, the disks and the caches of one open store
look-up     a table with its fragments, kept while the layout of the catalog stays
lease       a promise with an end that something stays readable; a tag is one by name, without an end
checkpoint  a named point between two steps, where a test lets others come between

Work that others do after commits (upkeep) is known here as a protocol alone, so that writes can tell of a
commit and nothing below has to know what follows.

The modules, from the bottom up:

lookups    tables with their fragments and statistics, each valid for one layout; readers: files that are
           kept open
memory     rows that lie in the log, as fragments in memory
marks      the roots of shards: whose they are, and how far they know the catalog
following  the protocol of work that follows commits; sealing: continuation keys and their secrets
shared     `Context`, which has all of these
leases     promises with an end; tags: names that keep a snapshot
shards     the scan protocol in one process: placements from the catalog, pages from the disks

It has no operations: reads, writes and moves use a context, which does not know them.
"""

from elasticscan.store.context.shared import Checkpoint, Context, Find

__all__ = ["Checkpoint", "Context", "Find"]
