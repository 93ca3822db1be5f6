"""Single rows of fragments: by number, and by primary key; which version of a row is the newest.

Everything works on many rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticscan.base.key_encoding import encode_row
from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage.fragment import COMMIT, SLOT, UNTIL, FragmentReader
from elasticscan.storage.key_columns import Comparable, comparable

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Places: TypeAlias = Rows | slice  # in an array of rows

FEW_KEYS = 6  # up to so many are sought one by one

Parts: TypeAlias = Sequence[tuple[int, int, int]]  # [begin, end) of some rows, and their batch


def gather(
    starts: Rows, rows: Rows, part: Callable[[int, Rows], pa.RecordBatch], schema: pa.Schema
) -> pa.RecordBatch:
    """Rows by number, in the order asked.

    Args:
        starts: the number of the first row of each batch, then that of all rows.
        rows: numbers below `starts[-1]`.
        part: given a batch's number and rows within that batch, those rows.
        schema: of the result.
    """
    if not len(rows):
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    batches = np.searchsorted(starts, rows, "right") - 1
    return fetch_by_group(batches, lambda index, at: part(index, rows[at] - starts[index]))


def fetch_by_group(
    groups: NDArray[np.intp], fetch: Callable[[int, Places], pa.RecordBatch]
) -> pa.RecordBatch:
    """Call `fetch(group, places)` for each group; returns the rows at the places of the groups' members."""
    if (groups == groups[0]).all():
        return fetch(int(groups[0]), slice(0, len(groups)))
    steps = np.diff(groups)
    if (steps >= 0).all() or (steps <= 0).all():
        return joined([fetch(int(groups[begin]), slice(begin, end)) for begin, end in equal_ranges(groups)])
    order = np.argsort(groups, kind="stable")
    parts = [fetch(int(groups[order[begin]]), order[begin:end]) for begin, end in equal_ranges(groups[order])]
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return joined(parts).take(pa.array(back))


def joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema as one batch."""
    return pa.concat_batches(parts) if len(parts) > 1 else parts[0]


def equal_ranges(values: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """(begin, end) of each range of equal neighbours."""
    changes = np.flatnonzero(np.diff(values)) + 1
    return pairwise([0, *changes.tolist(), len(values)])


def rows_at(reader: FragmentReader, rows: Rows, columns: Sequence[str]) -> pa.RecordBatch:
    """Rows of a fragment by number, over all its batches, in the order asked.

    `columns` are among those of the reader, the system columns included.

    Raises:
        FragmentDamaged: the fragment has no such row, or cannot be read.
    """
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < int(reader.starts[-1]):
        raise reader.damaged("an index refers to a row that it does not have")
    names = list(columns)

    return gather(reader.starts, rows, partial(reader.rows, columns=names), reader.schema_of(names))


# ----------------------------------------------------------------------------- newest versions


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows that are no tombstones: of which fragment each is, by number, their slots and primary keys."""

    owners: NDArray[np.intp]
    rows: Rows
    slots: NDArray[np.uint16]
    keys: Sequence[pa.Array]

    def of(self, owner: int) -> tuple[Rows, Candidates]:
        """Return the numbers of one fragment's rows, and these rows."""
        (here,) = np.nonzero(self.owners == owner)
        return here, self.only(here)

    def only(self, chosen: Rows) -> Candidates:
        """Return some of the rows, by ascending numbers."""
        if len(chosen) == len(self.rows):
            return self
        keys = [key.take(pa.array(chosen)) for key in self.keys]
        return Candidates(self.owners[chosen], self.rows[chosen], self.slots[chosen], keys)


def newest(
    candidates: Candidates,
    fragments: Sequence[Fragment],
    bounds: Bounds,
    open_fragment: Callable[[Fragment], FragmentReader],
) -> Mask:
    """Mark the rows that count: of a commit within `bounds`, with no newer version up to the snapshot.

    Args:
        candidates: the rows; every fragment is asked for all of them at once.
        fragments: all of the table at this shard that count in `bounds`; what one of them holds of slots
            that it does not serve is no version.
        bounds: which commits count.
        open_fragment: opens one of the fragments for the columns of the primary key.
    """
    owners, rows = candidates.owners, candidates.rows
    # Of each row the least and the most that its commit can be are known from its fragment. Mostly they
    # decide, and the commit itself is not read.
    least, most, counts = np.empty_like(rows), np.empty_like(rows), np.empty(len(rows), dtype=bool)
    for owner in np.unique(owners).tolist():
        here, own = candidates.of(owner)
        found = _within(own, fragments[owner], open_fragment(fragments[owner]), bounds)
        least[here], most[here], counts[here] = found
    sought, oldest = Sought(candidates.slots, candidates.keys, open_fragment), int(least.min())
    for number in sorted(range(len(fragments)), key=lambda number: -fragments[number].max_commit):
        sibling = fragments[number]
        if sibling.max_commit <= oldest:  # as are all that follow
            break
        asked = np.flatnonzero(counts & (owners != number) & (least < sibling.max_commit))
        if not len(asked):
            continue
        asked, _, theirs = sought.find_in(sibling, asked, bounds)
        unsure = asked[(least[asked] < theirs) & (theirs <= most[asked])]
        for owner in np.unique(owners[unsure]).tolist():
            here, fragment = unsure[owners[unsure] == owner], fragments[owner]
            least[here] = most[here] = commits_of(fragment, open_fragment(fragment), rows[here])
        counts[asked[theirs > most[asked]]] = False
    return counts


def _within(
    candidates: Candidates, fragment: Fragment, reader: FragmentReader, bounds: Bounds
) -> tuple[Rows, Rows, Mask]:
    """Rows of one fragment: the least and the most that their commits can be, and which rows count.

    They count as far as the fragment knows.
    """
    least = most = np.full(len(candidates.rows), fragment.min_commit, dtype=np.int64)
    counts: Mask = np.ones(len(least), dtype=bool)
    if bounds.wholly_hold(fragment):
        most = np.full(len(least), fragment.max_commit, dtype=np.int64)
    else:
        least = most = commits_of(fragment, reader, candidates.rows)
        counts = (least >= bounds.floor) & (least <= bounds.snapshot)
    if UNTIL in reader.columns:
        counts &= rows_at(reader, candidates.rows, (UNTIL,)).column(UNTIL).to_numpy() > bounds.since
    if not fragment.unique:
        (behind,) = candidates.rows.nonzero()
        counts[behind] &= ~_newer_is_before(reader, candidates.only(behind), bounds.snapshot)
    return least, most, counts


def commits_of(fragment: Fragment, reader: FragmentReader, rows: Rows) -> NDArray[np.int64]:
    """Return the commits of rows by number; raises `FragmentDamaged` for one that is not there."""
    if COMMIT not in reader.columns:
        return np.full(len(rows), fragment.min_commit, dtype=np.int64)
    batches = np.searchsorted(reader.starts, rows, "right") - 1
    numbers: list[int] = np.unique(batches).tolist()
    if not all(0 <= number < reader.batch_count and reader.holds(number) for number in numbers):
        read: Rows = rows_at(reader, rows, (COMMIT,)).column(COMMIT).to_numpy()
        return read
    commits = np.empty(len(rows), dtype=np.int64)
    for number in numbers:
        here = batches == number
        values = reader.batch(number).column(COMMIT).to_numpy()
        commits[here] = values[rows[here] - reader.starts[number]]
    return commits


def slot_counts(reader: FragmentReader, fragment: Fragment, bounds: Bounds, slots: int) -> NDArray[np.int64]:
    """For each slot, how many rows of commits within bounds a fragment has, tombstones too."""
    counts = np.zeros(slots, dtype=np.int64)
    for number in range(reader.batch_count):
        batch = reader.batch(number)
        row_slots = batch.column(SLOT).to_numpy()
        if fragment.versioned and not bounds.wholly_hold(fragment):
            commits = batch.column(COMMIT).to_numpy()
            row_slots = row_slots[(commits >= bounds.floor) & (commits <= bounds.snapshot)]
        counts += np.bincount(row_slots, minlength=slots)
    return counts


def _newer_is_before(reader: FragmentReader, candidates: Candidates, snapshot: int) -> Mask:
    """Return whether the row before each one is a newer version of it; versions lie side by side.

    That one alone need be asked: if it is beyond the snapshot, so are those before it.
    """
    names = [*reader.primary_key, *(name for name in (SLOT, COMMIT) if name in reader.columns)]
    before = rows_at(reader, candidates.rows - 1, names)
    newer: Mask = before.column(SLOT).to_numpy() == candidates.slots
    if COMMIT in names:
        newer &= before.column(COMMIT).to_numpy() <= snapshot
    for name, key in zip(reader.primary_key, candidates.keys, strict=True):
        newer &= pc.equal(before.column(name), key).to_numpy(zero_copy_only=False)
    return newer


class Sought:
    """Primary keys that several fragments are asked for.

    Args:
        slots, keys: the keys, and the slots that they hash to.
        open_fragment: opens a fragment for the columns of the primary key.
    """

    def __init__(
        self,
        slots: NDArray[np.uint16],
        keys: Sequence[pa.Array],
        open_fragment: Callable[[Fragment], FragmentReader],
    ) -> None:
        self._slots, self._keys, self._open = slots, keys, open_fragment

    def find_in(self, fragment: Fragment, asked: Rows, bounds: Bounds) -> tuple[Rows, Rows, Rows]:
        """Find some of the keys, by number, in a fragment, tombstones too.

        Returns:
            The numbers of the keys found, the rows of their newest versions up to the snapshot, and the
            commits of these.
        """
        reader = self._open(fragment)
        asked = asked[fragment.slots.mask(self._slots[asked])]
        if not len(asked):
            return asked, asked, asked
        places = pa.array(asked)
        keys = [key.take(places) for key in self._keys]
        rows = find(reader, self._slots[asked], keys, bounds.snapshot)
        there = rows >= 0
        asked, rows = asked[there], rows[there]
        return asked, rows, commits_of(fragment, reader, rows) if len(rows) else rows


def find(reader: FragmentReader, slots: NDArray[np.uint16], keys: Sequence[pa.Array], snapshot: int) -> Rows:
    """Return the row of the newest version of each key up to the snapshot, tombstones too; -1 for none."""
    if len(slots) <= FEW_KEYS:  # one after another: that takes less time than one step for many does
        sought = [(slot, encode_row(keys, number)) for number, slot in enumerate(slots.tolist())]
        return np.array([_find_one(reader, slot, key, snapshot) for slot, key in sought], np.int64)
    versioned = COMMIT in reader.columns

    def columns(index: int) -> list[Comparable]:
        batch = reader.batch(index)
        parts = [part for name in reader.primary_key for part in comparable(batch.column(name))]
        return [*parts, batch.column(COMMIT).to_numpy()] if versioned else parts

    search = Search(reader.starts, columns, keys, snapshot if versioned else None)
    places, equal = search.first_rows(*reader.rows_of_slots(slots))
    return np.where(equal, places, -1)


def _find_one(reader: FragmentReader, slot: int, key: bytes, snapshot: int) -> int:
    index, at = reader.seek_from(slot, key)
    if index == reader.batch_count or reader.slots(index)[at] != slot:
        return -1
    batch = reader.batch(index)
    if reader.row_key(batch, at) != key:
        return -1
    row = int(reader.starts[index]) + at
    if COMMIT not in reader.columns or batch.column(COMMIT)[at].as_py() <= snapshot:
        return row
    # Versions lie side by side, the newest first.
    end = reader.first_row(slot, key + b"\0")
    commits = rows_at(reader, np.arange(row, end), (COMMIT,)).column(COMMIT).to_numpy()
    older = np.flatnonzero(commits <= snapshot)
    return row + int(older[0]) if len(older) else -1


class Search:
    """Bisects for many keys at once, each between rows of its own slot.

    Args:
        starts: the number of the first row of each batch, then that of all rows.
        columns: given a batch's number, what of its key columns is compared, and then its commits.
        keys: the keys to look for.
        snapshot: where rows have commits, the newest that counts.
    """

    def __init__(
        self,
        starts: Rows,
        columns: Callable[[int], list[Comparable]],
        keys: Sequence[pa.Array],
        snapshot: int | None = None,
    ) -> None:
        self._starts, self._columns, self._snapshot = starts, cache(columns), snapshot
        self._targets = [part for key in keys for part in comparable(key)]

    def first_rows(self, low: Rows, high: Rows) -> tuple[Rows, Mask]:
        """Return the first row in [low, high) not below (key, snapshot), and whether it has the key.

        Where there is none it is `high`.
        """
        rows, equal = low.copy(), np.zeros(len(low), dtype=bool)
        order = np.flatnonzero(low < high)
        if not len(order):
            return rows, equal
        batches = self._batches(order, low[order], high[order])
        by_batch = np.argsort(batches, kind="stable")
        batches, order = batches[by_batch], order[by_batch]
        targets = [_take(target, order) for target in self._targets]
        parts = _parts_of(batches)
        first, end, high = self._starts[batches], self._starts[batches + 1], high[order]
        at, beyond = np.maximum(low[order], first) - first, np.minimum(high, end) - first
        last = end - first - 1
        while (searching := at < beyond).any():
            middle = (at + beyond) >> 1
            below = searching & self._are_below(parts, np.minimum(middle, last), targets)
            beyond = np.where(below, beyond, middle)
            at = np.where(below, middle + 1, at)
        rows[order], equal[order] = first + at, self._have(first + at, high, targets)
        return rows, equal

    def _have(self, rows: Rows, high: Rows, targets: Sequence[Comparable]) -> Mask:
        """Return True for each row below `high` that has the key of its target."""
        equal = rows < high
        there = np.flatnonzero(equal)
        if len(there):
            batches = np.searchsorted(self._starts, rows[there], "right") - 1
            parts, at = _parts_of(batches), rows[there] - self._starts[batches]
            for number, target in enumerate(targets):
                _, same = _compare(self._values(number, parts, at), _take(target, there))
                equal[there] &= same
        return equal

    def _batches(self, asked: Rows, low: Rows, high: Rows) -> Rows:
        """Return the batch to search for each key: of its slot's batches, the last that begins below it."""
        starts = self._starts
        batches = np.searchsorted(starts, low, "right") - 1
        last = np.searchsorted(starts, high - 1, "right") - 1
        over_several = np.flatnonzero(batches < last)
        for index in range(int(batches[over_several].min(initial=len(starts))) + 1, int(last.max()) + 1):
            chosen = over_several[(batches[over_several] < index) & (index <= last[over_several])]
            if len(chosen):
                targets = [_take(target, asked[chosen]) for target in self._targets]
                first = np.zeros(len(chosen), dtype=np.int64)
                batches[chosen[self._are_below([(0, len(chosen), index)], first, targets)]] = index
        return batches

    def _are_below(self, parts: Parts, rows: Rows, targets: Sequence[Comparable]) -> Mask:
        """Return whether rows, of the batch of the part they are in, come before targets at the snapshot."""
        below = np.zeros(len(rows), dtype=bool)
        equal = np.ones(len(rows), dtype=bool)
        for number, target in enumerate(targets):
            less, same = _compare(self._values(number, parts, rows), target)
            below |= equal & less
            equal &= same
        if self._snapshot is not None:
            below |= equal & (self._values(len(targets), parts, rows) > self._snapshot)
        return below

    def _values(self, number: int, parts: Parts, rows: Rows) -> Comparable:
        """Return the values of one column in rows of several batches."""
        values = [_take(self._columns(index)[number], rows[begin:end]) for begin, end, index in parts]
        if len(values) == 1:
            return values[0]
        return np.concatenate(values) if isinstance(values[0], np.ndarray) else pa.concat_arrays(values)


def _parts_of(batches: Rows) -> Parts:
    """Return the ranges of rows that are in one batch."""
    return [(begin, end, int(batches[begin])) for begin, end in equal_ranges(batches)]


def _take(values: Comparable, rows: Rows) -> Comparable:
    if isinstance(values, np.ndarray):
        return values[rows]
    return values.take(pa.array(rows))


def _compare(left: Comparable, right: Comparable) -> tuple[Mask, Mask]:
    """(less, equal), row by row."""
    if isinstance(left, np.ndarray):
        return left < right, left == right
    less, same = pc.less(left, right), pc.equal(left, right)
    return less.to_numpy(zero_copy_only=False), same.to_numpy(zero_copy_only=False)
