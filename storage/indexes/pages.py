"""Reading a page of an index at a shard: rows in the order of the index, at a snapshot.

An index is one run or several for each fragment, each sorted. A page is made in rounds. In a round
the entries of the next ranges, or of a part of one, are taken from all runs up to the same key, so nothing
can be missing in between, and only those are sorted together. An entry counts if
its row is the newest version of its key at the snapshot. That has to be asked only where several
fragments serve its slot, or where a fragment holds several versions or newer ones; elsewhere an
index that carries the wanted columns is read without reading rows.
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
    Mask,
    Places,
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


# Entries of runs: the iterator that gave it, its number in the run, its slot and its row.
_ENTRY = np.dtype([("iterator", np.intp), ("number", np.int64), ("slot", np.uint16), ("row", np.int64)])
_Entries: TypeAlias = NDArray[np.void]
_NO_ENTRIES = np.empty(0, _ENTRY)

Numbers = TypeVar("Numbers", int, Rows)
_Places: TypeAlias = Sequence[tuple[int, int]]  # [begin, end) in each run
_Spans: TypeAlias = Sequence[_Places]


class RunIterator:
    """The way through the entries of one run that are still to be read, in either direction.

    It counts its entries in the order in which it meets them: place 0 is the first entry, or the
    last one when it descends. What ranges and positions mean is then the same in both directions.
    A position covers the order keys up to it; those of a descending iterator are inverted, byte by byte.

    Args:
        fragment, run: the run, and whose it is.
        cursors: the slots that are read, and the positions beyond which they are.
        descending: the direction.
    """

    def __init__(self, fragment: Fragment, run: RunReader, cursors: Cursors, descending: bool) -> None:
        self.fragment, self.run, self._descending = fragment, run, descending
        end = fragment.slots.ranges[-1][1]
        self._first_places = np.full(end + 1, run.entries, dtype=np.int64)  # the last is that of all beyond
        for cursor in cursors:
            if slots := cursor.slots & fragment.slots:
                first = 0 if cursor.position is None else self.past(cursor.position)
                for start, end in slots:
                    self._first_places[start:end] = first
        self._begin = int(self._first_places.min())

    def find(self, low: bytes, high: bytes) -> tuple[int, int]:
        """[first, end) of the places of a range, without those before all positions."""
        if self._begin == self.run.entries:
            return 0, 0
        first, end = self.run.range_of(low, high)
        if self._descending:
            first, end = self.run.entries - end, self.run.entries - first
        return max(first, self._begin), max(first, self._begin, end)

    def entries(self, places: Numbers) -> Numbers:
        """Return the numbers of the entries at some places."""
        return self.run.entries - 1 - places if self._descending else places

    def selects(self, entries: NDArray[np.int64], slots: NDArray[np.uint16]) -> NDArray[np.bool_]:
        """Return a mask of the entries whose slots are read, and that lie beyond their slot's cursor."""
        firsts = self._first_places[np.minimum(slots, len(self._first_places) - 1)]
        mask: NDArray[np.bool_] = firsts <= self.entries(entries)  # which turns numbers into places, too
        return mask

    def position(self, entry: int) -> bytes:
        """Return the position of an entry, which covers it."""
        key = self.run.key(entry)
        return inverted(key) if self._descending else key

    def past(self, position: bytes) -> int:
        """Return the first place beyond a position."""
        if self._descending:
            return self.run.entries - self.run.lower_bound(inverted(position))
        return self.run.lower_bound(position + b"\0")  # the lowest bytes above it


class _IndexPage:
    """One page while it is read."""

    def __init__(self, source: IndexSource, request: PageRequest, order: IndexOrder) -> None:
        table, columns = source.table, request.columns
        self.source, self.descending = source, order.descending
        self.cursors = tuple(cursor for cursor in request.cursors if cursor.slots)
        self.bounds = bounds = source.bounds(request.snapshot)
        self.filling = source.page(request)
        self.reached = b""  # the position of its last row
        covered = run_columns(table, source.index)
        self.covered = tuple(dict.fromkeys(name for name in columns if name in covered))
        self.missing = tuple(dict.fromkeys(name for name in columns if name not in covered))
        sections = source.view.within(bounds)
        self.fragments, self.shared = sections.fragments, sections.shared
        slots = SlotSet.union(cursor.slots for cursor in self.cursors)
        self.ranges = order.ranges[::-1] if order.descending else order.ranges
        self.iterators = [
            RunIterator(fragment, run, self.cursors, order.descending)
            for fragment in self.fragments
            if not fragment.slots.isdisjoint(slots)
            for run in source.runs(fragment)
            if len(self.ranges) > 1 or any(len(range(*run.range_of(*ends))) for ends in self.ranges)
        ]
        numbers = {fragment.id: number for number, fragment in enumerate(self.fragments)}
        self.owners = np.array([numbers[iterator.fragment.id] for iterator in self.iterators], dtype=np.intp)
        self.is_mixed = np.array(
            [not (f.unique and bounds.wholly_hold(f)) for f in self.fragments], dtype=bool
        )
        # How many entries to look at; not too many at first, for their rows may be large.
        rows, size = sum(f.rows for f in self.fragments), sum(f.bytes for f in self.fragments)
        fitting = request.page_bytes // max(1, size // max(1, rows)) + 16
        self.target = min(request.page_rows, _FIRST_ROUND, fitting)

    def page(self) -> PageRows:
        page = self.filling
        most = max(4 * page.page_rows, LEAST_ENTRIES)
        for spans, reached in self._rounds() if self.iterators else ():
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
        """Yield about `target` places of each round, and the position up to which these are all.

        Ranges are read one after another, each in all runs, as many in a round as the target allows. One with
        more places is cut. The last position is None.
        """
        found, count = list[_Places](), 0
        for low, high in self.ranges[self._first_range() :]:
            left = [iterator.find(low, high) for iterator in self.iterators]
            while count + (places := sum(end - begin for begin, end in left)) > self.target:
                cut = self._cut(left, max(self.target - count, 1) / places)
                stops = self._stops(left, cut)
                if stops == [begin for begin, _ in left]:
                    raise self._disorder()
                yield [*found, [(at, stop) for (at, _), stop in zip(left, stops, strict=True)]], cut
                found, count = [], 0
                left = [(stop, end) for stop, (_, end) in zip(stops, left, strict=True)]
            if places:
                found.append(left)
            count += places
        yield found, None

    def _first_range(self) -> int:
        """Return the first range that does not lie wholly before the positions of all cursors."""
        lowest = min(cursor.position or b"" for cursor in self.cursors)
        if not self.descending or not lowest:
            return bisect_right(self.ranges, lowest, key=lambda ends: ends[1])
        reached = inverted(lowest)
        return bisect_left(self.ranges, True, key=lambda ends: ends[0] < reached)

    def _cut(self, left: _Places, share: float) -> bytes:
        """Return a position up to which about a share of some places lie, and never above twice that many.

        Of each run its own share is looked at: where keys are spread alike, all come to about the same key.
        """
        most = 2 * share * sum(end - begin for begin, end in left)
        positions = sorted(
            iterator.position(iterator.entries(begin + int(share * (end - 1 - begin))))
            for iterator, (begin, end) in zip(self.iterators, left, strict=True)
            if begin < end
        )

        def count(position: bytes) -> int:
            return sum(self._stops(left, position)) - sum(begin for begin, _ in left)

        return positions[max(bisect_right(positions, most, key=count) - 1, 0)]

    def _stops(self, left: _Places, position: bytes) -> list[int]:
        """Return where each run is beyond a position."""
        return [
            min(max(iterator.past(position), begin), end) if begin < end else begin
            for iterator, (begin, end) in zip(self.iterators, left, strict=True)
        ]

    def _disorder(self) -> FragmentDamaged:
        run = self.iterators[0].run
        return run.damaged("its entries, or those of another run of the index, are not in order")

    def _advance(self, position: bytes) -> Cursors:
        """Return the cursors, moved on to a position; a cursor beyond the position stays."""
        if all(at.position is not None and position <= at.position for at in self.cursors):
            raise self._disorder()  # the scan would never end
        return merge(replace(at, position=max(at.position or b"", position)) for at in self.cursors)

    def _next_target(self) -> int:
        """Count how many more entries fill the page, going by those so far; growing step by step."""
        page, most = self.filling, min(4 * self.target, _LARGEST_ROUND)
        if not page.rows:
            return most
        room = min(page.rows_left, page.bytes_left * page.rows // max(1, page.bytes))
        return max(16, min(most, room * page.scanned // page.rows))

    # ------------------------------------------------------------------------------- one round

    def _add(self, spans: _Spans) -> bytes | None:
        """Add the rows of some places; the position of the page's last one if not all of them fit."""
        of_runs = [self._entries(n, [span[n] for span in spans]) for n in range(len(self.iterators))]
        entries = self._sorted(self._visible(np.concatenate(of_runs)))
        if not len(entries):
            return None
        rows = self._fetch(entries[: self.filling.rows_left])
        count = self.filling.fitting(rows)
        self.filling.add(rows.slice(0, count), pa.array(entries["slot"][:count]))
        if count:
            last = entries[count - 1]
            self.reached = self.iterators[int(last["iterator"])].position(int(last["number"]))
        return None if count == len(entries) else self.reached

    def _entries(self, number: int, spans: _Places) -> _Entries:
        """Return the entries of an iterator in some spans of places, of the slots that it reads."""
        iterator = self.iterators[number]
        places = [np.arange(*span, dtype=np.int64) for span in spans if span[0] < span[1]]
        if not places:
            return _NO_ENTRIES
        numbers = iterator.entries(np.concatenate(places))
        self.filling.scanned += len(numbers)
        entries = np.empty(len(numbers), _ENTRY)
        columns = iterator.run.take(numbers, (SLOT, ROW)).columns
        entries["iterator"], entries["number"] = number, numbers
        entries["slot"], entries["row"] = (column.to_numpy() for column in columns)
        return entries[iterator.selects(numbers, entries["slot"])]

    def _visible(self, entries: _Entries) -> _Entries:
        """Return the entries that count; all that are doubtful are looked up together.

        Of a fragment with each key once, all of whose commits count, an entry is doubtful where another
        fragment serves its slot, too.
        """
        owners = self.owners[entries["iterator"]]
        (doubtful,) = (self.is_mixed[owners] | self.shared.mask(entries["slot"])).nonzero()
        if not len(doubtful):
            return entries
        asked, owners, primary_key = entries[doubtful], owners[doubtful], self.source.table.primary_key
        commits, counts = np.empty(len(asked), dtype=np.int64), np.ones(len(entries), dtype=bool)
        alive = np.empty(len(asked), dtype=bool)
        for owner in np.unique(owners).tolist():
            here = np.flatnonzero(owners == owner)
            commits[here], alive[here] = self._versions(self.fragments[owner], asked["row"][here])
        keys = self._carried(asked, primary_key).columns
        sought = Sought(asked["slot"], keys, lambda fragment: self.source.open(fragment, primary_key))
        found = find_newest(sought, self.fragments, self.bounds, FoundVersions(owners, asked["row"], commits))
        counts[doubtful] = alive & (found.owners == owners) & (found.rows == asked["row"])
        return entries[counts]

    def _versions(self, fragment: Fragment, rows: Rows) -> tuple[Rows, Mask]:
        """Return the commits of rows of a fragment, and which rows count as far as it knows.

        Where no other fragment has commits between its own, or the newest of them, that stands for all.
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
        """Return entries in the order of their keys, as those of one iterator are."""
        if (entries["iterator"] == entries["iterator"][:1]).all():
            return entries
        names = key_columns(self.source.table, self.source.index)
        keys = self._carried(entries, tuple(dict.fromkeys(names)))
        codes = [code for name in names for code in value_sort_codes(keys.column(name))]
        order = np.lexsort(codes[::-1])
        return entries[order[::-1] if self.descending else order]

    def _carried(self, entries: _Entries, columns: Sequence[str]) -> pa.RecordBatch:
        """Return columns of entries that their runs have."""

        def part(iterator: int, at: Places) -> pa.RecordBatch:
            return self.iterators[iterator].run.take(entries["number"][at], columns)

        return fetch_by_group(entries["iterator"], part)

    def _fetch(self, entries: _Entries) -> pa.RecordBatch:
        """Return the wanted columns: from the index where it has them, else from the rows."""

        def missing(fragment: int, at: Places) -> pa.RecordBatch:
            reader = self.source.open(self.fragments[fragment], self.missing)
            return rows_at(reader, entries["row"][at], self.missing)

        columns: dict[str, pa.Array] = {}
        if self.covered:
            columns.update(zip(self.covered, self._carried(entries, self.covered).columns, strict=True))
        if self.missing:
            batch = fetch_by_group(self.owners[entries["iterator"]], missing)
            columns.update(zip(self.missing, batch.columns, strict=True))
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self.filling.schema.names], schema=self.filling.schema
        )
