"""Reading changes at a shard: what commits of a range did to the rows of some slots.

A fragment keeps every version of a row that a reader may still want, so changes need no log of
their own. Of each key the versions in the range are brought together, oldest first; what each one
replaced is the version before it, in the range or found by a point lookup before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.concurrency import cached_property
from elasticscan.base.key_encoding import encode_row
from elasticscan.base.limits import BATCH_ROWS
from elasticscan.metadata import CHANGE_TYPE, COMMIT_VERSION, Bounds, SlotInterval
from elasticscan.protocol import ChangeSpan, PageRequest, PageRows
from elasticscan.storage.merge import Piece, Versions, taken
from elasticscan.storage.pages import PageSource, read_by_interval, rows_within
from elasticscan.storage.point_reads import rows_of_keys

INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"
_KINDS = (INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE)
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE = range(4)
_LEAST_ROWS = 1024  # so many versions are merged together, however few rows a page may hold

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Histories:
    """All versions in some bounds of some keys, sorted by (slot, primary key), the oldest first.

    Attributes:
        versions: rows in another order.
        places: for each version which of these it is.
        first, last: whether it is the oldest of its key, and the newest.
    """

    versions: Versions
    places: Numbers
    slots: NDArray[np.uint16]
    commits: Numbers
    alive: Mask
    first: Mask
    last: Mask

    @classmethod
    def of(cls, versions: Versions) -> Histories:
        """Turn the versions of each key round: merged rows have the newest first."""
        first = versions.first
        starts = np.append(np.flatnonzero(first), len(first))
        turned = np.repeat(starts[:-1] + starts[1:] - 1, np.diff(starts)) - np.arange(len(first))
        places, last = versions.order[: versions.usable][turned], np.append(first[1:], [True])[: len(first)]
        slots, commits, alive = versions.slots[places], versions.commits[places], versions.alive[places]
        return cls(versions, places, slots, commits, alive, first, last)

    @cached_property
    def keys(self) -> pa.RecordBatch:
        """Return the columns of the primary key of the rows."""
        return self.versions.rows.select(self.versions.primary_key)


@dataclass(frozen=True, slots=True)
class Events:
    """The rows of a change feed, in order.

    Attributes:
        versions: for each one a version of its key, by its number in the histories.
        values: the row with its values: among those of the histories, then `before`.
        commits: what did it.
        kinds: what it was, as an index of `_KINDS`; None when not requested.
        before: rows as they were before the range, with the columns of the page.
    """

    versions: Numbers
    values: Numbers
    commits: Numbers
    kinds: NDArray[np.int8] | None
    before: pa.RecordBatch | None = None


def _emit(versions: Numbers, commits: Numbers, new: tuple[Any, Mask], old: tuple[Any, Mask]) -> Events:
    """Return the events of changes, in order, each of the row after a change and the row before it.

    A row is given by its place, and whether it is alive; else its place has no meaning.

    before   after    events
    no row   row      insert
    row      row      update preimage, update postimage
    row      no row   delete
    no row   no row   none: a tombstone for a key that was not there
    """
    (after, is_alive), (before, was_alive) = new, old
    counts = is_alive.astype(np.int64) + was_alive
    which = np.repeat(np.arange(len(counts)), counts)
    updated = counts[which] == 2
    second = np.zeros(len(which), dtype=bool)
    second[1:] = which[1:] == which[:-1]
    is_new = np.where(updated, second, is_alive[which])
    of_one, of_two = np.where(is_new, _INSERT, _DELETE), np.where(is_new, _POSTIMAGE, _PREIMAGE)
    kinds = np.where(updated, of_two, of_one).astype(np.int8)
    return Events(versions[which], np.where(is_new, after[which], before[which]), commits[which], kinds)


def read_changes(source: PageSource, request: PageRequest) -> PageRows:
    """Yield changes that a request's span made to the slots of its cursors, by slot, key and commit.

    Returns:
        A page of the request's columns, with a feed the kind of change, and the number of the commit. A page
        without rows is the last one.

    Raises:
        FragmentDamaged: a fragment cannot be read.
    """
    assert request.changes is not None, "a request for changes says of which commits"
    page = _ChangePage(source, request, request.changes)
    bounds = page.both if request.changes.feed else page.within
    return read_by_interval(source, page.filling, request.cursors, bounds, page.read)


class _ChangePage:
    """One page while it is read."""

    def __init__(self, source: PageSource, request: PageRequest, span: ChangeSpan) -> None:
        self.source, self.span, self.columns = source, span, request.columns
        self.needed = tuple(dict.fromkeys((*request.columns, *source.table.primary_key)))
        kind = pa.field(CHANGE_TYPE, pa.string(), nullable=False)
        commit = pa.field(COMMIT_VERSION, pa.int64(), nullable=False)
        self.filling = source.page(request, *([kind] if span.feed else []), commit)
        self.within = Bounds(span.after + 1, span.upto, since=span.after)
        self.both = Bounds(span.floor, span.upto, since=span.after)
        self.before = Bounds(span.floor, span.after, since=span.after)

    def read(self, interval: SlotInterval, rest: Piece) -> Piece | None:
        """Add the rows of an interval that fit; returns the rest of the interval if the page is full."""
        fragments = [fragment for fragment in interval.fragments if self.within.touch(fragment)]
        bounds = self.within
        if self.span.feed and self.span.overwrite:
            fragments, bounds = list(interval.fragments), self.both
        if not fragments:
            return None
        page = self.filling
        if page.room <= 0:
            return rest
        size = sum(fragment.bytes for fragment in fragments)
        row_bytes = max(1, size // max(1, sum(fragment.rows for fragment in fragments)))
        is_mixed = not all(map(bounds.wholly_hold, fragments))  # perhaps few of the rows count

        def window_rows() -> int:
            fitting = max(min(page.room, page.space // row_bytes + 16), _LEAST_ROWS)
            return BATCH_ROWS if is_mixed else min(fitting, BATCH_ROWS)

        for versions, after in self.source.windows(fragments, self.needed, rest, bounds, window_rows):
            page.scanned += versions.scanned
            histories = Histories.of(versions)
            left = self._fill(histories, self._events(interval, histories), rest)
            if left is not None:
                return left
            rest = after
            if rest.start < rest.end and (page.room <= 0 or page.worth_returning):
                return rest
        return None

    def _events(self, interval: SlotInterval, histories: Histories) -> Events:
        places, commits, alive = histories.places, histories.commits, histories.alive
        if not self.span.feed:  # the rows that inserts and updates wrote
            chosen = np.flatnonzero(alive)
            return Events(chosen, places[chosen], commits[chosen], None)
        if self.span.overwrite:  # each key's last version was written by it, or removed by it
            last = np.flatnonzero(histories.last)
            written = commits[last] == self.span.upto
            before = np.maximum(np.where(written, last - 1, last), 0)
            old = places[before], ~(written & histories.first[last]) & alive[before]
            new = places[last], written & alive[last]
            return _emit(last, np.full(len(last), self.span.upto, np.int64), new, old)
        # Each version is compared with the one before it; that of a key's first is looked up.
        first = np.flatnonzero(histories.first)
        keys = histories.keys.take(pa.array(places[first])).columns
        found = rows_of_keys(
            self.source, interval.fragments, histories.slots[first], keys, self.columns, self.before
        )
        of_before, was_alive = np.roll(places, 1), np.roll(alive, 1)
        of_before[first], was_alive[first] = (
            histories.versions.rows.num_rows + found.places,
            found.places >= 0,
        )
        events = _emit(np.arange(len(places)), commits, (places, alive), (of_before, was_alive))
        return replace(events, before=found.rows)

    def _fill(self, histories: Histories, events: Events, rest: Piece) -> Piece | None:
        """Add the keys that fit, at the front of `rest`; returns the rest after them if some do not fit."""
        if not len(events.values):
            return None
        page = self.filling
        keys = np.cumsum(histories.first)[events.versions]
        ends: Numbers = np.r_[0, np.flatnonzero(np.diff(keys)) + 1, len(keys)]  # of each key's events
        least = 0 if page.rows else 1
        count = int(ends[max(int(ends.searchsorted(page.room, "right")) - 1, least)])
        rows = self._rows(histories, events, count)
        if rows.nbytes > page.space:
            fitting = int(ends.searchsorted(rows_within(rows, page.space), "right")) - 1
            count = int(ends[max(fitting, least)])
        if count:
            page.add(rows.slice(0, count), pa.array(histories.slots[events.versions[:count]]))
        if count == len(keys):
            return None
        if count:
            last = int(events.versions[count - 1])
            rest = Piece(int(histories.slots[last]), rest.end, histories.key_at(last) + b"\0")
        slot = int(histories.slots[events.versions[count]])
        return rest if slot == rest.start else Piece(slot, rest.end)

    def _rows(self, histories: Histories, events: Events, count: int) -> pa.RecordBatch:
        """Return the first `count` events as rows."""
        rows, before, values = histories.versions.rows, events.before, events.values[:count]
        columns: list[pa.Array] = []
        if before is not None and before.num_rows:
            ours = [rows.column(name) for name in self.columns]
            both = map(pa.concat_arrays, zip(ours, before.columns, strict=True))
            columns = [column.take(pa.array(values)) for column in both]
        elif self.columns:  # a batch without columns has no rows
            columns = taken(rows.select(list(self.columns)), values).columns
        if events.kinds is not None:
            columns.append(pa.array(_KINDS).take(pa.array(events.kinds[:count])))
        columns.append(pa.array(events.commits[:count]))
        return pa.RecordBatch.from_arrays(columns, schema=self.filling.schema)
