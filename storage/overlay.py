"""Other rows laid over the record batches of a large fragment.

Where a large fragment, with each key once, meets others, nothing of it is sorted again: the rows of the
others are merged, the places of their keys among its rows are found by bisection, and each of its batches is
copied once, with the newer rows where they belong. So a scan pays for the others, and one copy of the batch.

    a batch of the large one    2  4     6  8  |  10  12
    rows of the others             4' 5     8†
    laid over                   2  4' 5  6     |  10  12          ' newer version, † deleted

A row of another fragment belongs to the batch in which its key would be: from the first key of that
batch on, up to that of the next one; the first batch begins, and the last one ends, with the fragment. What
was laid over is sorted as all batches are, so pages are slices of it, and kept as a batch that was read is.

The others are merged for as many batches at once as one batch has room for. These merged rows, and their
places, are kept like batches, too: where they stay in the cache, each scan but the first pays for copies
alone. Only the columns of the page are copied and kept.

Nothing but their newest rows says what becomes of a batch: where two snapshots find the same, in whatever
files, they share it. So a commit costs one merge of the others, and copies of the batches that it touches.
Of each fragment the overlays used last stay, and others leave the cache. A batch that another overlay made is
evicted there once it is shared, and that of the large fragment once it is copied and the cache is full. So
the cache holds a table once, not twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from elasticscan.base.concurrency import renewed_in_child
from elasticscan.base.limits import BATCH_BYTES, BATCH_ROWS
from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage.fragment import COMMIT, DELETED, SLOT, FragmentReader, rows_in
from elasticscan.storage.key_filter import comparable
from elasticscan.storage.lookup import Mask, Rows, Search, commits_of
from elasticscan.storage.merge import InputRows, MergeInput, Versions
from elasticscan.storage.patch import Patch
from elasticscan.storage.view import Layers

_MOST_KEPT = 3  # overlays of one fragment: there is one for each snapshot that sees it with others

_lock = renewed_in_child(Lock)  # of the overlays of all readers


class Overlay:
    """A large fragment and other rows as one sorted run of batches. Threads may share one.

    Args:
        large: a fragment with each key once, without tombstones or history, all of whose commits count, with
            its primary key.
        columns: the same fragment with the columns that are laid over.
        others: fragments whose rows replace those of `large`, or lie between them, or hide them.
        bounds: which commits count.

    Attributes:
        fits: the other rows that may belong to a batch are never more than another batch.
    """

    def __init__(
        self, large: MergeInput, columns: FragmentReader, others: Sequence[MergeInput], bounds: Bounds
    ) -> None:
        self._is_older = all(large.fragment.max_commit < one.fragment.min_commit for one in others)
        self._large = MergeInput(large.fragment, large.reader.plain) if self._is_older else large
        self._others, self._names, self._bounds = others, large.reader.primary_key, bounds
        ranges = large.fragment.slots.ranges
        self._slots = ranges[0][0], ranges[-1][1]
        self._columns = columns.plain
        self._siblings: dict[Hashable, Overlay] = columns.overlays
        self._begins: dict[int, tuple[int, bytes]] = {}
        self.batch_count = large.reader.batch_count
        self._spans = self._cut()
        self.fits = bool(self._spans)
        self._batches, self._newest, self._placed = (columns.cache.kept() for _ in range(3))

    def batch(self, index: int) -> pa.RecordBatch:
        return self._batches.get(index, self._lay_over)

    def forget(self) -> None:
        """Leave the room in the cache to others."""
        for kept in (self._batches, self._newest, self._placed):
            kept.forget()

    def seek(self, slot: int, low: bytes) -> tuple[int, int]:
        """(batch, row) of the first row of `slot` or later; of the slot itself, of keys from `low` on.

        The row may be the one behind the last of its batch.
        """
        index = bisect_right(range(1, self.batch_count), (slot, low), key=self._begin)
        return index, self._large.reader.row_from(self.batch(index), slot, low)

    def _begin(self, index: int) -> tuple[int, bytes]:
        """Return the slot with which a batch begins, and its first key if the one before ends with it."""
        begin = self._begins.get(index)
        if begin is None:
            reader, slot = self._large.reader, self._large.reader.slot_ranges[index][0]
            is_within = reader.slot_ranges[index - 1][1] == slot
            begin = slot, reader.row_key(reader.batch(index), 0) if is_within else b""
            self._begins[index] = begin
        return begin

    # Rows of the others

    def _cut(self) -> list[int]:
        """Return the first batch of each span for which the others are merged at once.

        There is none where a batch has too many. The rows of a slot that goes over several batches count for
        each of them.
        """
        firsts = [self._large.reader.slot_ranges[index][0] for index in range(1, self.batch_count)]
        begins = np.array([self._slots[0], *firsts])
        ends = np.array([*(slot + 1 for slot in firsts), self._slots[1]])
        crowd = np.zeros(self.batch_count)  # how full a batch of the others' rows would be
        for one in self._others:
            row_bytes = one.fragment.bytes / max(one.fragment.rows, 1)
            count = one.reader.rows_below(ends) - one.reader.rows_below(begins)
            crowd += count * max(1 / BATCH_ROWS, row_bytes / BATCH_BYTES)
        if crowd.max() > 1:
            return []
        spans, room = [0], 1.0
        for index, size in enumerate(crowd.tolist()):
            if size > room:
                spans.append(index)
                room = 1.0
            room -= size
        return spans

    def _edge(self, index: int) -> list[int]:
        """Return the numbers of the rows of the other fragments at which a batch begins."""
        is_inner = 0 < index < self.batch_count
        slot, low = self._begin(index) if is_inner else (self._slots[index > 0], b"")
        return [one.reader.first_row(slot, low) for one in self._others]

    def _newer(self, index: int) -> pa.RecordBatch:
        """Return the newest row of each key of the others within a batch, in order, with tombstones."""
        number = bisect_right(self._spans, index) - 1
        end = self._spans[number + 1] if number + 1 < len(self._spans) else self.batch_count
        rows = self._newest.get(number, lambda _: self._merge(self._spans[number], end))
        if not rows.num_rows:
            return rows
        row_from = self._large.reader.row_from
        first = row_from(rows, *self._begin(index)) if index > self._spans[number] else 0
        beyond = row_from(rows, *self._begin(index + 1)) if index + 1 < end else rows.num_rows
        return rows.slice(first, beyond - first)

    def _merge(self, begin: int, end: int) -> pa.RecordBatch:
        """Return the newest rows of the others for the batches [begin, end), with their commits."""
        parts = [
            InputRows(one, served)
            for one, first, beyond in zip(self._others, self._edge(begin), self._edge(end), strict=True)
            for rows in one.reader.slices(first, beyond)
            if (served := rows_in(one.fragment.slots, rows)).num_rows
        ]
        if not parts:
            return pa.RecordBatch.from_arrays([], names=[])
        versions = Versions(parts, self._bounds)
        columns = versions.columns(versions.order[versions.first])
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    # Batches

    def _lay_over(self, index: int) -> pa.RecordBatch:
        newer = self._newer(index)
        made = self._made_before(index, newer) if newer.num_rows else None
        if made is not None:
            return made
        placed = self._placed.get(index, lambda _: self._place(index, newer)) if newer.num_rows else None
        made = batch = self._columns.batch(index)
        is_full = not self._batches.cache.has_room(batch.nbytes)
        if placed is not None:
            patch = Patch(batch.num_rows, *(part.to_numpy(zero_copy_only=False) for part in placed.columns))
            # Keys that stay are shared, unless the batch is to leave memory.
            same = (SLOT, *self._names) if patch.keep_keys and not is_full else ()
            arrays = {name: batch.column(name) for name in batch.schema.names}
            arrays |= {n: patch.column(old, newer.column(n)) for n, old in arrays.items() if n not in same}
            made = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        if is_full:
            self._columns.kept.forget([index])
            self._large.reader.kept.forget([index])
        return made

    def _place(self, index: int, newer: pa.RecordBatch) -> pa.RecordBatch:
        """Return the fields of a `Patch` with newer rows; of these count those newer than the batch's."""
        rows, replaces = self._places(index, newer)
        counts = np.ones(len(rows), dtype=bool)
        if not self._is_older:
            replaced = rows[replaces] + self._large.reader.starts[index]
            theirs = commits_of(self._large.fragment, self._large.reader, replaced)
            counts[replaces] = theirs < newer.column(COMMIT).to_numpy()[replaces]
        deleted = newer.column(DELETED).to_numpy(zero_copy_only=False)
        arrays = [rows, replaces, counts & ~deleted, counts & deleted & replaces]
        return pa.RecordBatch.from_arrays(list(map(pa.array, arrays)), names=[*"abcd"])

    def _made_before(self, index: int, newer: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the batch as another overlay has made it, of the same rows of the others."""
        with _lock():
            siblings = list(self._siblings.values())
        for sibling in siblings:
            made = sibling._batches.peek(index)
            if made is not None and _are_equal(sibling._newer(index), newer):
                sibling._batches.forget([index])
                return made
        return None

    def _places(self, index: int, newer: pa.RecordBatch) -> tuple[Rows, Mask]:
        """Return the rows of a batch before which newer rows belong, and whether these replace them."""
        batch = self._large.reader.batch(index)
        slots, sought = (rows.column(SLOT).to_numpy() for rows in (batch, newer))
        low, high = (slots.searchsorted(sought, side) for side in ("left", "right"))
        own = [part for name in self._names for part in comparable(batch.column(name))]
        keys = [newer.column(name) for name in self._names]
        return Search(np.array([0, batch.num_rows]), lambda _: own, keys).first_rows(low, high)


Run: TypeAlias = FragmentReader | Overlay
_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def _are_equal(some: pa.RecordBatch, others: pa.RecordBatch) -> bool:
    """Return whether two batches have the same bits; to Arrow, NaN is not equal to itself."""

    def bits(column: pa.Array) -> pa.Array:
        return column.view(_BITS[column.type]) if column.type in _BITS else column

    return some.num_rows == others.num_rows and all(
        bits(left).equals(bits(right)) for left, right in zip(some.columns, others.columns, strict=True)
    )


def run_of(
    layers: Layers,
    open_fragment: Callable[[Fragment, tuple[str, ...]], FragmentReader],
    columns: tuple[str, ...],
    bounds: Bounds,
) -> Run | None:
    """Return the rows of layers as one sorted run of batches; None where too many rows belong to one batch.

    An overlay is kept with its large fragment, until as many others were used since as are kept.
    """
    reader = open_fragment(layers.base, columns)
    if not layers.others:
        return reader.plain
    whole = all(map(bounds.wholly_hold, layers.others))
    key = (layers.key, None if whole else (bounds.floor, bounds.snapshot))
    with _lock():
        kept = reader.overlays.pop(key, None)
        if kept is not None:
            reader.overlays[key] = kept  # as the most recently used
    if kept is None:
        alone = reader.primary_key
        needed = tuple(dict.fromkeys((*columns, *alone)))
        others = [MergeInput(fragment, open_fragment(fragment, needed)) for fragment in layers.others]
        keyed = MergeInput(layers.base, reader if needed == columns else open_fragment(layers.base, alone))
        kept = Overlay(keyed, reader, others, bounds)
        with _lock():
            kept = reader.overlays.setdefault(key, kept)
            dropped = [reader.overlays.pop(key) for key in list(reader.overlays)[:-_MOST_KEPT]]
        for overlay in dropped:
            overlay.forget()
    run: Overlay = kept
    return run if run.fits else None
