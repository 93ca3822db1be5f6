"""Rows of several fragments brought into one order, version by version. All vectorised.

Some slots are a range of rows in each fragment. `windows` sorts such ranges one after another: memory holds
one, however many rows there are. How many slots make a window is estimated by the mean rows of a slot, then
counted by bisection. Up to twice the wanted rows are taken as they are; of more the slots are halved, so that
few windows become less than half full. One slot that is too large is cut between keys, not between versions.
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
Extents = Sequence[tuple[int, int]]  # [begin, end) of rows of each of some fragments, by number
_MOST_BITS = 63
_SPARE_ROWS = 16  # of a window: an estimate that is a little too small would leave small pages half empty


class MergeInput(NamedTuple):
    """A fragment, opened."""

    fragment: Fragment
    reader: FragmentReader


class InputRows(NamedTuple):
    """Some rows of a fragment, in its order."""

    fragment: Fragment
    rows: pa.RecordBatch


class Versions:
    """Rows of several parts sorted by (slot, primary key, newest first).

    Only rows of commits within `bounds` take part. `slots`, `commits`, `deleted`, `until` (the snapshot from
    which on a row is history, None if none is) and `alive` are in the order of `rows`. `order` indexes these;
    `first` marks, in that order, the first (newest) row of each key. `scanned` counts all rows looked at.
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
        if len(parts) == 1 and parts[0].fragment.unique:  # sorted as it is, and each key once
            self.order = np.arange(self.rows.num_rows)
            self.first = np.ones(len(self.order), dtype=bool)
            return
        self.order, self.first = key_order(self.rows, primary_key, self.slots, -self.commits)

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
    ranks[order] = np.cumsum(first_of_keys(order, code))
    return ranks


def taken(rows: pa.RecordBatch, chosen: Array) -> pa.RecordBatch:
    """Return some rows by number; a slice, without a copy, where these are neighbours."""
    count = len(chosen)
    if count and int(chosen[-1]) - int(chosen[0]) == count - 1 and bool((np.diff(chosen) == 1).all()):
        return rows.slice(int(chosen[0]), count)
    return rows.take(pa.array(chosen))


def first_of_keys(order: Array, codes: Array) -> Array:
    """Mark the rows, sorted by `order`, that differ in their codes from the row before them."""
    ordered, first = codes[order], np.ones(len(order), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return first


def key_order(
    rows: pa.RecordBatch, primary_key: Sequence[str], slots: Array, then: Array | None = None
) -> tuple[Array, Array]:
    """Return the order of rows by slot, key and `then`, if given, and marks of the first of each key."""
    codes = [sort_codes(rows.column(name)) for name in primary_key]
    packed, bits = pack((slots, *codes) if then is None else (slots, *codes, then))
    order = np.argsort(packed, kind="stable")  # which merges sorted parts
    return order, first_of_keys(order, packed if then is None else packed >> bits)


def _system(part: InputRows, name: str, otherwise: int | bool) -> Array:
    """Return a system column; a file lacks it where all rows have the same."""
    if name in part.rows.schema.names:
        column: Array = part.rows.column(name).to_numpy(zero_copy_only=False)
        return column
    return np.full(part.rows.num_rows, otherwise)


def _commits(part: InputRows) -> Array:
    return _system(part, COMMIT, part.fragment.min_commit)


def _within(part: InputRows, bounds: Bounds) -> InputRows:
    """Leave out rows of other commits before they are copied and sorted: there may be many."""
    if bounds.wholly_hold(part.fragment):
        return part
    commits = _commits(part)
    counts = (commits >= bounds.floor) & (commits <= bounds.snapshot)
    return part if counts.all() else InputRows(part.fragment, part.rows.filter(pa.array(counts)))


SeekKey: TypeAlias = tuple[int, bytes]  # a slot, and from which of its keys on


class Piece(NamedTuple):
    """Slots to read, at least one; of the first one only keys from `low` on."""

    slots: SlotSet
    low: bytes = b""

    @property
    def start(self) -> SeekKey:
        return (self.slots.bits & -self.slots.bits).bit_length() - 1, self.low

    def rest(self, seek: SeekKey) -> Piece:
        """Return what is left from a key on; there may be no slot in it."""
        return Piece(SlotSet(self.slots.bits >> seek[0] << seek[0]), seek[1])


def windows(
    inputs: Sequence[MergeInput], piece: Piece, bounds: Bounds, room: Callable[[], int]
) -> Iterator[tuple[Versions, SeekKey | None]]:
    """Walk a piece over several inputs in windows of about `room()` rows, each with the key after it.

    Args:
        inputs: the fragments to merge; rows in slots that one of them does not serve are left out.
        piece: what to walk.
        bounds: which commits count.
        room: how many rows the next window may hold; asked before each. A window holds at least
            one key all the same.
    """
    if not piece.slots:
        return
    held: list[pa.RecordBatch] = []  # until the next window, so that no batch is read twice
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
    """About how many rows come before each slot, from the first one to the one behind the last."""
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
    """Cut extents of rows in one slot to about `count` rows of each input: to all versions of the same keys.

    Returns:
        The extents, with at least one key, and where what is left begins.
    """
    pairs = [(reader, *ends) for (_, reader), ends in zip(inputs, extents, strict=True)]
    last = min((reader.key_at(at + count - 1) for reader, at, end in pairs if end - at > count), default=None)
    if last is None:
        return extents, (slot + 1, b"")
    low = last + b"\0"
    return [(at, min(reader.first_row(slot, low), end)) for reader, at, end in pairs], (slot, low)
