"""Reading ranges of primary keys at a shard: a seek to each low end, and nothing beyond the high one.

Rows of one key lie side by side in each fragment, and keys in order within each slot. So a range is some
neighbouring rows of each fragment, found by bisection over the columns of the key alone; the other columns
are read of these rows only. What lies in several ranges is gathered until it is worth a merge, and a range
that holds more than fits is cut at a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from elasticscan.metadata import Bounds, SlotInterval
from elasticscan.protocol import KeyRanges, PageRequest, PageRows
from elasticscan.storage.fragment import SLOT, FragmentReader
from elasticscan.storage.lookup import rows_at
from elasticscan.storage.merge import InputRows, MergeInput, Versions
from elasticscan.storage.page_builder import PageBuilder
from elasticscan.storage.pages import PageSource, Piece, cursors_of, cut_page, keys_of, pieces_of, with_slots

LEAST_ROWS = 256  # so many versions are looked at together, however few rows a page may hold
_SLICED_ROWS = 4_096  # as many neighbours are read as slices of their batches

Extent = tuple[int, int]  # [begin, end) of rows of a fragment, by number


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows of a slot, up to some key: for each fragment of an interval where they lie."""

    slot: int
    extents: tuple[Extent, ...]

    @property
    def rows(self) -> int:
        return sum(end - begin for begin, end in self.extents)


def read_ranges(source: PageSource, request: PageRequest) -> PageRows:
    """Return the rows of a request's cursors with keys in its ranges, until the page is full.

    Positions are those of a direct scan. `scanned` counts versions of rows.
    """
    assert isinstance(request.keys, KeyRanges), "a request for ranges says which"
    schema = pa.schema([source.table.schema.field(name) for name in request.columns])
    page = PageBuilder(schema, request.page_rows, request.page_bytes)
    bounds = source.bounds(request.snapshot)
    pieces = pieces_of(request.cursors)
    for number, piece in enumerate(pieces):
        for interval in source.view.between(piece.start, piece.end, bounds):
            key = piece.key if interval.start == piece.start else None
            rest = _IntervalRanges(source, page, interval, bounds).read(request.keys, key)
            if rest is not None:
                return page.finish(cursors_of([rest._replace(end=piece.end), *pieces[number + 1 :]]))
    return page.finish(())


class _IntervalRanges:
    """The ranges of one interval while they are read."""

    def __init__(self, source: PageSource, page: PageBuilder, interval: SlotInterval, bounds: Bounds) -> None:
        self._page, self._interval, self._bounds = page, interval, bounds
        self._names = source.table.primary_key
        self._source = source
        source.expect(interval.fragments)
        self._searched = [source.open(fragment, self._names) for fragment in interval.fragments]

    def read(self, ranges: KeyRanges, key: bytes | None) -> Piece | None:
        """Add the rows to the page; returns the rest of the interval if the page is full."""
        rest = Piece(self._interval.start, self._interval.end, key)
        spans: list[_Span] = []
        for span in self._spans(ranges, key):
            if spans and sum(part.rows for part in spans) + span.rows > self._limit:
                full, rest = self._add(spans, rest)
                if full:
                    return rest
                if span.slot > spans[-1].slot:
                    rest = Piece(span.slot, rest.end)
                if self._page.room <= 0:
                    return rest
                spans = []
            spans.append(span)
        full, rest = self._add(spans, rest) if spans else (False, rest)
        return rest if full else None

    @property
    def _limit(self) -> int:
        return max(self._page.room, LEAST_ROWS)

    # ---------------------------------------------------------------------- where rows of ranges lie

    def _spans(self, ranges: KeyRanges, key: bytes | None) -> Iterator[_Span]:
        """Yield the rows to read, in order: range by range, larger ones key by key."""
        start, end = self._interval.start, self._interval.end
        for slot, key_ranges in ranges.within(start, end):
            # What is left of the first slot lies beyond the key: from the next bytes on.
            reached = key + b"\0" if key is not None and slot == start else b""
            for begin, high in key_ranges:
                low = max(begin, reached)
                while high is None or low < high:
                    extents = [self._extent(reader, slot, low, high) for reader in self._searched]
                    cut = self._cut(extents, slot, low)
                    if cut is not None:
                        extents = [
                            (begin, reader.first_row(slot, cut))
                            for (begin, _), reader in zip(extents, self._searched, strict=True)
                        ]
                    span = _Span(slot, tuple(extents))
                    if span.rows:
                        yield span
                    if cut is None:
                        break
                    low = cut

    def _extent(self, reader: FragmentReader, slot: int, low: bytes, high: bytes | None) -> Extent:
        begin = reader.first_row(slot, low)
        if high is None:
            return begin, reader.first_row(slot + 1, None)
        for end in (begin, begin + 1):  # most ranges hold one key
            key = self._key_at(reader, end, slot)
            if key is None or key >= high:
                return begin, end
        return begin, reader.first_row(slot, high)

    def _key_at(self, reader: FragmentReader, row: int, slot: int) -> bytes | None:
        """Return the key of a row by number; None where it is not of a slot."""
        if row >= reader.starts[-1]:
            return None
        index = int(np.searchsorted(reader.starts, row, "right")) - 1
        at = row - int(reader.starts[index])
        if reader.slots(index)[at] != slot:
            return None
        return reader.row_key(reader.batch(index), at)

    def _cut(self, extents: Sequence[Extent], slot: int, low: bytes) -> bytes | None:
        """Return the key at which to cut rows that are too many to be taken at once; None if they are not."""
        if sum(end - begin for begin, end in extents) <= self._limit:
            return None
        share = max(1, self._limit // len(extents))
        while True:
            keys = [
                key
                for (begin, end), reader in zip(extents, self._searched, strict=True)
                if begin + share < end and (key := self._key_at(reader, begin + share, slot)) is not None
            ]
            if not keys:
                return None
            if min(keys) > low:
                return min(keys)
            share *= 2  # versions of one key alone

    # ---------------------------------------------------------------------------- rows into the page

    def _add(self, spans: Sequence[_Span], rest: Piece) -> tuple[bool, Piece]:
        """Add the rows that count; returns if that filled the page, and what is left to read."""
        columns = tuple(dict.fromkeys((*self._page.schema.names, *self._names)))
        parts: list[InputRows] = []
        for number, fragment in enumerate(self._interval.fragments):
            source = MergeInput(fragment, self._source.open(fragment, columns))
            extents = [span.extents[number] for span in spans]
            parts += [InputRows(source, rows) for rows in _rows_of(source.reader, extents)]
        self._page.scanned += sum(part.rows.num_rows for part in parts)
        versions = Versions(parts, self._bounds)
        if not len(versions.order):  # all of other commits
            return False, rest
        chosen = versions.newest
        rows = with_slots(versions.take(chosen), versions.slots[chosen])
        last, key = int(versions.slots[versions.order[-1]]), versions.key_before(len(versions.order))
        count = self._page.fitting(rows) if rows.num_rows else 0
        if count < rows.num_rows:
            slots = rows.column(SLOT).to_numpy()
            return True, cut_page(self._page, rows, slots, count, rest, keys_of(rows, self._names))
        self._page.add(rows, rows.column(SLOT))
        return False, Piece(last, rest.end, key)


def _rows_of(reader: FragmentReader, extents: Sequence[Extent]) -> Iterator[pa.RecordBatch]:
    """Rows with all columns of a reader: slices of batches where they are many, else picked one by one."""
    if sum(end - begin for begin, end in extents) < _SLICED_ROWS * len(extents):
        numbers = np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in extents])
        if len(numbers):
            yield rows_at(reader, numbers, reader.columns)
        return
    for begin, end in extents:
        yield from reader.slices(begin, end)
