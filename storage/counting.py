"""Counting the rows of a snapshot: what is known without a file, and those of each slot of a file."""

from __future__ import annotations

import numpy as np

from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage.fragment import COMMIT, SLOT, FragmentReader
from elasticscan.storage.merge import Array
from elasticscan.storage.view import View


def most_rows(view: View, bounds: Bounds) -> tuple[int, bool]:
    """Return (the most possible rows, whether exactly so many), from what is known without a file."""
    intervals = list(view.between(0, 1 << 16, bounds))
    fragments = {fragment.id: fragment for interval in intervals for fragment in interval.fragments}
    exact = all(i.is_plain and bounds.wholly_hold(i.fragments[0]) for i in intervals) and all(
        len(fragment.slots) == fragment.slots_written for fragment in fragments.values()
    )
    return sum(fragment.rows - fragment.tombstones for fragment in fragments.values()), exact


def slot_counts(reader: FragmentReader, fragment: Fragment, bounds: Bounds, slots: int) -> Array:
    """For each slot, how many rows of commits within bounds a fragment has, tombstones too."""
    counts = np.zeros(slots, dtype=np.int64)
    for number in range(reader.batch_count):
        batch = reader.batch(number)
        row_slots = batch.column(SLOT).to_numpy()
        if fragment.versioned and not bounds.wholly_hold(fragment):
            commits = batch.column(COMMIT).to_numpy()
            row_slots = row_slots[(commits >= bounds.floor) & (commits <= bounds.snapshot)]
        counts += np.bincount(row_slots, minlength=slots)
    return counts
