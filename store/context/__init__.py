"""State of an open store that all operations in a process share: catalog, disks, caches, leases, secrets.

What this folder promises:

- **Reads are consistent.** A read of the catalog returns one state of it. A caller that has just read the
  placement passes its layout, and is answered from the same state.
- **A root is verified before it is written.** `Context.writable_disk` reads the marker of a root first. The
  versions in the marker show whether the catalog is an older copy (`elasticscan.store.roots`).
- **Snapshots stay readable while they are read**: by retention, by a lease that expires, or by a tag.
- **A continuation key is valid only with its seal.** Any process with the store's secrets can open it.

The modules, from the bottom up:

lookups    tables with their fragments and statistics, cached for one layout; readers: open files
memory     rows of the log as fragments in memory
high_water_marks  roots of shards: their owners, the high-water marks in their markers, and adoptions
sealing    continuation keys and their secrets
shared     `Context`, which has all of these, and `Upkeep`, the interface of the work after commits
leases     snapshots that stay readable until a time; tags: by name, without an end
shards     the scan protocol in one process: placements from the catalog, pages from the disks

Reads, writes and moves import the context, and it imports none of them.
"""

from elasticscan.store.context.shared import Context, Find, SyncPoint, Upkeep

__all__ = ["Context", "Find", "SyncPoint", "Upkeep"]
