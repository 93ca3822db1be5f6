"""Rows of several fragments brought into one order, version by version. All vectorised."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from elasticscan.base.concurrency import cached_property
from elasticscan.base.key_encoding import sort_codes
from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage.fragment import (
    COMMIT,
    DELETED,
    FOREVER,
    SLOT,
    SYSTEM_COLUMNS,
    UNTIL,
    FragmentReader,
    rows_below,
)
from elasticscan.storage.lookup import joined

Array = np.ndarray[Any, Any]
Extents = Sequence[tuple[int, int]]  # [begin, end) of rows of each of some fragments, by number
_MOST_BITS = 63


@dataclass(slots=True)
class MergeInput:
    """A fragment, opened. It holds the batch that it stands in, so that a merge reads each batch once."""

    fragment: Fragment
    reader: FragmentReader
    stands_in: pa.RecordBatch | None = None


@dataclass(frozen=True, slots=True)
class InputRows:
    """Some rows of a source, in its order."""

    source: MergeInput
    rows: pa.RecordBatch


class Versions:
    """Rows of several parts sorted by (slot, primary key, newest first).

    Only rows of commits within `bounds` take part. `until` says from which snapshot on each one is history,
    None if none is. `order` indexes `rows`; `first` marks, in that
    order, the first (newest) row of each key. `scanned` counts all rows looked at.
    """

    def __init__(self, parts: Sequence[InputRows], bounds: Bounds) -> None:
        self.primary_key = parts[0].source.reader.primary_key
        self.scanned = sum(part.rows.num_rows for part in parts)
        parts = [_within(part, bounds) for part in parts]
        names = [name for name in parts[0].rows.schema.names if name not in SYSTEM_COLUMNS]
        schema = pa.schema([parts[0].rows.schema.field(name).with_nullable(True) for name in names])
        aligned = [
            pa.RecordBatch.from_arrays(part.rows.select(names).columns, schema=schema) for part in parts
        ]
        self.rows = joined(aligned)
        self.slots = np.concatenate([_system(part, SLOT, 0) for part in parts])
        self.commits = np.concatenate([_commits(part) for part in parts])
        self.deleted = np.concatenate([_system(part, DELETED, False) for part in parts])
        self.until: Array | None = None
        if any(UNTIL in part.rows.schema.names for part in parts):
            self.until = np.concatenate([_system(part, UNTIL, FOREVER) for part in parts])
        self.since = bounds.since
        if len(parts) == 1 and parts[0].source.fragment.unique:  # sorted as it is, and each key once
            self.order = np.arange(self.rows.num_rows)
            self.first = np.ones(len(self.order), dtype=bool)
            return
        codes = [sort_codes(self.rows.column(name)) for name in self.primary_key]
        packed, commit_bits = pack((self.slots, *codes, -self.commits))
        self.order = np.argsort(packed, kind="stable")  # which merges the sorted parts
        self.first = first_of_keys(self.order, (packed >> commit_bits,))

    def columns(self, chosen: Array) -> dict[str, pa.Array]:
        """Return the columns of some of `rows`, and their slots, commits, and whether they are tombstones."""
        rows, system = (
            taken(self.rows, chosen),
            {SLOT: self.slots, COMMIT: self.commits, DELETED: self.deleted},
        )
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        return columns | {name: pa.array(values[chosen]) for name, values in system.items()}

    @cached_property
    def alive(self) -> Array:
        """Return whether each of `rows` is neither a tombstone nor history that was left behind."""
        return ~self.deleted if self.until is None else ~self.deleted & (self.until > self.since)


def pack(codes: Sequence[Array]) -> tuple[Array, int]:
    """Return one integer for each row, which sorts and compares as the codes of several columns do together.

    One integer is sorted several times as fast as some, and sorted runs one behind the other are merged, not
    sorted again, by a stable sort.

    Returns:
        The integers, and how many of their lowest bits are the last code's.

    Args:
        codes: integers of the same number of rows, the most significant first. Where they do not fit, the
            widest become ranks, and what several make together does, too.
    """
    if not len(codes[0]):
        return np.empty(0, dtype=np.int64), 0
    codes = list(codes)
    widths = [_bits(code) for code in codes]
    most = len(codes[0]).bit_length()
    while sum(widths) > _MOST_BITS and max(widths) > most:
        widest = int(np.argmax(widths))
        codes[widest] = _ranks(codes[widest])
        widths[widest] = _bits(codes[widest])
    packed, used = np.zeros(len(codes[0]), dtype=np.int64), 0
    for code, width in zip(codes, widths, strict=True):
        if used + width > _MOST_BITS:
            packed, used = _ranks(packed), most
        narrow = code.dtype.itemsize < 8 or code.dtype.kind == "b"
        above_lowest = (code.astype(np.int64) if narrow else code) - code.min()
        packed <<= width
        packed |= above_lowest.astype(np.int64, copy=False)
        used += width
    return packed, widths[-1]


def _bits(code: Array) -> int:
    return (int(code.max()) - int(code.min())).bit_length()


def _ranks(code: Array) -> Array:
    order = np.argsort(code)
    ranks = np.empty(len(code), dtype=np.int64)
    ranks[order] = np.cumsum(first_of_keys(order, (code,)))
    return ranks


def taken(rows: pa.RecordBatch, chosen: Array) -> pa.RecordBatch:
    """Return some rows by number; a slice, without a copy, where these are neighbours."""
    count = len(chosen)
    if count and int(chosen[-1]) - int(chosen[0]) == count - 1 and bool((np.diff(chosen) == 1).all()):
        return rows.slice(int(chosen[0]), count)
    return rows.take(pa.array(chosen))


def first_of_keys(order: Array, columns: Sequence[Array]) -> Array:
    """Mark the rows, sorted by `order`, that differ in a column from the row before them."""
    first = np.zeros(len(order), dtype=bool)
    first[:1] = True
    for column in columns:
        ordered = column[order]
        first[1:] |= ordered[1:] != ordered[:-1]
    return first


def key_order(
    rows: pa.RecordBatch, primary_key: Sequence[str], slots: Array, *then: Array
) -> tuple[Array, Array]:
    """Return the order of rows by slot, key and `then`, and marks of the first of each key in it."""
    columns = [slots, *(sort_codes(rows.column(name)) for name in primary_key)]
    order = np.lexsort((*then, *reversed(columns)))
    return order, first_of_keys(order, columns)


def _system(part: InputRows, name: str, otherwise: int | bool) -> Array:
    """Return a system column; a file lacks it where all rows have the same."""
    if name in part.rows.schema.names:
        column: Array = part.rows.column(name).to_numpy(zero_copy_only=False)
        return column
    return np.full(part.rows.num_rows, otherwise)


def _commits(part: InputRows) -> Array:
    return _system(part, COMMIT, part.source.fragment.min_commit)


def _within(part: InputRows, bounds: Bounds) -> InputRows:
    """Leave out rows of other commits before they are copied and sorted: there may be many."""
    if bounds.wholly_hold(part.source.fragment):
        return part
    commits = _commits(part)
    counts = (commits >= bounds.floor) & (commits <= bounds.snapshot)
    return part if counts.all() else InputRows(part.source, part.rows.filter(pa.array(counts)))


class Piece(NamedTuple):
    """Slots `[start, end)` to read; of the first one only keys from `low` on."""

    start: int
    end: int
    low: bytes = b""


def windows(
    inputs: Sequence[MergeInput], rest: Piece, bounds: Bounds, room: Callable[[], int]
) -> Iterator[tuple[Versions, Piece]]:
    """Walk a piece over several inputs in windows of about `room()` rows, each with the rest after it.

    Args:
        inputs: the fragments to merge.
        rest: what to walk.
        bounds: which commits count.
        room: how many rows the next window may hold; asked before each. A window holds at least
            one key all the same.
    """
    while rest.start < rest.end:
        window_rows = max(room(), 1)
        parts, stop = _whole_slots(inputs, rest, window_rows)
        if stop > rest.start:
            rest = Piece(stop, rest.end)
        else:
            parts, rest = _within_slot(inputs, rest, window_rows)
        if parts:
            yield Versions(parts, bounds), rest


def _whole_slots(inputs: Sequence[MergeInput], rest: Piece, window_rows: int) -> tuple[list[InputRows], int]:
    """Rows of as many whole slots of a piece as fit, and the slot where they stop (its start for none)."""
    places: list[tuple[MergeInput, pa.RecordBatch, int, Array]] = []
    at, stop, low = rest
    for source in inputs:
        reader = source.reader
        index, row = reader.seek(at, low)
        if index == reader.batch_count:
            continue
        source.stands_in = reader.batch(index)
        places.append((source, source.stands_in, row, reader.slots(index)))
        if index + 1 < reader.batch_count:  # slots beyond this batch are not read yet
            stop = min(stop, reader.slot_ranges[index + 1][0])
    if stop <= at:
        return [], at

    def rows_before(slot: int) -> int:
        return sum(max(0, rows_below(slots, slot) - row) for _, _, row, slots in places)

    if rows_before(stop) > window_rows:
        stop = at + bisect_right(range(at + 1, stop), window_rows, key=rows_before)
    counts = (rows_below(slots, stop) - row for _, _, row, slots in places)
    pairs = zip(places, counts, strict=True)
    return [InputRows(one, of.slice(row, count)) for (one, of, row, _), count in pairs if count > 0], stop


def _within_slot(
    inputs: Sequence[MergeInput], rest: Piece, window_rows: int
) -> tuple[list[InputRows], Piece]:
    """Return the next keys of one slot that is too large for a window, or that goes over several batches."""
    slot, readers = rest.start, [one.reader for one in inputs]
    extents = [(each.first_row(slot, rest.low), each.first_row(slot + 1, b"")) for each in readers]
    cut, low = first_keys(readers, extents, slot, window_rows)
    pairs = zip(inputs, cut, strict=True)
    parts = [InputRows(one, rows) for one, extent in pairs for rows in one.reader.slices(*extent)]
    return parts, Piece(slot + (not low), rest.end, low)


def first_keys(
    readers: Sequence[FragmentReader], extents: Extents, slot: int, count: int
) -> tuple[Extents, bytes]:
    """Cut extents of rows in one slot to about `count` rows of each reader: to all versions of the same keys.

    Returns:
        The extents, with at least one key, and from which key on what is left begins; empty if nothing is.
    """
    pairs = list(zip(readers, extents, strict=True))
    last = min(
        (reader.key_at(at + count - 1) for reader, (at, end) in pairs if end - at > count), default=None
    )
    if last is None:
        return extents, b""
    low = last + b"\0"
    cut = [(at, min(reader.first_row(slot, low), end)) for reader, (at, end) in pairs]
    return cut, b"" if cut == list(extents) else low
