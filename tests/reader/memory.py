"""A cluster in memory: an implementation of the scan protocol for tests.

It keeps only the promises on which the cursor rule depends: the order key is the same at every
shard, a move copies every version of every row, and a slot's epoch grows in the same step in
which its rows stop being readable at the source. It has no clock, no threads and no randomness;
a simulation sets `during` to change the cluster in the middle of a page.

Rows are (key, value) pairs of integers; a row's slot is its key modulo the number of slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from elasticscan.base.errors import Busy
from elasticscan.base.key_encoding import VALUES, inverted
from elasticscan.protocol import (
    Cursor,
    Cursors,
    PageRequest,
    PageRows,
    RowAnswer,
    RowRequest,
    merge,
    restrict,
    slots_of,
)
from elasticscan.topology import Placement, SlotSet, Tablet, join_tablets, split_tablet
from tests.topology.moved import move_tablet

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
ROW_BYTES = 16

# The versions of each key of a slot, oldest first, as (commit, value); None stands for deleted.
Versions = dict[int, list[tuple[int, int | None]]]


@dataclass(frozen=True, slots=True)
class Order:
    """The order of pages. `slot_by_slot`: a page ends in one slot, and reads no later one."""

    key: Callable[[int, int, int], bytes]
    slot_by_slot: bool


def _ordered(number: int) -> bytes:
    """The value key of an int64."""
    return VALUES + (number + (1 << 63)).to_bytes(8, "big")


def _index_key(slot: int, key: int, value: int) -> bytes:
    return _ordered(value) + _ordered(key)


DIRECT = Order(lambda slot, key, value: slot.to_bytes(2, "big") + _ordered(key), slot_by_slot=True)
INDEX = Order(_index_key, slot_by_slot=False)
DESCENDING = Order(lambda *row: inverted(_index_key(*row)), slot_by_slot=False)


@dataclass(slots=True)
class _Move:
    """A move in progress: the rows that the target has so far, and their newest commit."""

    tablet: Tablet
    target: int
    copied: dict[int, Versions]
    copied_to: int


class _Found(NamedTuple):
    """A row that a page may return; sorts in the order of the page."""

    untouched: bool
    order: bytes
    slot: int
    key: int
    value: int


class MemoryCluster:
    """Implements `Shards` and `Placements`.

    Args:
        placement: the placement at the start.
        order: `DIRECT`, `INDEX` or `DESCENDING`.
        during: called before a page reads each of its slots, and once more at the end. It may
            change anything; the page has the rows that the shard had at each of these moments.

    Attributes:
        remembers: returns whether the last placement is recent enough to plan a page.
        refuses: returns whether the shard refuses a requested slot.
    """

    def __init__(
        self,
        placement: Placement,
        order: Order = DIRECT,
        during: Callable[[], None] = lambda: None,
    ) -> None:
        self.during = during
        self.remembers: Callable[[], bool] = lambda: False
        self.refuses: Callable[[], bool] = lambda: False
        self.last_commit = 0
        self._placement = self._looked = placement
        self._order = order
        self._slots = placement.slot_count  # never changes, whatever moves or splits
        self._stored: dict[tuple[int, int], Versions] = {}  # by (shard, slot)
        self._moves: dict[int, _Move] = {}
        self._next_tablet = max(t.id for t in placement.tablets) + 1

    # The requests of a scan

    def layout_of(self, _: Placement) -> None:
        return None  # fragments have no numbers here

    def current(self) -> Placement:
        self._looked = self._placement
        return self._placement

    def recent(self, looked: Placement | None) -> Placement:
        """See `Placements.recent`: a first page may be planned with a placement that another scan read."""
        return looked or self._looked if self.remembers() else self.current()

    def read_page(self, request: PageRequest) -> PageRows:
        found: list[_Found] = []
        refused = SlotSet.of((slot, slot + 1) for slot in _each(slots_of(request.cursors)) if self.refuses())
        cursors = restrict(request.cursors, slots_of(request.cursors) - refused)
        for cursor in cursors:
            for slot in _each(cursor.slots):
                self.during()
                found += self._beyond(cursor, slot, request)
        self.during()
        found.sort()
        room = max(1, min(request.page_rows, request.page_bytes // ROW_BYTES))
        taken, left = found[:room], found[room:]
        rows = pa.RecordBatch.from_pydict(
            {"key": [row.key for row in taken], "value": [row.value for row in taken]}, schema=SCHEMA
        )
        slots = pa.array([row.slot for row in taken], pa.uint16())
        after = self._after(cursors, taken, left)
        return PageRows(rows.select(list(request.columns)), slots, after, refused=refused)

    def read_rows(self, request: RowRequest) -> RowAnswer:
        """Read rows by key; `during` is called before each key, and once more at the end."""
        places, rows = [], []
        for slot, key in zip(request.slots.tolist(), request.keys.column("key").to_pylist(), strict=True):
            self.during()
            versions = self._stored.get((request.shard, slot), {}).get(key, [])
            value = _value_at(versions, request.snapshot)
            places.append(-1 if value is None else len(rows))
            rows += [] if value is None else [{"key": key, "value": value}]
        self.during()
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        return RowAnswer(np.array(places, dtype=np.int64), batch.select(list(request.columns)))

    def _beyond(self, cursor: Cursor, slot: int, request: PageRequest) -> Iterator[_Found]:
        """The shard's current rows of a slot after the cursor's position."""
        untouched = self._order.slot_by_slot and cursor.position is None
        for key, versions in self._stored.get((request.shard, slot), {}).items():
            value = _value_at(versions, request.snapshot)
            if value is not None:
                order = self._order.key(slot, key, value)
                if _is_beyond(order, cursor.position):
                    yield _Found(untouched, order, slot, key, value)

    def _after(self, cursors: Cursors, taken: list[_Found], left: list[_Found]) -> Cursors:
        if not left:
            return ()
        end = taken[-1]
        # In slot order, the page's end decides which slots are finished, partly read and unread. In
        # an index any slot may have more rows until the shard has no more rows at all.
        if self._order.slot_by_slot:
            unfinished = SlotSet.of((row.slot, row.slot + 1) for row in left)
            here = SlotSet.span(end.slot, end.slot + 1)
        else:
            unfinished = here = slots_of(cursors)
        after = []
        for cursor in cursors:
            further = end.order if cursor.position is None else max(end.order, cursor.position)
            after.append(Cursor(cursor.slots & unfinished & here, further))
            after.append(Cursor((cursor.slots & unfinished) - here, cursor.position))
        return merge(after)

    # Changes of the cluster

    def write(self, rows: Mapping[int, int | None]) -> int:
        """Commit values by key, None to delete; return the commit's number."""
        self.last_commit += 1
        for key, value in rows.items():
            slot = key % self._slots
            stored = self._stored.setdefault((self._placement.tablet_of(slot).shard, slot), {})
            stored.setdefault(key, []).append((self.last_commit, value))
        return self.last_commit

    @property
    def moving(self) -> tuple[int, ...]:
        """The tablets with a move in progress."""
        return tuple(self._moves)

    def begin_move(self, tablet_id: int, target: int) -> None:
        """Copy the current rows of a tablet. The source still serves it, and gets later writes."""
        tablet = self._at_rest(tablet_id)
        copied = {slot: self._copy(tablet.shard, slot) for slot in _each(tablet.slots)}
        self._moves[tablet_id] = _Move(tablet, target, copied, self.last_commit)

    def commit_move(self, tablet_id: int) -> None:
        """Copy the later rows and let the target serve, in one step."""
        move = self._moves.pop(tablet_id)
        self._catch_up(move)
        self._switch(move)
        self._strike(move)

    def fail_move(self, tablet_id: int) -> None:
        """Cancel a move; the source has served all the time."""
        del self._moves[tablet_id]

    def move(self, tablet_id: int, target: int) -> None:
        self.begin_move(tablet_id, target)
        self.commit_move(tablet_id)

    def split(self, tablet_id: int) -> None:
        ids = (self._next_tablet, self._next_tablet + 1)
        self._placement = self._placement.replaced(*split_tablet(self._at_rest(tablet_id), None, ids))
        self._next_tablet += 2

    def join(self, left: int, right: int) -> None:
        change = join_tablets(self._at_rest(left), self._at_rest(right), self._next_tablet)
        self._placement = self._placement.replaced(*change)
        self._next_tablet += 1

    def _at_rest(self, tablet_id: int) -> Tablet:
        tablet = self._placement.tablet(tablet_id)
        assert tablet is not None, f"no tablet {tablet_id}"
        if tablet_id in self._moves:
            raise Busy(f"tablet {tablet_id} is being moved", tablet=tablet_id, kind="tablet")
        return tablet

    def _copy(self, shard: int, slot: int, after: int = 0) -> Versions:
        """Every version of commits after `after`, including deletions."""
        stored = self._stored.get((shard, slot), {})
        wanted = {key: [v for v in versions if v[0] > after] for key, versions in stored.items()}
        return {key: versions for key, versions in wanted.items() if versions}

    def _catch_up(self, move: _Move) -> None:
        for slot, versions in move.copied.items():
            for key, newer in self._copy(move.tablet.shard, slot, move.copied_to).items():
                versions.setdefault(key, []).extend(newer)

    def _switch(self, move: _Move) -> None:
        self._placement = move_tablet(self._placement, move.tablet.id, move.target)
        for slot, versions in move.copied.items():
            self._stored[move.target, slot] = versions

    def _strike(self, move: _Move) -> None:
        for slot in move.copied:
            self._stored.pop((move.tablet.shard, slot), None)


def _each(slots: SlotSet) -> Iterator[int]:
    for start, end in slots:
        yield from range(start, end)


def _value_at(versions: list[tuple[int, int | None]], snapshot: int) -> int | None:
    value = None
    for commit, newer in versions:
        if commit <= snapshot:
            value = newer
    return value


def _is_beyond(order: bytes, position: bytes | None) -> bool:
    return position is None or order > position
