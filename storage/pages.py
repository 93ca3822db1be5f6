"""Reading a page at a shard: rows of some slots beyond their positions, at a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from elasticscan.base.order_keys import encode_row
from elasticscan.metadata import Fragment, TableInfo
from elasticscan.storage.fragment import SLOT, FragmentReader
from elasticscan.storage.merge import Run, windows
from elasticscan.storage.view import Bounds, Interval, View
from elasticscan.topology import SlotSet

OpenFragment = Callable[[Fragment, tuple[str, ...]], FragmentReader]
MayMatch = Callable[[Fragment, int | None], bool]


@dataclass(frozen=True, slots=True)
class Piece:
    """Slots `[start, end)` to read; the first one only beyond `key`, if that is not None."""

    start: int
    end: int
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a page ended: rows of `slot` beyond `key` (all of it, for None) are still to come."""

    slot: int
    key: bytes | None


@dataclass(frozen=True, slots=True)
class PageLimits:
    """A page ends at `rows` or `bytes`, whichever comes first, but holds a row if there is one."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of the pieces, the slot of each, and what is left of the pieces.

    `scanned` counts the versions of rows that were looked at, `skipped` about those that were
    passed over unread: nothing is opened to count them, so batches, and slots, of one fragment
    count as equally large.
    """

    rows: pa.RecordBatch
    slots: pa.Array
    left: tuple[Piece, ...]
    skipped: int = 0
    scanned: int = 0


class _Skipping:
    """What one page passes over unread."""

    def __init__(self, may_match: MayMatch) -> None:
        self._may_match = may_match
        self.rows = 0
        self._whole: dict[int, bool] = {}
        self._runs: dict[int, tuple[int, int]] = {}

    def passes_over(self, interval: Interval) -> bool:
        """Whether no fragment of an interval may match.

        One that may is enough for all to be read: a newer version that does not match the filter,
        or a tombstone, hides an older one that does.
        """
        if any(self._may_match_at_all(fragment) for fragment in interval.fragments):
            return False
        for fragment in interval.fragments:
            slots = max(fragment.slots_written, len(fragment.slots), 1)
            self.rows += _share(fragment.rows, interval.start, interval.end, slots)
        return True

    def _may_match_at_all(self, fragment: Fragment) -> bool:
        found = self._whole.get(fragment.id)
        if found is None:
            found = self._whole[fragment.id] = self._may_match(fragment, None)
        return found

    def next_match(self, fragment: Fragment, index: int, count: int) -> int:
        """The first of the `count` batches, from `index` on, that may match; `count` if none does.

        The last run of batches that do not match is remembered, since it may go over many
        intervals: they are neither asked for nor counted again.
        """
        start, end = self._runs.get(fragment.id, (0, 0))
        if start <= index < end:
            return end
        end = index
        while end < count and not self._may_match(fragment, end):
            end += 1
        if end > index:
            self._runs[fragment.id] = (index, end)
            self.rows += _share(fragment.rows, index, end, count)
        return end


def _share(rows: int, start: int, end: int, parts: int) -> int:
    """About how many of `rows` are in `[start, end)` of so many parts; adds up over disjoint ranges."""
    return rows * end // parts - rows * start // parts


class _Filling:
    """A page while it is being filled."""

    def __init__(
        self, table: TableInfo, columns: Sequence[str], limits: PageLimits, skipping: _Skipping | None
    ) -> None:
        self.schema = pa.schema([table.schema.field(name) for name in columns])
        self.limits = limits
        self.skipping = skipping
        self.scanned = 0
        self.rows = 0
        self.bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._slots: list[pa.Array] = []

    @property
    def room(self) -> int:
        return 0 if self.bytes >= self.limits.bytes else self.limits.rows - self.rows

    @property
    def worth_returning(self) -> bool:
        """Full enough that ending here is better than copying rows together."""
        return 2 * self.rows >= self.limits.rows or 2 * self.bytes >= self.limits.bytes

    def fitting(self, batch: pa.RecordBatch) -> int:
        """How many rows from the front of `batch` still fit; at least one in an empty page."""
        count: int = min(batch.num_rows, self.room)
        space = self.limits.bytes - self.bytes
        if count > 0 and batch.slice(0, count).nbytes > space:
            low, high = 0, count
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if batch.slice(0, middle).nbytes <= space else (low, middle - 1)
            count = low
        return max(count, 1) if self.rows == 0 else count

    def add(self, batch: pa.RecordBatch, slots: pa.Array) -> None:
        if batch.num_rows:
            chosen = [batch.column(name) for name in self.schema.names]
            self._batches.append(pa.RecordBatch.from_arrays(chosen, schema=self.schema))
            self._slots.append(slots)
            self.rows += batch.num_rows
            self.bytes += batch.nbytes

    def finish(self, left: Sequence[Piece]) -> Page:
        if not self._batches:
            rows = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in self.schema], schema=self.schema)
            slots = pa.array([], pa.uint16())
        elif len(self._batches) == 1:
            rows, slots = self._batches[0], self._slots[0]
        else:
            rows, slots = pa.concat_batches(self._batches), pa.concat_arrays(self._slots)
        skipped = self.skipping.rows if self.skipping else 0
        return Page(rows, slots, tuple(left), skipped, self.scanned)


@dataclass(frozen=True, slots=True)
class PageSource:
    """What a page is read from: a view of a table at a shard, and how to open its fragments.

    `may_match` says whether rows of a record batch of a fragment, or for None of all of it, can
    meet the filter that the reader applies to pages. Rows for which it is false may be left out.
    It is asked again for every page and has to be quick.
    """

    table: TableInfo
    view: View
    open: OpenFragment
    may_match: MayMatch | None = None


def read_page(
    source: PageSource, pieces: Sequence[Piece], bounds: Bounds, columns: Sequence[str], limits: PageLimits
) -> Page:
    """Rows of the pieces, in their order, until the page is full or there are no more.

    Where one fragment speaks for a range of slots, holds nothing newer than the snapshot and
    nothing deleted, its rows go out as slices of its batches; elsewhere versions are merged.
    What the source says cannot match is passed over within the page, however much it is, so a page
    without rows is still the last one.
    """
    needed = tuple(dict.fromkeys((*columns, *source.table.primary_key)))
    skipping = _Skipping(source.may_match) if source.may_match else None
    page = _Filling(source.table, columns, limits, skipping)
    for number, piece in enumerate(pieces):
        for interval in source.view.between(piece.start, piece.end, bounds):
            key = piece.key if interval.start == piece.start else None
            stop = _read_interval(source, page, interval, key, bounds, needed)
            if stop is not None:
                return page.finish([*_rest_of(piece, stop), *pieces[number + 1 :]])
    return page.finish(())


def _rest_of(piece: Piece, stop: Stop) -> Iterator[Piece]:
    if stop.key is None:
        yield Piece(stop.slot, piece.end)
        return
    yield Piece(stop.slot, stop.slot + 1, stop.key)
    if stop.slot + 1 < piece.end:
        yield Piece(stop.slot + 1, piece.end)


def _read_interval(
    source: PageSource,
    page: _Filling,
    interval: Interval,
    key: bytes | None,
    bounds: Bounds,
    needed: tuple[str, ...],
) -> Stop | None:
    if page.skipping and page.skipping.passes_over(interval):
        return None
    if page.room <= 0:
        return Stop(interval.start, key)
    runs = [Run(fragment, source.open(fragment, needed)) for fragment in interval.fragments]
    only = runs[0].fragment if len(runs) == 1 else None
    if only and only.unique and not only.tombstones and bounds.wholly_hold(only):
        return _read_slices(page, runs[0], interval, key, source.table.primary_key)
    return _read_merged(page, runs, interval, key, source.table.primary_key, bounds)


def _read_slices(
    page: _Filling,
    run: Run,
    interval: Interval,
    key: bytes | None,
    primary_key: Sequence[str],
) -> Stop | None:
    """Slices of one fragment, uncopied; ends the page between two batches where that is cheaper."""
    reader, skipping = run.reader, page.skipping
    index, row = reader.seek(interval.start, key, primary_key)
    resume = Stop(interval.start, key)
    while index < reader.batch_count:
        if skipping:
            # Where the page ends next, it ends before all rows of the batch that may match or at
            # a row of it, never among those passed over: they may only be passed over once more.
            match = skipping.next_match(run.fragment, index, reader.batch_count)
            if match > index:
                index, row = match, 0
                continue
        batch, slots = reader.batch(index), reader.slots(index)
        limit = int(np.searchsorted(slots, interval.end))
        if limit <= row:
            return None
        if page.rows and (page.room <= 0 or (row == 0 and page.worth_returning)):
            slot = int(slots[row])
            return resume if slot == resume.slot else Stop(slot, None)
        part = batch.slice(row, limit - row)
        count = page.fitting(part)
        page.scanned += count
        if count < limit - row:
            return _cut(page, part, slots[row:limit], count, resume, primary_key)
        page.add(part, part.column(SLOT))
        if limit < len(slots):
            return None
        resume = Stop(int(slots[-1]), encode_row([batch.column(k) for k in primary_key], batch.num_rows - 1))
        index, row = index + 1, 0
    return None


def _cut(
    page: _Filling,
    part: pa.RecordBatch,
    slots: np.ndarray[Any, Any],
    count: int,
    resume: Stop,
    primary_key: Sequence[str],
) -> Stop:
    """Add the first `count` rows, or fewer where that ends the page between two slots.

    A page that ends inside a slot leaves a position in the continuation key; one that ends
    between two slots leaves none.
    """
    slot = int(slots[count])
    begin = int(np.searchsorted(slots, slot))
    if begin > 0 and 2 * (page.rows + begin) >= page.rows + count:
        page.add(part.slice(0, begin), part.column(SLOT).slice(0, begin))
        return Stop(slot, None)
    page.add(part.slice(0, count), part.column(SLOT).slice(0, count))
    if count == 0:
        return resume if slot == resume.slot else Stop(slot, None)
    return Stop(slot, encode_row([part.column(name) for name in primary_key], count - 1))


def _read_merged(
    page: _Filling,
    runs: Sequence[Run],
    interval: Interval,
    key: bytes | None,
    primary_key: Sequence[str],
    bounds: Bounds,
) -> Stop | None:
    """Rows of several fragments, or of one with several versions: the newest of each key."""
    resume = Stop(interval.start, key)
    span = (interval.start, interval.end)
    for window in windows(runs, span, key, primary_key, bounds, lambda: page.room):
        versions = window.versions
        page.scanned += versions.rows.num_rows
        chosen = versions.newest
        if len(chosen):
            rows = versions.rows.take(pa.array(chosen))
            slots = versions.slots[chosen]
            count = page.fitting(rows)
            if count < len(chosen):
                part = _with_slots(rows, slots)
                return _cut(page, part, slots, count, resume, primary_key)
            page.add(rows, pa.array(slots))
        if window.slot >= interval.end:
            return None
        resume = Stop(window.slot, window.key)
        if page.room <= 0:
            return resume
    return None


def _with_slots(rows: pa.RecordBatch, slots: np.ndarray[Any, Any]) -> pa.RecordBatch:
    return rows.append_column(SLOT, pa.array(slots))


def pieces_of(cursors: Sequence[tuple[SlotSet, bytes | None]]) -> list[Piece]:
    """Cursors of a direct scan as pieces: half-read slots first, then whole ones, ascending.

    A direct scan's order key is (slot, primary key): the slot takes the first two bytes. Slots
    below the position's slot are read; the position's own slot is half-read; the rest untouched.
    """
    begun: list[Piece] = []
    whole: list[Piece] = []
    for slots, position in cursors:
        if position is None:
            whole.extend(Piece(start, end) for start, end in slots)
            continue
        at = int.from_bytes(position[:2], "big")
        if at in slots:
            begun.append(Piece(at, at + 1, position[2:]))
        above = slots & SlotSet.span(at + 1, 1 << 16)
        whole.extend(Piece(start, end) for start, end in above)
    return sorted(begun, key=lambda piece: piece.start) + sorted(whole, key=lambda piece: piece.start)


def cursors_of(pieces: Sequence[Piece]) -> list[tuple[SlotSet, bytes | None]]:
    """The inverse of `pieces_of`: untouched slots in one cursor, one more for each half-read slot."""
    untouched = SlotSet.of((piece.start, piece.end) for piece in pieces if piece.key is None)
    begun: list[tuple[SlotSet, bytes | None]] = [
        (SlotSet.span(piece.start, piece.end), piece.start.to_bytes(2, "big") + piece.key)
        for piece in pieces
        if piece.key is not None
    ]
    return [*begun, (untouched, None)] if untouched else begun
