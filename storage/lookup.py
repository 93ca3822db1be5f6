"""Lookups of rows in fragments, by number and by primary key, and of the newest version of each key.

All functions process many rows in one call.
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

from elasticscan.base.concurrency import cached_property
from elasticscan.base.key_encoding import encode_row
from elasticscan.metadata import Bounds, Fragment
from elasticscan.storage.fragment import COMMIT, SLOT, FragmentReader
from elasticscan.storage.key_filter import Comparable, KeyHashes, comparable, key_hashes

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Indices: TypeAlias = Rows | slice  # indices of an array

FEW_KEYS = 6  # up to so many keys are searched one by one
_OPENED_AT_ONCE = 16


def gather(
    starts: Rows, rows: Rows, part: Callable[[int, Rows], pa.RecordBatch], schema: pa.Schema
) -> pa.RecordBatch:
    """Return rows by number, in this order.

    `starts` has the number of the first row of each batch, then the number of all rows. `part` returns rows
    of a batch, by their numbers within it.
    """
    if not len(rows):
        return pa.RecordBatch.from_pylist([], schema=schema)
    batches = np.searchsorted(starts, rows, "right") - 1
    return fetch_by_group(batches, lambda index, at: part(index, rows[at] - starts[index]))


def fetch_by_group(
    groups: NDArray[np.intp], fetch: Callable[[int, Indices], pa.RecordBatch]
) -> pa.RecordBatch:
    """Call `fetch(group, indices of its members)` for each group; return all rows in the original order."""
    if (groups[1:] >= groups[:-1]).all():
        return joined([fetch(int(groups[begin]), slice(begin, end)) for begin, end in equal_ranges(groups)])
    order = np.argsort(groups, kind="stable")
    parts = [fetch(int(groups[order[begin]]), order[begin:end]) for begin, end in equal_ranges(groups[order])]
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return joined(parts).take(pa.array(back))


def joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches of one schema as one batch."""
    return pa.concat_batches(parts) if len(parts) > 1 else parts[0]


def equal_ranges(values: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each range of equal neighbours."""
    changes = np.flatnonzero(np.diff(values)) + 1
    return pairwise([0, *changes.tolist(), len(values)])


def rows_at(reader: FragmentReader, rows: Rows, columns: Sequence[str]) -> pa.RecordBatch:
    """Return rows by number, in this order, in these columns; `FragmentDamaged` if a row is missing."""
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < int(reader.starts[-1]):
        raise reader.damaged("an index refers to a row that it does not have")
    names = list(columns)
    return gather(reader.starts, rows, partial(reader.rows, columns=names), reader.schema_of(names))


def commits_of(fragment: Fragment, reader: FragmentReader, rows: Rows) -> NDArray[np.int64]:
    """Return the commits of rows by number; raises `FragmentDamaged` if a row is missing."""
    if COMMIT not in reader.columns:
        return np.full(len(rows), fragment.min_commit, dtype=np.int64)
    commits: Rows = rows_at(reader, rows, (COMMIT,)).column(COMMIT).to_numpy()
    return commits


def slot_counts(reader: FragmentReader, fragment: Fragment, bounds: Bounds, slots: int) -> NDArray[np.int64]:
    """Count the rows of a fragment in each slot, tombstones included, whose commits are within bounds."""
    counts = np.zeros(slots, dtype=np.int64)
    for number in range(reader.batch_count):
        batch = reader.batch(number)
        row_slots = batch.column(SLOT).to_numpy()
        if fragment.versioned and not bounds.wholly_hold(fragment):
            commits = batch.column(COMMIT).to_numpy()
            row_slots = row_slots[(commits >= bounds.floor) & (commits <= bounds.snapshot)]
        counts += np.bincount(row_slots, minlength=slots)
    return counts


@dataclass(frozen=True)
class Sought:
    """Primary keys to search in several fragments.

    Attributes:
        slots, keys: the slots of the keys, and the columns of the keys.
        open: opens a fragment to read the columns of the primary key.
    """

    slots: NDArray[np.uint16]
    keys: Sequence[pa.Array]
    open: Callable[[Fragment], FragmentReader]

    @cached_property
    def hashes(self) -> KeyHashes:
        return key_hashes(self.keys)

    def find_in(self, fragment: Fragment, asked: Rows, bounds: Bounds) -> tuple[Rows, Rows, Rows]:
        """Search the keys with the numbers `asked` in a fragment, tombstones included.

        Returns:
            The numbers of the keys that were found, and the rows and commits of their newest versions up to
            the snapshot.
        """
        asked = asked[fragment.slots.mask(self.slots[asked])]
        if not len(asked):
            return asked, asked, asked
        reader = self.open(fragment)
        if reader.key_filter.is_worth_asking(len(asked)):
            fragment_keys = ([batch.column(name) for name in reader.primary_key] for batch in reader)
            asked = asked[reader.key_filter.may_have(self.hashes[asked], fragment_keys)]
        if not len(asked):
            return asked, asked, asked
        indices = pa.array(asked)
        keys = [key.take(indices) for key in self.keys]
        rows, commits = find(fragment, reader, self.slots[asked], keys, bounds.snapshot)
        found = rows >= 0
        return asked[found], rows[found], commits[found]


@dataclass(frozen=True, slots=True)
class FoundVersions:
    """For each key a version: the number of its fragment, its row and its commit; -1 for none."""

    fragment_numbers: NDArray[np.intp]
    rows: Rows
    commits: Rows


def find_newest(
    sought: Sought,
    fragments: Sequence[Fragment],
    bounds: Bounds,
    known: FoundVersions,
    prefetch: Callable[[Sequence[Fragment]], None] = lambda _: None,
) -> FoundVersions:
    """Return the newest version in `bounds` of each key, tombstones included.

    Fragments are searched by their newest commit, in descending order. A fragment is searched only for keys
    whose known version is older than its newest commit.

    Args:
        fragments: the fragments to search; a row in a slot that its fragment does not serve is no version.
        known: known versions of the keys.
        prefetch: fetches remote fragments that are opened next.
    """
    numbers, rows, newest = known.fragment_numbers.copy(), known.rows.copy(), known.commits.copy()
    newest_first = sorted(range(len(fragments)), key=lambda number: -fragments[number].max_commit)
    for nth, number in enumerate(newest_first):
        fragment = fragments[number]
        if nth and nth % _OPENED_AT_ONCE == 1:  # the first one is opened alone: it may have all keys
            prefetch([fragments[number] for number in newest_first[nth : nth + _OPENED_AT_ONCE]])
        if not bounds.touch(fragment):
            continue
        is_asked = newest < fragment.max_commit
        if not is_asked.any():
            break  # the next fragments are older
        asked = np.flatnonzero(is_asked & ~(fragment.unique & (numbers == number)))
        asked, found, commits = sought.find_in(fragment, asked, bounds)
        newer = (commits > newest[asked]) & (commits >= bounds.floor)
        asked = asked[newer]
        numbers[asked], rows[asked], newest[asked] = number, found[newer], commits[newer]
    return FoundVersions(numbers, rows, newest)


def find(
    fragment: Fragment,
    reader: FragmentReader,
    slots: NDArray[np.uint16],
    keys: Sequence[pa.Array],
    snapshot: int,
) -> tuple[Rows, Rows]:
    """Return the row and the commit of each key's newest version up to the snapshot, or -1 for both.

    Tombstones are versions, too.
    """
    if len(slots) <= FEW_KEYS:  # one by one, which is faster for few keys
        sought = [(slot, encode_row(keys, number)) for number, slot in enumerate(slots.tolist())]
        found = [_find_one(fragment, reader, slot, key, snapshot) for slot, key in sought]
        rows, commits = np.array(found, np.int64).T
        return rows, commits
    versioned = COMMIT in reader.columns

    def columns(index: int) -> list[Comparable]:
        batch = reader.batch(index)
        parts = [part for name in reader.primary_key for part in comparable(batch.column(name))]
        return [*parts, batch.column(COMMIT).to_numpy()] if versioned else parts

    search = Search(reader.starts, columns, keys, snapshot if versioned else None)
    numbers = slots.astype(np.int64)
    low, high = np.split(reader.rows_below(np.concatenate([numbers, numbers + 1])), 2)
    first, equal = search.first_rows(low, high)
    rows, commits = np.where(equal, first, -1), np.full(len(slots), -1)
    commits[equal] = commits_of(fragment, reader, first[equal])
    return rows, commits


def _find_one(
    fragment: Fragment, reader: FragmentReader, slot: int, key: bytes, snapshot: int
) -> tuple[int, int]:
    index, at = reader.seek(slot, key)
    if index == reader.batch_count or reader.slots(index)[at] != slot:
        return -1, -1
    batch, row = reader.batch(index), int(reader.starts[index]) + at
    if reader.row_key(batch, at) != key:
        return -1, -1
    if COMMIT not in reader.columns:
        return row, fragment.min_commit
    newest = batch.column(COMMIT)[at].as_py()
    if newest <= snapshot:
        return row, newest
    # The versions of a key are neighbours, the newest first.
    end = reader.first_row(slot, key + b"\0")
    commits = rows_at(reader, np.arange(row, end), (COMMIT,)).column(COMMIT).to_numpy()
    older = np.flatnonzero(commits <= snapshot)
    return (row + int(older[0]), int(commits[older[0]])) if len(older) else (-1, -1)


class Search:
    """A bisection for many keys in parallel, each among the rows of its slot.

    Args:
        starts: the number of the first row of each batch, then the number of all rows.
        columns: returns the comparable key columns of a batch, by its number, and its commits if `snapshot`
            is given.
        keys: the keys to search.
        snapshot: the newest commit that counts; None if the rows have no commits.
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
        """Return, for each key, the first row in [low, high) at or after (key, snapshot), or `high`.

        Also returns a mask of the rows that have their key.
        """
        rows, equal = low.copy(), np.zeros(len(low), dtype=bool)
        asked = np.flatnonzero(low < high)
        targets = [_take(target, asked) for target in self._targets]
        at, beyond = low[asked], high[asked]
        middle, batches = at, self._batches_of(at)
        fixed = batches if (batches == self._batches_of(beyond - 1)).all() else None
        while (searching := at < beyond).any():
            middle = np.where(searching, (at + beyond) >> 1, middle)
            below, _ = self._compare(middle, targets, fixed)
            at = np.where(searching & below, middle + 1, at)
            beyond = np.where(searching & ~below, middle, beyond)
        rows[asked] = at
        found = np.flatnonzero(rows < high)
        if len(found):
            equal[found] = self._compare(rows[found], [_take(target, found) for target in self._targets])[1]
        return rows, equal

    def _batches_of(self, rows: Rows) -> Rows:
        return np.searchsorted(self._starts, rows, "right") - 1

    def _compare(
        self, rows: Rows, targets: Sequence[Comparable], batches: Rows | None = None
    ) -> tuple[Mask, Mask]:
        """Return masks of the rows that are before their target (key, snapshot), and that have its key."""
        if batches is None:
            batches = self._batches_of(rows)
        if not (batches[:-1] <= batches[1:]).all():
            order, back = np.argsort(batches, kind="stable"), np.empty((2, len(rows)), dtype=bool)
            back[:, order] = self._compare(rows[order], [_take(target, order) for target in targets])
            return back[0], back[1]
        parts = [(self._columns(int(batches[at])), slice(at, end)) for at, end in equal_ranges(batches)]
        rows = rows - self._starts[batches]
        less, same = np.zeros(len(rows), dtype=bool), np.ones(len(rows), dtype=bool)
        for number, target in enumerate(targets):
            below, equal = _less_equal(
                _concat([_take(columns[number], rows[at]) for columns, at in parts]), target
            )
            less |= same & below
            same &= equal
        if self._snapshot is None:
            return less, same
        commits = _concat([_take(columns[-1], rows[at]) for columns, at in parts])
        return less | (same & (commits > self._snapshot)), same


def _concat(values: Sequence[Comparable]) -> Comparable:
    if len(values) == 1:
        return values[0]
    return np.concatenate(values) if isinstance(values[0], np.ndarray) else pa.concat_arrays(values)


def _take(values: Comparable, rows: Rows) -> Comparable:
    if isinstance(values, np.ndarray):
        return values[rows]
    return values.take(pa.array(rows))


def _less_equal(left: Comparable, right: Comparable) -> tuple[Mask, Mask]:
    """Return (less, equal) for each row."""
    if isinstance(left, np.ndarray):
        return left < right, left == right
    less, same = pc.less(left, right), pc.equal(left, right)
    return less.to_numpy(zero_copy_only=False), same.to_numpy(zero_copy_only=False)
