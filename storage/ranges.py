"""Reading ranges of primary keys at a shard: a seek to each low end, and nothing beyond the high one.

Rows of one key lie side by side in each fragment, and keys in order within each slot. So a range is some
neighbouring rows of each fragment, found by bisection over the columns of the key alone; the other columns
are read of these rows only. What lies in several ranges is gathered until it is worth a merge, and a range
that holds more than fits is merged window by window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from elasticscan.metadata import Bounds, Fragment
from elasticscan.protocol import KeyRanges, PageRequest, PageRows
from elasticscan.storage.fragment import FragmentReader
from elasticscan.storage.lookup import rows_at
from elasticscan.storage.merge import Extents, InputRows, MergeInput, Piece, Versions, first_keys
from elasticscan.storage.pages import (
    PageBuilder,
    PageSource,
    add_newest,
    keys_of,
    read_by_interval,
)

LEAST_ROWS = 256  # so many versions are looked at together, however few rows a page may hold
_SLICED_ROWS = 4_096  # as many neighbours are read as slices of their batches


def read_ranges(source: PageSource, request: PageRequest) -> PageRows:
    """Return the rows of a request's cursors with keys in its ranges, until the page is full.

    Positions are those of a direct scan. `scanned` counts versions of rows.
    """
    assert isinstance(request.keys, KeyRanges), "a request for ranges says which"
    page, bounds = source.page(request), source.bounds(request.snapshot)
    read = partial(_read_interval, source, page, request.keys, bounds)
    return read_by_interval(source, page, request.cursors, bounds, read)


def _read_interval(
    source: PageSource,
    page: PageBuilder,
    ranges: KeyRanges,
    bounds: Bounds,
    fragments: Sequence[Fragment],
    rest: Piece,
) -> Piece | None:
    """Add the rows of an interval; returns what is left of it if the page is full."""
    names = source.table.primary_key
    searched = [one.reader for one in source.inputs(fragments, names)]
    inputs = source.inputs(fragments, tuple(dict.fromkeys((*page.schema.names, *names))))
    for versions in _versions(searched, inputs, _spans(ranges, rest), bounds, page):
        left = add_newest(page, versions, rest)
        if left is not None:
            return left
        if len(versions.order):
            last = int(versions.order[-1])
            low = keys_of(versions.rows, names)(last) + b"\0"
            rest = Piece(int(versions.slots[last]), rest.end, low)
    return None


def _spans(ranges: KeyRanges, rest: Piece) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield the ranges that are left, each with its slot, in order."""
    for slot, key_ranges in ranges.within(rest.start, rest.end):
        reached = rest.low if slot == rest.start else b""
        for begin, high in key_ranges:
            low = max(begin, reached)
            if high is None or low < high:
                yield slot, low, high


def _versions(
    searched: Sequence[FragmentReader],
    inputs: Sequence[MergeInput],
    spans: Iterator[tuple[int, bytes, bytes | None]],
    bounds: Bounds,
    page: PageBuilder,
) -> Iterator[Versions]:
    """Yield the versions in some ranges, in order, about as many at once as the page may hold."""
    gathered, count = list[Extents](), 0
    for slot, low, high in spans:
        extents: Extents = [_extent(reader, slot, low, high) for reader in searched]
        rows, most = sum(end - begin for begin, end in extents), max(page.room, LEAST_ROWS)
        if gathered and count + rows > most:
            yield _together(inputs, gathered, bounds)
            gathered, count = [], 0
        if 0 < rows <= most:
            gathered.append(extents)
            count += rows
        is_left = rows > most
        while is_left:
            taken, left = first_keys(searched, extents, slot, max(page.room, LEAST_ROWS))
            yield _together(inputs, [taken], bounds)
            is_left = bool(left)
            extents = [(stop, end) for (_, stop), (_, end) in zip(taken, extents, strict=True)]
    if gathered:
        yield _together(inputs, gathered, bounds)


def _extent(reader: FragmentReader, slot: int, low: bytes, high: bytes | None) -> tuple[int, int]:
    begin = reader.first_row(slot, low)
    return begin, reader.first_row(slot + 1, b"") if high is None else reader.first_row(slot, high)


def _together(inputs: Sequence[MergeInput], gathered: Sequence[Extents], bounds: Bounds) -> Versions:
    by_input = zip(inputs, zip(*gathered, strict=True), strict=True)
    parts = [InputRows(one, rows) for one, extents in by_input for rows in _rows_of(one.reader, extents)]
    return Versions(parts, bounds)


def _rows_of(reader: FragmentReader, extents: Extents) -> Iterator[pa.RecordBatch]:
    """Rows with all columns of a reader: slices of batches where they are many, else picked one by one."""
    if sum(end - begin for begin, end in extents) < _SLICED_ROWS * len(extents):
        numbers = np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in extents])
        if len(numbers):
            yield rows_at(reader, numbers, reader.columns)
        return
    for begin, end in extents:
        yield from reader.slices(begin, end)
