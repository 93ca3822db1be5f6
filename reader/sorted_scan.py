"""A scan that returns rows in index order over all shards, also while tablets move.

Rows that `drive` accepts wait in a pool. A row leaves the pool when every cursor has reached its key, because
then no shard can return a lower one. One position for all slots describes the rows that were returned, so
the continuation key stays small. A scan that is resumed in another process reads the rows of the pool again.

Accepted rows stay valid wherever their slots move afterwards: the rows of a slot at a snapshot are the same
at every shard.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from elasticscan.base.key_encoding import encode_values, inverted, value_sort_codes
from elasticscan.protocol import Cursor, Cursors, PageRows, Placements, ShardReader, merge, slots_of
from elasticscan.reader.coverage import Coverage
from elasticscan.reader.scan import ScanPlan, ScanStats, drive
from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class SortKey:
    """The columns of the order key: those of the index, then those of the primary key."""

    columns: tuple[str, ...]
    descending: bool

    def at(self, rows: pa.RecordBatch, row: int) -> bytes:
        key = encode_values([rows.column(name) for name in self.columns], row)
        return inverted(key) if self.descending else key

    def order(self, rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
        codes = [code for name in self.columns for code in value_sort_codes(rows.column(name))]
        ascending = np.lexsort(codes[::-1]) if codes else np.arange(rows.num_rows)
        return ascending[::-1] if self.descending else ascending


class _Pool:
    """Accepted rows that were not returned yet, sorted."""

    def __init__(self, key: SortKey) -> None:
        self._key = key
        self._rows: pa.RecordBatch | None = None
        self._slots: np.ndarray[Any, Any] = np.empty(0, dtype=np.uint16)

    def add(self, page: PageRows) -> None:
        rows, slots = page.rows, page.slots.to_numpy(zero_copy_only=True)
        if self._rows is None or not self._rows.num_rows:
            self._rows, self._slots = rows, slots  # a shard's page is sorted
        elif rows.num_rows:
            rows = pa.concat_batches([self._rows, rows])
            order = self._key.order(rows)
            self._rows = rows.take(pa.array(order))
            self._slots = np.concatenate([self._slots, slots])[order]

    def ready(self, ahead: Cursors) -> int:
        """Count the rows that may be returned: those up to the lowest position of the cursors `ahead`."""
        rows = self._rows
        assert rows is not None, "a page was read before"
        if not ahead:
            return int(rows.num_rows)
        mark = _mark(ahead) or b""  # lower than each key
        return bisect_right(range(rows.num_rows), mark, key=lambda row: self._key.at(rows, row))

    def take(self, count: int, page_bytes: int) -> tuple[pa.RecordBatch, np.ndarray[Any, Any], bytes | None]:
        """Remove and return up to `count` rows from the front, their slots, and the key of the last one."""
        assert self._rows is not None, "a page was read before"
        if count:
            sizes = range(1, count + 1)
            rows = self._rows
            count = max(1, bisect_right(sizes, page_bytes, key=lambda size: rows.slice(0, size).nbytes))
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        slots, self._slots = self._slots[:count], self._slots[count:]
        return taken, slots, self._key.at(taken, count - 1) if count else None

    @property
    def slots(self) -> SlotSet:
        return SlotSet.of((int(slot), int(slot) + 1) for slot in np.unique(self._slots))


def _mark(ahead: Cursors) -> bytes | None:
    """Return the position up to which every slot was read; None if a slot is unread, or no cursor is left."""
    return min((cursor.position or b"" for cursor in ahead), default=b"") or None


def drive_sorted(
    plan: ScanPlan, key: SortKey, placements: Placements, shards: ShardReader, stats: ScanStats
) -> Iterator[PageRows]:
    """Yield the pages of a scan to its end, all rows in the order of `key`, each exactly once.

    The columns of the request must include those of `key`. Memory: about a page for each shard.
    """
    request = plan.request
    pool, pending, reads = _Pool(key), slots_of(request.cursors), 0
    coverage = Coverage(plan.slots, pending)
    mark = _mark(request.cursors)
    for page in drive(plan, placements, shards, stats, lowest=True):
        ahead, reads = page.after, reads + 1
        pool.add(page)
        while pending:
            ready = pool.ready(ahead)
            # Read each shard about once for a page, and then return what is ready, even if it is less.
            if ahead and ready < request.page_rows and reads <= len(plan.base.shards):
                break
            rows, slots, last = pool.take(min(ready, request.page_rows), request.page_bytes)
            mark = last or mark
            if ahead and rows.num_rows == ready:
                mark = _mark(ahead) or mark
            left = slots_of(ahead) | pool.slots
            coverage.finish(pending - left)
            pending, reads = left, 0
            yield PageRows(rows, pa.array(slots, pa.uint16()), merge([Cursor(left, mark)]))
    coverage.prove()
