"""Counting the rows of a snapshot, without reading more than it takes."""

from __future__ import annotations

import numpy as np

from elasticscan.base.limits import BATCH_ROWS
from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage.fragment import COMMIT, SLOT, FragmentReader
from elasticscan.storage.merge import Array, windows
from elasticscan.storage.pages import PageSource
from elasticscan.storage.view import View


def count_rows(source: PageSource, bounds: Bounds, most_merged_rows: int) -> tuple[int, bool]:
    """(rows, whether exact): exact unless more than `most_merged_rows` would have to be compared."""
    names = source.table.primary_key
    total, merged, exact = 0, 0, True
    for interval in source.view.between(0, 1 << 16, bounds):
        inputs = source.inputs(interval.fragments, names)
        span = (interval.start, interval.end)
        counts = [_between(one.reader, *span) for one in inputs]
        clean = interval.is_plain and bounds.wholly_hold(interval.fragments[0])
        merged += 0 if clean else sum(counts)
        if clean or merged > most_merged_rows:
            total += sum(counts)
            exact &= clean
            continue
        for window in windows(inputs, span, None, names, bounds, lambda: 16 * BATCH_ROWS):
            total += len(window.versions.newest)
    return total, exact


def most_rows(view: View, bounds: Bounds) -> tuple[int, bool]:
    """(the most rows there can be, whether there are just so many), from what is known without a file."""
    intervals = list(view.between(0, 1 << 16, bounds))
    fragments = {fragment.id: fragment for interval in intervals for fragment in interval.fragments}
    exact = all(i.is_plain and bounds.wholly_hold(i.fragments[0]) for i in intervals) and all(
        len(fragment.slots) == fragment.slots_written for fragment in fragments.values()
    )
    return sum(fragment.rows - fragment.tombstones for fragment in fragments.values()), exact


def _between(reader: FragmentReader, start: int, end: int) -> int:
    """Rows of the slots `[start, end)`."""
    first, first_row = reader.seek(start, None, ())
    last, last_row = reader.seek(end, None, ())
    return int(reader.starts[last] - reader.starts[first]) + last_row - first_row


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
