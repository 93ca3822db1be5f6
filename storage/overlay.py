"""Newer rows laid over the record batches of a large fragment.

Where a large fragment, with each key once, meets few newer rows, nothing is sorted anew: the places of their
keys among its rows are found by bisection, and each of its batches is taken once, with the newer rows where
they belong. So a scan pays for the few, and one copy of the batch.

    a batch of the large one    2  4     6  8  |  10  12
    rows of the others             4' 5     8†
    laid over                   2  4' 5  6     |  10  12

A row of another fragment belongs to the batch in which its key would be: from the first key of that
batch on, up to that of the next one; the first batch begins, and the last one ends, with the fragment. What
was laid over is sorted as all batches are, so pages are slices of it, and kept as a batch that was read is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticscan.base.errors import UsageError
from elasticscan.base.limits import BATCH_BYTES, BATCH_ROWS
from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage.batches.reader import UNREADABLE
from elasticscan.storage.fragment import SLOT, SYSTEM_COLUMNS, FragmentReader
from elasticscan.storage.key_filter import comparable
from elasticscan.storage.lookup import commits_of, places_of, slot_mask
from elasticscan.storage.merge import Array, InputRows, MergeInput, Versions
from elasticscan.storage.packing import pack_alike
from elasticscan.storage.view import Layers

_MOST_KEPT = 16  # overlays of one fragment: there is one for each snapshot that sees it with others


class Overlay:
    """A large fragment and newer rows as one sorted run of batches. Threads may share one.

    Args:
        large: a fragment with each key once, without tombstones or history, all of whose commits count.
        others: fragments whose rows replace those of `large`, or lie between them, or hide them.
        primary_key: names of the key's columns.
        bounds: which commits count.
    """

    def __init__(
        self, large: MergeInput, others: Sequence[MergeInput], primary_key: Sequence[str], bounds: Bounds
    ) -> None:
        self._is_older = all(large.fragment.max_commit < one.fragment.min_commit for one in others)
        self._large = MergeInput(large.fragment, large.reader.plain) if self._is_older else large
        self._others, self._names, self._bounds = others, tuple(primary_key), bounds
        ranges = large.fragment.slots.ranges
        self._slots = ranges[0][0], ranges[-1][1]
        self._kept = large.reader.kept_beside()
        self._edges: dict[int, tuple[int, ...]] = {}
        self.batch_count = large.reader.batch_count

    def batch(self, index: int) -> pa.RecordBatch:
        return self._kept.get(index, self._lay_over)

    def slots(self, index: int) -> NDArray[np.uint16]:
        slots: NDArray[np.uint16] = self.batch(index).column(SLOT).to_numpy(zero_copy_only=True)
        return slots

    def seek(self, slot: int, key: bytes | None, primary_key: Sequence[str]) -> tuple[int, int]:
        """(batch, row) of the first row of `slot` or later; with `key`, beyond that key in the slot.

        The row may be the one behind the last of its batch.
        """
        low = None if key is None else key + b"\0"
        later = range(1, self.batch_count)
        index = bisect_left(later, True, key=lambda index: not self._begins_below(index, slot, low))
        return index, self._large.reader.row_from(self.batch(index), slot, low, primary_key)

    def _begins_below(self, index: int, slot: int, low: bytes | None) -> bool:
        """True if a batch begins at a slot, or a key of it, or before it."""
        reader = self._large.reader
        first = reader.slot_range(index)[0]
        if first != slot or reader.slot_range(index - 1)[1] < slot:
            return first <= slot
        return low is not None and reader.row_key(reader.batch(index), 0, self._names) <= low

    def _edge(self, index: int) -> tuple[int, ...]:
        """The numbers of the rows of the other fragments at which a batch begins."""
        reader, edge = self._large.reader, self._edges.get(index)
        if edge is None:
            is_inner = 0 < index < self.batch_count
            slot = reader.slot_range(index)[0] if is_inner else self._slots[index > 0]
            if is_inner and reader.slot_range(index - 1)[1] == slot:
                low = reader.row_key(reader.batch(index), 0, self._names)
                edge = tuple(one.reader.first_row(slot, low, self._names) for one in self._others)
            else:
                edge = tuple(one.reader.rows_below(slot) for one in self._others)
            self._edges[index] = edge
        return edge

    def fits(self) -> bool:
        """True if the other rows that may belong to a batch are never more than another batch."""
        reader = self._large.reader
        inner = [reader.slot_range(index)[0] for index in range(1, self.batch_count)]
        begins, ends = [self._slots[0], *inner], [*(slot + 1 for slot in inner), self._slots[1]]
        rows, size = np.zeros(self.batch_count), np.zeros(self.batch_count)
        for one in self._others:
            below = one.reader.rows_below
            count = np.array([below(end) - below(begin) for begin, end in zip(begins, ends, strict=True)])
            rows += count
            size += count * (one.fragment.bytes / max(one.fragment.rows, 1))
        return bool((rows <= BATCH_ROWS).all() and (size <= BATCH_BYTES).all())

    def _lay_over(self, index: int) -> pa.RecordBatch:
        batch = self._large.reader.batch(index)
        extents = zip(self._others, self._edge(index), self._edge(index + 1), strict=True)
        parts = [
            InputRows(one, _served(one.fragment, rows))
            for one, begin, end in extents
            for rows in one.reader.slices(begin, end)
        ]
        columns = [name for name in batch.schema.names if name not in SYSTEM_COLUMNS]
        if not parts:
            return batch.select([*columns, SLOT])
        versions = Versions(parts, self._names, self._bounds)
        newest = versions.order[versions.first]
        if not len(newest):
            return batch.select([*columns, SLOT])
        rows, replaces = self._places(index, versions, newest)
        counts = np.ones(len(newest), dtype=bool)
        if not self._is_older:
            replaced = rows[replaces] + self._large.reader.starts[index]
            theirs = commits_of(self._large.fragment, self._large.reader, replaced)
            counts[replaces] = theirs < versions.commits[newest[replaces]]
        living = counts & ~versions.deleted[newest]
        chosen, is_same = _chosen(batch.num_rows, rows, newest, replaces, living, counts & ~living)
        newer = versions.rows.append_column(SLOT, pa.array(versions.slots))
        arrays = [
            batch.column(name)
            if is_same and name in (SLOT, *self._names)
            else pc.take(
                pa.concat_arrays([batch.column(name), newer.column(name)]), chosen, boundscheck=False
            )
            for name in (*columns, SLOT)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=[*columns, SLOT])

    def _places(self, index: int, versions: Versions, newest: Array) -> tuple[Array, Array]:
        """The rows of a batch before which some rows belong, and whether these replace them."""
        reader, count = self._large.reader, len(newest)
        batch, slots = reader.batch(index), versions.slots[newest]
        keys = [versions.rows.column(name).take(pa.array(newest)) for name in self._names]
        try:
            own = [part for name in self._names for part in comparable(batch.column(name))]
            theirs = [part for key in keys for part in comparable(key)]
        except (UsageError, *UNREADABLE) as error:  # a null in a key: no writer lets them in
            raise reader.damaged(error) from error
        if all(isinstance(part, np.ndarray) and part.dtype.kind == "i" for part in own):
            packed = pack_alike([reader.slots(index), *own], [slots, *theirs])
            if packed is not None:
                rows, sought = packed
                places = rows.searchsorted(sought)
                return places, rows[np.minimum(places, len(rows) - 1)] == sought
        begins = np.flatnonzero(np.diff(slots, prepend=slots[:1] + np.uint16(1)))
        low, high = (
            np.repeat(reader.slots(index).searchsorted(slots[begins], side), np.diff(begins, append=count))
            for side in ("left", "right")
        )
        first = reader.starts[index]
        places, replaces = places_of(
            reader, first + low, first + high, keys, self._names, self._bounds.snapshot
        )
        return places - first, replaces


Run: TypeAlias = FragmentReader | Overlay


def _chosen(
    count: int, rows: Array, newest: Array, replaces: Array, living: Array, gone: Array
) -> tuple[pa.Array, bool]:
    """The rows to take, of `count` rows and others behind them; and if the keys stay as they are."""
    chosen = np.arange(count)
    replacing, added, gone = living & replaces, living & ~replaces, gone & replaces
    chosen[rows[replacing]] = count + newest[replacing]
    chosen[rows[gone]] = -1
    has_gone, has_added = bool(gone.any()), bool(added.any())
    if has_added:
        chosen = np.insert(chosen, rows[added], count + newest[added])
    if has_gone:
        chosen = chosen[chosen >= 0]
    return pa.array(chosen), not has_gone and not has_added


def _served(fragment: Fragment, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows without those of slots that a fragment does not serve any more."""
    slots = rows.column(SLOT).to_numpy(zero_copy_only=True)
    first, last = int(slots[0]), int(slots[-1])
    if any(start <= first and last < end for start, end in fragment.slots):
        return rows
    return rows.filter(pa.array(slot_mask(fragment.slots, slots)))


def run_of(
    layers: Layers,
    open_fragment: Callable[[Fragment, tuple[str, ...]], FragmentReader],
    columns: tuple[str, ...],
    primary_key: Sequence[str],
    bounds: Bounds,
) -> Run | None:
    """The rows of layers as one sorted run of batches; None where too many rows belong to one batch.

    An overlay is kept with its large fragment.
    """
    reader = open_fragment(layers.base, columns)
    if not layers.others:
        return reader.plain
    whole = all(map(bounds.wholly_hold, layers.others))
    key = (layers.key, None if whole else (bounds.floor, bounds.snapshot))
    if key not in reader.overlays:
        if len(reader.overlays) >= _MOST_KEPT:
            reader.overlays.clear()
        others = [MergeInput(fragment, open_fragment(fragment, columns)) for fragment in layers.others]
        overlay = Overlay(MergeInput(layers.base, reader), others, primary_key, bounds)
        reader.overlays[key] = overlay if overlay.fits() else None
    run: Run | None = reader.overlays.get(key)  # None, too, if another thread has just cleared them
    return run
