"""Reading a page at a shard: rows of some slots beyond their positions, at a snapshot."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.key_encoding import encode_row
from elasticscan.metadata import Bounds, Fragment, TableInfo
from elasticscan.protocol import Cursor, Cursors, PageRequest, PageRows
from elasticscan.storage.fragment import SLOT, FragmentReader, rows_below
from elasticscan.storage.lookup import joined
from elasticscan.storage.merge import MergeInput, Piece, Versions, taken, windows
from elasticscan.storage.overlay import Run, run_of
from elasticscan.storage.pruning import PagePruner, StatisticsOf
from elasticscan.storage.view import Layers, View
from elasticscan.topology import SlotSet

OpenFragment = Callable[[Fragment, tuple[str, ...]], FragmentReader]

Numbers: TypeAlias = Sequence[int] | NDArray[np.int64]  # of rows of a batch

_MOST_AT_ONCE = 256  # ranges; if the page is full earlier, the rest was looked up unnecessarily
_HALVED_ROWS = 1 << 14  # batches with more are cut in two rather than put together


def rows_within(batch: pa.RecordBatch, most_bytes: int) -> int:
    """Count how many rows from the front of `batch` take so many bytes at most."""
    return bisect_right(range(1, batch.num_rows + 1), most_bytes, key=lambda n: batch.slice(0, n).nbytes)


class PageBuilder:
    """A page while it is filled: it ends at `page_rows` or `page_bytes`, but holds a row if there is one."""

    def __init__(
        self, schema: pa.Schema, page_rows: int, page_bytes: int, pruner: PagePruner | None = None
    ) -> None:
        self.schema, self.page_rows, self.page_bytes = schema, page_rows, page_bytes
        self.pruner = pruner
        self.scanned = self.rows = self.bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._slots: list[pa.Array] = []

    @property
    def space(self) -> int:
        """Count how many more bytes fit."""
        return self.page_bytes - self.bytes

    @property
    def room(self) -> int:
        """Count how many more rows fit."""
        return 0 if self.space <= 0 else self.page_rows - self.rows

    @property
    def worth_returning(self) -> bool:
        """True if the page is so full that ending it is better than copying rows together."""
        return 2 * self.rows >= self.page_rows or 2 * self.bytes >= self.page_bytes

    def fitting(self, batch: pa.RecordBatch) -> int:
        """Count how many rows from the front of `batch` still fit; at least one in an empty page."""
        count: int = min(batch.num_rows, self.room)
        if count > 0 and batch.slice(0, count).nbytes > self.space:
            count = rows_within(batch, self.space)
        return max(count, 1) if self.rows == 0 else count

    def add(self, batch: pa.RecordBatch, slots: pa.Array) -> None:
        if batch.num_rows:
            chosen = [batch.column(name) for name in self.schema.names]
            self._batches.append(pa.RecordBatch.from_arrays(chosen, schema=self.schema))
            self._slots.append(slots)
            self.rows += batch.num_rows
            self.bytes += batch.nbytes

    def finish(self, left: Cursors) -> PageRows:
        """Return the page, and cursors of what is left."""
        rows = joined(self._batches or [pa.RecordBatch.from_pylist([], schema=self.schema)])
        slots = self._slots or [pa.array([], pa.uint16())]
        skipped = self.pruner.rows if self.pruner else 0
        together = slots[0] if len(slots) == 1 else pa.concat_arrays(slots)
        return PageRows(rows, together, left, self.scanned, skipped)


@dataclass(frozen=True, slots=True)
class PageSource:
    """A table as a shard serves it at one moment.

    Attributes:
        table, view: the table, and its fragments at the shard.
        open: opens a fragment for some columns.
        floor: as seen from the snapshot that is read, everything before this commit was overwritten.
        statistics: what is known of the values in a fragment; None where nothing is.
        expect: hears which fragments are opened next, so that what is far is asked for at once.
    """

    table: TableInfo
    view: View
    open: OpenFragment
    floor: int = 0
    statistics: StatisticsOf = lambda _: None
    expect: Callable[[Sequence[Fragment]], None] = lambda _: None

    def inputs(self, fragments: Sequence[Fragment], columns: tuple[str, ...]) -> list[MergeInput]:
        """Fragments, opened to be merged."""
        self.expect(fragments)
        return [MergeInput(fragment, self.open(fragment, columns)) for fragment in fragments]

    def windows(
        self,
        fragments: Sequence[Fragment],
        columns: tuple[str, ...],
        rest: Piece,
        bounds: Bounds,
        room: Callable[[], int],
    ) -> Iterator[tuple[Versions, Piece]]:
        """Walk a piece over fragments in windows of about `room()` rows, each with the rest after it."""
        return windows(self.inputs(fragments, columns), rest, bounds, room)

    def page(self, request: PageRequest, *fields: pa.Field, pruner: PagePruner | None = None) -> PageBuilder:
        """Return an empty page of a request's columns, and of further ones."""
        schema = pa.schema([*(self.table.schema.field(name) for name in request.columns), *fields])
        return PageBuilder(schema, request.page_rows, request.page_bytes, pruner)

    def bounds(self, snapshot: int) -> Bounds:
        """Return the commits whose rows count at a snapshot."""
        return Bounds(self.floor, snapshot, since=snapshot)


def read_page(source: PageSource, request: PageRequest) -> PageRows:
    """Rows of a request's cursors, in the order of their pieces, until the page is full or there are no more.

    Where one fragment serves a range of slots, holds nothing newer than the snapshot and
    nothing deleted, its rows go out as slices of its batches, also with others laid over it;
    elsewhere versions are merged.
    What statistics rule out is skipped within the page, however much it is, so a page
    without rows is still the last one. `scanned` counts versions of rows, but
    not the ones under an overlay.
    """
    pruner = PagePruner(source.statistics, request.key_sets) if request.key_sets else None
    page = source.page(request, pruner=pruner)
    pieces, bounds = pieces_of(request.cursors), source.bounds(request.snapshot)
    reaches = (
        _unpruned(source.view, pruner, reach, bounds) for reach in _reaches(source.view, pieces, bounds)
    )
    for reach in chain.from_iterable(reaches):
        rest = _read_reach(source, page, reach, bounds)
        if rest is not None:
            number = next(n for n in range(reach.number, len(pieces)) if rest.start < pieces[n].end)
            return page.finish(cursors_of([rest._replace(end=pieces[number].end), *pieces[number + 1 :]]))
    return page.finish(())


def read_by_interval(
    source: PageSource,
    page: PageBuilder,
    cursors: Cursors,
    bounds: Bounds,
    read: Callable[[Sequence[Fragment], Piece], Piece | None],
) -> PageRows:
    """Read the intervals of cursors, in their order, until the page is full.

    Args:
        source, page: where rows come from, and where they go.
        cursors: of a direct scan.
        bounds: which fragments count.
        read: adds rows of the fragments that serve a piece; returns the rest of it if the page is full.
    """
    pieces = pieces_of(cursors)
    for number, piece in enumerate(pieces):
        for fragments, served in source.view.between(piece, bounds):
            rest = read(fragments, served)
            if rest is not None:
                return page.finish(cursors_of([rest._replace(end=piece.end), *pieces[number + 1 :]]))
    return page.finish(())


@dataclass(slots=True)
class _Reach:
    """Ranges over the same large fragment, which are read in one go; without layers it is one.

    Attributes:
        number: the place, among all pieces, of the one that the first span is a part of.
        spans: the ranges, ascending.
        layers: those of all.
        only: the fragment that is alone in all of them, whose batches may be pruned.
    """

    number: int
    spans: list[Piece]
    layers: Layers | None
    only: Fragment | None = None

    @property
    def whole(self) -> Piece:
        return self.spans[0]._replace(end=self.spans[-1].end)

    def within(self) -> NDArray[np.uint16] | None:
        """Return the edges of the spans but the last end; None if no other slot lies between.

        Of [2, 4) and [7, 9) these are 2, 4 and 7.
        """
        edges = [edge for span in self.spans for edge in span[:2]]
        return None if len(self.spans) == 1 else np.array(edges[:-1], dtype=np.uint16)


def _reaches(view: View, pieces: Sequence[Piece], bounds: Bounds) -> Iterator[_Reach]:
    """Yield the pieces as reaches, in their order.

    Where neighbouring tablets lie at different shards a piece is a tablet, of a few rows perhaps; and a
    fragment serves the tablets that it has rows of, with others between them.
    """
    reach: _Reach | None = None
    slot_ranges = view.within(bounds).slot_ranges
    for number, piece in enumerate(pieces):
        first = bisect_right(slot_ranges, piece.start, key=lambda each: each.end)
        for each in slot_ranges[first:]:
            start, end = max(piece.start, each.start), min(piece.end, each.end)
            if start >= end:
                break
            layers, span = each.layers, Piece(start, end, piece.low if start == piece.start else b"")
            if reach is not None:
                follows = reach.layers is layers and not span.low and reach.spans[-1].end <= start
                if follows and layers is not None and len(reach.spans) < _MOST_AT_ONCE:
                    reach.spans.append(span)
                    continue
                yield reach
            reach = _Reach(number, [span], layers)
    if reach is not None:
        yield reach


def _unpruned(view: View, pruner: PagePruner | None, reach: _Reach, bounds: Bounds) -> Iterator[_Reach]:
    """Split what is left of a reach, in its order, into reaches over one fragment alone and over several."""
    if pruner is None:
        yield reach
        return
    served = (each for span in reach.spans for each in view.between(span, bounds))
    left = (each for each in served if not pruner.prunes(*each))
    for is_alone, neighbours in groupby(left, lambda each: len(each[0]) == 1):
        some = list(neighbours)
        only = some[0][0][0] if is_alone else None
        yield _Reach(reach.number, [span for _, span in some], reach.layers, only)


def _read_reach(source: PageSource, page: PageBuilder, reach: _Reach, bounds: Bounds) -> Piece | None:
    """Add rows of a reach; returns the rest if the page is full."""
    if page.room <= 0:
        return reach.whole
    layers, names, primary_key = reach.layers, tuple(page.schema.names), tuple(source.table.primary_key)
    if layers is None:
        return _read_merged(source, page, reach, bounds)
    source.expect((layers.base, *layers.others))
    run = run_of(layers, source.open, names, bounds)
    if run is None:
        return _read_merged(source, page, reach, bounds)

    def keyed() -> Run:
        """Return the same batches with the columns of the key: few pages cut a slot, and need it."""
        has_keys = layers.others and set(primary_key) <= set(names)
        keys = run if has_keys else run_of(layers, source.open, primary_key, bounds)
        assert keys is not None, "of the same files all columns are laid over, or none"
        return keys

    return _read_slices(page, run, keyed, primary_key, reach)


def _read_slices(
    page: PageBuilder, run: Run, keyed: Callable[[], Run], primary_key: Sequence[str], reach: _Reach
) -> Piece | None:
    """Add slices of sorted batches, uncopied; returns the rest if the page is full.

    It ends between two batches where that is cheaper. Those of a fragment alone may be pruned.
    Rows of slots that are not `within` are left out: few batches have some, unless tablets left the shard.
    """

    def key_of(batch: int, numbers: Numbers, at: int) -> bytes:
        return keys_of(keyed().batch(batch), primary_key)(int(numbers[at]))

    rest, within = reach.whole, reach.within()
    end = rest.end
    last: Callable[[], bytes] | None = None  # gives the key of the page's last row, that of `rest`
    index, row = (keyed() if rest.low else run).seek(rest.start, rest.low)
    while index < run.batch_count:
        if page.pruner and reach.only:
            # Jump to the next batch that may match; `rest` stays. If the page ends before that batch,
            # inside one slot, the next page begins at `rest` and skips the same batches again.
            match = page.pruner.next_match(reach.only, index, run.batch_count)
            if match > index:
                index, row = match, 0
                continue
        batch = run.batch(index)
        slots = batch.column(SLOT).to_numpy(zero_copy_only=True)
        limit = max(row, rows_below(slots, end))
        part, numbers = _rows_within(batch, slots, row, limit, within, page.room)
        if len(numbers):
            of, count = part.column(SLOT).to_numpy(), 0
            if not page.rows or (page.room > 0 and (numbers[0] > 0 or not page.worth_returning)):
                count = page.fitting(part)
                if not page.rows and max(count, _HALVED_ROWS) < len(of) < 2 * count:
                    count = -(-len(of) // 2)  # two pages, each a slice of one batch
                page.scanned += count
            if count < len(of):
                if not count and last and of[0] == rest.start:
                    return rest._replace(low=last() + b"\0")
                return cut_page(page, part, count, rest, partial(key_of, index, numbers))
            page.add(part, part.column(SLOT))
            rest, last = Piece(int(of[-1]), end), partial(key_of, index, numbers, -1)
        if limit < len(slots):
            return None
        has_rows, index, row = row < limit, index + 1, 0
        if within is not None and has_rows:
            passed = int(within.searchsorted(slots[-1], "right"))
            if passed % 2 == 0:
                index, row = run.seek(int(within[passed]), b"")  # many others may come before that
    return None


def _rows_within(
    batch: pa.RecordBatch,
    slots: NDArray[np.uint16],
    row: int,
    limit: int,
    within: NDArray[np.uint16] | None,
    room: int,
) -> tuple[pa.RecordBatch, Numbers]:
    """Return the rows `[row, limit)` of a batch in the slots between pairs of edges, and their numbers.

    Where these are not all, no more are copied than show that the page is full.
    """
    if within is not None:
        edges = [row, *(row + slots[row:limit].searchsorted(within[1:])).tolist(), limit]
        spans = list(zip(edges[::2], edges[1::2], strict=True))
        if sum(end - start for start, end in spans) < limit - row:
            numbers = np.concatenate([np.arange(*span) for span in spans])[: room + 1]
            return batch.take(pa.array(numbers)), numbers
    return batch.slice(row, limit - row), range(row, limit)


def cut_page(
    page: PageBuilder, rows: pa.RecordBatch, count: int, rest: Piece, key_at: Callable[[int], bytes]
) -> Piece:
    """Add the first `count` rows, or fewer where that ends the page between two slots; returns the rest.

    A page that ends inside a slot leaves a position in the continuation key; one that ends
    between two slots leaves none. `key_at` gives the key of a row.
    """
    slots = rows.column(SLOT).to_numpy()
    slot = int(slots[count])
    begin = rows_below(slots, slot)
    if begin > 0 and 2 * (page.rows + begin) >= page.rows + count:
        count = begin
    page.add(rows.slice(0, count), rows.column(SLOT).slice(0, count))
    if count > begin:
        return Piece(slot, rest.end, key_at(count - 1) + b"\0")
    return rest if not count and slot == rest.start else Piece(slot, rest.end)


def keys_of(rows: pa.RecordBatch, primary_key: Sequence[str]) -> Callable[[int], bytes]:
    """Return a function that gives the key of a row."""
    return partial(encode_row, [rows.column(name) for name in primary_key])


def _read_merged(source: PageSource, page: PageBuilder, reach: _Reach, bounds: Bounds) -> Piece | None:
    """Add the newest rows of several fragments, or of one with several versions, interval by interval."""
    needed = tuple(dict.fromkeys((*page.schema.names, *source.table.primary_key)))
    for fragments, piece in (each for span in reach.spans for each in source.view.between(span, bounds)):
        rest = piece
        if page.room <= 0:
            return rest
        for versions, after in source.windows(fragments, needed, rest, bounds, lambda: page.room):
            left = add_newest(page, versions, rest)
            if left is not None:
                return left
            rest = after
            if rest.start < rest.end and (page.room <= 0 or page.worth_returning):
                return rest
    return None


def add_newest(page: PageBuilder, versions: Versions, rest: Piece) -> Piece | None:
    """Add the newest version of each key, in order; returns the rest if not all of them fit."""
    page.scanned += versions.scanned
    chosen = versions.order[versions.first]
    chosen = chosen[versions.alive[chosen]]
    if not len(chosen):
        return None
    rows = taken(versions.rows, chosen).append_column(SLOT, pa.array(versions.slots[chosen]))
    count = page.fitting(rows)
    if count < len(chosen):
        return cut_page(page, rows, count, rest, keys_of(rows, versions.primary_key))
    page.add(rows, rows.column(SLOT))
    return None


def pieces_of(cursors: Cursors) -> list[Piece]:
    """Cursors of a direct scan as pieces: half-read slots first, then whole ones, ascending.

    A direct scan's order key is (slot, primary key): the slot takes the first two bytes. Slots
    below the position's slot are read; the position's own slot is half-read; the rest untouched.
    """
    begun: list[Piece] = []
    whole: list[Piece] = []
    for cursor in cursors:
        slots, position = cursor.slots, cursor.position
        if position is None:
            whole.extend(Piece(start, end) for start, end in slots)
            continue
        at = int.from_bytes(position[:2], "big")
        if at in slots:
            begun.append(Piece(at, at + 1, position[2:] + b"\0"))  # the lowest bytes above the key
        above = slots & SlotSet.span(at + 1, 1 << 16)
        whole.extend(Piece(start, end) for start, end in above)
    return sorted(begun, key=lambda piece: piece.start) + sorted(whole, key=lambda piece: piece.start)


def cursors_of(pieces: Iterable[Piece]) -> Cursors:
    """Return the inverse of `pieces_of`: a cursor for each half-read slot, and one for all untouched ones."""
    cursors: list[Cursor] = []
    untouched: list[tuple[int, int]] = []
    for piece in pieces:
        start = piece.start
        if piece.low:
            position = start.to_bytes(2, "big") + piece.low[:-1]
            cursors.append(Cursor(SlotSet.span(start, start + 1), position))
            start += 1
        if start < piece.end:
            untouched.append((start, piece.end))
    return (*cursors, Cursor(SlotSet.of(untouched))) if untouched else tuple(cursors)
