"""Reading rows with some primary keys at a shard: all of them at once, by bisection in each fragment.

A scan reads them in pages (`read_listed`), who asks for keys alone gets all (`read_rows`).
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

LEAST_KEYS = 256  # so many are looked up together, however few rows a page may hold


def read_listed(source: PageSource, request: PageRequest) -> PageRows:
    """Return the rows of a request's cursors with its keys, until the page is full or there are no more.

    Positions are those of a direct scan. `scanned` counts the rows found, tombstones among them.
    """
    assert isinstance(request.keys, KeyList), "a request for keys lists them"
    listed, bounds, page = request.keys, source.bounds(request.snapshot), source.page(request)

    def read(piece: Piece) -> SeekKey | None:
        numbers = np.flatnonzero(piece.slots.mask(listed.slots))
        if piece.low:  # all are of one slot
            key_at = keys_of(listed.keys, listed.keys.schema.names)
            numbers = numbers[bisect_left(numbers, piece.low, key=lambda number: key_at(int(number))) :]
        while len(numbers):
            if page.rows_left <= 0:
                return page.before(int(listed.slots[numbers[0]]), piece.start)
            asked, numbers = np.split(numbers, [max(page.rows_left, LEAST_KEYS)])
            slots, keys = listed.slots[asked], listed.keys.take(pa.array(asked))
            found = rows_of_keys(source, slots, keys.columns, request.columns, bounds)
            page.scanned += int(np.count_nonzero(found.versions))
            there = np.flatnonzero(found.places >= 0)
            rows = found.rows.append_column(SLOT, pa.array(slots[there]))
            key_at = keys_of(keys.take(pa.array(there)), keys.schema.names)
            if (stop := page.fill(rows, key_at, piece.start)) is not None:
                return stop
        return None

    return read_pieces(page, request.cursors, read)


def read_rows(source: PageSource, request: RowRequest) -> RowAnswer:
    """Return the rows with a request's keys, and which key has which."""
    bounds = source.bounds(request.snapshot)
    found = rows_of_keys(source, request.slots, request.keys.columns, request.columns, bounds)
    return RowAnswer(found.places, found.rows)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows with some keys.

    Attributes:
        places: for each key the number of its row; -1 where it has none.
        rows: in the order of their keys.
        versions: whether each key has a version that counts, a tombstone perhaps.
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
    """Look up the newest version in `bounds` of each key; a tombstone, or a row left behind, is none.

    `columns` may be none.
    """
    fragments = source.view.fragments
    sought = Sought(slots, keys, lambda fragment: source.open(fragment, source.table.primary_key))
    nothing = np.full(len(slots), -1, dtype=np.int64)
    found = find_newest(sought, fragments, bounds, FoundVersions(nothing, nothing, nothing), source.prefetch)
    numbers, rows, versions = found.fragment_numbers, found.rows, found.fragment_numbers >= 0
    there, places = np.flatnonzero(versions), np.full(len(numbers), -1, dtype=np.int64)
    if not len(there):
        empty = [pa.array([], source.table.schema.field(name).type) for name in columns]
        return FoundRows(places, pa.RecordBatch.from_arrays(empty, names=list(columns)), versions)
    numbers, rows, alive = numbers[there], rows[there], np.ones(len(there), dtype=bool)
    opened = tuple(columns) or source.table.primary_key  # a reader of the keys is there already

    def fetch(number: int, at: Indices) -> pa.RecordBatch:
        reader = source.open(fragments[number], opened)
        more = [name for name in (DELETED, UNTIL) if name in reader.columns]
        picked = rows_at(reader, rows[at], (*columns, *more))
        if DELETED in more:
            alive[at] &= ~picked.column(DELETED).to_numpy(zero_copy_only=False)
        if UNTIL in more:  # a newer version may be in no fragment any more
            alive[at] &= picked.column(UNTIL).to_numpy() > bounds.since
        # Of tombstones every column may be null, so schemas differ from one fragment to another.
        return pa.RecordBatch.from_arrays([picked.column(name) for name in columns], names=list(columns))

    picked = fetch_by_group(numbers, fetch)
    if not alive.all():
        picked = picked.filter(pa.array(alive)) if columns else picked
    places[there[alive]] = np.arange(np.count_nonzero(alive))
    return FoundRows(places, picked, versions)


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
    is_empty = not any(map(bounds.touch, committed.view.fragments))
    for fragment in () if is_empty else staged.view.fragments:
        for batch in staged.open(fragment, names):
            slots, keys = batch.column(SLOT).to_numpy(), batch.select(list(names))
            found = rows_of_keys(committed, slots, keys.columns, (), bounds)
            counts = fragment.slots.mask(slots) & (found.places >= 0 if living else found.versions)
            if counts.any():
                return keys.filter(pa.array(counts))
    return None
