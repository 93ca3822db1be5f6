"""The places of a store: where its catalog and the roots of its shards are, and which store owns a root.

- **The content of a root proves its owner, not its path.** A mount may be missing, two paths may lead to one
  directory, a catalog may be a copy. So each write or delete at a shard checks the root's marker first.
- **A doubt stops the work.** If a marker is missing, damaged or from another store, an error names the next
  step; nothing is written to the empty directory of a missing mount.

location  paths and URIs that users pass; `Location` is the place of a store
markers   the file in each root with its store, shard, the *incarnation* of the catalog (an adoption begins
          a new one), and the newest commit that the shard has seen; claims of several roots

`store/context/high_water_marks.py` compares markers with the catalog, and adopts.
"""

from elasticscan.store.roots.location import Location
from elasticscan.store.roots.markers import Claims, Marker

__all__ = ["Claims", "Location", "Marker"]
