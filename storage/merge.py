"""The merge of several fragments into one sorted sequence of versions, with NumPy and Arrow kernels.

Consecutive slots are a range of rows in each fragment. `windows` sorts these ranges window by window, so
memory holds only one window. The number of slots of a window is estimated from the mean rows of a slot; then
the rows are counted by bisection. If they are more than twice the target, the slots are halved, so that few
windows are less than half full. A single slot that is too large is cut between keys, not between versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

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
    rows_in,
)
from elasticscan.storage.lookup import joined
from elasticscan.topology import SlotSet

Array = np.ndarray[Any, Any]
Extents = Sequence[tuple[int, int]]  # for each input of a merge, a range [begin, end) of row numbers
_MOST_BITS = 63
_SPARE_ROWS = 16  # added to a window, because a slightly low estimate would leave small pages half empty


class MergeInput(NamedTuple):
    """A fragment and its reader."""

    fragment: Fragment
    reader: FragmentReader


class InputRows(NamedTuple):
    """Consecutive rows of a fragment."""

    fragment: Fragment
    rows: pa.RecordBatch


class Versions:
    """Versions of rows from several parts, and their order by (slot, primary key, newest first).

    Contains only versions of commits within `bounds`.

    Attributes:
        rows: the versions, not sorted; `slots`, `commits`, `deleted` and `alive` are in the same order.
        until: for each of `rows`, the first snapshot that does not need it; None if none is history.
        order: the indices of the sorted versions in `rows`.
        first: a mask in sorted order: the newest version of each key.
        scanned: the number of rows in the parts.
    """

    def __init__(self, parts: Sequence[InputRows], primary_key: Sequence[str], bounds: Bounds) -> None:
        self.primary_key = primary_key
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
        if len(parts) == 1 and parts[0].fragment.unique:  # already sorted, and no key twice
            self.order = np.arange(self.rows.num_rows)
            self.first = np.ones(len(self.order), dtype=bool)
            return
        self.order, self.first = key_order(self.rows, primary_key, self.slots, -self.commits)

    def columns(self, chosen: Array) -> dict[str, pa.Array]:
        """Return columns by name for the chosen `rows`, with their slots, commits and tombstone marks."""
        rows = taken(self.rows, chosen)
        system = {SLOT: self.slots, COMMIT: self.commits, DELETED: self.deleted}
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        return columns | {name: pa.array(values[chosen]) for name, values in system.items()}

    @cached_property
    def alive(self) -> Array:
        """Return a mask of `rows` that are neither a tombstone nor history that the reader does not need."""
        return ~self.deleted if self.until is None else ~self.deleted & (self.until > self.since)


def pack(codes: Sequence[Array]) -> tuple[Array, int]:
    """Return one integer for each row that sorts like the codes of several columns together.

    Sorting one integer is several times faster than sorting by several, and a stable sort merges sorted
    runs instead of sorting them again.

    Args:
        codes: one array of integers for each column, the most significant first. If their bits do not fit,
            the widest are replaced by their ranks; if that is not enough, the partly packed integers, too.

    Returns:
        The integers, and the number of their lowest bits that hold the last code.
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
    ranks[order] = np.cumsum(first_of_keys(order, code))
    return ranks


def taken(rows: pa.RecordBatch, chosen: Array) -> pa.RecordBatch:
    """Return rows by number; consecutive rows are a slice, without a copy."""
    count = len(chosen)
    if count and int(chosen[-1]) - int(chosen[0]) == count - 1 and bool((np.diff(chosen) == 1).all()):
        return rows.slice(int(chosen[0]), count)
    return rows.take(pa.array(chosen))


def first_of_keys(order: Array, codes: Array) -> Array:
    """Return a mask, in sorted order, of the rows whose code differs from that of the row before."""
    ordered, first = codes[order], np.ones(len(order), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return first


def key_order(
    rows: pa.RecordBatch, primary_key: Sequence[str], slots: Array, then: Array | None = None
) -> tuple[Array, Array]:
    """Return the order of rows by slot, key and `then`, if given, and a mask of the first row of each key."""
    codes = [sort_codes(rows.column(name)) for name in primary_key]
    packed, bits = pack((slots, *codes) if then is None else (slots, *codes, then))
    order = np.argsort(packed, kind="stable")  # a stable sort merges sorted parts
    return order, first_of_keys(order, packed if then is None else packed >> bits)


def _system(part: InputRows, name: str, otherwise: int | bool) -> Array:
    """Return a system column; a file without it has the value `otherwise` in all rows."""
    if name in part.rows.schema.names:
        column: Array = part.rows.column(name).to_numpy(zero_copy_only=False)
        return column
    return np.full(part.rows.num_rows, otherwise)


def _commits(part: InputRows) -> Array:
    return _system(part, COMMIT, part.fragment.min_commit)


def _within(part: InputRows, bounds: Bounds) -> InputRows:
    """Leave out rows of other commits before rows are copied and sorted: there may be many."""
    if bounds.wholly_hold(part.fragment):
        return part
    commits = _commits(part)
    counts = (commits >= bounds.floor) & (commits <= bounds.snapshot)
    return part if counts.all() else InputRows(part.fragment, part.rows.filter(pa.array(counts)))


SeekKey: TypeAlias = tuple[int, bytes]  # a position to read from: a slot, and the lowest key in this slot


class Piece(NamedTuple):
    """Slots to read; in the first slot only the keys from `low` on."""

    slots: SlotSet
    low: bytes = b""

    @property
    def start(self) -> SeekKey:
        return (self.slots.bits & -self.slots.bits).bit_length() - 1, self.low

    def rest(self, seek: SeekKey) -> Piece:
        """Return the rest of the piece from a position on, which may have no slots."""
        return Piece(SlotSet(self.slots.bits >> seek[0] << seek[0]), seek[1])


def windows(
    inputs: Sequence[MergeInput], piece: Piece, bounds: Bounds, room: Callable[[], int]
) -> Iterator[tuple[Versions, SeekKey | None]]:
    """Yield the versions of a piece in windows of about `room()` rows, each with the position after it.

    Args:
        inputs: the fragments to merge; rows in slots that a fragment does not serve are left out.
        piece: the slots to read.
        bounds: the commits to read.
        room: returns the target size of the next window in rows. A window has at least one key.
    """
    if not piece.slots:
        return
    held: list[pa.RecordBatch] = []  # the last batches of a window: the next window reads them, too
    first, rows_before = piece.slots.edges[0], _rows_before(inputs, piece.slots)
    while piece.slots:
        (start, low), most = piece.start, max(room(), 1) + _SPARE_ROWS
        begins = [reader.first_row(start, low) for _, reader in inputs]
        fitting = int(rows_before.searchsorted(rows_before[start - first] + most, "right"))
        stop = max(start + 1, int(first) + fitting - 1)
        while _count(extents := _upto(inputs, begins, stop)) > 2 * most and stop > start + 1:
            stop = max(start + 1, min(piece.slots.ranges[0][1], (start + stop) // 2))
        after: SeekKey = stop, b""
        if _count(extents) > 2 * most:
            extents, after = cut(inputs, extents, start, most)
        pairs = list(zip(inputs, extents, strict=True))
        parts = [
            InputRows(fragment, served)
            for (fragment, reader), rows in pairs
            for batch in reader.slices(*rows)
            if (served := rows_in(fragment.slots & piece.slots, batch)).num_rows
        ]
        held[:] = [reader.batch(reader.index_of(end - 1)) for (_, reader), (at, end) in pairs if at < end]
        piece = piece.rest(after)
        if parts:
            yield Versions(parts, inputs[0].reader.primary_key, bounds), piece.start if piece.slots else None


def _rows_before(inputs: Sequence[MergeInput], slots: SlotSet) -> Array:
    """Estimate the number of rows before each slot, from the first slot to the one after the last."""
    numbers = np.arange(slots.edges[0], slots.edges[-1])
    rows = np.zeros(len(numbers) + 1)
    for fragment, _ in inputs:
        rows[1:] += (fragment.slots & slots).mask(numbers) * fragment.density
    return np.cumsum(rows)


def _upto(inputs: Sequence[MergeInput], begins: Sequence[int], stop: int) -> Extents:
    ends = [reader.first_row(stop, b"") for _, reader in inputs]
    return [(begin, max(begin, end)) for begin, end in zip(begins, ends, strict=True)]


def _count(extents: Extents) -> int:
    return sum(end - begin for begin, end in extents)


def cut(inputs: Sequence[MergeInput], extents: Extents, slot: int, count: int) -> tuple[Extents, SeekKey]:
    """Cut extents in one slot to about `count` rows of each input, so that all end after the same key.

    Returns:
        The extents, with at least one key, and the position after them.
    """
    pairs = [(reader, *ends) for (_, reader), ends in zip(inputs, extents, strict=True)]
    last = min((reader.key_at(at + count - 1) for reader, at, end in pairs if end - at > count), default=None)
    if last is None:
        return extents, (slot + 1, b"")
    low = last + b"\0"
    return [(at, min(reader.first_row(slot, low), end)) for reader, at, end in pairs], (slot, low)
