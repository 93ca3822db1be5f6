"""Requests and answers, and two narrow protocols: `Placements` locates slots, `Shards` reads rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.filters import KeySets
from elasticscan.protocol.cursors import Cursors
from elasticscan.topology import Placement, SlotSet


@dataclass(frozen=True, slots=True)
class IndexOrder:
    """Read through a secondary index: the entries to read, and the direction.

    Attributes:
        ranges: the ranges of index keys to read, `[low, high)`, disjoint and ascending.
        descending: read from the highest key to the lowest.
    """

    index: int
    ranges: tuple[tuple[bytes, bytes], ...]
    descending: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class KeyList:
    """Read only the rows with these primary keys, in the order of a direct scan.

    Attributes:
        slots: the slot of each key, ascending.
        keys: the columns of the primary key; ascending within each slot, without duplicates.
    """

    slots: NDArray[np.uint16]
    keys: pa.RecordBatch

    @classmethod
    def of(cls, slots: NDArray[np.uint16], keys: pa.RecordBatch) -> KeyList:
        """Sort keys by slot; they come in ascending order, without duplicates."""
        order = np.argsort(slots, kind="stable")
        return cls(slots[order], keys.take(pa.array(order)))

    @property
    def count(self) -> int:
        return len(self.slots)


KeyRange = tuple[bytes, bytes | None]  # [low, high) of encoded primary keys; None for no end


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Read only the rows with primary keys in these ranges, in the order of a direct scan.

    Ranges are disjoint and ascending; their bounds are keys that `key_encoding` encoded.

    Attributes:
        anywhere: the ranges to read in every slot; ignored if `by_slot` is given.
        by_slot: the ranges to read in each slot; a slot that is missing is not read.
    """

    anywhere: tuple[KeyRange, ...] = ()
    by_slot: Mapping[int, tuple[KeyRange, ...]] | None = None

    @property
    def count(self) -> int:
        """The number of ranges: in every slot, or in all slots of `by_slot` together."""
        return len(self.anywhere) if self.by_slot is None else sum(map(len, self.by_slot.values()))

    def within(self, start: int, end: int) -> Iterator[tuple[int, tuple[KeyRange, ...]]]:
        """Return the slots of `[start, end)` that have ranges, ascending, each with its ranges."""
        if self.by_slot is None:
            return ((slot, self.anywhere) for slot in range(start, end))
        slots = (slot for slot in sorted(self.by_slot) if start <= slot < end)
        return ((slot, self.by_slot[slot]) for slot in slots)


@dataclass(frozen=True, slots=True)
class ChangeSpan:
    """Read the changes that commits made, instead of the rows of a snapshot.

    Attributes:
        after, upto: the commits in (after, upto]; `after` is not before the table's oldest snapshot.
        floor: the newest overwrite at or before `after`: rows of earlier commits do not count. 0 for none.
        overwrite: `upto` is the only commit in the span and overwrote the whole table: rows alive at `after`
            that it does not write are deleted. No other span contains an overwrite.
        feed: return all changes with their type (an insert, the row before and after an update, a deleted
            row), instead of only the new rows of inserts and updates.
    """

    after: int
    upto: int
    floor: int
    overwrite: bool
    feed: bool


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for one page from one shard: plain values that could be sent over a network.

    Attributes:
        cursors: the slots to read in one pass, each from after its position.
        snapshot: the commit number of the snapshot to read.
        columns: the columns to return, in order.
        page_rows, page_bytes: the page ends at the limit that is reached first, but contains at
            least one row if there is one. It never ends between two changes of one row.
        order: read through an index; None for a direct scan, ordered by (slot, primary key).
        changes: read changes, in the order of a direct scan; None for rows.
        keys: read only these primary keys, in the order of a direct scan; None for all.
        key_sets: the values, by column, that the filter allows. A shard may leave out rows with other
            values; a direct scan prunes by statistics with them.
        definition: the number of the table's definition when the scan began; None for the newest.
        layout: as in `RowRequest`.
    """

    table: int
    shard: int
    cursors: Cursors
    snapshot: int
    columns: tuple[str, ...]
    page_rows: int
    page_bytes: int
    order: IndexOrder | None = None
    changes: ChangeSpan | None = None
    key_sets: KeySets = field(default_factory=dict)
    keys: KeyList | KeyRanges | None = None
    definition: int | None = None
    layout: int | None = None


@dataclass(frozen=True, slots=True)
class PageRows:
    """The answer to a `PageRequest`: rows in the order of the request, their slots, and the cursors left.

    A shard of the embedded store returns the rows that are readable *while it reads*. If a slot has left, its
    rows are missing without notice; the scan detects that when it reads the placement again. A shard of a
    Redis or Valkey cluster reports it: `refused` are the slots that it did not serve, or served only in
    part, when it read. They are in no cursor of `after`, and the page has none of their rows.

    `after` are cursors over the requested slots; a slot in no cursor has no more rows. `scanned` counts the
    versions of rows that a direct scan read (without those under an overlay), or index entries. `skipped` is
    an estimate of the rows that statistics ruled out.
    """

    rows: pa.RecordBatch
    slots: pa.Array  # uint16, one per row
    after: Cursors
    scanned: int = 0
    skipped: int = 0
    refused: SlotSet = field(default_factory=SlotSet)


@dataclass(frozen=True, slots=True, eq=False)
class RowRequest:
    """A request for the rows with given primary keys from one shard.

    Attributes:
        table, shard, snapshot: as in `PageRequest`.
        columns: the columns to return, in order; empty if only the existence of the keys matters.
        slots: the slot of each key; ascending, so that neighbours are read together.
        keys: the columns of the primary key.
        layout: the catalog's layout when the reader read the placement; None if unknown. The layout is a
            number that grows when placement, tables or fragments change. The shard reads at this layout or
            a later one.
        definition: as in `PageRequest`.
    """

    table: int
    shard: int
    snapshot: int
    columns: tuple[str, ...]
    slots: NDArray[np.uint16]
    keys: pa.RecordBatch
    layout: int | None = None
    definition: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RowAnswer:
    """The answer to a `RowRequest`: for each key the number of its row, or -1; and the rows.

    As in `PageRows`, rows of a slot that has left are missing without notice.
    """

    places: NDArray[np.int64]
    rows: pa.RecordBatch


class ShardReader(Protocol):
    """The shards of a back end, read page by page."""

    def read_page(self, request: PageRequest) -> PageRows: ...


class Shards(ShardReader, Protocol):
    """The shards of the embedded store, which also read rows by their keys."""

    def read_rows(self, request: RowRequest) -> RowAnswer: ...


class Placements(Protocol):
    """The current placement of tablets."""

    def current(self) -> Placement:
        """Read the placement. A scan calls this after it has read a page, to validate the page."""

    def recent(self, looked: Placement | None) -> Placement:
        """Return a placement to plan the next page by: the last one if it is recent, else read it again.

        `looked` is the placement that validated the previous page, None for the first page. An older plan
        is safe, because a placement that is read after the page validates the page.
        """

    def layout_of(self, placement: Placement) -> int | None:
        """Return the catalog's layout when a placement was read; None if unknown."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The two protocols that a scan calls, implemented by an open store, or by a network client."""

    placements: Placements
    shards: Shards
