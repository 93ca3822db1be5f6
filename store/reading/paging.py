"""Pages of a scan: what shards read becomes rows for users, with where the scan stands after them.

While pages are read, the lease on what they are read from is renewed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from elasticscan.base.concurrency import cached_property
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.metadata import TableInfo
from elasticscan.protocol import ContinuationKey
from elasticscan.reader import ScanPlan, ScanStats, drive, drive_sorted
from elasticscan.store.context import Context
from elasticscan.store.context.leases import end_lease, keep_lease
from elasticscan.store.reading.access_paths import Access
from elasticscan.store.reading.changes import (
    CommitFacts,
    change_pages,
    commit_facts,
    feed_arrays,
    feed_fields,
)
from elasticscan.store.reading.first_rows import FirstRows, KeptOrder
from elasticscan.store.reading.progress import Reporting
from elasticscan.topology import Topology


@dataclass(frozen=True)
class Page:
    """Some rows of a scan.

    Attributes:
        rows: the rows; possibly none, when a filter kept none or all had moved while being read.
        standing: where the scan stands after this page, for this process alone.
    """

    rows: pa.RecordBatch
    standing: ContinuationKey = field(repr=False)
    _seal: Callable[[ContinuationKey], str] = field(repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Return the rows and the sealed key: all that is of use elsewhere."""
        return {"rows": self.rows, "key": self.key}

    @cached_property
    def key(self) -> str | None:
        """Return the continuation key after this page, for `Store.resume`; None after the last page.

        It is sealed when it is first asked for. Raises `LimitExceeded`.
        """
        return self._seal(self.standing) if self.standing.cursors else None


def cut_at_limit(
    found: Iterable[tuple[pa.RecordBatch, ContinuationKey]],
    limit: int | None,
    seal: Callable[[ContinuationKey], str],
) -> Iterator[Page]:
    """Yield pages of rows, each with where the scan stands after them, until so many rows were given."""
    left = limit
    for rows, after in found:
        if left is None:
            yield Page(rows, after, seal)
            continue
        some = rows.slice(0, left)
        left -= some.num_rows
        yield Page(some, replace(after, cursors=after.cursors if left else (), limit=left), seal)
        if not left:
            return


def schema_of(table: TableInfo, key: ContinuationKey) -> pa.Schema:
    """Return the columns of a scan's pages."""
    fields = [table.schema.field(name) for name in key.columns]
    return pa.schema([*fields, *feed_fields()] if key.feed else fields)


class Pages:
    """A reader of the pages of one scan, from any position, which keeps its lease and reports its progress.

    Args:
        key: where the scan begins.
        kept: the order that the scan sorts its first rows by, if it does.
        leased: whether a lease may be there already.
    """

    def __init__(
        self,
        context: Context,
        table: TableInfo,
        base: Topology,
        access: Access,
        key: ContinuationKey,
        kept: KeptOrder | None,
        leased: bool,
    ) -> None:
        self._context, self._table, self._base = context, table, base
        self._access, self._kept = access, kept
        self.stats = ScanStats()
        self._progress = Reporting(context, base, key, self.stats)
        self._may_have_lease, self._lease = leased, key.lease
        self._lease_end = context.clock.now() + LEASE_SECONDS

    def read(self, begin: ContinuationKey, columns: tuple[str, ...], returned: int) -> Iterator[Page]:
        """Read pages from a state of the scan to its end, with these columns; with none, rows to be counted.

        `returned` is how many rows it had given before.
        """
        if self._kept is not None and columns:
            yield self._sorted(self._kept, begin, columns, returned)
            return
        for page in cut_at_limit(self._rows(begin, columns), begin.limit, self._context.seal):
            returned += page.rows.num_rows
            self._note(page.standing, returned)
            yield page

    def _sorted(
        self, kept: KeptOrder, begin: ContinuationKey, columns: tuple[str, ...], returned: int
    ) -> Page:
        """Read all pages, and return the first rows of an order as one."""
        read = tuple(dict.fromkeys((*columns, *kept.columns)))
        first = FirstRows(kept.terms, kept.rows, pa.schema([self._table.schema.field(name) for name in read]))
        for rows, reached in self._rows(begin, read):
            first.add(rows)
            self._note(reached, returned)
        table = first.rows().select(list(columns)).combine_chunks()
        batch = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)
        return Page(batch, replace(begin, cursors=(), limit=0), self._context.seal)

    def _note(self, standing: ContinuationKey, returned: int) -> None:
        """Renew the lease once half of it is over, and report the progress."""
        if not standing.cursors:
            return
        if self._context.clock.now() >= self._lease_end - LEASE_SECONDS / 2:
            keep_lease(self._context, standing)
            self._may_have_lease = self._context.catalog.read_only is None
            self._lease_end = self._context.clock.now() + LEASE_SECONDS
        self._progress.note(standing, returned)

    def end(self, ends_lease: bool) -> None:
        """End the report of the progress, and the lease if it is to end with the scan."""
        self._progress.end()
        if ends_lease and self._may_have_lease:
            end_lease(self._context, self._lease)

    def _rows(
        self, begin: ContinuationKey, columns: tuple[str, ...]
    ) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
        """Yield the rows of pages, and where the scan stands after them."""
        if not begin.cursors:
            return
        context, access, facts = self._context, self._access, CommitFacts((), {})
        if begin.feed or begin.segments is not None:
            with context.catalog.reading() as tx:
                facts = commit_facts(tx, self._table, begin)
        plan = ScanPlan(
            table=self._table.id,
            snapshot=begin.snapshot,
            columns=self._columns_read(columns),
            page_rows=self._page_rows(begin),
            page_bytes=begin.page_bytes,
            base=self._base.placement,
            slots=begin.slots,
            order=access.order,
            key_sets=access.key_sets,
            keys=access.keys,
            definition=begin.definition,
        )
        placements, shards = context.cluster.placements, context.cluster.shards
        pages: Iterable[tuple[pa.RecordBatch, ContinuationKey]]
        if begin.segments is not None:
            pages = change_pages(begin, plan, facts, placements, shards, self.stats)
        else:
            if access.sort is None:
                read = drive(plan, begin.cursors, placements, shards, self.stats)
            else:
                read = drive_sorted(plan, access.sort, begin.cursors, placements, shards, self.stats)
            pages = ((page.rows, begin.advance(page.after)) for page in read)
        for rows, reached in pages:
            yield self._finish(rows, begin, columns, facts), reached

    def _page_rows(self, state: ContinuationKey) -> int:
        """Return the length of a page: no longer than the limit, unless a filter may drop some of it."""
        most, limit = state.page_rows, state.limit
        if limit is None or self._access.predicate is not None or self._kept is not None:
            return most
        return min(most, limit)

    def _columns_read(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns of pages, and those that only the scan itself needs."""
        access = self._access
        tested = sorted(access.predicate.columns) if access.predicate else ()
        sorted_by = access.sort.columns if access.sort else ()
        return tuple(dict.fromkeys((*columns, *tested, *sorted_by))) or self._table.primary_key[:1]

    def _finish(
        self, rows: pa.RecordBatch, begin: ContinuationKey, columns: tuple[str, ...], facts: CommitFacts
    ) -> pa.RecordBatch:
        if self._access.predicate is not None:
            mask = self._access.predicate.mask(rows)
            if columns and not begin.feed:
                rows = rows.select(list(columns))  # what only the condition needs is not copied
            rows = rows.filter(mask)
        if begin.feed and columns:
            arrays = [*map(rows.column, columns), *feed_arrays(rows, begin, facts)]
            return pa.RecordBatch.from_arrays(arrays, schema=schema_of(self._table, begin))
        names = list(columns)
        return rows if not names or rows.schema.names == names else rows.select(names)
