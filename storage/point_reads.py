"""Reading rows with some primary keys at a shard: all of them at once, by bisection in each fragment.

A scan reads them in pages (`read_listed`), who asks for keys alone gets all (`read_rows`). The fragment with
the newest commits is asked first, and an older one only for keys of which no version was found that is newer
than everything in it.
"""

from __future__ import annotations

from bisect import bisect_right
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
    Mask,
    Places,
    Rows,
    Sought,
    fetch_by_group,
    rows_at,
)
from elasticscan.storage.page_builder import PageBuilder
from elasticscan.storage.pages import PageSource, Piece, cursors_of, pieces_of

_OPENED_AT_ONCE = 16
LEAST_KEYS = 256  # so many are looked up together, however few rows a page may hold


def read_listed(source: PageSource, request: PageRequest) -> PageRows:
    """Return the rows of a request's cursors with its keys, until the page is full or there are no more.

    Positions are those of a direct scan. `scanned` counts the rows found, tombstones among them.
    """
    assert isinstance(request.keys, KeyList), "a request for keys lists them"
    schema = pa.schema([source.table.schema.field(name) for name in request.columns])
    page = PageBuilder(schema, request.page_rows, request.page_bytes)
    pieces = pieces_of(request.cursors)
    todo = _Todo.of(request.keys, pieces)
    bounds, at = source.bounds(request.snapshot), 0
    is_full = False
    while at < len(todo.numbers) and page.room > 0 and not is_full:
        end = at + max(page.room, LEAST_KEYS)
        done, is_full = _add(source, page, todo.slots[at:end], todo.keys_at(at, end), bounds)
        at += done
    return page.finish(cursors_of(todo.left(at)))


@dataclass(frozen=True, slots=True)
class _Todo:
    """The keys of the pieces, in their order: the number of each in the list, and its piece's."""

    listed: KeyList
    pieces: Sequence[Piece]
    numbers: NDArray[np.int64]
    piece_of: NDArray[np.int64]
    slots: NDArray[np.uint16]

    @classmethod
    def of(cls, listed: KeyList, pieces: Sequence[Piece]) -> _Todo:
        starts = np.array([piece.start for piece in pieces], dtype=np.int64)
        ends = np.array([piece.end for piece in pieces], dtype=np.int64)
        slots = listed.slots.astype(np.int64)
        firsts, lasts = np.searchsorted(slots, starts), np.searchsorted(slots, ends)
        for number, piece in enumerate(pieces):
            if piece.key is None:  # half-read slots come first
                break
            places = range(int(firsts[number]), int(lasts[number]))
            beyond = bisect_right(places, piece.key, key=partial(encode_row, listed.keys.columns))
            firsts[number] += beyond
        counts = np.maximum(lasts - firsts, 0)
        piece_of = np.repeat(np.arange(len(pieces)), counts)
        numbers = np.arange(len(piece_of)) - np.repeat(np.cumsum(counts) - counts - firsts, counts)
        return cls(listed, pieces, numbers, piece_of, listed.slots[numbers])

    def keys_at(self, begin: int, end: int) -> list[pa.Array]:
        keys: list[pa.Array] = self.listed.keys.take(pa.array(self.numbers[begin:end])).columns
        return keys

    def left(self, at: int) -> list[Piece]:
        """Return the pieces without the keys before a place."""
        if at >= len(self.numbers):
            return []
        number, slot = int(self.piece_of[at]), int(self.slots[at])
        piece, key = self.pieces[number], None
        if at and self.piece_of[at - 1] == number and self.slots[at - 1] == slot:
            key = encode_row(self.listed.keys.columns, int(self.numbers[at - 1]))
        elif slot == piece.start:
            key = piece.key
        return [Piece(slot, piece.end, key), *self.pieces[number + 1 :]]


def _add(
    source: PageSource, page: PageBuilder, slots: NDArray[np.uint16], keys: Sequence[pa.Array], bounds: Bounds
) -> tuple[int, bool]:
    """Add the rows of some keys; returns how many keys are done, and if the next row does not fit."""
    names = page.schema.names
    found = rows_of_keys(source, source.view.fragments, slots, keys, names, bounds)
    page.scanned += int(np.count_nonzero(found.versions))
    there = np.flatnonzero(found.places >= 0)
    if not len(there):
        return len(slots), False
    count = page.fitting(found.rows)
    page.add(found.rows.slice(0, count), pa.array(slots[there[:count]]))
    return (len(slots), False) if count == len(there) else (int(there[count]), True)


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

    Args:
        source: opens the fragments.
        fragments: that may have the keys: all of the view, or of an interval.
        slots, keys: the keys, and the slots that they hash to.
        columns: of the rows, perhaps none.
        bounds: which commits count.
    """
    owners, rows = _find_newest(source, fragments, slots, keys, bounds)
    versions = owners >= 0
    there, places = np.flatnonzero(versions), np.full(len(owners), -1, dtype=np.int64)
    if not len(there):
        nothing = [pa.array([], source.table.schema.field(name).type) for name in columns]
        return FoundRows(places, pa.RecordBatch.from_arrays(nothing, names=list(columns)), versions)
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


def _find_newest(
    source: PageSource,
    fragments: Sequence[Fragment],
    slots: NDArray[np.uint16],
    keys: Sequence[pa.Array],
    bounds: Bounds,
) -> tuple[NDArray[np.int64], Rows]:
    """For each key the fragment with its newest version that counts, by number, and the row; -1 for none."""
    owners, rows, newest = (np.full(len(slots), -1, dtype=np.int64) for _ in range(3))
    names = source.table.primary_key
    sought = Sought(slots, keys, lambda fragment: source.open(fragment, names))
    newest_first = sorted(range(len(fragments)), key=lambda number: -fragments[number].max_commit)
    for nth, owner in enumerate(newest_first):
        fragment = fragments[owner]
        if nth and nth % _OPENED_AT_ONCE == 1:  # the newest alone may have all keys
            source.expect([fragments[number] for number in newest_first[nth : nth + _OPENED_AT_ONCE]])
        if not bounds.touch(fragment):
            continue
        asked = np.flatnonzero(newest < fragment.max_commit)
        if not len(asked):
            break  # the following ones are older
        asked, places, commits = sought.find_in(fragment, asked, bounds)
        newer = (commits > newest[asked]) & (commits >= bounds.floor)
        asked = asked[newer]
        owners[asked], rows[asked], newest[asked] = owner, places[newer], commits[newer]
    return owners, rows


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
