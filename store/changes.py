"""What commits changed, read under the cursor rule while tablets move.

A range of commits is cut at overwrites: such a commit deletes every row that it does not write, so
it is read on its own. Each part is a scan over the same slots, one after the other; the changes of
one key therefore come in the order of its commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from elasticscan.base.errors import ChangesExpired
from elasticscan.catalog import Tx
from elasticscan.filters import Predicate
from elasticscan.metadata import Bounds, TableInfo
from elasticscan.protocol import ChangeSpan, Cursor
from elasticscan.reader import ScanPlan, ScanStats, drive
from elasticscan.storage import CHANGE_TYPE, COMMIT_VERSION, slot_counts
from elasticscan.store.context import Context, Find
from elasticscan.store.scan import columns_of
from elasticscan.store.shards import CatalogPlacements, LocalShards
from elasticscan.topology import SlotSet

COMMIT_TIMESTAMP = "_commit_timestamp"
_STAMP = pa.timestamp("us", tz="UTC")
Counts = np.ndarray[tuple[int], np.dtype[np.int64]]


def feed_fields() -> list[pa.Field]:
    """The columns that a change feed adds."""
    return [
        pa.field(CHANGE_TYPE, pa.string(), nullable=False),
        pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
        pa.field(COMMIT_TIMESTAMP, _STAMP, nullable=False),
    ]


class ChangeScan:
    """Changes of the commits in (after, upto], of some slots, each once, in pages.

    Every iteration gives the same rows (in pages that may be cut otherwise), as long as the commits
    are kept. With `feed`, rows carry `_change_type` (insert, update_preimage, update_postimage or
    delete), `_commit_version` and `_commit_timestamp`; without, the new rows alone.
    """

    def __init__(
        self,
        context: Context,
        table: TableInfo,
        columns: Sequence[str],
        commits: tuple[int, int],
        slots: SlotSet,
        feed: bool,
        predicate: Predicate | None,
        page_limits: tuple[int, int],
    ) -> None:
        self._context, self._table, self._columns = context, table, tuple(columns)
        self._after, self.upto = commits
        self._slots, self._feed, self._predicate = slots, feed, predicate
        self._page_rows, self._page_bytes = page_limits
        self.stats = ScanStats()

    @property
    def schema(self) -> pa.Schema:
        fields = [self._table.schema.field(name) for name in self._columns]
        return pa.schema([*fields, *feed_fields()] if self._feed else fields)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._after >= self.upto or not self._slots:
            return
        with self._context.catalog.reading() as tx:
            check_kept(tx, self._table, self._after)
            spans = _spans(tx, self._table, self._after, self.upto, self._feed)
            times = self._times(tx) if self._feed else {}
            base = tx.placement()
        tested = sorted(self._predicate.columns) if self._predicate else ()
        for span in spans:
            plan = ScanPlan(
                table=self._table.id,
                snapshot=span.upto,
                columns=tuple(dict.fromkeys((*self._columns, *tested))),
                page_rows=self._page_rows,
                page_bytes=self._page_bytes,
                base=base,
                slots=self._slots,
                changes=span,
            )
            cursors = (Cursor(self._slots),)
            placements, shards = CatalogPlacements(self._context), LocalShards(self._context)
            for page in drive(plan, cursors, placements, shards, self.stats):
                yield self._finish(page.rows, times)

    def to_table(self) -> pa.Table:
        return pa.Table.from_batches(list(self), schema=self.schema)

    def _times(self, tx: Tx) -> dict[int, float]:
        """When each commit of the range was made; a table may have had many more before it."""
        told = tx.commits_after(self._table.id, self._after, self.upto - self._after)
        return {commit.number: commit.created_at for commit in told}

    def _finish(self, rows: pa.RecordBatch, times: dict[int, float]) -> pa.RecordBatch:
        if self._predicate is not None:
            rows = rows.filter(self._predicate.mask(rows))
        columns = [rows.column(name) for name in self._columns]
        if self._feed:
            versions = rows.column(COMMIT_VERSION)
            found, places = np.unique(versions.to_numpy(), return_inverse=True)
            stamps = pa.array([round(times[int(number)] * 1e6) for number in found], pa.int64()).cast(_STAMP)
            columns += [rows.column(CHANGE_TYPE), versions, stamps.take(pa.array(places))]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def begin_changes(
    context: Context,
    find: Find,
    commits: tuple[int, int | None],
    columns: list[str] | None,
    filter: str | None,  # noqa: A002 - the word users know
    feed: bool,
    page_limits: tuple[int, int],
) -> ChangeScan:
    """The changes of the commits in (after, upto], over all slots; up to the newest for None."""
    after, upto = commits
    if upto is None:
        context.check_newest()
    with context.catalog.reading() as tx:
        (table, _), newest = find(tx), tx.versions()[1]
        check_kept(tx, table, after)
    predicate = None if filter is None else Predicate.parse(filter, table.schema)
    span = (after, newest if upto is None else min(upto, newest))
    everything = SlotSet.span(0, context.info.slots)
    return ChangeScan(
        context, table, columns_of(table, columns), span, everything, feed, predicate, page_limits
    )


def check_kept(tx: Tx, table: TableInfo, after: int) -> None:
    """Raises `ChangesExpired`, naming the gap, unless every change beyond a commit is still kept."""
    oldest = (tx.table_by_id(table.id) or table).oldest_snapshot
    if after < oldest and after < table.created_commit:
        after = table.created_commit  # before its creation a table had nothing to keep
    if after < oldest:
        raise ChangesExpired(
            f"changes of table {table.name!r} after commit {after} are no longer kept: those of commits "
            f"{after + 1} to {oldest} are gone. Start again from a snapshot, or keep changes for longer "
            "(Table.set_retention)",
            table=table.name,
            after=after,
            oldest=oldest,
        )


def _spans(tx: Tx, table: TableInfo, after: int, upto: int, feed: bool) -> list[ChangeSpan]:
    overwrites = tx.overwrites(table.id)
    floor = max((number for number in overwrites if number <= after), default=0)
    spans = []
    for number in overwrites:
        if after < number <= upto:
            if after < number - 1:
                spans.append(ChangeSpan(after, number - 1, floor, overwrite=False, feed=feed))
            spans.append(ChangeSpan(number - 1, number, floor, overwrite=True, feed=feed))
            after = floor = number
    if after < upto:
        spans.append(ChangeSpan(after, upto, floor, overwrite=False, feed=feed))
    return spans


def rows_by_slot(context: Context, table: TableInfo, bounds: Bounds) -> Counts:
    """For each slot, how many versions of rows there are of commits within bounds."""
    counts = np.zeros(context.info.slots, dtype=np.int64)
    state = context.table_state(table.id, bounds.snapshot)
    for fragment in state.fragments:
        if bounds.touch(fragment):
            reader = context.opener(table)(fragment, ())
            found = slot_counts(reader, fragment, bounds, len(counts))
            for start, end in fragment.slots:
                counts[start:end] += found[start:end]
    return counts
