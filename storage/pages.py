"""Reading a page at a shard: rows of some slots beyond their positions, at a snapshot."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.key_encoding import encode_row
from elasticscan.metadata import Bounds, Fragment, SlotInterval, TableInfo
from elasticscan.protocol import Cursor, Cursors, PageRequest, PageRows
from elasticscan.storage.fragment import SLOT, FragmentReader, rows_below
from elasticscan.storage.merge import MergeInput, windows
from elasticscan.storage.overlay import Run, run_of
from elasticscan.storage.page_builder import PageBuilder
from elasticscan.storage.pruning import PagePruner, StatisticsOf
from elasticscan.storage.view import Layers, View
from elasticscan.topology import SlotSet

OpenFragment = Callable[[Fragment, tuple[str, ...]], FragmentReader]

_MOST_AT_ONCE = 256  # ranges; if the page is full earlier, the rest was looked up unnecessarily
_SPAN_ROWS = 256  # of shorter spans single rows are copied
_HALVED_ROWS = 1 << 14  # batches with more are cut in two rather than put together


class Piece(NamedTuple):
    """Slots `[start, end)` to read; the first one only beyond `key`, if that is not None."""

    start: int
    end: int
    key: bytes | None = None


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
    schema = pa.schema([source.table.schema.field(name) for name in request.columns])
    pruner = PagePruner(source.statistics, request.key_sets) if request.key_sets else None
    page = PageBuilder(schema, request.page_rows, request.page_bytes, pruner)
    pieces, bounds = pieces_of(request.cursors), source.bounds(request.snapshot)
    needed = tuple(dict.fromkeys((*page.schema.names, *source.table.primary_key)))
    for reach in _reaches(source.view, pieces, bounds):
        rest = _read_reach(source, page, reach, bounds, needed)
        if rest is not None:
            left = (n for n in range(reach.number, len(pieces)) if rest.start < pieces[n].end)
            number = next(left)
            return page.finish(cursors_of([rest._replace(end=pieces[number].end), *pieces[number + 1 :]]))
    return page.finish(())


@dataclass(slots=True)
class _Reach:
    """Ranges over the same large fragment, which are read in one go; without layers it is one.

    Attributes:
        number: of the piece that the first one is of.
        spans: `[start, end)` of each, ascending.
        key: as that of the piece, for the first slot.
        layers: those of all.
        only: the fragment that is alone in all of them, whose batches may be pruned.
    """

    number: int
    spans: list[tuple[int, int]]
    key: bytes | None
    layers: Layers | None
    only: Fragment | None = None

    @property
    def start(self) -> int:
        return self.spans[0][0]

    @property
    def end(self) -> int:
        return self.spans[-1][1]

    def within(self) -> NDArray[np.uint16] | None:
        """Return the edges of the spans but the last end; None if no other slot lies between."""
        return None if len(self.spans) == 1 else np.array(self.spans).ravel()[:-1].astype(np.uint16)


def _reaches(view: View, pieces: Sequence[Piece], bounds: Bounds) -> Iterator[_Reach]:
    """Yield the pieces as reaches, in their order.

    Where neighbouring tablets lie at different shards a piece is a tablet, of a few rows perhaps; and a
    fragment serves the tablets that it has rows of, with others between them.
    """
    reach: _Reach | None = None
    slot_ranges, ends = view.slot_ranges(bounds)
    for number, piece in enumerate(pieces):
        for at in range(bisect_right(ends, piece.start), len(ends)):
            start, end = max(piece.start, slot_ranges[at].start), min(piece.end, ends[at])
            if start >= end:
                break
            layers, key = slot_ranges[at].layers, piece.key if start == piece.start else None
            if reach is not None:
                follows = reach.layers is layers and key is None and reach.end <= start
                if follows and layers is not None and len(reach.spans) < _MOST_AT_ONCE:
                    reach.spans.append((start, end))
                    continue
                yield reach
            reach = _Reach(number, [(start, end)], key, layers)
    if reach is not None:
        yield reach


def _unpruned(view: View, pruner: PagePruner | None, reach: _Reach, bounds: Bounds) -> Iterator[_Reach]:
    """Split what is left of a reach, in its order, into reaches over one fragment alone and over several."""
    intervals = (i for span in reach.spans for i in view.between(*span, bounds))
    left = (i for i in intervals if pruner is None or not pruner.prunes(i))
    for is_alone, neighbours in groupby(left, lambda interval: len(interval.fragments) == 1):
        some = list(neighbours)
        key = reach.key if some[0].start == reach.start else None
        only = some[0].fragments[0] if is_alone else None
        yield _Reach(reach.number, [(i.start, i.end) for i in some], key, reach.layers, only)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Sorted batches without the primary key, unless it is asked for: few pages end inside of a slot.

    Attributes:
        rows: the batches.
        keys: opens the same batches with the columns of the primary key.
    """

    rows: Run
    keys: Callable[[], Run]
    primary_key: Sequence[str]

    def seek(self, piece: Piece) -> tuple[int, int]:
        """(batch, row) of the first row of a piece."""
        run = self.rows if piece.key is None else self.keys()
        return run.seek(piece.start, piece.key)

    def key_at(self, index: int, numbers: Sequence[int] | NDArray[np.int64], at: int) -> bytes:
        """Return the key of one of some rows of a batch."""
        batch = self.keys().batch(index)
        return encode_row([batch.column(name) for name in self.primary_key], int(numbers[at]))


def _sorted(source: PageSource, layers: Layers, names: tuple[str, ...], bounds: Bounds) -> _Sorted | None:
    """Return the rows of layers as one sorted run; None where versions have to be merged.

    It has just the columns of the page; the key is read where a position within a slot is asked for.
    """
    primary_key = tuple(source.table.primary_key)
    source.expect((layers.base, *layers.others))
    run = run_of(layers, source.open, names, bounds)
    if run is None:
        return None

    def keys() -> Run:
        if layers.others and set(primary_key) <= set(names):
            return run
        keyed = run_of(layers, source.open, primary_key, bounds)
        assert keyed is not None, "of the same files all columns are laid over, or none"
        return keyed

    return _Sorted(run, keys, primary_key)


def _read_reach(
    source: PageSource, page: PageBuilder, reach: _Reach, bounds: Bounds, needed: tuple[str, ...]
) -> Piece | None:
    """Add rows of a reach; returns the rest if the page is full.

    It is read interval by interval where versions have to be merged. Where some may be pruned, neighbours
    over one fragment alone are read in one go, batch by batch, and so are fragments with overlays.
    """
    layers = reach.layers

    def laid_over() -> _Sorted | None:
        names = tuple(page.schema.names)
        return None if layers is None else _sorted(source, layers, names, bounds)

    if page.pruner is None:
        if page.room <= 0:
            return Piece(reach.start, reach.end, reach.key)
        run = laid_over()
        if run:
            rest = Piece(reach.start, reach.end, reach.key)
            return _read_slices(page, run, rest, within=reach.within())
    for group in _unpruned(source.view, page.pruner, reach, bounds):
        rest = Piece(group.start, group.end, group.key)
        run = laid_over() if page.room > 0 else None
        if run:
            left = _read_slices(page, run, rest, group.only, group.within())
            if left is not None:
                return left
            continue
        for start, end in group.spans:
            for interval in source.view.between(start, end, bounds):
                rest = Piece(interval.start, interval.end, group.key if start == group.start else None)
                if page.room <= 0:
                    return rest
                inputs = source.inputs(interval.fragments, needed)
                left = _read_merged(page, inputs, interval, rest.key, bounds)
                if left is not None:
                    return left
    return None


def _read_slices(
    page: PageBuilder,
    run: _Sorted,
    rest: Piece,
    only: Fragment | None = None,
    within: NDArray[np.uint16] | None = None,
) -> Piece | None:
    """Add slices of sorted batches, uncopied; returns the rest if the page is full.

    It ends between two batches where that is cheaper. Those of `only`, a single fragment, may be pruned.
    Rows of slots that are not `within` are left out: few batches have some, unless tablets left the shard.
    """
    pruner, end, rows = page.pruner, rest.end, run.rows
    last: Callable[[], bytes] | None = None  # the key of the last row in the page, which is that of `rest`
    index, row = run.seek(rest)
    while index < rows.batch_count:
        if pruner and only:
            # Jump to the next batch that may match; `rest` stays. If the page ends before that batch,
            # inside one slot, the next page begins at `rest` and skips the same batches again.
            match = pruner.next_match(only, index, rows.batch_count)
            if match > index:
                index, row = match, 0
                continue
        batch, slots = rows.batch(index), rows.slots(index)
        if row == len(slots):  # nothing is left of what was laid over
            index, row = index + 1, 0
            continue
        limit = rows_below(slots, end)
        if limit <= row:
            return None
        for part in _parts_within(batch, slots, row, limit, within, page.room):
            of = part.slots
            key_at = partial(run.key_at, index, part.numbers)
            is_first = part.numbers[0] == 0
            if page.rows and (page.room <= 0 or (is_first and page.worth_returning)):
                return _rest_from(rest, int(of[0]), last)
            count = page.fitting(part.rows)
            if not page.rows and max(count, _HALVED_ROWS) < len(of) < 2 * count:
                count = -(-len(of) // 2)  # two pages, each a slice of one batch
            page.scanned += count
            if count < len(of):
                return cut_page(page, part.rows, of, count, rest, key_at, last)
            page.add(part.rows, part.rows.column(SLOT))
            rest, last = Piece(int(of[-1]), end), partial(key_at, len(of) - 1)
        if limit < len(slots):
            return None
        index, row = index + 1, 0
        if within is not None and (passed := int(within.searchsorted(slots[-1], "right"))) % 2 == 0:
            index, row = run.seek(Piece(int(within[passed]), end))  # many others may come before that
    return None


class _Slice(NamedTuple):
    """Some rows of a batch, their slots, and their numbers in it."""

    rows: pa.RecordBatch
    slots: NDArray[np.uint16]
    numbers: Sequence[int] | NDArray[np.int64]


def _parts_within(
    batch: pa.RecordBatch,
    slots: NDArray[np.uint16],
    row: int,
    limit: int,
    within: NDArray[np.uint16] | None,
    room: int,
) -> Iterator[_Slice]:
    """Yield the rows `[row, limit)` of a batch in the slots between pairs of edges; long spans uncopied."""
    of = slots[row:limit]
    spans = [(row, limit)]
    if within is not None:
        edges = [row, *(row + of.searchsorted(within[1:])).tolist(), limit]
        spans = _joined(zip(edges[::2], edges[1::2], strict=True))
        count = sum(end - start for start, end in spans)
        if len(spans) > 1 and count < _SPAN_ROWS * len(spans):
            # No more are copied than show that the page is full.
            chosen = np.concatenate([np.arange(*span) for span in spans])[: room + 1]
            yield _Slice(batch.take(pa.array(chosen)), slots[chosen], chosen)
            return
    for start, end in spans:
        yield _Slice(batch.slice(start, end - start), slots[start:end], range(start, end))


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ascending spans without empty ones; adjacent spans become one."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start < end:
            joined.append((start, end))
    return joined


def _rest_from(rest: Piece, slot: int, last: Callable[[], bytes] | None = None) -> Piece:
    """Return the rest when the next row is of `slot`: slots before that one hold no more rows."""
    if slot != rest.start:
        return Piece(slot, rest.end)
    return rest if last is None else rest._replace(key=last())


def cut_page(
    page: PageBuilder,
    part: pa.RecordBatch,
    slots: np.ndarray[Any, Any],
    count: int,
    rest: Piece,
    key_at: Callable[[int], bytes],
    last: Callable[[], bytes] | None = None,
) -> Piece:
    """Add the first `count` rows, or fewer where that ends the page between two slots.

    A page that ends inside a slot leaves a position in the continuation key; one that ends
    between two slots leaves none. `key_at` gives the key of a row of `part`, `last` that of the row
    before it, if `rest` does not have it.
    """
    slot = int(slots[count])
    begin = rows_below(slots, slot)
    if begin > 0 and 2 * (page.rows + begin) >= page.rows + count:
        page.add(part.slice(0, begin), part.column(SLOT).slice(0, begin))
        return Piece(slot, rest.end)
    page.add(part.slice(0, count), part.column(SLOT).slice(0, count))
    if count == 0:
        return _rest_from(rest, slot, last)
    return Piece(slot, rest.end, key_at(count - 1))


def keys_of(rows: pa.RecordBatch, primary_key: Sequence[str]) -> Callable[[int], bytes]:
    """Return a function that gives the key of a row."""
    return partial(encode_row, [rows.column(name) for name in primary_key])


def _read_merged(
    page: PageBuilder,
    inputs: Sequence[MergeInput],
    interval: SlotInterval,
    key: bytes | None,
    bounds: Bounds,
) -> Piece | None:
    """Rows of several fragments, or of one with several versions: the newest of each key."""
    rest = Piece(interval.start, interval.end, key)
    span = (interval.start, interval.end)
    for window in windows(inputs, span, key, bounds, lambda: page.room):
        versions = window.versions
        page.scanned += versions.scanned
        chosen = versions.newest
        if len(chosen):
            rows = versions.take(chosen)
            slots = versions.slots[chosen]
            count = page.fitting(rows)
            if count < len(chosen):
                part = with_slots(rows, slots)
                return cut_page(page, part, slots, count, rest, keys_of(part, versions.primary_key))
            page.add(rows, pa.array(slots))
        if window.slot >= interval.end:
            return None
        rest = Piece(window.slot, interval.end, window.key)
        if page.room <= 0 or page.worth_returning:
            return rest
    return None


def with_slots(rows: pa.RecordBatch, slots: np.ndarray[Any, Any]) -> pa.RecordBatch:
    return rows.append_column(SLOT, pa.array(slots))


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
            begun.append(Piece(at, at + 1, position[2:]))
        above = slots & SlotSet.span(at + 1, 1 << 16)
        whole.extend(Piece(start, end) for start, end in above)
    return sorted(begun, key=lambda piece: piece.start) + sorted(whole, key=lambda piece: piece.start)


def cursors_of(pieces: Iterable[Piece]) -> Cursors:
    """Return the inverse of `pieces_of`: a cursor for each half-read slot, and one for all untouched ones."""
    cursors: list[Cursor] = []
    untouched: list[tuple[int, int]] = []
    for piece in pieces:
        start = piece.start
        if piece.key is not None:
            position = start.to_bytes(2, "big") + piece.key
            cursors.append(Cursor(SlotSet.span(start, start + 1), position))
            start += 1
        if start < piece.end:
            untouched.append((start, piece.end))
    return (*cursors, Cursor(SlotSet.of(untouched))) if untouched else tuple(cursors)
