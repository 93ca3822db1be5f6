"""Keys that a staged write has in common with commits, for writes that check before they are committed."""

from __future__ import annotations

import pyarrow as pa

from elasticscan.metadata import Bounds
from elasticscan.storage.fragment import SLOT
from elasticscan.storage.pages import PageSource
from elasticscan.storage.point_reads import rows_of_keys


def shared_keys(
    staged: PageSource, committed: PageSource, bounds: Bounds, living: bool = False
) -> pa.RecordBatch | None:
    """Return some keys of a staged write that have versions in `bounds`; None when there are none.

    Args:
        staged: what was staged; its tombstones count as its rows do.
        committed: fragments that serve slots, of any shards.
        bounds: the commits that count.
        living: a key counts only if its newest version in `bounds` is no tombstone.

    Memory: a batch of keys, and what bisecting for them touches.
    """
    names = committed.table.primary_key
    fragments = [fragment for fragment in committed.view.fragments if bounds.touch(fragment)]
    for fragment in staged.view.fragments if fragments else ():
        for batch in staged.open(fragment, names):
            slots, keys = batch.column(SLOT).to_numpy(), batch.select(list(names))
            found = rows_of_keys(committed, fragments, slots, keys.columns, (), bounds)
            counts = fragment.slots.mask(slots) & (found.places >= 0 if living else found.versions)
            if counts.any():
                return keys.filter(pa.array(counts))
    return None
