"""Reading a page at a shard: the rows after the positions of its cursors, at a snapshot."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.key_encoding import encode_row
from elasticscan.metadata import Bounds, Fragment, TableInfo
from elasticscan.protocol import Cursor, Cursors, PageRequest, PageRows
from elasticscan.storage.fragment import SLOT, FragmentReader, rows_below
from elasticscan.storage.lookup import joined
from elasticscan.storage.merge import MergeInput, Piece, SeekKey, Versions, taken, windows
from elasticscan.storage.overlay import Overlay, sorted_batches_of
from elasticscan.storage.pruning import PagePruner, StatisticsOf
from elasticscan.storage.view import Layers, View
from elasticscan.topology import SlotSet

OpenFragment = Callable[[Fragment, tuple[str, ...]], FragmentReader]
KeyAt: TypeAlias = Callable[[int], bytes]  # the primary key of a row, by number

_HALVED_ROWS = 1 << 14  # a larger batch that exceeds a page makes two pages of equal size


def rows_within(batch: pa.RecordBatch, most_bytes: int) -> int:
    """Count the rows from the front of `batch` that take at most `most_bytes`."""
    return bisect_right(range(1, batch.num_rows + 1), most_bytes, key=lambda n: batch.slice(0, n).nbytes)


class PageBuilder:
    """A page that is being filled, up to `page_rows` or `page_bytes`; it always accepts at least one row."""

    def __init__(
        self, schema: pa.Schema, page_rows: int, page_bytes: int, pruner: PagePruner | None = None
    ) -> None:
        self.schema, self.page_rows, self.page_bytes = schema, page_rows, page_bytes
        self.pruner = pruner
        self.scanned = self.rows = self.bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._slots: list[pa.Array] = []
        self._last: tuple[int, Callable[[], bytes]] = -1, bytes  # the last row's slot and key

    @property
    def bytes_left(self) -> int:
        """The number of bytes that still fit."""
        return self.page_bytes - self.bytes

    @property
    def rows_left(self) -> int:
        """The number of rows that still fit; 0 if no bytes are left."""
        return 0 if self.bytes_left <= 0 else self.page_rows - self.rows

    @property
    def worth_returning(self) -> bool:
        """True if the page is so full that returning it costs less than copying more rows into it."""
        return 2 * self.rows >= self.page_rows or 2 * self.bytes >= self.page_bytes

    def fitting(self, batch: pa.RecordBatch) -> int:
        """Count the rows from the front of `batch` that still fit; at least one if the page is empty."""
        count: int = min(batch.num_rows, self.rows_left)
        if count > 0 and batch.slice(0, count).nbytes > self.bytes_left:
            count = rows_within(batch, self.bytes_left)
        return max(count, min(batch.num_rows, 1)) if self.rows == 0 else count

    def add(self, batch: pa.RecordBatch, slots: pa.Array, key_at: KeyAt | None = None) -> None:
        """Add rows; `key_at` returns the key of one, and is needed if `before` is called later."""
        if batch.num_rows:
            if key_at is not None:
                self._last = slots[-1].as_py(), partial(key_at, batch.num_rows - 1)
            chosen = [batch.column(name) for name in self.schema.names]
            self._batches.append(pa.RecordBatch.from_arrays(chosen, schema=self.schema))
            self._slots.append(slots)
            self.rows += batch.num_rows
            self.bytes += batch.nbytes

    def fill(
        self, rows: pa.RecordBatch, key_at: KeyAt, start: SeekKey, are_slice: bool = False
    ) -> SeekKey | None:
        """Add the rows from the front that fit, or somewhat fewer to end the page between two slots.

        A page that ends inside a slot adds a position to the continuation key; one that ends between two
        slots does not.

        Args:
            rows: sorted rows with a `_slot` column.
            key_at: returns the key of a row, by its number.
            start: the position from which these rows were read.
            are_slice: they are a slice of a batch. If it exceeds a page, two pages get half of it each.

        Returns:
            The position to resume at if not all rows were added, else None.
        """
        slots, count = rows.column(SLOT), self.fitting(rows)
        numbers = slots.to_numpy()
        if are_slice and not self.rows and max(count, _HALVED_ROWS) < len(numbers) < 2 * count:
            count = -(-len(numbers) // 2)
        if count < len(numbers):
            begin = rows_below(numbers, int(numbers[count]))
            if begin > 0 and 2 * (self.rows + begin) >= self.rows + count:
                count = begin
        if count == len(numbers):
            self.add(rows, slots, key_at)
            return None
        self.add(rows.slice(0, count), slots.slice(0, count), key_at)
        return self.before(int(numbers[count]), start)

    def before(self, slot: int, start: SeekKey) -> SeekKey:
        """Return the position to resume at, given the slot of the first row that was not added."""
        last, key = self._last
        if last == slot:
            return slot, key() + b"\0"
        return start if start[0] == slot else (slot, b"")

    def finish(self, left: Cursors) -> PageRows:
        """Return the page, with the cursors of the unread rest."""
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
        open: opens a fragment to read the given columns.
        floor: the newest overwrite at the requested snapshot; rows of earlier commits do not count.
        statistics: returns the statistics of a fragment, None if there are none.
        prefetch: fetches remote fragments that are opened next, in parallel.
    """

    table: TableInfo
    view: View
    open: OpenFragment
    floor: int = 0
    statistics: StatisticsOf = lambda _: None
    prefetch: Callable[[Sequence[Fragment]], None] = lambda _: None

    def inputs(
        self, fragments: Iterable[Fragment], columns: tuple[str, ...], slots: SlotSet
    ) -> list[MergeInput]:
        """Open the fragments that serve any of the slots, as inputs of a merge."""
        serving = [fragment for fragment in fragments if not fragment.slots.isdisjoint(slots)]
        self.prefetch(serving)
        return [MergeInput(fragment, self.open(fragment, columns)) for fragment in serving]

    def page(self, request: PageRequest, *fields: pa.Field, pruner: PagePruner | None = None) -> PageBuilder:
        """Return an empty page with the columns of a request, and further fields."""
        schema = pa.schema([*(self.table.schema.field(name) for name in request.columns), *fields])
        return PageBuilder(schema, request.page_rows, request.page_bytes, pruner)

    def bounds(self, snapshot: int) -> Bounds:
        """Return the commits whose rows count at a snapshot."""
        return Bounds(self.floor, snapshot, since=snapshot)


def read_page(source: PageSource, request: PageRequest) -> PageRows:
    """Return the rows of a request's cursors, in the order of their pieces, until the page is full.

    The front page of the folder describes the three ways in which rows are read. Batches that statistics rule
    out are skipped within the page, however many they are, so only the last page of a read can be empty.
    `scanned` counts versions of rows, but not the versions under an overlay.
    """
    pruner = PagePruner(source.statistics, request.key_sets) if request.key_sets else None
    page, bounds = source.page(request, pruner=pruner), source.bounds(request.snapshot)

    def read(piece: Piece) -> SeekKey | None:
        for slots, layers in source.view.within(bounds).parts:
            if not slots.isdisjoint(piece.slots):
                part = slots if slots <= piece.slots else slots & piece.slots
                stop = _read_part(source, page, layers, Piece(part, piece.low), bounds)
                if stop is not None:
                    return stop
        return None

    return read_pieces(page, request.cursors, read)


def read_pieces(page: PageBuilder, cursors: Cursors, read: Callable[[Piece], SeekKey | None]) -> PageRows:
    """Fill a page from the pieces of a direct scan's cursors, in their order.

    `read` adds the rows of a piece. It returns the position to resume at if the page is full, else None.
    """
    pieces = pieces_of(cursors)
    for number, piece in enumerate(pieces):
        stop = read(piece)
        if stop is not None:
            return page.finish(cursors_of([piece.rest(stop), *pieces[number + 1 :]]))
    return page.finish(())


def _read_part(
    source: PageSource, page: PageBuilder, layers: Layers, piece: Piece, bounds: Bounds
) -> SeekKey | None:
    """Add the rows of slots that have the same layers; return the position to resume at, or None."""
    pruner, fragments = page.pruner, layers.fragments
    matching = pruner.matching(fragments, piece.slots) if pruner else fragments
    if not matching:
        return None
    if page.rows_left <= 0:
        return piece.start
    names, primary_key = tuple(page.schema.names), source.table.primary_key
    source.prefetch(fragments)
    batches = sorted_batches_of(layers, source.open, names, bounds)
    if batches is None or layers.base is None:
        return _read_merged(source, page, fragments, piece, bounds)
    base, others_may_match = layers.base, any(fragment is not layers.base for fragment in matching)

    def keyed() -> FragmentReader | Overlay:
        """Return the same batches with the key columns, which only pages that end inside a slot need."""
        has_keys = layers.others and set(primary_key) <= set(names)
        keys = batches if has_keys else sorted_batches_of(layers, source.open, primary_key, bounds)
        assert keys is not None, "it depends only on the files, not on the columns, if there is an overlay"
        return keys

    def skips(batch: int) -> bool:
        """Return whether no row of a batch, nor of the rows laid over it, can match."""
        is_laid_over = others_may_match and isinstance(batches, Overlay) and batches.touches(batch)
        return pruner is not None and not is_laid_over and pruner.prunes(base, batch)

    return _read_slices(page, batches, keyed, primary_key, piece, skips)


def _read_slices(
    page: PageBuilder,
    batches: FragmentReader | Overlay,
    keyed: Callable[[], FragmentReader | Overlay],
    primary_key: Sequence[str],
    piece: Piece,
    skips: Callable[[int], bool],
) -> SeekKey | None:
    """Add slices of sorted batches, without a copy; return the position to resume at, or None.

    The page ends between two batches if that is cheaper. Rows of other slots are left out; only batches of
    fragments that tablets have left contain many of them.
    """

    def key_of(batch: int, numbers: Sequence[int] | NDArray[np.int64], at: int) -> bytes:
        return keys_of(keyed().batch(batch), primary_key)(int(numbers[at]))

    edges = piece.slots.edges
    index, row = (keyed() if piece.low else batches).seek(*piece.start)
    while index < batches.batch_count:
        if skips(index):  # if the page ends before the next batch, the next page skips this one again
            index, row = index + 1, 0
            continue
        batch = batches.batch(index)
        slots = batch.column(SLOT).to_numpy(zero_copy_only=True)
        numbers = _rows_within(slots, row, edges, page.rows_left)
        if len(numbers):
            first = int(slots[numbers[0]])
            if page.rows and numbers[0] == 0 and page.worth_returning:
                return page.before(first, piece.start)
            is_slice, before = isinstance(numbers, range), page.rows
            rows = batch.slice(numbers[0], len(numbers)) if is_slice else batch.take(pa.array(numbers))
            stop = page.fill(rows, partial(key_of, index, numbers), piece.start, are_slice=True)
            page.scanned += page.rows - before
            if stop is not None:
                return stop
        passed = int(edges.searchsorted(int(slots[-1]), "right")) if len(slots) else 1
        if passed == len(edges):
            return None
        beyond = batches.seek(int(edges[passed]), b"") if passed % 2 == 0 else (0, 0)  # even: before a start
        index, row = max((index + 1, 0), beyond)
    return None


def _rows_within(
    slots: NDArray[np.uint16], row: int, edges: NDArray[np.int64], room: int
) -> range | NDArray[np.int64]:
    """Return the numbers of the rows, from `row` on, whose slots are in the ranges of `edges`.

    Returns a range if the rows are consecutive. Otherwise at most `room + 1` rows: one more than fits shows
    that the page is full.
    """
    cuts = [*slots.searchsorted(edges[:-1].astype(np.uint16)).tolist(), rows_below(slots, int(edges[-1]))]
    if row:
        cuts = [max(cut, row) for cut in cuts]
    begins, ends = cuts[::2], cuts[1::2]
    if sum(ends) - sum(begins) == cuts[-1] - cuts[0]:
        return range(cuts[0], cuts[-1])
    numbers = [np.arange(*span) for span in zip(begins, ends, strict=True)]
    return np.concatenate(numbers)[: max(room, 0) + 1]


def keys_of(rows: pa.RecordBatch, primary_key: Sequence[str]) -> Callable[[int], bytes]:
    """Return a function that returns the key of a row, by its number."""
    return partial(encode_row, [rows.column(name) for name in primary_key])


def _read_merged(
    source: PageSource, page: PageBuilder, fragments: Sequence[Fragment], piece: Piece, bounds: Bounds
) -> SeekKey | None:
    """Add the newest rows of fragments that need a merge."""
    needed = tuple(dict.fromkeys((*page.schema.names, *source.table.primary_key)))
    inputs = source.inputs(fragments, needed, piece.slots)
    walked = windows(inputs, piece, bounds, lambda: page.rows_left)
    return fill_from(page, walked, piece.start, partial(add_newest, page))


def fill_from(
    page: PageBuilder,
    walked: Iterable[tuple[Versions, SeekKey | None]],
    start: SeekKey,
    add: Callable[[Versions, SeekKey], SeekKey | None],
) -> SeekKey | None:
    """Add windows with `add` until the page is full; return the position to resume at, or None at the end."""
    for versions, after in walked:
        page.scanned += versions.scanned
        stop = add(versions, start)
        if stop is not None or after is None:
            return stop
        if page.rows_left <= 0 or page.worth_returning:
            return after
        start = after
    return None


def add_newest(page: PageBuilder, versions: Versions, start: SeekKey) -> SeekKey | None:
    """Add the newest version of each key; return the position to resume at if not all fit."""
    chosen = versions.order[versions.first]
    chosen = chosen[versions.alive[chosen]]
    if not len(chosen):
        return None
    rows = taken(versions.rows, chosen).append_column(SLOT, pa.array(versions.slots[chosen]))
    return page.fill(rows, keys_of(rows, versions.primary_key), start)


def pieces_of(cursors: Cursors) -> list[Piece]:
    """Return the cursors of a direct scan as pieces: partly read slots first, then all unread ones together.

    The order key of a direct scan is (slot, primary key), with the slot in the first two bytes. Slots
    below the slot of the position are finished; this slot is partly read; the slots above are unread.
    """
    begun, whole = list[Piece](), SlotSet()
    for cursor in cursors:
        slots, position = cursor.slots, cursor.position
        if position is not None:
            at = int.from_bytes(position[:2], "big")
            if at in slots:
                # The position plus a zero byte is the lowest key above it.
                begun.append(Piece(SlotSet.span(at, at + 1), position[2:] + b"\0"))
            slots = Piece(slots).rest((at + 1, b"")).slots
        whole |= slots
    begun.sort(key=lambda piece: piece.start)
    return [*begun, Piece(whole)] if whole else begun


def cursors_of(pieces: Iterable[Piece]) -> Cursors:
    """Return a cursor for each partly read slot, and one for all unread ones: the inverse of `pieces_of`."""
    cursors, unread = list[Cursor](), SlotSet()
    for piece in pieces:
        unread |= piece.slots
        if piece.low:
            at = piece.start[0]
            begun = SlotSet.span(at, at + 1)
            cursors.append(Cursor(begun, at.to_bytes(2, "big") + piece.low[:-1]))
            unread -= begun
    return (*cursors, Cursor(unread)) if unread else tuple(cursors)
