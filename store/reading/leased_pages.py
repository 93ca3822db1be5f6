"""Pages of a scan, whose reading keeps the lease on what it reads and reports how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.metadata import TableInfo
from elasticscan.protocol import ContinuationKey
from elasticscan.reader import ScanStats
from elasticscan.store.context import Context
from elasticscan.store.context.leases import end_lease, keep_lease
from elasticscan.store.reading.access_paths import Access
from elasticscan.store.reading.first_rows import FirstRows, KeptOrder
from elasticscan.store.reading.paging import Page, Pages
from elasticscan.store.reading.progress import Reporting
from elasticscan.topology import Topology


class LeasedPages:
    """A reader of the pages of one scan, from any position.

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
        self._context, self._table, self._kept = context, table, kept
        self._pages = Pages(context, table, base, access)
        self._progress = Reporting(context, base, key, self._pages.stats)
        self._may_have_lease, self._lease = leased, key.lease
        self._lease_end = context.clock.now() + LEASE_SECONDS

    @property
    def stats(self) -> ScanStats:
        """Counts of what was read until now."""
        return self._pages.stats

    def read(self, begin: ContinuationKey, columns: tuple[str, ...], returned: int) -> Iterator[Page]:
        """Read pages from a state of the scan to its end, with these columns; with none, rows to be counted.

        `returned` is how many rows it had given before.
        """
        if self._kept is not None and columns:
            yield from self._sorted(self._kept, begin, columns, returned)
            return
        for page in self._pages.read(begin, columns):
            returned += page.rows.num_rows
            self._note(page, returned)
            yield page

    def _sorted(
        self, kept: KeptOrder, begin: ContinuationKey, columns: tuple[str, ...], returned: int
    ) -> Iterator[Page]:
        """Read all pages, and give the first rows of an order as one."""
        read = tuple(dict.fromkeys((*columns, *kept.columns)))
        first = FirstRows(kept.terms, kept.rows, pa.schema([self._table.schema.field(name) for name in read]))
        for page in self._pages.read(replace(begin, limit=None), read):
            first.add(page.rows)
            self._note(page, returned)
        rows = first.rows().select(list(columns)).combine_chunks()
        batch = rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], rows.schema)
        yield Page(batch, replace(begin, cursors=(), limit=0), self._context.seal)

    def _note(self, page: Page, returned: int) -> None:
        """Renew the lease once half of it is over, and report the progress."""
        if not page.standing.cursors:
            return
        if self._context.clock.now() >= self._lease_end - LEASE_SECONDS / 2:
            keep_lease(self._context, page.standing)
            self._may_have_lease = self._context.catalog.read_only is None
            self._lease_end = self._context.clock.now() + LEASE_SECONDS
        self._progress.note(page.standing, returned)

    def end(self, ends_lease: bool) -> None:
        """End the report of the progress, and the lease if it is to end with the scan."""
        self._progress.end()
        if ends_lease and self._may_have_lease:
            end_lease(self._context, self._lease)
