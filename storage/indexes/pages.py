"""Reading a page of an index at a shard: rows in the order of the index, at a snapshot.

An index is one run or several for each fragment, each sorted. A page is made in rounds. In a round the
entries of the next ranges, or of a part of one, are taken from all runs up to the same key, so nothing can be
missing in between, and only those are sorted together. An entry counts if its row is the newest version of
its key at the snapshot. That has to be asked only where several fragments serve its slot, or where a fragment
holds several versions or newer ones; elsewhere a covering index is read without reading rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.errors import FragmentDamaged
from elasticscan.base.key_encoding import inverted, value_sort_codes
from elasticscan.metadata import Fragment, IndexInfo
from elasticscan.protocol import Cursors, IndexOrder, PageRequest, PageRows, merge
from elasticscan.storage.fragment import SLOT, UNTIL
from elasticscan.storage.indexes.run import ROW, RunReader, key_columns, run_columns
from elasticscan.storage.lookup import (
    FoundVersions,
    Indices,
    Mask,
    Rows,
    Sought,
    commits_of,
    fetch_by_group,
    find_newest,
    rows_at,
)
from elasticscan.storage.pages import PageSource
from elasticscan.topology import SlotSet

LEAST_ENTRIES = 65_536  # a page may examine so many entries, however few rows it may hold
_EMPTY_PAGE_FACTOR = 16  # a page without a row may examine so many times more entries
_FIRST_ROUND = 16_384
_LARGEST_ROUND = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSource(PageSource):
    """A table as a shard serves it, and an index of it.

    Attributes:
        index: the index's definition.
        runs: the runs of this index that belong to a fragment.
    """

    index: IndexInfo
    runs: Callable[[Fragment], Sequence[RunReader]]


def read_index_page(source: IndexSource, request: PageRequest) -> PageRows:
    """Return the next rows of a request, in the order of their order keys, until the page is full.

    A page may end between two rows of one index key; when the order is descending, positions are inverted
    order keys. One without rows may leave cursors, which are always further on. `scanned` counts entries.

    Raises:
        FragmentDamaged: a fragment or a run cannot be read.
    """
    assert request.order is not None, "a request for a page of an index says which entries"
    return _IndexPage(source, request, request.order).page()


# Entries of runs: the number of its run, its own in the run, its slot and its row.
_ENTRY = np.dtype([("run", np.intp), ("number", np.int64), ("slot", np.uint16), ("row", np.int64)])
_Entries: TypeAlias = NDArray[np.void]
_NO_ENTRIES = np.empty(0, _ENTRY)

Numbers = TypeVar("Numbers", int, Rows)
_Ranges: TypeAlias = Sequence[tuple[int, int]]  # [begin, end) of ordinals in each run
_Spans: TypeAlias = Sequence[_Ranges]


class DirectedRun:
    """The entries of one run that are still to be read, in either direction.

    Entries have ordinals in the order of reading: 0 is the first one, or the last when it descends. So
    ranges and positions mean the same in both directions. A position covers the order
    keys up to it, inverted byte by byte when descending.

    Args:
        fragment, run: the run, and its fragment.
        cursors: the slots that are read, and the positions beyond which they are.
        descending: the direction.
    """

    def __init__(self, fragment: Fragment, run: RunReader, cursors: Cursors, descending: bool) -> None:
        self.fragment, self.reader, self._descending = fragment, run, descending
        end = fragment.slots.ranges[-1][1]
        self._firsts = np.full(end + 1, run.entry_count, dtype=np.int64)  # the last is that of all beyond
        for cursor in cursors:
            if slots := cursor.slots & fragment.slots:
                first = 0 if cursor.position is None else self.past(cursor.position)
                for start, end in slots:
                    self._firsts[start:end] = first
        self._begin = int(self._firsts.min())

    def find(self, low: bytes, high: bytes) -> tuple[int, int]:
        """[first, end) of the ordinals of a range, without those before all positions."""
        if self._begin == self.reader.entry_count:
            return 0, 0
        first, end = self.reader.range_of(low, high)
        if self._descending:
            first, end = self.reader.entry_count - end, self.reader.entry_count - first
        return max(first, self._begin), max(first, self._begin, end)

    def entry_numbers(self, ordinals: Numbers) -> Numbers:
        """Return the numbers of the entries at some ordinals."""
        return self.reader.entry_count - 1 - ordinals if self._descending else ordinals

    def selects(self, entries: NDArray[np.int64], slots: NDArray[np.uint16]) -> NDArray[np.bool_]:
        """Return a mask of the entries whose slots are read, and that lie beyond their slot's cursor."""
        firsts = self._firsts[np.minimum(slots, len(self._firsts) - 1)]
        mask: NDArray[np.bool_] = firsts <= self.entry_numbers(entries)  # its own inverse
        return mask

    def position(self, entry: int) -> bytes:
        """Return the position of an entry, which covers it."""
        key = self.reader.key(entry)
        return inverted(key) if self._descending else key

    def past(self, position: bytes) -> int:
        """Return the first ordinal beyond a position."""
        if self._descending:
            return self.reader.entry_count - self.reader.lower_bound(inverted(position))
        return self.reader.lower_bound(position + b"\0")  # the lowest bytes above it


class _IndexPage:
    """One page while it is read."""

    def __init__(self, source: IndexSource, request: PageRequest, order: IndexOrder) -> None:
        table, columns = source.table, request.columns
        self.source, self.descending = source, order.descending
        self.cursors = tuple(cursor for cursor in request.cursors if cursor.slots)
        self.bounds = bounds = source.bounds(request.snapshot)
        self.builder = source.page(request)
        self.reached = b""  # the position of its last row
        covered = run_columns(table, source.index)
        self.covered = tuple(dict.fromkeys(name for name in columns if name in covered))
        self.missing = tuple(dict.fromkeys(name for name in columns if name not in covered))
        sections = source.view.within(bounds)
        self.fragments, self.shared = sections.fragments, sections.shared
        slots = SlotSet.union(cursor.slots for cursor in self.cursors)
        self.ranges = order.ranges[::-1] if order.descending else order.ranges
        self.runs = [
            DirectedRun(fragment, run, self.cursors, order.descending)
            for fragment in self.fragments
            if not fragment.slots.isdisjoint(slots)
            for run in source.runs(fragment)
            if len(self.ranges) > 1 or any(len(range(*run.range_of(*ends))) for ends in self.ranges)
        ]
        numbers = {fragment.id: number for number, fragment in enumerate(self.fragments)}
        self.fragment_numbers = np.array([numbers[run.fragment.id] for run in self.runs], dtype=np.intp)
        is_mixed = [not (f.unique and bounds.wholly_hold(f)) for f in self.fragments]
        self.is_mixed = np.array(is_mixed, dtype=bool)
        # How many entries to look at; not too many at first, for their rows may be large.
        rows, size = sum(f.rows for f in self.fragments), sum(f.bytes for f in self.fragments)
        fitting = request.page_bytes // max(1, size // max(1, rows)) + 16
        self.target = min(request.page_rows, _FIRST_ROUND, fitting)

    def page(self) -> PageRows:
        page = self.builder
        most = max(4 * page.page_rows, LEAST_ENTRIES)
        for spans, reached in self._rounds() if self.runs else ():
            stop = self._add(spans)
            if stop is not None:
                return page.finish(self._advance(stop))
            if reached is None:
                break
            if page.rows_left <= 0 or page.scanned >= (most if page.rows else _EMPTY_PAGE_FACTOR * most):
                return page.finish(self._advance(reached))
            self.target = self._next_target()
        return page.finish(())

    def _rounds(self) -> Iterator[tuple[_Spans, bytes | None]]:
        """Yield about `target` entries of each round, and the position up to which these are all.

        Ranges are read one after another, each in all runs, as many in a round as `target` allows, which
        `page` changes between rounds. One with more entries is cut. The last position is None.
        """
        found, count = list[_Ranges](), 0
        for low, high in self.ranges[self._first_range() :]:
            left = [run.find(low, high) for run in self.runs]
            while count + (entries := sum(end - begin for begin, end in left)) > self.target:
                cut = self._cut(left, max(self.target - count, 1) / entries)
                stops = self._stops(left, cut)
                if stops == [begin for begin, _ in left]:
                    raise self._disorder()
                yield [*found, [(at, stop) for (at, _), stop in zip(left, stops, strict=True)]], cut
                found, count = [], 0
                left = [(stop, end) for stop, (_, end) in zip(stops, left, strict=True)]
            if entries:
                found.append(left)
            count += entries
        yield found, None

    def _first_range(self) -> int:
        """Return the first range that does not lie wholly before the positions of all cursors."""
        lowest = min(cursor.position or b"" for cursor in self.cursors)
        if not self.descending or not lowest:
            return bisect_right(self.ranges, lowest, key=lambda ends: ends[1])
        reached = inverted(lowest)
        return bisect_left(self.ranges, True, key=lambda ends: ends[0] < reached)

    def _cut(self, left: _Ranges, share: float) -> bytes:
        """Return a position up to which about a share of some entries lie, and never above twice that many.

        Of each run its own share is looked at: where keys are spread alike, all come to about the same key.
        """
        most = 2 * share * sum(end - begin for begin, end in left)
        positions = sorted(
            run.position(run.entry_numbers(begin + int(share * (end - 1 - begin))))
            for run, (begin, end) in zip(self.runs, left, strict=True)
            if begin < end
        )

        def count(position: bytes) -> int:
            return sum(self._stops(left, position)) - sum(begin for begin, _ in left)

        return positions[max(bisect_right(positions, most, key=count) - 1, 0)]

    def _stops(self, left: _Ranges, position: bytes) -> list[int]:
        """Return where each run is beyond a position."""
        return [
            min(max(run.past(position), begin), end) if begin < end else begin
            for run, (begin, end) in zip(self.runs, left, strict=True)
        ]

    def _disorder(self) -> FragmentDamaged:
        run = self.runs[0].reader
        return run.damaged("its entries, or those of another run of the index, are not in order")

    def _advance(self, position: bytes) -> Cursors:
        """Return the cursors, moved on to a position; a cursor beyond the position stays."""
        if all(at.position is not None and position <= at.position for at in self.cursors):
            raise self._disorder()  # the scan would never end
        return merge(replace(at, position=max(at.position or b"", position)) for at in self.cursors)

    def _next_target(self) -> int:
        """Count how many more entries fill the page, going by those so far; growing step by step."""
        page, most = self.builder, min(4 * self.target, _LARGEST_ROUND)
        if not page.rows:
            return most
        room = min(page.rows_left, page.bytes_left * page.rows // max(1, page.bytes))
        return max(16, min(most, room * page.scanned // page.rows))

    # ------------------------------------------------------------------------------- one round

    def _add(self, spans: _Spans) -> bytes | None:
        """Add the rows of some entries; the position of the page's last one if not all of them fit."""
        of_runs = [self._read_entries(n, [span[n] for span in spans]) for n in range(len(self.runs))]
        entries = self._sorted(self._visible(np.concatenate(of_runs)))
        if not len(entries):
            return None
        rows = self._fetch(entries[: self.builder.rows_left])
        count = self.builder.fitting(rows)
        self.builder.add(rows.slice(0, count), pa.array(entries["slot"][:count]))
        if count:
            last = entries[count - 1]
            self.reached = self.runs[int(last["run"])].position(int(last["number"]))
        return None if count == len(entries) else self.reached

    def _read_entries(self, number: int, spans: _Ranges) -> _Entries:
        """Return the entries of a run in some ranges of ordinals, of the slots that it reads."""
        run = self.runs[number]
        ordinals = [np.arange(*span, dtype=np.int64) for span in spans if span[0] < span[1]]
        if not ordinals:
            return _NO_ENTRIES
        numbers = run.entry_numbers(np.concatenate(ordinals))
        self.builder.scanned += len(numbers)
        entries = np.empty(len(numbers), _ENTRY)
        columns = run.reader.take(numbers, (SLOT, ROW)).columns
        entries["run"], entries["number"] = number, numbers
        entries["slot"], entries["row"] = (column.to_numpy() for column in columns)
        return entries[run.selects(numbers, entries["slot"])]

    def _visible(self, entries: _Entries) -> _Entries:
        """Return the entries that count; all that are doubtful are looked up together.

        Of a fragment with each key once, all of whose commits count, an entry is doubtful where another
        fragment serves its slot, too.
        """
        numbers = self.fragment_numbers[entries["run"]]
        (doubtful,) = (self.is_mixed[numbers] | self.shared.mask(entries["slot"])).nonzero()
        if not len(doubtful):
            return entries
        asked, numbers, primary_key = entries[doubtful], numbers[doubtful], self.source.table.primary_key
        commits, counts = np.empty(len(asked), dtype=np.int64), np.ones(len(entries), dtype=bool)
        alive = np.empty(len(asked), dtype=bool)
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            commits[here], alive[here] = self._versions(self.fragments[number], asked["row"][here])
        keys = self._run_columns(asked, primary_key).columns
        sought = Sought(asked["slot"], keys, lambda fragment: self.source.open(fragment, primary_key))
        known = FoundVersions(numbers, asked["row"], commits)
        found = find_newest(sought, self.fragments, self.bounds, known)
        counts[doubtful] = alive & (found.fragment_numbers == numbers) & (found.rows == asked["row"])
        return entries[counts]

    def _versions(self, fragment: Fragment, rows: Rows) -> tuple[Rows, Mask]:
        """Return the commits of rows of a fragment, and which rows count as far as it knows.

        Where no other fragment's commits overlap with its own, the newest of these stands for all its rows:
        comparisons come out the same, and no row is read.
        """
        reader = self.source.open(fragment, self.source.table.primary_key)
        first, last, bounds = fragment.min_commit, fragment.max_commit, self.bounds
        among = (f for f in self.fragments if f.max_commit > first and f.min_commit <= last)
        if fragment.unique and bounds.wholly_hold(fragment) and all(f.id == fragment.id for f in among):
            commits = np.full(len(rows), last, dtype=np.int64)
        else:
            commits = commits_of(fragment, reader, rows)
        alive = (bounds.floor <= commits) & (commits <= bounds.snapshot)
        if UNTIL in reader.columns:
            alive &= rows_at(reader, rows, (UNTIL,)).column(UNTIL).to_numpy() > bounds.since
        return commits, alive

    def _sorted(self, entries: _Entries) -> _Entries:
        """Return entries in the order of their keys, as those of one run are."""
        if (entries["run"] == entries["run"][:1]).all():
            return entries
        names = key_columns(self.source.table, self.source.index)
        keys = self._run_columns(entries, tuple(dict.fromkeys(names)))
        codes = [code for name in names for code in value_sort_codes(keys.column(name))]
        order = np.lexsort(codes[::-1])
        return entries[order[::-1] if self.descending else order]

    def _run_columns(self, entries: _Entries, columns: Sequence[str]) -> pa.RecordBatch:
        """Return columns of entries that their runs have."""

        def part(run: int, at: Indices) -> pa.RecordBatch:
            return self.runs[run].reader.take(entries["number"][at], columns)

        return fetch_by_group(entries["run"], part)

    def _fetch(self, entries: _Entries) -> pa.RecordBatch:
        """Return the wanted columns: from the index where it has them, else from the rows."""

        def missing(fragment: int, at: Indices) -> pa.RecordBatch:
            reader = self.source.open(self.fragments[fragment], self.missing)
            return rows_at(reader, entries["row"][at], self.missing)

        columns: dict[str, pa.Array] = {}
        if self.covered:
            columns.update(zip(self.covered, self._run_columns(entries, self.covered).columns, strict=True))
        if self.missing:
            batch = fetch_by_group(self.fragment_numbers[entries["run"]], missing)
            columns.update(zip(self.missing, batch.columns, strict=True))
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self.builder.schema.names], schema=self.builder.schema
        )
