"""Reading changes at a shard: what commits of a range did to the rows of some slots.

A fragment keeps every version of a row that a reader may still want, so changes need no log of
their own. Of each key the versions in the range are brought together, oldest first; what each one
replaced is the version before it, in the range or, by a look-up, before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from elasticscan.base.limits import BATCH_ROWS
from elasticscan.storage.changes.events import (
    DELETE,
    INSERT,
    KINDS,
    UPDATE_POSTIMAGE,
    UPDATE_PREIMAGE,
    Events,
    changes_of,
    new_rows,
    replacements_of,
)
from elasticscan.storage.changes.histories import Histories, Opened, Walk
from elasticscan.storage.pages import Page, PageLimits, PageSource, Piece, read_page
from elasticscan.storage.view import Bounds, Interval

CHANGE_TYPE, COMMIT_VERSION = "_change_type", "_commit_version"

__all__ = [
    "CHANGE_TYPE",
    "COMMIT_VERSION",
    "DELETE",
    "INSERT",
    "UPDATE_POSTIMAGE",
    "UPDATE_PREIMAGE",
    "ChangeRange",
    "read_changes",
]


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """Commits in `(after, upto]`, and what was before them.

    Attributes:
        after, upto: the range; `after` is not before the table's oldest snapshot.
        floor: commits before it were overwritten as seen from `after`; 0 if none was.
        overwrite: the range is one commit, which replaced the whole table: keys alive at `after`
            that it does not write are deleted by it. No other range holds such a commit.
    """

    after: int
    upto: int
    floor: int
    overwrite: bool


def read_changes(
    source: PageSource,
    pieces: Sequence[Piece],
    range: ChangeRange,  # noqa: A002
    columns: Sequence[str],
    limits: PageLimits,
    feed: bool,
) -> Page:
    """Changes of the keys of the pieces, by slot, key and commit, until the page is full.

    Args:
        source: the table's fragments at the shard.
        pieces: what is to be read, as for `read_page`.
        range: which commits.
        columns: of the table.
        limits: where the page ends; never between two changes of one key, so those of a single key
            may exceed them.
        feed: whether to tell what each change was: an insert, the row before and after an update,
            or a delete, with the row as it was. Without, only new rows: of inserts and updates.

    Returns:
        A page of `columns`, with `feed` the kind of change, and the number of the commit. Where one
        fragment has nothing but new rows, and no feed is asked for, it is slices of its
        batches. A page without rows is the last one.

    Raises:
        FragmentDamaged: a fragment cannot be read.
    """
    return _Reading(source, range, columns, limits, feed).page(pieces)


class _Reading:
    """One page while it is read."""

    def __init__(
        self,
        source: PageSource,
        changes: ChangeRange,
        columns: Sequence[str],
        limits: PageLimits,
        feed: bool,
    ) -> None:
        self.source, self.range, self.limits, self.feed = source, changes, limits, feed
        self.columns = tuple(columns)
        self.needed = tuple(dict.fromkeys((*columns, *source.table.primary_key)))
        fields = [source.table.schema.field(name) for name in columns]
        if feed:
            fields.append(pa.field(CHANGE_TYPE, pa.string(), nullable=False))
        self.schema = pa.schema([*fields, pa.field(COMMIT_VERSION, pa.int64(), nullable=False)])
        self.within = Bounds(changes.after + 1, changes.upto)
        self.before = Bounds(changes.floor, changes.after)
        self.scanned = self.skipped = self.rows = self.bytes = 0
        self.batches: list[pa.RecordBatch] = []
        self.slots: list[pa.Array] = []

    @property
    def room(self) -> int:
        return 0 if self.bytes >= self.limits.bytes else self.limits.rows - self.rows

    @property
    def space(self) -> int:
        return self.limits.bytes - self.bytes

    def page(self, pieces: Sequence[Piece]) -> Page:
        bounds = Bounds(self.range.floor, self.range.upto) if self.feed else self.within
        for number, piece in enumerate(pieces):
            for interval in self.source.view.between(piece.start, piece.end, bounds):
                left = self._read(interval, piece.key if interval.start == piece.start else None)
                if left:
                    return self._finish([*_joined(left, interval.end, piece.end), *pieces[number + 1 :]])
        return self._finish(())

    def _finish(self, left: Sequence[Piece]) -> Page:
        if not self.batches:
            empty = [pa.array([], field.type) for field in self.schema]
            rows, slots = pa.RecordBatch.from_arrays(empty, schema=self.schema), pa.array([], pa.uint16())
        elif len(self.batches) == 1:
            rows, slots = self.batches[0], self.slots[0]
        else:
            rows, slots = pa.concat_batches(self.batches), pa.concat_arrays(self.slots)
        return Page(rows, slots, tuple(left), self.skipped, self.scanned)

    def _add(self, batch: pa.RecordBatch, slots: pa.Array) -> None:
        if batch.num_rows:
            self.batches.append(batch)
            self.slots.append(slots)
            self.rows += batch.num_rows
            self.bytes += batch.nbytes

    def _read(self, interval: Interval, key: bytes | None) -> list[Piece]:
        """Add what fits of an interval; what is left of it."""
        fragments = interval.fragments
        changed = [n for n, fragment in enumerate(fragments) if self.within.touch(fragment)]
        replaced = self.feed and self.range.overwrite
        if not changed and not replaced:
            return []
        if self.room <= 0:
            return _rest(interval.start, key, interval.end)
        if not self.feed and len(changed) == 1 and self._all_new(interval):
            return self._slices(interval, key)
        bounds = Bounds(self.range.floor, self.range.upto) if replaced else self.within
        opened = Opened(self.source.table, interval, lambda n: self.source.open(fragments[n], self.needed))
        return self._walk(opened, [*range(len(fragments))] if replaced else changed, key, bounds)

    # ------------------------------------------------------------------ fragments of nothing but new rows

    def _all_new(self, interval: Interval) -> bool:
        (fragment,) = interval.fragments
        one_commit = fragment.min_commit == fragment.max_commit
        return one_commit and fragment.unique and not fragment.tombstones

    def _slices(self, interval: Interval, key: bytes | None) -> list[Piece]:
        if 2 * self.rows >= self.limits.rows or 2 * self.bytes >= self.limits.bytes:
            return _rest(interval.start, key, interval.end)  # rather than copy rows together
        pieces = _rest(interval.start, key, interval.end)
        read = partial(read_page, self.source, pieces, self.within, self.columns)
        found = read(PageLimits(self.room, self.space))
        rows = self._with_commit(found, interval)
        if rows.nbytes > self.space:  # with the commits, which are not in the file
            count = bisect_right(range(1, rows.num_rows + 1), self.space, key=partial(_size, rows))
            if not count and self.rows:
                return pieces
            found = read(PageLimits(max(count, 1), self.space))
            rows = self._with_commit(found, interval)
        self.scanned += found.scanned
        self.skipped += found.skipped
        self._add(rows, found.slots)
        return list(found.left)

    def _with_commit(self, found: Page, interval: Interval) -> pa.RecordBatch:
        commits = np.full(len(found.slots), interval.fragments[0].min_commit, dtype=np.int64)
        return pa.RecordBatch.from_arrays([*found.rows.columns, pa.array(commits)], schema=self.schema)

    # ------------------------------------------------------------------ all other fragments

    def _walk(self, opened: Opened, owners: Sequence[int], key: bytes | None, bounds: Bounds) -> list[Piece]:
        interval = opened.interval
        size = sum(fragment.bytes for fragment in interval.fragments)
        row_bytes = max(1, size // max(1, sum(fragment.rows for fragment in interval.fragments)))
        walk, at = Walk(opened, owners, key, bounds), (interval.start, key)
        scanned = self.scanned
        while not walk.finished:
            if self.room <= 0:
                return _rest(*at, interval.end)
            found = walk.step(min(self.room, self.space // row_bytes + 16, BATCH_ROWS))
            self.scanned = scanned + walk.scanned
            if not len(found):
                continue
            stop = self._fill(opened, found, self._events(opened, found), at)
            if stop is not None:
                return _rest(*stop, interval.end)
            at = (int(found.slots[-1]), found.key_at(len(found) - 1))
        return []

    def _events(self, opened: Opened, found: Histories) -> Events:
        if not self.feed:
            return new_rows(found)
        if self.range.overwrite:
            return replacements_of(found, self.range.upto)
        return changes_of(opened, found, self.before)

    def _fill(
        self, opened: Opened, found: Histories, events: Events, at: tuple[int, bytes | None]
    ) -> tuple[int, bytes | None] | None:
        """Add the keys that fit; where to go on if not all do. `at`: where these histories begin."""
        if not len(events.places):
            return None
        keys = np.cumsum(found.first)[events.versions]
        ends = np.append(np.flatnonzero(np.diff(keys)) + 1, len(keys))
        least = 0 if self.rows else 1
        fitting = max(int(np.searchsorted(ends, self.room, "right")), least)
        if fitting:
            rows = self._fetch(opened, events, int(ends[fitting - 1]))
            if rows.nbytes > self.space:
                candidates = ends[:fitting].tolist()
                fitting = max(bisect_right(candidates, self.space, key=partial(_size, rows)), least)
        count = int(ends[fitting - 1]) if fitting else 0
        if count:
            self._add(rows.slice(0, count), pa.array(found.slots[events.versions[:count]]))
        if fitting == len(ends):
            return None
        if count:
            last = int(events.versions[count - 1])
            at = (int(found.slots[last]), found.key_at(last))
        slot = int(found.slots[events.versions[count]])
        return at if slot == at[0] else (slot, None)

    def _fetch(self, opened: Opened, events: Events, count: int) -> pa.RecordBatch:
        """The first `count` events as rows."""
        columns = opened.fetch(events.places.at(slice(count)), self.columns) if self.columns else []
        if events.kinds is not None:
            columns.append(KINDS.take(pa.array(events.kinds[:count])))
        columns.append(pa.array(events.commits[:count]))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _size(rows: pa.RecordBatch, count: int) -> int:
    size: int = rows.slice(0, count).nbytes
    return size


def _rest(slot: int, key: bytes | None, end: int) -> list[Piece]:
    """What is to be read from a position on."""
    if key is None:
        return [Piece(slot, end)]
    half = Piece(slot, slot + 1, key)
    return [half, Piece(slot + 1, end)] if slot + 1 < end else [half]


def _joined(left: Sequence[Piece], at: int, end: int) -> list[Piece]:
    """What is left of an interval that ends `at`, and all from there to `end`."""
    if at == end:
        return list(left)
    *others, last = left
    if last.key is None:
        return [*others, replace(last, end=end)]
    return [*left, Piece(at, end)]
