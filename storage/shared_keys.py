"""Keys that a staged write has in common with commits, for writes that check before they are committed.

Versions are looked up from the side that has fewer rows, a batch at a time: a large write alongside small
commits costs what these wrote, a small write alongside large ones costs a bisection for each of its keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage.fragment import COMMIT, SLOT, FragmentReader
from elasticscan.storage.lookup import Mask, commits_of, find, integers
from elasticscan.storage.pages import PageSource
from elasticscan.storage.point_reads import rows_of_keys
from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class _Keys:
    """Primary keys in the order of their slots."""

    slots: NDArray[np.uint16]
    keys: pa.RecordBatch

    def only(self, chosen: Mask) -> _Keys:
        return _Keys(self.slots[chosen], self.keys.filter(pa.array(chosen)))

    def __len__(self) -> int:
        return len(self.slots)


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
    mine = SlotSet.of(piece for fragment in staged.view.fragments for piece in fragment.slots)
    for fragment in committed.view.fragments:
        if not bounds.touch(fragment) or not fragment.slots & mine:
            continue
        for shared in _shared_with(staged, committed, fragment, bounds):
            counted = (
                shared.only(_are_living(committed, shared, bounds)) if living and len(shared) else shared
            )
            if len(counted):
                return counted.keys
    return None


def _shared_with(
    staged: PageSource, committed: PageSource, fragment: Fragment, bounds: Bounds
) -> Iterator[_Keys]:
    """Yield the keys that a fragment shares with what was staged, a batch at a time."""
    names = committed.table.primary_key
    reader = committed.open(fragment, names)
    near = [other for other in staged.view.fragments if other.slots & fragment.slots]
    if fragment.rows < sum(other.rows for other in near):
        for keys in _keys_in(reader, fragment, names, bounds):
            there = np.zeros(len(keys), dtype=bool)
            for other in near:
                rows = find(staged.open(other, names), keys.slots, keys.keys.columns, bounds.snapshot)
                there |= rows >= 0
            yield keys.only(there)
        return
    for other in near:
        for staged_keys in _keys_in(staged.open(other, names), other, names, None):
            keys = staged_keys.only(fragment.slots.mask(staged_keys.slots))
            rows = find(reader, keys.slots, keys.keys.columns, bounds.snapshot)
            there = rows >= 0
            there[there] = commits_of(fragment, reader, rows[there]) >= bounds.floor
            yield keys.only(there)


def _keys_in(
    reader: FragmentReader, fragment: Fragment, names: tuple[str, ...], bounds: Bounds | None
) -> Iterator[_Keys]:
    """Yield the keys that a fragment serves: with a version in `bounds`, or all of a staged one."""
    for index in range(reader.batch_count):
        batch = reader.batch(index)
        keys = _Keys(batch.column(SLOT).to_numpy(), batch.select(list(names)))
        counts = fragment.slots.mask(keys.slots)
        if bounds is not None and COMMIT in reader.columns:
            commits = integers(reader, batch.column(COMMIT))
            counts &= (commits >= bounds.floor) & (commits <= bounds.snapshot)
        if counts.any():
            yield keys if counts.all() else keys.only(counts)


def _are_living(committed: PageSource, keys: _Keys, bounds: Bounds) -> Mask:
    """Return True for each key whose newest version in `bounds` is no tombstone."""
    fragments = committed.view.fragments
    found = rows_of_keys(committed, fragments, keys.slots, keys.keys.columns, (), bounds)
    living: Mask = found.places >= 0
    return living
