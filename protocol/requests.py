"""Requests and answers, and two narrow protocols: the places of slots, and rows at a shard."""

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
    """Read through a secondary index: which entries, and which way.

    Attributes:
        index: the index's id.
        ranges: the index keys to read, `[low, high)` each, disjoint and ascending.
        descending: from the highest key to the lowest.
    """

    index: int
    ranges: tuple[tuple[bytes, bytes], ...]
    descending: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class KeyList:
    """Read the rows with these primary keys alone, in the order of a direct scan.

    Attributes:
        slots: of the keys, ascending.
        keys: the columns of the primary key; in each slot ascending, each key once.
    """

    slots: NDArray[np.uint16]
    keys: pa.RecordBatch

    @classmethod
    def of(cls, slots: NDArray[np.uint16], keys: pa.RecordBatch) -> KeyList:
        """Keys in ascending order, each once, by their slots."""
        order = np.argsort(slots, kind="stable")
        return cls(slots[order], keys.take(pa.array(order)))

    @property
    def count(self) -> int:
        return len(self.slots)


KeyRange = tuple[bytes, bytes | None]  # [low, high) of encoded primary keys; None for no end


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Read the rows with some primary keys alone, in the order of a direct scan.

    Ranges are disjoint and ascending, of keys as `key_encoding` encodes them.

    Attributes:
        anywhere: the ranges to read in every slot.
        by_slot: the ranges to read in each slot, and nothing in other slots; None where `anywhere` says it.
    """

    anywhere: tuple[KeyRange, ...] = ()
    by_slot: Mapping[int, tuple[KeyRange, ...]] | None = None

    @property
    def count(self) -> int:
        """Count the ranges: of all slots together, or of each."""
        return len(self.anywhere) if self.by_slot is None else sum(map(len, self.by_slot.values()))

    def within(self, start: int, end: int) -> Iterator[tuple[int, tuple[KeyRange, ...]]]:
        """Return the slots of `[start, end)` that hold ranges, ascending, each with its ranges."""
        if self.by_slot is None:
            return ((slot, self.anywhere) for slot in range(start, end))
        slots = (slot for slot in sorted(self.by_slot) if start <= slot < end)
        return ((slot, self.by_slot[slot]) for slot in slots)


@dataclass(frozen=True, slots=True)
class ChangeSpan:
    """Read what commits changed instead of what a snapshot holds.

    Attributes:
        after, upto: commits in (after, upto]; `after` is not before the table's oldest snapshot.
        floor: as seen from `after`, everything before this commit had been overwritten; 0 if nothing was.
        overwrite: `upto` is the only commit, and it replaced the whole table: rows alive at `after` that
            it does not write are deleted by it. No other span holds such a commit.
        feed: all changes with their type (an insert, the row before and after an update, a delete with the
            row as it was), instead of the new rows of inserts and updates alone.
    """

    after: int
    upto: int
    floor: int
    overwrite: bool
    feed: bool


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One page from one shard: plain values, so that it can go over a wire.

    Attributes:
        table: the table's id.
        shard: the shard's id.
        cursors: which slots to read, each beyond its position; all are read in one pass.
        snapshot: a commit number; rows come as they were at it.
        columns: the columns wanted, in order.
        page_rows, page_bytes: the page ends at whichever limit is reached first, but holds at
            least one row if there is one. It never ends between two changes of one row.
        order: read through an index; None for a direct scan, ordered by (slot, primary key).
        changes: read changes, in the order of a direct scan; None for rows.
        keys: read only these primary keys, in the order of a direct scan; None for all.
        key_sets: a shard may leave out rows with a value outside of these sets, by column; a direct scan
            prunes with them what statistics rule out.
        definition: of the table's columns when the scan began; None for the newest.
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
    """The answer: rows in the order of the request, the slot of each, and the cursors that remain.

    A shard answers with what is readable at it *while it reads*: rows of a slot that left are
    silently absent. The scan finds that out by looking at the placement again. A shard of a store that others
    operate says so itself: `refused` are slots that it did not serve, or not wholly, when it read. They are
    in no cursor of `after`, and none of their rows are in the page.

    `after` are cursors over the slots asked for; slots in none of them have no more rows. `scanned` counts
    what was looked at: versions of rows in a direct scan (not those under others), or entries of an
    index; `skipped` about how many rows statistics ruled out.
    """

    rows: pa.RecordBatch
    slots: pa.Array  # uint16, one per row
    after: Cursors
    scanned: int = 0
    skipped: int = 0
    refused: SlotSet = field(default_factory=SlotSet)


@dataclass(frozen=True, slots=True, eq=False)
class RowRequest:
    """The rows with some primary keys from one shard: plain values, as `PageRequest`.

    Attributes:
        table, shard, snapshot: as in `PageRequest`.
        columns: the columns wanted, in order; none where it only matters which keys are there.
        slots: of the keys; ascending, so that neighbours are read together.
        keys: the columns of the primary key.
        layout: the catalog's layout, a number that grows when placement, tables or fragments change, at
            which the reader read the placement; None if it is not known. The shard answers from this one or
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
    """The answer: for each key the number of its row, -1 for none; and the rows.

    As in a page, rows of a slot that left are silently absent.
    """

    places: NDArray[np.int64]
    rows: pa.RecordBatch


class ShardReader(Protocol):
    """The shards of any back end, read page by page."""

    def read_page(self, request: PageRequest) -> PageRows: ...


class Shards(ShardReader, Protocol):
    """The shards of the embedded store, which also read rows by their keys."""

    def read_rows(self, request: RowRequest) -> RowAnswer: ...


class Placements(Protocol):
    """The present places of tablets."""

    def current(self) -> Placement:
        """Return the placement to validate a page by: it is read after the page's rows."""

    def recent(self, looked: Placement | None) -> Placement:
        """Return a placement that was read just now, if a page may be planned by it; else read it again.

        `looked` is the placement that validated the page before; for the first page, None, any recent one
        serves. It only chooses what is read: the page is validated by a placement read afterwards.
        """

    def layout_of(self, placement: Placement) -> int | None:
        """Return the catalog's layout at which a placement was read; None if it is not known."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """All that a scan asks: the catalog and the disks of one process, or nodes on a network."""

    placements: Placements
    shards: Shards
