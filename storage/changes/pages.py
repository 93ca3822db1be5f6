"""Reading changes at a shard: what commits of a range did to the rows of some slots.

A fragment keeps every version of a row that a reader may still want, so changes need no log of
their own. Of each key the versions in the range are brought together, oldest first; what each one
replaced is the version before it, in the range or found by a point lookup before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from elasticscan.base.limits import BATCH_ROWS
from elasticscan.metadata import CHANGE_TYPE, COMMIT_VERSION, Bounds, SlotInterval
from elasticscan.protocol import ChangeSpan, PageRequest, PageRows
from elasticscan.storage.changes.events import KINDS, Events, changes_of, new_rows, replacements_of
from elasticscan.storage.changes.histories import Histories, HistoryIterator, OpenInterval
from elasticscan.storage.pages import PageBuilder, PageSource, Piece, fill_page, pieces_of, rows_within


def read_changes(source: PageSource, request: PageRequest) -> PageRows:
    """Yield changes that a request's span made to the slots of its cursors, by slot, key and commit.

    Returns:
        A page of the request's columns, with a feed the kind of change, and the number of the commit. Where
        one fragment has nothing but new rows, and no feed is asked for, it is slices of its batches. A page
        without rows is the last one.

    Raises:
        FragmentDamaged: a fragment cannot be read.
    """
    assert request.changes is not None, "a request for changes says of which commits"
    return _ChangePage(source, request, request.changes).page(pieces_of(request.cursors))


class _ChangePage:
    """One page while it is read."""

    def __init__(self, source: PageSource, request: PageRequest, span: ChangeSpan) -> None:
        self.source, self.span, self.columns = source, span, request.columns
        self.needed = tuple(dict.fromkeys((*request.columns, *source.table.primary_key)))
        fields = [source.table.schema.field(name) for name in request.columns]
        self.stored = pa.schema(fields)
        if span.feed:
            fields.append(pa.field(CHANGE_TYPE, pa.string(), nullable=False))
        schema = pa.schema([*fields, pa.field(COMMIT_VERSION, pa.int64(), nullable=False)])
        self.filling = PageBuilder(schema, request.page_rows, request.page_bytes)
        self.within = Bounds(span.after + 1, span.upto, since=span.after)
        self.both = Bounds(span.floor, span.upto, since=span.after)
        self.before = Bounds(span.floor, span.after, since=span.after)

    def page(self, pieces: Sequence[Piece]) -> PageRows:
        bounds = self.both if self.span.feed else self.within
        for number, piece in enumerate(pieces):
            for interval in self.source.view.between(piece.start, piece.end, bounds):
                rest = self._read(interval, piece.key if interval.start == piece.start else None)
                if rest is not None:
                    return self.filling.finish([replace(rest, end=piece.end), *pieces[number + 1 :]])
        return self.filling.finish(())

    def _read(self, interval: SlotInterval, key: bytes | None) -> Piece | None:
        """Add the rows of an interval that fit; returns the rest of the interval if the page is full."""
        fragments = interval.fragments
        changed = [n for n, fragment in enumerate(fragments) if self.within.touch(fragment)]
        replaced = self.span.feed and self.span.overwrite
        if not changed and not replaced:
            return None
        if self.filling.room <= 0:
            return Piece(interval.start, interval.end, key)
        if not self.span.feed and len(changed) == 1 and self._all_new(interval):
            return self._slices(interval, key)
        bounds = self.both if replaced else self.within
        opened = OpenInterval(
            self.source.table, interval, lambda n: self.source.open(fragments[n], self.needed)
        )
        return self._read_histories(opened, [*range(len(fragments))] if replaced else changed, key, bounds)

    # ------------------------------------------------------------------ fragments of nothing but new rows

    def _all_new(self, interval: SlotInterval) -> bool:
        (fragment,) = interval.fragments
        return fragment.min_commit == fragment.max_commit and interval.is_plain

    def _slices(self, interval: SlotInterval, key: bytes | None) -> Piece | None:
        page, piece = self.filling, Piece(interval.start, interval.end, key)
        if page.worth_returning:
            return piece  # rather than copy rows together
        part, left = self._new_rows(piece, page.room)
        rows = self._with_commit(part, interval)
        if rows.nbytes > page.space:  # with the commits, which are not in the file
            count = rows_within(rows, page.space)
            if not count and page.rows:
                return piece
            part, left = self._new_rows(piece, max(count, 1))
            rows = self._with_commit(part, interval)
        page.scanned += part.scanned
        page.add(rows, part.slots)
        return left[0] if left else None

    def _new_rows(self, piece: Piece, page_rows: int) -> tuple[PageRows, list[Piece]]:
        part = PageBuilder(self.stored, page_rows, self.filling.space)
        left = fill_page(self.source, part, [piece], self.within)
        return part.finish(left), left

    def _with_commit(self, part: PageRows, interval: SlotInterval) -> pa.RecordBatch:
        # A batch without columns has no length; the slots say how many rows there are.
        commits = np.full(len(part.slots), interval.fragments[0].min_commit, dtype=np.int64)
        return pa.RecordBatch.from_arrays([*part.rows.columns, pa.array(commits)], schema=self.filling.schema)

    # ------------------------------------------------------------------ all other fragments

    def _read_histories(
        self, opened: OpenInterval, owners: Sequence[int], key: bytes | None, bounds: Bounds
    ) -> Piece | None:
        interval, page = opened.interval, self.filling
        size = sum(fragment.bytes for fragment in interval.fragments)
        row_bytes = max(1, size // max(1, sum(fragment.rows for fragment in interval.fragments)))
        iterator, rest = (
            HistoryIterator(opened, owners, key, bounds),
            Piece(interval.start, interval.end, key),
        )
        scanned = page.scanned
        while not iterator.finished:
            if page.room <= 0:
                return rest
            histories = iterator.step(min(page.room, page.space // row_bytes + 16, BATCH_ROWS))
            page.scanned = scanned + iterator.scanned
            if not len(histories):
                continue
            left = self._fill(opened, histories, self._events(opened, histories), rest)
            if left is not None:
                return left
            last = len(histories) - 1
            rest = Piece(int(histories.slots[last]), interval.end, histories.key_at(last))
        return None

    def _events(self, opened: OpenInterval, histories: Histories) -> Events:
        if not self.span.feed:
            return new_rows(histories)
        if self.span.overwrite:
            return replacements_of(histories, self.span.upto)
        return changes_of(opened, histories, self.before)

    def _fill(self, opened: OpenInterval, histories: Histories, events: Events, rest: Piece) -> Piece | None:
        """Add the keys that fit, at the front of `rest`; returns the rest after them if some do not fit."""
        if not len(events.places):
            return None
        page = self.filling
        keys = np.cumsum(histories.first)[events.versions]
        ends = np.append(np.flatnonzero(np.diff(keys)) + 1, len(keys))
        least = 0 if page.rows else 1
        fitting = max(int(np.searchsorted(ends, page.room, "right")), least)
        if fitting:
            rows = self._fetch(opened, events, int(ends[fitting - 1]))
            if rows.nbytes > page.space:
                candidates = ends[:fitting].tolist()
                fitting = max(bisect_right(candidates, rows_within(rows, page.space)), least)
        count = int(ends[fitting - 1]) if fitting else 0
        if count:
            page.add(rows.slice(0, count), pa.array(histories.slots[events.versions[:count]]))
        if fitting == len(ends):
            return None
        if count:
            last = int(events.versions[count - 1])
            rest = Piece(int(histories.slots[last]), rest.end, histories.key_at(last))
        slot = int(histories.slots[events.versions[count]])
        return rest if slot == rest.start else Piece(slot, rest.end)

    def _fetch(self, opened: OpenInterval, events: Events, count: int) -> pa.RecordBatch:
        """Return the first `count` events as rows."""
        columns = opened.fetch(events.places.at(slice(count)), self.columns) if self.columns else []
        if events.kinds is not None:
            columns.append(pa.array(KINDS).take(pa.array(events.kinds[:count])))
        columns.append(pa.array(events.commits[:count]))
        return pa.RecordBatch.from_arrays(columns, schema=self.filling.schema)
