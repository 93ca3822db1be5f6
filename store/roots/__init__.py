"""The places of a store: where its catalog and its shards are, and whose they are.

What this room promises:

- **A root is what it holds, not what it is called.** A mount may be missing, two names may lead to one
  directory, a catalog may be a copy. So each write or delete at a shard first checks its marker there.
- **A doubt stops the work.** What is missing, torn or another's is an error that says what to mend; nothing
  is written below a mount point that lies bare.

The words:

location     where a store is, and the roots of its shards, as users name them
root         the directory or prefix of one shard's files
marker       a file in a root that names its store, its shard and the incarnation of its catalog, and how far
             the catalog had got: one that is ahead of the catalog proves that the catalog is an older copy
incarnation  one life of a catalog; an adoption begins another one
mark         how far a catalog has got: incarnation, layout, commit

location  places as users name them; `Location` is the place of a store
markers   markers, read, raised and compared; claims of several roots, all or none

It leaves out: what lies in a root alongside them (`elasticscan.storage`), and roots that a person claims
again, since those are compared with the catalog (`adoption`, of the facade).
"""

from elasticscan.store.roots.location import Location
from elasticscan.store.roots.markers import Claims, Marker

__all__ = ["Claims", "Location", "Marker"]
