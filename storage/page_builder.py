"""A page while it is filled, up to its most rows and bytes."""

from __future__ import annotations

from bisect import bisect_right

import pyarrow as pa

from elasticscan.protocol import Cursors, PageRows
from elasticscan.storage.pruning import PagePruner


def rows_within(batch: pa.RecordBatch, most_bytes: int) -> int:
    """Count how many rows from the front of `batch` take so many bytes at most."""
    return bisect_right(range(1, batch.num_rows + 1), most_bytes, key=lambda n: batch.slice(0, n).nbytes)


class PageBuilder:
    """A page while it is filled: it ends at `page_rows` or `page_bytes`, but holds a row if there is one."""

    def __init__(
        self, schema: pa.Schema, page_rows: int, page_bytes: int, pruner: PagePruner | None = None
    ) -> None:
        self.schema, self.page_rows, self.page_bytes = schema, page_rows, page_bytes
        self.pruner = pruner
        self.scanned = self.rows = self.bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._slots: list[pa.Array] = []

    @property
    def space(self) -> int:
        """Count how many more bytes fit."""
        return self.page_bytes - self.bytes

    @property
    def room(self) -> int:
        """Count how many more rows fit."""
        return 0 if self.space <= 0 else self.page_rows - self.rows

    @property
    def worth_returning(self) -> bool:
        """True if the page is so full that ending it is better than copying rows together."""
        return 2 * self.rows >= self.page_rows or 2 * self.bytes >= self.page_bytes

    def fitting(self, batch: pa.RecordBatch) -> int:
        """Count how many rows from the front of `batch` still fit; at least one in an empty page."""
        count: int = min(batch.num_rows, self.room)
        if count > 0 and batch.slice(0, count).nbytes > self.space:
            count = rows_within(batch, self.space)
        return max(count, 1) if self.rows == 0 else count

    def add(self, batch: pa.RecordBatch, slots: pa.Array) -> None:
        if batch.num_rows:
            chosen = [batch.column(name) for name in self.schema.names]
            self._batches.append(pa.RecordBatch.from_arrays(chosen, schema=self.schema))
            self._slots.append(slots)
            self.rows += batch.num_rows
            self.bytes += batch.nbytes

    def finish(self, left: Cursors) -> PageRows:
        """Return the page, and cursors of what is left."""
        if not self._batches:
            rows = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in self.schema], schema=self.schema)
            slots = pa.array([], pa.uint16())
        elif len(self._batches) == 1:
            rows, slots = self._batches[0], self._slots[0]
        else:
            rows, slots = pa.concat_batches(self._batches), pa.concat_arrays(self._slots)
        skipped = self.pruner.rows if self.pruner else 0
        return PageRows(rows, slots, left, self.scanned, skipped)
