"""State of an open store that all operations in a process share: catalog, disks, caches, leases, secrets.

What this room promises:

- **Reads are consistent.** A read of the catalog returns one state of it. A call that names the layout of a
  check just made is answered from that state.
- **A root is verified before it is written.** `Context.writable_disk` reads the marker of a root first. The
  versions in the marker show whether the catalog is an older copy (`elasticscan.store.roots`).
- **Snapshots that are read stay readable**: by retention, by a lease that ends, or by a tag that does not.
- **A continuation key is valid only with its seal.** Any process with the store's secrets can open it.

The modules, from the bottom up:

lookups    tables with their fragments and statistics, cached for one layout; readers: open files
memory     rows of the log as fragments in memory
high_water_marks  roots of shards: their owners, the high-water marks in their markers, and adoptions
sealing    continuation keys and their secrets
shared     `Context`, which has all of these, and `Upkeep`, the interface of work that follows commits
leases     promises with an end that something stays readable; tags: by name, without an end
shards     the scan protocol in one process: placements from the catalog, pages from the disks

Reads, writes and moves use a context, which does not know them.
"""

from elasticscan.store.context.shared import Context, Find, SyncPoint, Upkeep

__all__ = ["Context", "Find", "SyncPoint", "Upkeep"]
