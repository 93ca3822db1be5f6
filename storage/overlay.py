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

The rows of the others are merged batch by batch. These newer rows are kept like batches, too. Only the
columns of the page are copied and kept.

Nothing but the newer rows says what becomes of a batch. So it is kept by their digest: where two snapshots
find the same rows, in whatever files, they share the batch, and a commit costs copies of the batches that it
touches. Of each batch the last few forms stay. That of the large fragment leaves the cache once it is copied
and the cache is full, so that this holds a table once, not twice.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import pyarrow as pa

from elasticscan.base.concurrency import cached_property
from elasticscan.base.limits import BATCH_BYTES, BATCH_ROWS
from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage.fragment import COMMIT, DELETED, SLOT, FragmentReader, rows_in
from elasticscan.storage.key_filter import comparable
from elasticscan.storage.lookup import Mask, Rows, Search, commits_of
from elasticscan.storage.merge import InputRows, MergeInput, Versions
from elasticscan.storage.patch import Patch
from elasticscan.storage.view import Layers

# For a batch: its forms, one for each snapshot that sees it with others, and the newer rows of each.
_MOST_KEPT = 6
_numbers = count(-1, -1)  # of overlays; digests are positive


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
        self._large, self._reader = large.fragment, large.reader.plain if self._is_older else large.reader
        self._others, self._names, self._bounds = others, large.reader.primary_key, bounds
        self._columns = columns.plain
        self._begins: dict[int, tuple[int, bytes]] = {}
        self._keys: dict[int, int] = {}
        self.batch_count = large.reader.batch_count
        self.fits = bool(self._crowd.max() <= 1)
        self._number = next(_numbers)

    @cached_property
    def _crowd(self) -> np.ndarray:
        """Return how full a batch of the others' rows would be, for each batch.

        The rows of a slot that goes over several batches count for each of them.
        """
        firsts = [self._reader.slot_ranges[index][0] for index in range(1, self.batch_count)]
        slots = self._large.slots.ranges
        begins = np.array([slots[0][0], *firsts])
        ends = np.array([*(slot + 1 for slot in firsts), slots[-1][1]])
        crowd = np.zeros(self.batch_count)
        for fragment, reader in self._others:
            row_bytes = fragment.bytes / max(fragment.rows, 1)
            rows = reader.rows_below(ends) - reader.rows_below(begins)
            crowd += rows * max(1 / BATCH_ROWS, row_bytes / BATCH_BYTES)
        return crowd

    def touches(self, index: int) -> bool:
        """Return whether others may have rows that belong to a batch."""
        return bool(self._crowd[index])

    def seek(self, slot: int, low: bytes) -> tuple[int, int]:
        """(batch, row) of the first row of `slot` or later; of the slot itself, of keys from `low` on.

        The row may be the one behind the last of its batch.
        """
        index = bisect_right(range(1, self.batch_count), (slot, low), key=self._begin)
        return index, self._reader.row_from(self.batch(index), slot, low)

    def _begin(self, index: int) -> tuple[int, bytes]:
        """Return the slot with which a batch begins, and its first key if the one before ends with it."""
        begin = self._begins.get(index)
        if begin is None:
            reader, slot = self._reader, self._reader.slot_ranges[index][0]
            is_within = reader.slot_ranges[index - 1][1] == slot
            begin = slot, reader.row_key(reader.batch(index), 0) if is_within else b""
            self._begins[index] = begin
        return begin

    def batch(self, index: int) -> pa.RecordBatch:
        number = self._number * self.batch_count - index  # < 0, unique among overlays; digests are not < 0
        newer = self._kept(index, number, lambda: self._merge(index)) if self.touches(index) else None
        if newer is None or not newer.num_rows:
            return self._columns.batch(index)
        key = self._keys.get(index) or self._keys.setdefault(index, _digest(index, newer))
        return self._kept(index, key, lambda: self._lay_over(index, newer))

    def _kept(self, index: int, key: int, make: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
        """Return what is kept for a batch, or was made; of all that the last few used stay."""
        overlaid, keys = self._columns.overlaid, self._columns.overlaid_keys.setdefault(index, [])
        keys[:] = [*(other for other in keys if other != key), key]
        overlaid.forget(keys[:-_MOST_KEPT])
        del keys[:-_MOST_KEPT]
        return overlaid.get(key, lambda _: make())

    def _merge(self, index: int) -> pa.RecordBatch:
        """Return the newest row of each key of the others within a batch, in order, with tombstones."""
        begin = self._begin(index) if index else (0, b"")
        end = self._begin(index + 1) if index + 1 < self.batch_count else (1 << 16, b"")
        parts = [
            InputRows(fragment, served)
            for fragment, reader in self._others
            for rows in reader.slices(reader.first_row(*begin), reader.first_row(*end))
            if (served := rows_in(fragment.slots & self._large.slots, rows)).num_rows
        ]
        if not parts:
            return pa.RecordBatch.from_arrays([], names=[])
        versions = Versions(parts, self._names, self._bounds)
        columns = versions.columns(versions.order[versions.first])
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _places(self, index: int, newer: pa.RecordBatch) -> tuple[Rows, Mask]:
        """Return the rows of a batch before which newer rows belong, and whether these replace them."""
        batch = self._reader.batch(index)
        slots, sought = (rows.column(SLOT).to_numpy() for rows in (batch, newer))
        low, high = (slots.searchsorted(sought, side) for side in ("left", "right"))
        own = [part for name in self._names for part in comparable(batch.column(name))]
        keys = [newer.column(name) for name in self._names]
        return Search(np.array([0, batch.num_rows]), lambda _: own, keys).first_rows(low, high)

    def _lay_over(self, index: int, newer: pa.RecordBatch) -> pa.RecordBatch:
        rows, replaces = self._places(index, newer)
        deleted = newer.column(DELETED).to_numpy(zero_copy_only=False)
        counts = replaces | ~deleted
        if not self._is_older:
            replaced = rows[replaces] + self._reader.starts[index]
            theirs = commits_of(self._large, self._reader, replaced)
            counts[replaces] = theirs < newer.column(COMMIT).to_numpy()[replaces]
        newer = newer if counts.all() else newer.filter(pa.array(counts))
        columns, batch = self._columns, self._columns.batch(index)
        is_full = not columns.cache.has_room(batch.nbytes)
        patch = Patch(batch.num_rows, rows[counts], replaces[counts], deleted[counts])
        # Keys that stay are shared, unless the batch is to leave memory.
        same = (SLOT, *self._names) if patch.keep_keys and not is_full else ()
        arrays = {name: batch.column(name) for name in batch.schema.names}
        arrays |= {n: patch.column(old, newer.column(n)) for n, old in arrays.items() if n not in same}
        if is_full:
            columns.kept.forget([index])
            self._reader.kept.forget([index])
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _digest(index: int, newer: pa.RecordBatch) -> int:
    """Return a number that only equal rows over the same batch have."""
    digest = hashlib.blake2b(newer.serialize(), digest_size=16, salt=index.to_bytes(8, "big"))
    return int.from_bytes(digest.digest(), "big")


def sorted_batches_of(
    layers: Layers,
    open_fragment: Callable[[Fragment, tuple[str, ...]], FragmentReader],
    columns: tuple[str, ...],
    bounds: Bounds,
) -> FragmentReader | Overlay | None:
    """Return the rows of layers as sorted batches.

    It is None without a base, and where too many rows belong to one batch. An overlay is kept while its large
    fragment is open and its `Layers` exist: a view keeps those of a few bounds (`View.within`).
    """
    if layers.base is None:
        return None
    reader = open_fragment(layers.base, columns)
    if not layers.others:
        return reader.plain
    overlay: Overlay | None = reader.overlays.get(layers)
    if overlay is None:
        alone = reader.primary_key
        needed = tuple(dict.fromkeys((*columns, *alone)))
        others = [MergeInput(fragment, open_fragment(fragment, needed)) for fragment in layers.others]
        keyed = MergeInput(layers.base, reader if needed == columns else open_fragment(layers.base, alone))
        overlay = reader.overlays.setdefault(layers, Overlay(keyed, reader, others, bounds))
    return overlay if overlay.fits else None
