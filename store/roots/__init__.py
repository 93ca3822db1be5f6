"""The places of a store: where its catalog and its shards are, and whose they are.

- **A root is what it holds, not what it is called.** A mount may be missing, two names may lead to one
  directory, a catalog may be a copy. So each write or delete at a shard first checks its marker there.
- **A doubt stops the work.** What is missing, torn or another's is an error that says what to mend; nothing
  is written below a mount point that lies bare.

location  places as users name them; `Location` is the place of a store, *roots* are those of its shards
markers   the file in each root that names its store, its shard and the *incarnation* of its catalog (an
          adoption begins another one), and how far the catalog had got; claims of several roots

Marks are compared with the catalog, and adoptions made, in `store/context/high_water_marks.py`.
"""

from elasticscan.store.roots.location import Location
from elasticscan.store.roots.markers import Claims, Marker

__all__ = ["Claims", "Location", "Marker"]
