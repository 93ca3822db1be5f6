"""Reading changes at a shard: the changes that a range of commits made to rows.

Fragments keep every version of a row that a reader may still need, so changes need no log of their own. The
versions of each key in the range are sorted, oldest first. Each version replaced the version before it, which
is in the range or is found by a point lookup at the commit before the range.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.key_encoding import encode_row
from elasticscan.base.limits import BATCH_ROWS
from elasticscan.metadata import CHANGE_TYPE, COMMIT_VERSION, Bounds
from elasticscan.protocol import ChangeSpan, PageRequest, PageRows
from elasticscan.storage.merge import Piece, SeekKey, Versions, taken, windows
from elasticscan.storage.pages import PageSource, fill_from, read_pieces, rows_within
from elasticscan.storage.point_reads import rows_of_keys

INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"
_KINDS = (INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE)
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE = range(4)
_LEAST_ROWS = 1024  # merged in one window at least, however few rows a page may have

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Histories:
    """All versions within bounds, sorted by (slot, primary key, oldest first).

    Attributes:
        rows, keys: the versions, not sorted, and their columns of the primary key.
        places: for each sorted version its number in `rows`.
        slots, commits, alive: of the sorted versions.
        first: a mask of the sorted versions: the oldest of each key.
        last: the number of the newest version of each key.
    """

    def __init__(self, versions: Versions) -> None:
        self.rows, self.first = versions.rows, versions.first
        starts = np.append(np.flatnonzero(self.first), len(self.first))
        self.last: Numbers = starts[1:] - 1
        # Reverse the versions of each key: a merge has the newest first.
        reverse = np.repeat(starts[:-1] + self.last, np.diff(starts)) - np.arange(len(self.first))
        self.places: Numbers = versions.order[reverse]
        self.slots, self.commits = versions.slots[self.places], versions.commits[self.places]
        self.alive: Mask = versions.alive[self.places]
        self.keys = self.rows.select(versions.primary_key).columns


class Events(NamedTuple):
    """The rows of the change feed, in order.

    Attributes:
        versions: for each event a version of its key, by its number in the histories.
        values: the number of the row with its values, in the histories' rows followed by the rows from before
            the range.
        commits: the commit that made the change.
        kinds: the type of the change, as an index of `_KINDS`; None without a feed.
    """

    versions: Numbers
    values: Numbers
    commits: Numbers
    kinds: NDArray[np.int8] | None = None


def _replacements(histories: Histories, commit: int) -> Events:
    """Return the changes of an overwrite, which has written or removed the last version of each key."""
    last = histories.last
    written = histories.commits[last] == commit
    before = np.maximum(np.where(written, last - 1, last), 0)
    return _emit(
        last,
        np.full(len(last), commit, dtype=np.int64),
        (histories.places[last], written & histories.alive[last]),
        (histories.places[before], ~(written & histories.first[last]) & histories.alive[before]),
    )


def _emit(versions: Numbers, commits: Numbers, new: tuple[Any, Mask], old: tuple[Any, Mask]) -> Events:
    """Return the events of changes, given the row after and the row before each change.

    Rows are given as (places, mask of rows that exist); other places have no meaning.

    before   after    events
    no row   row      insert
    row      row      update preimage, update postimage
    row      no row   delete
    no row   no row   none: a tombstone for a key without a row
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
    """Read a page of the changes in a request's span and cursors, by slot, key and commit.

    Returns:
        The request's columns, the type of the change if there is a feed, and the number of the commit. A page
        without rows is the last one.
    """
    assert request.changes is not None, "the caller has checked that the request has a span"
    page = _ChangePage(source, request, request.changes)
    return read_pieces(page.builder, request.cursors, page.read)


class _ChangePage:
    """One page of changes that is being read."""

    def __init__(self, source: PageSource, request: PageRequest, span: ChangeSpan) -> None:
        self.source, self.span, self.columns = source, span, request.columns
        self.needed = tuple(dict.fromkeys((*request.columns, *source.table.primary_key)))
        kind = pa.field(CHANGE_TYPE, pa.string(), nullable=False)
        commit = pa.field(COMMIT_VERSION, pa.int64(), nullable=False)
        self.builder = source.page(request, *([kind] if span.feed else []), commit)
        self.within = Bounds(span.after + 1, span.upto, since=span.after)
        self.both = Bounds(span.floor, span.upto, since=span.after)
        self.before = Bounds(span.floor, span.after, since=span.after)

    def read(self, piece: Piece) -> SeekKey | None:
        """Add the changes of a piece; return the position to resume at if the page is full, else None."""
        bounds = self.both if self.span.feed and self.span.overwrite else self.within
        page, touching = self.builder, self.source.view.within(bounds).fragments
        if page.rows_left <= 0:
            return piece.start
        inputs = self.source.inputs(touching, self.needed, piece.slots)
        fragments = [fragment for fragment, _ in inputs]
        size = sum(fragment.bytes for fragment in fragments)
        row_bytes = max(1, size // max(1, sum(fragment.rows for fragment in fragments)))
        is_mixed = not all(map(bounds.wholly_hold, fragments))  # maybe only few rows are within bounds

        def window_rows() -> int:
            fitting = max(min(page.rows_left, page.bytes_left // row_bytes + 16), _LEAST_ROWS)
            return BATCH_ROWS if is_mixed else min(fitting, BATCH_ROWS)

        def add(versions: Versions, start: SeekKey) -> SeekKey | None:
            histories = Histories(versions)
            return self._fill(histories, *self._events(histories), start)

        return fill_from(page, windows(inputs, piece, bounds, window_rows), piece.start, add)

    def _events(self, histories: Histories) -> tuple[Events, pa.RecordBatch | None]:
        """Compare each version with the one before it, which is looked up for the first version of a key.

        Returns:
            The events, and the rows from before the range, in the requested columns.
        """
        if not self.span.feed:
            chosen = np.flatnonzero(histories.alive)
            return Events(chosen, histories.places[chosen], histories.commits[chosen]), None
        if self.span.overwrite:
            return _replacements(histories, self.span.upto), None
        first = np.flatnonzero(histories.first)
        keys = [key.take(pa.array(histories.places[first])) for key in histories.keys]
        slots = histories.slots[first]
        found = rows_of_keys(self.source, slots, keys, self.columns, self.before)
        places, was_alive = np.roll(histories.places, 1), np.roll(histories.alive, 1)
        places[first], was_alive[first] = histories.rows.num_rows + found.places, found.places >= 0
        versions, new = np.arange(len(histories.places)), (histories.places, histories.alive)
        return _emit(versions, histories.commits, new, (places, was_alive)), found.rows

    def _fill(
        self, histories: Histories, events: Events, before: pa.RecordBatch | None, start: SeekKey
    ) -> SeekKey | None:
        """Add the keys that fit, with all their events; return the position to resume at, or None."""
        if not len(events.values):
            return None

        def key_at(event: int) -> bytes:
            return encode_row(histories.keys, int(histories.places[events.versions[event]]))

        page = self.builder
        keys = np.cumsum(histories.first)[events.versions]
        ends: Numbers = np.r_[0, np.flatnonzero(np.diff(keys)) + 1, len(keys)]  # of each key's events
        least = 0 if page.rows else 1
        count = int(ends[max(int(ends.searchsorted(page.rows_left, "right")) - 1, least)])
        rows, slots = self._rows(histories.rows, before, events, count), histories.slots[events.versions]
        if rows.nbytes > page.bytes_left:
            fitting = int(ends.searchsorted(rows_within(rows, page.bytes_left), "right")) - 1
            count = int(ends[max(fitting, least)])
        page.add(rows.slice(0, count), pa.array(slots[:count]), key_at)
        return None if count == len(keys) else page.before(int(slots[count]), start)

    def _rows(
        self, rows: pa.RecordBatch, before: pa.RecordBatch | None, events: Events, count: int
    ) -> pa.RecordBatch:
        """Return the first `count` events as rows."""
        columns, values = list[pa.Array](), events.values[:count]
        if before is not None and before.num_rows:
            inside = [rows.column(name) for name in self.columns]
            both = map(pa.concat_arrays, zip(inside, before.columns, strict=True))
            columns = [column.take(pa.array(values)) for column in both]
        elif self.columns:  # a batch without columns has no rows
            columns = taken(rows.select(list(self.columns)), values).columns
        if events.kinds is not None:
            columns.append(pa.array(_KINDS).take(pa.array(events.kinds[:count])))
        columns.append(pa.array(events.commits[:count]))
        return pa.RecordBatch.from_arrays(columns, schema=self.builder.schema)
