"""Overlays: rows of small fragments, laid over the record batches of a large fragment.

If a large fragment (which has each key once) and others serve the same slots, its rows are not sorted again.
The rows of the others are merged, their places among its rows are found by bisection, and each of its batches
is copied once, with the newer rows in place. So a scan pays for the others, and for one copy of a batch.

    a batch of the large one    2  4     6  8  |  10  12
    rows of the others             4' 5     8†
    laid over                   2  4' 5  6     |  10  12          ' newer version, † deleted

A row of another fragment belongs to the batch whose key range contains its key: from the first key of this
batch up to the first key of the next. The ranges of the first and the last batch have no lower and no upper
end. The resulting batches are sorted, so pages are slices of them, and they are cached like read batches.

The rows of the others are merged batch by batch. These newer rows are cached like batches, too. Only the
columns of the page are copied and cached.

The result depends only on the batch and the newer rows. So it is cached by their digest: snapshots with the
same newer rows, in whatever files, share the result, and after a commit only the batches that it changed are
copied. For each batch the last few results are kept. If the cache is full, the batch of the large
fragment is dropped after it was copied, so that the cache has a table once, not twice.
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

_MOST_KEPT = 6  # cached entries for each batch: results, and merged newer rows
_numbers = count(-1, -1)  # of overlays: negative, because digests are positive


class Overlay:
    """A large fragment and the rows of others, as one sorted sequence of batches. Threads may share one.

    Args:
        large: the large fragment, with a reader of its primary key. It has each key once, no tombstones and
            no history, and all its commits are within `bounds`.
        columns: a reader of the columns to return.
        others: fragments whose rows replace rows of `large`, are inserted, or delete rows.
        bounds: the commits to read.

    Attributes:
        fits: False if a batch may get more other rows than a batch has. Then a merge is better.
    """

    def __init__(
        self, large: MergeInput, columns: FragmentReader, others: Sequence[MergeInput], bounds: Bounds
    ) -> None:
        self._is_older = all(large.fragment.max_commit < other.fragment.min_commit for other in others)
        self._large, self._reader = large.fragment, large.reader.plain if self._is_older else large.reader
        self._others, self._names, self._bounds = others, large.reader.primary_key, bounds
        self._columns = columns.plain
        self._begins: dict[int, tuple[int, bytes]] = {}
        self._keys: dict[int, int] = {}  # of batches with newer rows: their digests; 0 without any
        self.batch_count = large.reader.batch_count
        self.fits = bool(self._crowd.max() <= 1)
        self._number = next(_numbers)

    @cached_property
    def _crowd(self) -> np.ndarray:
        """Return, for each batch, the others' rows that may belong to it, as a fraction of a full batch.

        If a slot extends over several batches, its rows count for each of them.
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
        """Return whether other fragments may have rows that belong to a batch."""
        return bool(self._crowd[index])

    def seek(self, slot: int, low: bytes) -> tuple[int, int]:
        """Return (batch, row) of the first row that is in `slot` with a key >= `low`, or in a later slot.

        The row may be the number of rows of the batch: then it is the first of the next batch.
        """
        index = bisect_right(range(1, self.batch_count), (slot, low), key=self._begin)
        return index, self._reader.row_from(self.batch(index), slot, low)

    def _begin(self, index: int) -> tuple[int, bytes]:
        """Return the first slot of a batch, and its first key if the batch before ends in the same slot."""
        begin = self._begins.get(index)
        if begin is None:
            reader, slot = self._reader, self._reader.slot_ranges[index][0]
            is_within = reader.slot_ranges[index - 1][1] == slot
            begin = slot, reader.row_key(reader.batch(index), 0) if is_within else b""
            self._begins[index] = begin
        return begin

    def batch(self, index: int) -> pa.RecordBatch:
        key = self._keys.get(index)
        if key is None:
            newer = self._newer(index) if self.touches(index) else None
            key = self._keys[index] = _digest(index, newer) if newer is not None and newer.num_rows else 0
        if not key:
            return self._columns.batch(index)
        return self._kept(index, key, lambda: self._lay_over(index, self._newer(index)))

    def _newer(self, index: int) -> pa.RecordBatch:
        """Return the newer rows of a batch, from the cache or by a merge."""
        number = self._number * self.batch_count - index  # unique among overlays, and negative unlike digests
        return self._kept(index, number, lambda: self._merge(index))

    def _kept(self, index: int, key: int, make: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
        """Return a cached entry of a batch, or make it; only the last few that were used stay cached."""
        overlaid, keys = self._columns.overlaid, self._columns.overlaid_keys.setdefault(index, [])
        if keys[-1:] != [key]:
            keys[:] = [*(other for other in keys if other != key), key]
            overlaid.forget(keys[:-_MOST_KEPT])
            del keys[:-_MOST_KEPT]
        return overlaid.get(key, lambda _: make())

    def _merge(self, index: int) -> pa.RecordBatch:
        """Return the others' rows that belong to a batch: the newest of each key, sorted, with tombstones."""
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
        """Return, for each newer row, the batch's row before which it belongs, and if their keys match."""
        batch = self._reader.batch(index)
        slots, sought = (rows.column(SLOT).to_numpy() for rows in (batch, newer))
        low, high = (slots.searchsorted(sought, side) for side in ("left", "right"))
        batch_keys = [part for name in self._names for part in comparable(batch.column(name))]
        keys = [newer.column(name) for name in self._names]
        return Search(np.array([0, batch.num_rows]), lambda _: batch_keys, keys).first_rows(low, high)

    def _lay_over(self, index: int, newer: pa.RecordBatch) -> pa.RecordBatch:
        rows, replaces = self._places(index, newer)
        deleted = newer.column(DELETED).to_numpy(zero_copy_only=False)
        counts = replaces | ~deleted
        if not self._is_older:
            replaced = rows[replaces] + self._reader.starts[index]
            older = commits_of(self._large, self._reader, replaced)
            counts[replaces] = older < newer.column(COMMIT).to_numpy()[replaces]
        newer = newer if counts.all() else newer.filter(pa.array(counts))
        columns, batch = self._columns, self._columns.batch(index)
        is_full = not columns.cache.has_room(batch.nbytes)
        patch = Patch(batch.num_rows, rows[counts], replaces[counts], deleted[counts])
        # Share key columns that do not change, unless the batch is dropped: its memory would stay.
        same = (SLOT, *self._names) if patch.keep_keys and not is_full else ()
        arrays = {name: batch.column(name) for name in batch.schema.names}
        arrays |= {n: patch.column(old, newer.column(n)) for n, old in arrays.items() if n not in same}
        if is_full:
            columns.kept.forget([index])
            self._reader.kept.forget([index])
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _digest(index: int, newer: pa.RecordBatch) -> int:
    """Return a digest of a batch's number and its newer rows."""
    digest = hashlib.blake2b(newer.serialize(), digest_size=16, salt=index.to_bytes(8, "big"))
    return int.from_bytes(digest.digest(), "big")


def sorted_batches_of(
    layers: Layers,
    open_fragment: Callable[[Fragment, tuple[str, ...]], FragmentReader],
    columns: tuple[str, ...],
    bounds: Bounds,
) -> FragmentReader | Overlay | None:
    """Return the rows of layers as sorted batches; None if they must be merged.

    They must be merged if there is no base, or too many rows belong to one batch. An overlay is cached while
    its large fragment is open and its `Layers` exist; a view keeps those of a few bounds (`View.within`).
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
