"""Reading ranges of primary keys at a shard.

The keys in a slot of a fragment are sorted. So a range of keys is a range of rows in each fragment, found by
bisection in the key columns; the other columns are read only for these rows. The rows of small ranges
are collected until a merge is worth it, and a large range is merged window by window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from elasticscan.metadata import Bounds
from elasticscan.protocol import KeyRanges, PageRequest, PageRows
from elasticscan.storage.fragment import FragmentReader
from elasticscan.storage.lookup import rows_at
from elasticscan.storage.merge import Extents, InputRows, MergeInput, Piece, SeekKey, Versions, cut
from elasticscan.storage.pages import PageBuilder, PageSource, add_newest, read_pieces

LEAST_ROWS = 256  # merged in one step at least, however few rows a page may have
_SLICED_ROWS = 4_096  # ranges of at least this mean length are read as slices of batches


def read_ranges(source: PageSource, request: PageRequest) -> PageRows:
    """Return the rows of a request's cursors with keys in its ranges, until the page is full.

    Positions are those of a direct scan. `scanned` counts versions of rows.
    """
    assert isinstance(request.keys, KeyRanges), "the caller has checked that the request has ranges"
    ranges, page, bounds = request.keys, source.page(request), source.bounds(request.snapshot)
    names = source.table.primary_key
    wanted = tuple(dict.fromkeys((*page.schema.names, *names)))

    def read(piece: Piece) -> SeekKey | None:
        if page.rows_left <= 0:
            return piece.start
        fragments = source.view.within(bounds).fragments
        searched, inputs = (source.inputs(fragments, columns, piece.slots) for columns in (names, wanted))
        for versions in _versions(searched, inputs, _spans(ranges, piece), bounds, page):
            page.scanned += versions.scanned
            if (stop := add_newest(page, versions, piece.start)) is not None:
                return stop
        return None

    return read_pieces(page, request.cursors, read)


def _spans(ranges: KeyRanges, piece: Piece) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield (slot, low, high) of each range in the piece, in order."""
    for slot, key_ranges in (found for ends in piece.slots for found in ranges.within(*ends)):
        for begin, high in key_ranges:
            low = max(begin, piece.low)  # a piece with a `low` has one slot
            if high is None or low < high:
                yield slot, low, high


def _versions(
    searched: Sequence[MergeInput],
    inputs: Sequence[MergeInput],
    spans: Iterator[tuple[int, bytes, bytes | None]],
    bounds: Bounds,
    page: PageBuilder,
) -> Iterator[Versions]:
    """Yield the versions in the ranges, in order, in parts of about as many rows as the page may have."""
    gathered, count = list[Extents](), 0
    for slot, low, high in spans:
        left: Extents = [_extent(fragment, slot, low, high) for fragment in searched]
        while any(begin < end for begin, end in left):
            most = max(page.rows_left, LEAST_ROWS)
            extents, _ = cut(searched, left, slot, most)
            left = [(stop, end) for (_, stop), (_, end) in zip(extents, left, strict=True)]
            rows = sum(end - begin for begin, end in extents)
            if gathered and count + rows > most:
                yield _together(inputs, gathered, bounds)
                gathered, count = [], 0
            gathered.append(extents)
            count += rows
    if gathered:
        yield _together(inputs, gathered, bounds)


def _extent(searched: MergeInput, slot: int, low: bytes, high: bytes | None) -> tuple[int, int]:
    if slot not in searched.fragment.slots:
        return 0, 0
    reader, begin = searched.reader, searched.reader.first_row(slot, low)
    return begin, reader.first_row(slot + 1, b"") if high is None else reader.first_row(slot, high)


def _together(inputs: Sequence[MergeInput], gathered: Sequence[Extents], bounds: Bounds) -> Versions:
    by_input = zip(inputs, zip(*gathered, strict=True), strict=True)
    parts = [
        InputRows(fragment, rows)
        for (fragment, reader), extents in by_input
        for rows in _rows_of(reader, extents)
    ]
    return Versions(parts, inputs[0].reader.primary_key, bounds)


def _rows_of(reader: FragmentReader, extents: Extents) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the extents: slices of batches if the extents are long, else single rows."""
    if sum(end - begin for begin, end in extents) < _SLICED_ROWS * len(extents):
        numbers = np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in extents])
        if len(numbers):
            yield rows_at(reader, numbers, reader.columns)
        return
    for begin, end in extents:
        yield from reader.slices(begin, end)
