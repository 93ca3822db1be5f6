"""Reading the rows of given primary keys at a shard, by bisection in each fragment.

A scan reads them in pages (`read_listed`); `read_rows` returns all in one answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.metadata import Bounds
from elasticscan.protocol import KeyList, PageRequest, PageRows, RowAnswer, RowRequest
from elasticscan.storage.fragment import DELETED, SLOT, UNTIL
from elasticscan.storage.lookup import (
    FoundVersions,
    Indices,
    Mask,
    Rows,
    Sought,
    fetch_by_group,
    find_newest,
    rows_at,
)
from elasticscan.storage.merge import Piece, SeekKey
from elasticscan.storage.pages import PageSource, keys_of, read_pieces

LEAST_KEYS = 256  # looked up in one step at least, however few rows a page may have


def read_listed(source: PageSource, request: PageRequest) -> PageRows:
    """Return the rows of a request's cursors with the keys of its list, until the page is full.

    Positions are those of a direct scan. `scanned` counts the rows found, tombstones included.
    """
    assert isinstance(request.keys, KeyList), "the caller has checked that the request lists keys"
    listed, bounds, page = request.keys, source.bounds(request.snapshot), source.page(request)

    def read(piece: Piece) -> SeekKey | None:
        numbers = np.flatnonzero(piece.slots.mask(listed.slots))
        if piece.low:  # then the piece is one slot
            key_at = keys_of(listed.keys, listed.keys.schema.names)
            numbers = numbers[bisect_left(numbers, piece.low, key=lambda number: key_at(int(number))) :]
        while len(numbers):
            if page.rows_left <= 0:
                return page.before(int(listed.slots[numbers[0]]), piece.start)
            asked, numbers = np.split(numbers, [max(page.rows_left, LEAST_KEYS)])
            slots, keys = listed.slots[asked], listed.keys.take(pa.array(asked))
            found = rows_of_keys(source, slots, keys.columns, request.columns, bounds)
            page.scanned += int(np.count_nonzero(found.versions))
            present = np.flatnonzero(found.places >= 0)
            rows = found.rows.append_column(SLOT, pa.array(slots[present]))
            key_at = keys_of(keys.take(pa.array(present)), keys.schema.names)
            if (stop := page.fill(rows, key_at, piece.start)) is not None:
                return stop
        return None

    return read_pieces(page, request.cursors, read)


def read_rows(source: PageSource, request: RowRequest) -> RowAnswer:
    """Return the rows with a request's keys, and the number of the row of each key."""
    bounds = source.bounds(request.snapshot)
    found = rows_of_keys(source, request.slots, request.keys.columns, request.columns, bounds)
    return RowAnswer(found.places, found.rows)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows that were found for keys.

    Attributes:
        places: for each key the number of its row, or -1.
        rows: the rows, in the order of their keys.
        versions: a mask of the keys that have a version, which may be a tombstone.
    """

    places: Rows
    rows: pa.RecordBatch
    versions: Mask


def rows_of_keys(
    source: PageSource,
    slots: NDArray[np.uint16],
    keys: Sequence[pa.Array],
    columns: Sequence[str],
    bounds: Bounds,
) -> FoundRows:
    """Look up the newest version in `bounds` of each key; tombstones and ended history yield no row.

    `columns` may be empty.
    """
    fragments = source.view.fragments
    sought = Sought(slots, keys, lambda fragment: source.open(fragment, source.table.primary_key))
    nothing = np.full(len(slots), -1, dtype=np.int64)
    found = find_newest(sought, fragments, bounds, FoundVersions(nothing, nothing, nothing), source.prefetch)
    numbers, rows, versions = found.fragment_numbers, found.rows, found.fragment_numbers >= 0
    present, places = np.flatnonzero(versions), np.full(len(numbers), -1, dtype=np.int64)
    if not len(present):
        empty = [pa.array([], source.table.schema.field(name).type) for name in columns]
        return FoundRows(places, pa.RecordBatch.from_arrays(empty, names=list(columns)), versions)
    numbers, rows, alive = numbers[present], rows[present], np.ones(len(present), dtype=bool)
    opened = tuple(columns) or source.table.primary_key  # a reader of the keys is already open

    def fetch(number: int, at: Indices) -> pa.RecordBatch:
        reader = source.open(fragments[number], opened)
        more = [name for name in (DELETED, UNTIL) if name in reader.columns]
        picked = rows_at(reader, rows[at], (*columns, *more))
        if DELETED in more:
            alive[at] &= ~picked.column(DELETED).to_numpy(zero_copy_only=False)
        if UNTIL in more:  # the newer version that ended this one may have been removed
            alive[at] &= picked.column(UNTIL).to_numpy() > bounds.since
        # Without a schema: in fragments with tombstones all columns are nullable, in others they are not.
        return pa.RecordBatch.from_arrays([picked.column(name) for name in columns], names=list(columns))

    picked = fetch_by_group(numbers, fetch)
    if not alive.all():
        picked = picked.filter(pa.array(alive)) if columns else picked
    places[present[alive]] = np.arange(np.count_nonzero(alive))
    return FoundRows(places, picked, versions)


def shared_keys(
    staged: PageSource, committed: PageSource, bounds: Bounds, living: bool = False
) -> pa.RecordBatch | None:
    """Return keys of the first batch of a staged write that has keys with versions in `bounds`, else None.

    Args:
        staged: the fragments of the write; tombstones count like rows.
        committed: the committed fragments, of all shards.
        bounds: the commits to search.
        living: ignore keys whose newest version in `bounds` is a tombstone.

    Memory: a batch of keys, and the batches that the bisection reads.
    """
    names = committed.table.primary_key
    is_empty = not any(map(bounds.touch, committed.view.fragments))
    for fragment in () if is_empty else staged.view.fragments:
        for batch in staged.open(fragment, names):
            slots, keys = batch.column(SLOT).to_numpy(), batch.select(list(names))
            found = rows_of_keys(committed, slots, keys.columns, (), bounds)
            counts = fragment.slots.mask(slots) & (found.places >= 0 if living else found.versions)
            if counts.any():
                return keys.filter(pa.array(counts))
    return None
