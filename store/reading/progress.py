"""Scans in flight: how far each is, for those who watch a store.

A scan that lasts reports every few seconds, between two pages, by a lease that keeps nothing. A report takes
at most a fiftieth of the scan's time, and never delays or fails it: where another transaction writes at that
moment, it is left out. It goes when the scan ends, or half a minute after its last page. A task of Spark
reports its part.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from elasticscan.base.errors import ElasticScanError
from elasticscan.catalog import Tx, in_transaction
from elasticscan.protocol import ContinuationKey, slots_of
from elasticscan.reader import ScanStats
from elasticscan.store.context import Context
from elasticscan.topology import Topology

REPORT_SECONDS, KEPT_SECONDS = 2.0, 30.0
SHARE_OF_TIME = 0.02  # most that reports take of a scan's time


@dataclass(frozen=True, slots=True)
class ScanProgress:
    """The progress of a scan.

    Attributes:
        began_at: in seconds since 1970.
        slots, slots_done: of the scan.
        slots_moved: not done, and elsewhere than when the scan began.
    """

    table: int
    snapshot: int
    began_at: float
    slots: int
    slots_done: int
    slots_moved: int
    rows: int
    pages: int


class Reporting:
    """The reports of one scan."""

    def __init__(self, context: Context, base: Topology, stats: ScanStats) -> None:
        self._context, self._base, self._stats = context, base, stats
        self._began = context.clock.now()
        self._next = self._began + REPORT_SECONDS
        self._id = ""  # of the lease, once there is one

    def note(self, standing: ContinuationKey, rows: int) -> None:
        """Report where a scan stands after a page, and how many rows it gave, unless it did so just now."""
        now = self._context.clock.now()
        if now < self._next or self._context.catalog.read_only is not None or in_transaction():
            return
        with suppress(ElasticScanError):
            self._report(standing, rows)
        took = self._context.clock.now() - now
        self._next = now + max(REPORT_SECONDS, took / SHARE_OF_TIME)

    def _report(self, standing: ContinuationKey, rows: int) -> None:
        pending, base = slots_of(standing.cursors), self._base.placement
        places = self._context.placement().split_by_shard(pending).items()
        progress = ScanProgress(
            standing.table,
            standing.snapshot,
            self._began,
            len(standing.slots),
            len(standing.slots - pending),
            sum(len(slots - base.at(shard)) for shard, slots in places),
            rows,
            self._stats.pages,
        )
        name = self._id or secrets.token_hex(8)
        with self._context.catalog.leasing(at_once=True) as tx:
            tx.put_lease(name, progress, KEPT_SECONDS)
            if not self._id:  # the first one removes those of scans that died
                tx.end_expired_leases()
        self._id = name

    def end(self) -> None:
        """Remove the report."""
        self._next = float("inf")
        if self._id and not in_transaction():  # else its time ends it
            with suppress(ElasticScanError), self._context.catalog.leasing(at_once=True) as tx:
                tx.remove_lease(ScanProgress, self._id)


def scans_in(tx: Tx) -> list[dict[str, Any]]:
    """Return the scans in flight, the oldest first: the values of `ScanProgress`, with the table's name."""
    names = {table.id: table.name for table in tx.state.infos()}
    found = [lease.value for lease in tx.leases(ScanProgress) if tx.lasts(lease)]
    scans = [asdict(scan) | {"table": names[scan.table]} for scan in found if scan.table in names]
    return sorted(scans, key=lambda scan: scan["began_at"])
