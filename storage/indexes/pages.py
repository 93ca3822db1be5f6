"""Reading a page of an index at a shard: rows in the order of the index, at a snapshot.

An index has one or several sorted runs for each fragment. A page is read in rounds. A round reads the entries
of the next ranges, or of a part of one, from all runs up to the same key, so that no entry between them is
missing, and sorts them together. An entry counts if its row is the newest version of its key at the snapshot.
This is looked up only if several fragments serve its slot, or if its fragment has several versions of a key
or newer ones. Otherwise a covering index is read without reading rows.
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

LEAST_ENTRIES = 65_536  # a page may examine so many entries, however few rows it may have
_EMPTY_PAGE_FACTOR = 16  # a page without rows may examine more entries, by this factor
_FIRST_ROUND = 16_384
_LARGEST_ROUND = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSource(PageSource):
    """A table as a shard serves it at one moment, and an index of it.

    Attributes:
        index: the index's definition.
        runs: the runs of this index that belong to a fragment.
    """

    index: IndexInfo
    runs: Callable[[Fragment], Sequence[RunReader]]


def read_index_page(source: IndexSource, request: PageRequest) -> PageRows:
    """Return the next rows of a request, sorted by order key, until the page is full.

    A page may end between two rows of one index key. If the order is descending, positions are inverted
    order keys. A page without rows may have cursors, which have always advanced. `scanned` counts entries.
    """
    assert request.order is not None, "the caller has checked that the request has an order"
    return _IndexPage(source, request, request.order).page()


# An entry: the number of its run, its number in the run, its slot and its row.
_ENTRY = np.dtype([("run", np.intp), ("number", np.int64), ("slot", np.uint16), ("row", np.int64)])
_Entries: TypeAlias = NDArray[np.void]
_NO_ENTRIES = np.empty(0, _ENTRY)

Numbers = TypeVar("Numbers", int, Rows)
_Ranges: TypeAlias = Sequence[tuple[int, int]]  # for each run, a range [begin, end) of ordinals
_Spans: TypeAlias = Sequence[_Ranges]


class DirectedRun:
    """The unread entries of one run, in either direction.

    Ordinals number the entries in the order of reading: 0 is the first entry, or the last if descending. So
    ranges and positions mean the same in both directions. A position is an order key, inverted byte by byte
    if descending, and covers all order keys up to it.

    `cursors` are the slots to read, each from after its position.
    """

    def __init__(self, fragment: Fragment, run: RunReader, cursors: Cursors, descending: bool) -> None:
        self.fragment, self.reader, self._descending = fragment, run, descending
        end = fragment.slots.ranges[-1][1]
        # The first ordinal to read, by slot; the last element is for all higher slots.
        self._firsts = np.full(end + 1, run.entry_count, dtype=np.int64)
        for cursor in cursors:
            if slots := cursor.slots & fragment.slots:
                first = 0 if cursor.position is None else self.past(cursor.position)
                for start, end in slots:
                    self._firsts[start:end] = first
        self._begin = int(self._firsts.min())

    def find(self, low: bytes, high: bytes) -> tuple[int, int]:
        """Return the ordinals [first, end) of a range, without those that all cursors have read."""
        if self._begin == self.reader.entry_count:
            return 0, 0
        first, end = self.reader.range_of(low, high)
        if self._descending:
            first, end = self.reader.entry_count - end, self.reader.entry_count - first
        return max(first, self._begin), max(first, self._begin, end)

    def entry_numbers(self, ordinals: Numbers) -> Numbers:
        """Return the numbers of the entries with these ordinals."""
        return self.reader.entry_count - 1 - ordinals if self._descending else ordinals

    def selects(self, entries: NDArray[np.int64], slots: NDArray[np.uint16]) -> NDArray[np.bool_]:
        """Return a mask of the entries to read: those after the position of their slot's cursor."""
        firsts = self._firsts[np.minimum(slots, len(self._firsts) - 1)]
        mask: NDArray[np.bool_] = firsts <= self.entry_numbers(entries)  # the function is its own inverse
        return mask

    def position(self, entry: int) -> bytes:
        """Return the position that covers the entries up to this one."""
        key = self.reader.key(entry)
        return inverted(key) if self._descending else key

    def past(self, position: bytes) -> int:
        """Return the first ordinal beyond a position."""
        if self._descending:
            return self.reader.entry_count - self.reader.lower_bound(inverted(position))
        return self.reader.lower_bound(position + b"\0")  # the lowest key above the position


class _IndexPage:
    """One page of an index that is being read."""

    def __init__(self, source: IndexSource, request: PageRequest, order: IndexOrder) -> None:
        table, columns = source.table, request.columns
        self.source, self.descending = source, order.descending
        self.cursors = tuple(cursor for cursor in request.cursors if cursor.slots)
        self.bounds = bounds = source.bounds(request.snapshot)
        self.builder = source.page(request)
        self.reached = b""  # the position of the page's last row
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
        # The number of entries of a round; few at first, because their rows may be large.
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
        """Yield the spans of about `target` entries of each round, and the position that the round reaches.

        Ranges are read in order, each in all runs, as many in a round as `target` allows; `page` changes
        `target` between rounds. A range with more entries is cut. The last position is None.
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
        """Return the number of the first range that a cursor has not read completely."""
        lowest = min(cursor.position or b"" for cursor in self.cursors)
        if not self.descending or not lowest:
            return bisect_right(self.ranges, lowest, key=lambda ends: ends[1])
        reached = inverted(lowest)
        return bisect_left(self.ranges, True, key=lambda ends: ends[0] < reached)

    def _cut(self, left: _Ranges, share: float) -> bytes:
        """Return a position that covers about a share of the entries left, and at most twice as many.

        The candidates are the positions at this share of each run; they are similar if keys are spread alike.
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
        """Return the first ordinal after a position, for each run."""
        return [
            min(max(run.past(position), begin), end) if begin < end else begin
            for run, (begin, end) in zip(self.runs, left, strict=True)
        ]

    def _disorder(self) -> FragmentDamaged:
        run = self.runs[0].reader
        return run.damaged("its entries, or those of another run of the index, are not in order")

    def _advance(self, position: bytes) -> Cursors:
        """Return the cursors, advanced to a position; a cursor beyond the position stays."""
        if all(at.position is not None and position <= at.position for at in self.cursors):
            raise self._disorder()  # otherwise the scan would never end
        return merge(replace(at, position=max(at.position or b"", position)) for at in self.cursors)

    def _next_target(self) -> int:
        """Estimate from the entries read so far how many more fill the page; at most four times the last."""
        page, most = self.builder, min(4 * self.target, _LARGEST_ROUND)
        if not page.rows:
            return most
        room = min(page.rows_left, page.bytes_left * page.rows // max(1, page.bytes))
        return max(16, min(most, room * page.scanned // page.rows))

    # ------------------------------------------------------------------------------- one round

    def _add(self, spans: _Spans) -> bytes | None:
        """Add the rows of the entries; return the position of the last row if not all fit, else None."""
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
        """Return the entries of a run in these spans, for the slots and positions of the cursors."""
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
        """Return the entries whose rows are the newest versions; doubtful entries are looked up together.

        An entry is doubtful if another fragment serves its slot, too, or if its fragment may have several
        versions of a key, or commits out of bounds.
        """
        numbers = self.fragment_numbers[entries["run"]]
        (doubtful,) = (self.is_mixed[numbers] | self.shared.mask(entries["slot"])).nonzero()
        if not len(doubtful):
            return entries
        asked, numbers, primary_key = entries[doubtful], numbers[doubtful], self.source.table.primary_key
        commits, counts = np.empty(len(asked), dtype=np.int64), np.ones(len(entries), dtype=bool)
        alive = np.empty(len(asked), dtype=bool)
        for number in np.unique(numbers).tolist():
            members = np.flatnonzero(numbers == number)
            commits[members], alive[members] = self._versions(self.fragments[number], asked["row"][members])
        keys = self._run_columns(asked, primary_key).columns
        sought = Sought(asked["slot"], keys, lambda fragment: self.source.open(fragment, primary_key))
        known = FoundVersions(numbers, asked["row"], commits)
        found = find_newest(sought, self.fragments, self.bounds, known)
        counts[doubtful] = alive & (found.fragment_numbers == numbers) & (found.rows == asked["row"])
        return entries[counts]

    def _versions(self, fragment: Fragment, rows: Rows) -> tuple[Rows, Mask]:
        """Return the commits of rows of a fragment, and a mask of the rows that may count.

        If the commits of no other fragment overlap with those of this one, its newest commit is used for all
        its rows: comparisons have the same result, and no row is read.
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
        """Return entries sorted by their order keys, as the entries of a single run already are."""
        if (entries["run"] == entries["run"][:1]).all():
            return entries
        names = key_columns(self.source.table, self.source.index)
        keys = self._run_columns(entries, tuple(dict.fromkeys(names)))
        codes = [code for name in names for code in value_sort_codes(keys.column(name))]
        order = np.lexsort(codes[::-1])
        return entries[order[::-1] if self.descending else order]

    def _run_columns(self, entries: _Entries, columns: Sequence[str]) -> pa.RecordBatch:
        """Return columns of entries from their runs."""

        def part(run: int, at: Indices) -> pa.RecordBatch:
            return self.runs[run].reader.take(entries["number"][at], columns)

        return fetch_by_group(entries["run"], part)

    def _fetch(self, entries: _Entries) -> pa.RecordBatch:
        """Return the requested columns, from the index if it has them, else from the rows."""

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
