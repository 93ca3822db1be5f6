"""Reading a page of an index at a shard: rows in the order of the index, at a snapshot.

An index is one run or several for each fragment, each sorted. A page is made in rounds. In a round
every run shows entries in proportion to what it holds; all of them up to the lowest of their last keys
are taken, so nothing can be missing in between, and only those are sorted together. An entry counts if
its row is the newest version of its key at the snapshot. That has to be asked only where several
fragments serve its slot, or where a fragment holds several versions or newer ones; elsewhere an
index that carries the wanted columns is read without reading rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.errors import FragmentDamaged
from elasticscan.base.key_encoding import value_sort_codes
from elasticscan.metadata import Fragment, IndexInfo
from elasticscan.protocol import Cursors, IndexOrder, PageRequest, PageRows, merge
from elasticscan.storage.fragment import SLOT
from elasticscan.storage.indexes.iterator import RunIterator
from elasticscan.storage.indexes.run import FEW_RANGES, ROW, RunReader, key_columns, run_columns
from elasticscan.storage.lookup import Candidates, Places, fetch_by_group, newest, rows_at
from elasticscan.storage.page_builder import PageBuilder
from elasticscan.storage.pages import PageSource
from elasticscan.topology import SlotSet

LEAST_ENTRIES = 65_536  # a page may examine so many entries, however few rows it may hold
_EMPTY_PAGE_FACTOR = 16  # a page without a row may examine so many times more entries
_FIRST_ROUND = 16_384
_LEAST_SHARE = 16
_LARGEST_ROUND = 1 << 18
_RANGE_EFFORT = 64  # the effort of finding a range, in entries


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


class _IndexPage:
    """One page while it is read."""

    def __init__(self, source: IndexSource, request: PageRequest, order: IndexOrder) -> None:
        table, columns = source.table, request.columns
        self.source, self.descending = source, order.descending
        self.cursors = [cursor for cursor in request.cursors if cursor.slots]
        self.bounds = bounds = source.bounds(request.snapshot)
        schema = pa.schema([table.schema.field(name) for name in columns])
        self.filling = PageBuilder(schema, request.page_rows, request.page_bytes)
        self.reached = b""  # the position of its last row
        covered = run_columns(table, source.index)
        self.covered = tuple(dict.fromkeys(name for name in columns if name in covered))
        self.missing = tuple(dict.fromkeys(name for name in columns if name not in covered))
        self.fragments = source.view.fragments_within(bounds)
        slots = SlotSet.of(slot_range for cursor in self.cursors for slot_range in cursor.slots)
        self.end = slots.ranges[-1][1] if slots else 0
        self.shared = source.view.shared(bounds)
        self.iterators = self._begin(order.ranges, slots) if slots else []
        numbers = {fragment.id: number for number, fragment in enumerate(self.fragments)}
        self.owners = np.array([numbers[iterator.fragment.id] for iterator in self.iterators], dtype=np.intp)
        self.is_mixed = np.array(
            [not (f.unique and bounds.wholly_hold(f)) for f in self.fragments], dtype=bool
        )
        self.eagerness = np.ones(len(self.iterators), dtype=np.int64)

    def _begin(self, ranges: Sequence[tuple[bytes, bytes]], slots: SlotSet) -> list[RunIterator]:
        positions = list(dict.fromkeys(cursor.position for cursor in self.cursors))
        pieces = np.zeros(self.end + 1, dtype=np.intp)
        for cursor in self.cursors:
            for start, end in cursor.slots:
                pieces[start:end] = 1 + positions.index(cursor.position)
        return [
            RunIterator(fragment, run, ranges, self.descending, positions, pieces)
            for fragment in self.fragments
            if not fragment.slots.isdisjoint(slots)
            for run in self.source.runs(fragment)
            if _may_be_in(run, ranges)
        ]

    def page(self) -> PageRows:
        page = self.filling
        most = max(4 * page.page_rows, LEAST_ENTRIES)
        target, effort = self._first_target(), self._effort
        while iterators := [
            number for number, iterator in enumerate(self.iterators) if not iterator.finished
        ]:
            seen = page.scanned
            ahead = self._look_ahead(iterators, target)
            cut = min(ahead.values(), default=None)
            stop = self._round(iterators, cut)
            if stop is not None:
                return page.finish(self._advance(stop))
            if cut is None or all(iterator.finished for iterator in self.iterators):
                break
            before, effort = effort, self._effort
            if effort == before:
                raise self._disorder(iterators)
            if page.room <= 0 or effort >= (most if page.rows else _EMPTY_PAGE_FACTOR * most):
                return page.finish(self._advance(cut))
            if 4 * (page.scanned - seen) < target:
                self.eagerness[[number for number, at in ahead.items() if at == cut]] *= 2
            target = self._next_target(target)
        return page.finish(())

    def _look_ahead(self, iterators: Sequence[int], target: int) -> dict[int, bytes]:
        """Let each iterator show its share of the entries; returns up to where each that has more does.

        Shares follow what runs hold: where keys are spread alike, all come to about the same key, and the
        round ends there. One that holds a round up, because its next keys lie closer, gets more each time.
        """
        left = sum(self.iterators[number].left for number in iterators)
        ahead = {}
        for number in iterators:
            iterator = self.iterators[number]
            share = target * iterator.left // max(left, 1) + _LEAST_SHARE
            at = iterator.look_ahead(share * int(self.eagerness[number]))
            if at is not None:
                ahead[number] = at
        return ahead

    @property
    def _effort(self) -> int:
        return self.filling.scanned + _RANGE_EFFORT * sum(
            iterator.ranges_found for iterator in self.iterators
        )

    def _disorder(self, iterators: Iterable[int]) -> FragmentDamaged:
        run = self.iterators[next(iter(iterators))].run
        return run.damaged("its entries, or those of another run of the index, are not in order")

    def _advance(self, position: bytes) -> Cursors:
        """Return the cursors, moved on to a position; a cursor beyond the position stays."""
        if all(at.position is not None and position <= at.position for at in self.cursors):
            raise self._disorder(range(len(self.iterators)))  # the scan would never end
        return merge(replace(at, position=max(at.position or b"", position)) for at in self.cursors)

    def _first_target(self) -> int:
        """Count how many entries to begin with: not too many, for their rows may be large."""
        size = sum(fragment.bytes for fragment in self.fragments)
        per_row = size // max(1, sum(fragment.rows for fragment in self.fragments))
        return min(self.filling.page_rows, _FIRST_ROUND, self.filling.page_bytes // max(1, per_row) + 16)

    def _next_target(self, last: int) -> int:
        """Count how many more entries fill the page, going by those so far; growing step by step."""
        page, most = self.filling, min(4 * last, _LARGEST_ROUND)
        if not page.rows:
            return most
        room = min(page.room, page.space * page.rows // max(1, page.bytes))
        return max(16, min(most, room * page.scanned // page.rows))

    # ------------------------------------------------------------------------------- one round

    def _round(self, iterators: Sequence[int], cut: bytes | None) -> bytes | None:
        """Add the rows up to `cut`; the position of the page's last one if not all of them fit."""
        entries = np.concatenate([self._next_entries(number, cut) for number in iterators])
        entries = self._sorted(self._visible(entries))
        if not len(entries):
            return None
        rows = self._fetch(entries[: self.filling.room])
        count = self.filling.fitting(rows)
        self.filling.add(rows.slice(0, count), pa.array(entries["slot"][:count]))
        if count:
            last = entries[count - 1]
            self.reached = self.iterators[int(last["iterator"])].position(int(last["number"]))
        return None if count == len(entries) else self.reached

    def _next_entries(self, number: int, cut: bytes | None) -> _Entries:
        """Return the next entries of an iterator, of the slots that the iterator reads."""
        iterator = self.iterators[number]
        numbers = iterator.take(cut)
        if not len(numbers):
            return _NO_ENTRIES
        self.filling.scanned += len(numbers)
        entries = np.empty(len(numbers), _ENTRY)
        places = iterator.run.take(numbers, (SLOT, ROW))
        entries["iterator"], entries["number"] = number, numbers
        entries["slot"], entries["row"] = (column.to_numpy() for column in places.columns)
        return entries[iterator.selects(numbers, entries["slot"])]

    def _visible(self, entries: _Entries) -> _Entries:
        """Return the entries that count; all that are doubtful are looked up together.

        Of a fragment with each key once, all of whose commits count, an entry is doubtful where another
        fragment serves its slot, too.
        """
        owners = self.owners[entries["iterator"]]
        (doubtful,) = (self.is_mixed[owners] | self.shared[entries["slot"]]).nonzero()
        if not len(doubtful):
            return entries
        asked, counts = entries[doubtful], np.ones(len(entries), dtype=bool)
        keys = self._carried(asked, self.source.table.primary_key).columns
        counts[doubtful] = newest(
            Candidates(owners[doubtful], asked["row"], asked["slot"], keys),
            self.fragments,
            self.bounds,
            lambda fragment: self.source.open(fragment, self.source.table.primary_key),
        )
        return entries[counts]

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


def _may_be_in(run: RunReader, ranges: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return False if a run has no entry in any of these ranges, where that is seen at little cost."""
    if len(ranges) > FEW_RANGES:
        return True
    return any(first < end for first, end in (run.range_of(*ends) for ends in ranges))
