"""Reading rows with some primary keys at a shard: all of them at once, by bisection in each fragment.

A scan reads them in pages (`read_listed`), who asks for keys alone gets all (`read_rows`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.key_encoding import encode_row
from elasticscan.metadata import Bounds, Fragment
from elasticscan.protocol import KeyList, PageRequest, PageRows, RowAnswer, RowRequest
from elasticscan.storage.fragment import DELETED, SLOT, UNTIL
from elasticscan.storage.lookup import (
    FoundVersions,
    Mask,
    Places,
    Rows,
    Sought,
    fetch_by_group,
    find_newest,
    rows_at,
)
from elasticscan.storage.merge import Piece
from elasticscan.storage.pages import PageSource, cursors_of, pieces_of

LEAST_KEYS = 256  # so many are looked up together, however few rows a page may hold


def read_listed(source: PageSource, request: PageRequest) -> PageRows:
    """Return the rows of a request's cursors with its keys, until the page is full or there are no more.

    Positions are those of a direct scan. `scanned` counts the rows found, tombstones among them.
    """
    assert isinstance(request.keys, KeyList), "a request for keys lists them"
    listed, pieces, bounds = request.keys, pieces_of(request.cursors), source.bounds(request.snapshot)
    page = source.page(request)
    numbers, piece_of = _keys_of_pieces(listed, pieces)
    at, is_full = 0, False
    while at < len(numbers) and page.room > 0 and not is_full:
        asked = numbers[at : at + max(page.room, LEAST_KEYS)]
        slots, keys = listed.slots[asked], listed.keys.take(pa.array(asked)).columns
        found = rows_of_keys(source, source.view.fragments, slots, keys, request.columns, bounds)
        page.scanned += int(np.count_nonzero(found.versions))
        there = np.flatnonzero(found.places >= 0)
        count = page.fitting(found.rows) if len(there) else 0
        page.add(found.rows.slice(0, count), pa.array(slots[there[:count]]))
        is_full = count < len(there)
        at += int(there[count]) if is_full else len(asked)
    if at == len(numbers):
        return page.finish(())
    number, slot = int(piece_of[at]), int(listed.slots[numbers[at]])
    piece, low = pieces[number], b""
    if at and piece_of[at - 1] == number and listed.slots[numbers[at - 1]] == slot:
        low = encode_row(listed.keys.columns, int(numbers[at - 1])) + b"\0"
    elif slot == piece.start:
        low = piece.low
    return page.finish(cursors_of([Piece(slot, piece.end, low), *pieces[number + 1 :]]))


def _keys_of_pieces(listed: KeyList, pieces: Sequence[Piece]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers in the list of the keys of pieces, in their order, and each one's piece."""
    edges = np.array([piece[:2] for piece in pieces], dtype=np.int64).reshape(-1, 2)
    spans = listed.slots.astype(np.int64).searchsorted(edges)
    for number, piece in enumerate(pieces):
        if not piece.low:  # half-read slots come first
            break
        places = range(*spans[number].tolist())
        spans[number, 0] += bisect_left(places, piece.low, key=partial(encode_row, listed.keys.columns))
    numbers = [np.arange(*span) for span in spans.tolist()]
    piece_of = np.repeat(np.arange(len(pieces)), np.array([len(some) for some in numbers], dtype=np.int64))
    return np.concatenate([np.empty(0, dtype=np.int64), *numbers]), piece_of


def read_rows(source: PageSource, request: RowRequest) -> RowAnswer:
    """Return the rows with a request's keys, and which key has which."""
    slots, keys, bounds = request.slots, request.keys.columns, source.bounds(request.snapshot)
    found = rows_of_keys(source, source.view.fragments, slots, keys, request.columns, bounds)
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
    fragments: Sequence[Fragment],
    slots: NDArray[np.uint16],
    keys: Sequence[pa.Array],
    columns: Sequence[str],
    bounds: Bounds,
) -> FoundRows:
    """Look up the newest version in `bounds` of each key; a tombstone, or a row left behind, is none.

    `fragments` may have the keys: all of the view, or of an interval. `columns` may be none.
    """
    sought = Sought(slots, keys, lambda fragment: source.open(fragment, source.table.primary_key))
    nothing = np.full(len(slots), -1, dtype=np.int64)
    found = find_newest(sought, fragments, bounds, FoundVersions(nothing, nothing, nothing), source.expect)
    owners, rows, versions = found.owners, found.rows, found.owners >= 0
    there, places = np.flatnonzero(versions), np.full(len(owners), -1, dtype=np.int64)
    if not len(there):
        empty = [pa.array([], source.table.schema.field(name).type) for name in columns]
        return FoundRows(places, pa.RecordBatch.from_arrays(empty, names=list(columns)), versions)
    owners, rows, alive = owners[there], rows[there], np.ones(len(there), dtype=bool)
    opened = tuple(columns) or source.table.primary_key  # a reader of the keys is there already

    def fetch(owner: int, at: Places) -> pa.RecordBatch:
        reader = source.open(fragments[owner], opened)
        more = [name for name in (DELETED, UNTIL) if name in reader.columns]
        picked = rows_at(reader, rows[at], (*columns, *more))
        if DELETED in more:
            alive[at] &= ~picked.column(DELETED).to_numpy(zero_copy_only=False)
        if UNTIL in more:  # a newer version may be in no fragment any more
            alive[at] &= picked.column(UNTIL).to_numpy() > bounds.since
        # Of tombstones every column may be null, so schemas differ from one fragment to another.
        return pa.RecordBatch.from_arrays([picked.column(name) for name in columns], names=list(columns))

    picked = fetch_by_group(owners, fetch)
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
    fragments = [fragment for fragment in committed.view.fragments if bounds.touch(fragment)]
    for fragment in staged.view.fragments if fragments else ():
        for batch in staged.open(fragment, names):
            slots, keys = batch.column(SLOT).to_numpy(), batch.select(list(names))
            found = rows_of_keys(committed, fragments, slots, keys.columns, (), bounds)
            counts = fragment.slots.mask(slots) & (found.places >= 0 if living else found.versions)
            if counts.any():
                return keys.filter(pa.array(counts))
    return None
