"""Pages of a scan: what shards read becomes rows for users, with where the scan stands after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from elasticscan.base.concurrency import cached_property
from elasticscan.metadata import TableInfo
from elasticscan.protocol import ContinuationKey
from elasticscan.reader import ScanPlan, ScanStats, drive, drive_sorted
from elasticscan.store.context import Context
from elasticscan.store.reading.access_paths import Access
from elasticscan.store.reading.changes import (
    CommitFacts,
    change_pages,
    commit_facts,
    feed_arrays,
    feed_fields,
)
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
    """Reads a scan from wherever it stands; how far it has got is for its callers to remember."""

    def __init__(self, context: Context, table: TableInfo, base: Topology, access: Access) -> None:
        self._context, self._table, self._base, self.access = context, table, base, access
        self._facts = CommitFacts((), {})
        self.stats = ScanStats()

    def read(self, begin: ContinuationKey, columns: tuple[str, ...]) -> Iterator[Page]:
        """Pages from a state of the scan to its end, with these columns; with none, rows to be counted."""
        scanned = self._scan(begin, columns) if begin.cursors else ()
        found = ((self._finish(rows, begin, columns), reached) for rows, reached in scanned)
        return cut_at_limit(found, begin.limit, self._context.seal)

    def _scan(
        self, state: ContinuationKey, columns: tuple[str, ...]
    ) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
        """Rows as shards have them, and where the scan stands after them."""
        if state.feed or state.segments is not None:
            with self._context.catalog.reading() as tx:
                self._facts = commit_facts(tx, self._table, state)
        plan = ScanPlan(
            table=self._table.id,
            snapshot=state.snapshot,
            columns=self._columns_read(columns),
            page_rows=self._page_rows(state),
            page_bytes=state.page_bytes,
            base=self._base.placement,
            slots=state.slots,
            order=self.access.order,
            key_sets=self.access.key_sets,
            keys=self.access.keys,
            definition=state.definition,
        )
        placements, shards = self._context.cluster.placements, self._context.cluster.shards
        if state.segments is not None:
            yield from change_pages(state, plan, self._facts, placements, shards, self.stats)
            return
        if self.access.sort is None:
            pages = drive(plan, state.cursors, placements, shards, self.stats)
        else:
            pages = drive_sorted(plan, self.access.sort, state.cursors, placements, shards, self.stats)
        for page in pages:
            yield page.rows, state.advance(page.after)

    def _page_rows(self, state: ContinuationKey) -> int:
        """Return the length of a page: no longer than the limit, unless a filter may drop some of it."""
        most, limit = state.page_rows, state.limit
        return most if limit is None or self.access.predicate is not None else min(most, limit)

    def _columns_read(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns of pages, and those that only the scan itself needs."""
        access = self.access
        tested = sorted(access.predicate.columns) if access.predicate else ()
        sorted_by = access.sort.columns if access.sort else ()
        return tuple(dict.fromkeys((*columns, *tested, *sorted_by))) or self._table.primary_key[:1]

    def _finish(
        self, rows: pa.RecordBatch, begin: ContinuationKey, columns: tuple[str, ...]
    ) -> pa.RecordBatch:
        if self.access.predicate is not None:
            mask = self.access.predicate.mask(rows)
            if columns and not begin.feed:
                rows = rows.select(list(columns))  # what only the condition needs is not copied
            rows = rows.filter(mask)
        if begin.feed and columns:
            arrays = [*map(rows.column, columns), *feed_arrays(rows, begin, self._facts)]
            return pa.RecordBatch.from_arrays(arrays, schema=schema_of(self._table, begin))
        names = list(columns)
        return rows if not names or rows.schema.names == names else rows.select(names)
