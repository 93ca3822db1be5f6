"""Scans of a table in a cluster: pages with keys, a table, a stream, an explanation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from elasticscan.backends.redis.cluster import ClusterShards
from elasticscan.backends.redis.errors import torn_slots
from elasticscan.base.errors import ScanConsumed
from elasticscan.filters import And, Predicate
from elasticscan.protocol import ContinuationKey, Guarantee, slots_of
from elasticscan.reader import ScanPlan, ScanStats, drive
from elasticscan.topology import SlotSet

if TYPE_CHECKING:
    from elasticscan.backends.redis.store import ClusterTable


@dataclass(frozen=True)
class ClusterPage:
    """Some rows of a scan."""

    rows: pa.RecordBatch
    _standing: ContinuationKey = field(repr=False)
    _seal: Callable[[ContinuationKey], str] = field(repr=False)

    @property
    def key(self) -> str | None:
        """The key from which `ClusterStore.resume` continues after the page; None after the last."""
        return self._seal(self._standing) if self._standing.cursors else None


class ClusterScan(Iterator[ClusterPage]):
    """A scan that gives each key that exists throughout exactly once, in pages.

    It gives out its rows once: pages, or all that remain as a table or a stream.
    """

    def __init__(self, table: ClusterTable, state: ContinuationKey, members: Collection[str]) -> None:
        """Begin a scan, or go on with one; `members` are the nodes that the cluster had when it began."""
        self._members = members
        self._table, self._state = table, state
        self.schema = pa.schema([table.schema.field(name) for name in state.columns])
        self.predicate = None if state.filter is None else Predicate.parse(state.filter, table.schema)
        self.stats = ScanStats()
        self._pages: Iterator[ClusterPage] | None = None
        self._lock = Lock()
        self._reader: object = None

    def __repr__(self) -> str:
        left, every = len(slots_of(self._state.cursors)), len(self._state.slots)
        return f"<elasticscan.ClusterScan of {self._table.name!r}: {left:,} of {every:,} slots left>"

    @property
    def key(self) -> str | None:
        """The continuation key of where the scan stands now; None when it is complete."""
        return self._table.store.seal(self._state) if self._state.cursors else None

    def __iter__(self) -> Iterator[ClusterPage]:
        return self

    def __next__(self) -> ClusterPage:
        with self._lock:
            if self._reader is not None:
                raise self._consumed()
            self._pages = self._pages or self._read(self._state.columns)
            try:
                return next(self._pages)
            except StopIteration:
                raise
            except BaseException:  # it goes on where it stands when it is asked again
                self._pages = None
                raise

    @property
    def slots(self) -> SlotSet:
        """All slots of the scan, read or not."""
        return self._state.slots

    @property
    def standing(self) -> ContinuationKey:
        """The state of the scan now."""
        return self._state

    @property
    def table_name(self) -> str:
        return self._table.name

    def parts(self, slots: Sequence[SlotSet]) -> list[str]:
        """Return keys of this scan over some of its slots each: how it is divided among tasks."""
        return [self._table.store.seal(self._state.restrict_to(some)) for some in slots]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the remaining rows as a stream; pages without rows are left out."""
        return self._batches(self._state.columns)

    def to_table(self) -> pa.Table:
        """All remaining rows at once; needs the memory for them."""
        return pa.Table.from_batches(list(self.batches()), schema=self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """All remaining rows as a stream of record batches, read as they are asked for."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the Arrow PyCapsule stream, by which other libraries read a scan."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """All remaining rows as a pandas frame."""
        return self.to_table().to_pandas()

    def count(self) -> int:
        """Count the remaining rows, by the columns that the filter needs or by the keys alone."""
        return sum(rows.num_rows for rows in self._batches((self._table.schema.names[0],)))

    def close(self) -> None:
        """End the scan early; the keys of its pages can still be resumed."""
        self._reader = self._reader or self

    def explain(self) -> dict[str, Any]:
        """Explain what is read where, and which guarantee holds."""
        placement, names = self._table.store.placement()
        scans = [
            {"scan": "base-shard scan", "shard": names.get(shard, "unserved"), "slots": len(slots)}
            for shard, slots in sorted(placement.split_by_shard(slots_of(self._state.cursors)).items())
        ]
        return {
            "table": self._table.name,
            "guarantee": Guarantee.EACH_ONCE.value,
            "columns": list(self._state.columns),
            "filter": self._state.filter,
            "slots": len(self._state.slots),
            "scans": scans,
            "actual": {"pages": self.stats.pages, "rows_scanned": self.stats.rows},
        }

    def _consumed(self) -> ScanConsumed:
        return ScanConsumed("the rows of this scan were given out, or are read elsewhere; begin another scan")

    def _batches(self, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        with self._lock:
            if self._reader is not None:
                raise self._consumed()
            self._reader = pages = self._read(columns)
            self._pages = self._pages or pages
        return _RowsOfPages(pages)

    def _read(self, columns: tuple[str, ...]) -> Iterator[ClusterPage]:
        """Yield the pages from where the scan stands; at its end, look for keys that no client sees."""
        state, predicate = self._state, self.predicate
        needed = tuple(dict.fromkeys((*columns, *sorted(predicate.columns if predicate else ()))))
        reader = ClusterShards(self._table.connections, self._table.space(predicate), self._members)
        plan = ScanPlan(0, 0, needed, state.page_rows, state.page_bytes, reader.current(), state.slots)
        left = state.limit
        for page in drive(plan, state.cursors, reader, reader, self.stats) if state.cursors else ():
            rows = page.rows
            if predicate is not None:
                rows = rows.filter(predicate.mask(rows))
            rows, after = rows.select(list(columns)), page.after
            if left is not None:
                rows = rows.slice(0, left)
                left -= rows.num_rows
                after = after if left else ()
            state = replace(state, cursors=after, limit=left)
            if not after and left != 0 and self._table.options.fail_on_torn_slots:
                torn = reader.torn_slots(state.slots)
                if torn:
                    raise torn_slots(str(torn))
            self._state = state  # nothing can fail any more before the page is out
            yield ClusterPage(rows, state, self._table.store.seal)
            if left == 0:
                return


class _RowsOfPages(Iterator[pa.RecordBatch]):
    """The rows of pages. No generator: one that has failed ends at the next call as if it had given all."""

    def __init__(self, pages: Iterator[ClusterPage]) -> None:
        self._pages, self._failed, self._lock = pages, False, Lock()

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            if self._failed:
                raise ScanConsumed("this stream of a scan failed before; begin another scan")
            try:
                return next(page.rows for page in self._pages if page.rows.num_rows)
            except StopIteration:
                raise
            except BaseException:
                self._failed = True
                raise


def key_condition(predicate: Predicate, key: str) -> Predicate | None:
    """Return the part of a filter that names alone decide."""
    condition = predicate.condition
    parts = condition.parts if isinstance(condition, And) else (condition,)
    mine = tuple(part for part in parts if Predicate(part).columns == {key})
    return None if not mine else Predicate(mine[0] if len(mine) == 1 else And(mine))
