"""Scans of a table in a cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from elasticscan.backends.redis.cluster import ClusterShards
from elasticscan.base.errors import ShardUnavailable
from elasticscan.filters import Predicate
from elasticscan.protocol import ContinuationKey, PageRequest, slots_of
from elasticscan.reader import ScanPlan, ScanStats, drive
from elasticscan.store import PagedScan
from elasticscan.topology import SlotSet

if TYPE_CHECKING:
    from elasticscan.backends.redis.store import ClusterTable

_GUARANTEE = "each key that exists throughout exactly once, any other at most once; no snapshot"


class ClusterScan(PagedScan):
    """A scan that gives each key that exists throughout exactly once, in pages."""

    def __init__(self, table: ClusterTable, state: ContinuationKey, members: Collection[str]) -> None:
        """Begin a scan, or go on with one; `members` are the nodes that the cluster had when it began."""
        super().__init__(table.name, state)
        self.table, self._members = table, members
        self._predicate = None if state.filter is None else Predicate.parse(state.filter, table.schema)
        self.stats = ScanStats()

    def __repr__(self) -> str:
        left, every = len(slots_of(self.standing.cursors)), len(self.standing.slots)
        return f"<elasticscan.ClusterScan of {self._name!r}: {left:,} of {every:,} slots left>"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self.table.schema.field(name) for name in self.standing.columns])

    def parts(self, slots: Sequence[SlotSet]) -> list[str]:
        """Return a key of this scan for each set of slots, one for each task."""
        return [self._seal(self.standing.restrict_to(some)) for some in slots]

    def explain(self) -> dict[str, Any]:
        """Return the columns, filter, slots and the guarantee of this scan."""
        return {
            "table": self._name,
            "guarantee": _GUARANTEE,
            "columns": list(self.standing.columns),
            "filter": self.standing.filter,
            "slots": len(self.standing.slots),
            "actual": {"pages": self.stats.pages, "rows_scanned": self.stats.rows},
        }

    def _seal(self, state: ContinuationKey) -> str:
        return self.table.store.seal(state)

    def _read(self, columns: tuple[str, ...]) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
        """Yield rows with the state of the scan after them. Torn slots are searched before the last ones."""
        state, predicate, table = self.standing, self._predicate, self.table
        if not state.cursors:
            return
        columns = columns or table.primary_key
        needed = tuple(dict.fromkeys((*columns, *sorted(predicate.columns if predicate else ()))))
        shards = ClusterShards(table.store.connections, table.space(predicate), self._members)
        request = PageRequest(0, 0, state.cursors, 0, needed, state.page_rows, state.page_bytes)
        for page in drive(ScanPlan(request, shards.read(), state.slots), shards, shards, self.stats):
            if not page.after and table.options.fail_on_torn_slots:
                torn = shards.torn_slots(state.slots)
                if torn:
                    raise ShardUnavailable(
                        f"slots {torn} have keys at masters that do not serve them; run redis-cli --cluster "
                        "fix, or read with failOnTornSlots=false",
                        slots=str(torn),
                    )
            rows = page.rows if predicate is None else page.rows.filter(predicate.mask(page.rows))
            yield rows.select(list(columns)), replace(state, cursors=page.after)
