"""Reading ranges of primary keys at a shard: a seek to each low end, and nothing beyond the high one.

Rows of one key lie side by side in each fragment, and keys in order within each slot. So a range is some
neighbouring rows of each fragment, found by bisection over the columns of the key alone; the other columns
are read of these rows only. What lies in several ranges is gathered until it is worth a merge, and a range
that holds more than fits is merged window by window.
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

LEAST_ROWS = 256  # so many versions are looked at together, however few rows a page may hold
_SLICED_ROWS = 4_096  # as many neighbours are read as slices of their batches


def read_ranges(source: PageSource, request: PageRequest) -> PageRows:
    """Return the rows of a request's cursors with keys in its ranges, until the page is full.

    Positions are those of a direct scan. `scanned` counts versions of rows.
    """
    assert isinstance(request.keys, KeyRanges), "a request for ranges says which"
    ranges, page, bounds = request.keys, source.page(request), source.bounds(request.snapshot)
    names = source.table.primary_key
    wanted = tuple(dict.fromkeys((*page.schema.names, *names)))

    def read(piece: Piece) -> SeekKey | None:
        if page.rows_left <= 0:
            return piece.start
        fragments = source.view.within(bounds).fragments
        searched, inputs = (source.inputs(fragments, some, piece.slots) for some in (names, wanted))
        for versions in _versions(searched, inputs, _spans(ranges, piece), bounds, page):
            page.scanned += versions.scanned
            if (stop := add_newest(page, versions, piece.start)) is not None:
                return stop
        return None

    return read_pieces(page, request.cursors, read)


def _spans(ranges: KeyRanges, piece: Piece) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield the ranges that are left, each with its slot, in order."""
    for slot, key_ranges in (found for ends in piece.slots for found in ranges.within(*ends)):
        for begin, high in key_ranges:
            low = max(begin, piece.low)  # of a piece with one slot
            if high is None or low < high:
                yield slot, low, high


def _versions(
    searched: Sequence[MergeInput],
    inputs: Sequence[MergeInput],
    spans: Iterator[tuple[int, bytes, bytes | None]],
    bounds: Bounds,
    page: PageBuilder,
) -> Iterator[Versions]:
    """Yield the versions in some ranges, in order, about as many at once as the page may hold."""
    gathered, count = list[Extents](), 0
    for slot, low, high in spans:
        left: Extents = [_extent(one, slot, low, high) for one in searched]
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


def _extent(one: MergeInput, slot: int, low: bytes, high: bytes | None) -> tuple[int, int]:
    if slot not in one.fragment.slots:
        return 0, 0
    reader, begin = one.reader, one.reader.first_row(slot, low)
    return begin, reader.first_row(slot + 1, b"") if high is None else reader.first_row(slot, high)


def _together(inputs: Sequence[MergeInput], gathered: Sequence[Extents], bounds: Bounds) -> Versions:
    by_input = zip(inputs, zip(*gathered, strict=True), strict=True)
    parts = [InputRows(of, rows) for (of, reader), ends in by_input for rows in _rows_of(reader, ends)]
    return Versions(parts, inputs[0].reader.primary_key, bounds)


def _rows_of(reader: FragmentReader, extents: Extents) -> Iterator[pa.RecordBatch]:
    """Rows with all columns of a reader: slices of batches where they are many, else picked one by one."""
    if sum(end - begin for begin, end in extents) < _SLICED_ROWS * len(extents):
        numbers = np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in extents])
        if len(numbers):
            yield rows_at(reader, numbers, reader.columns)
        return
    for begin, end in extents:
        yield from reader.slices(begin, end)
