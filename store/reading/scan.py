"""A scan as users hold it: pages with keys, a table, a stream, an explanation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from elasticscan.base.concurrency import cached_property
from elasticscan.base.errors import InvalidOption, ScanConsumed
from elasticscan.catalog import retry_interrupted
from elasticscan.metadata import TableInfo
from elasticscan.optimizer import Choice
from elasticscan.protocol import ContinuationKey, slots_of
from elasticscan.reader import ScanStats
from elasticscan.store.context import Context
from elasticscan.store.context.leases import lease_end
from elasticscan.store.context.lookups import ScanLayout
from elasticscan.store.reading.access_paths import Access, access_of, explain_access
from elasticscan.store.reading.first_rows import KeptOrder
from elasticscan.store.reading.paged_scan import PagedScan
from elasticscan.store.reading.paging import Page, Pages, schema_of
from elasticscan.topology import SlotSet, Topology


class Scan(PagedScan):
    """A scan that gives every row of one snapshot exactly once, in pages.

    Iterating yields pages; each page's key resumes the scan after that page, in any process, while the
    snapshot is kept (a scan renews its lease with its pages) and the key is valid (30 days, or longer where
    snapshots are kept for longer). Threads may share the pages; `key` is where the scan stands.

    `to_table`, `count` and streams read all rows that remain. No row goes to two readers: another reader gets
    `ScanConsumed`, never a part that looks like the whole. A `to_table` or `count` that failed
    can be called again; a stream that failed or was left cannot. A forked child cannot read its parent's
    scan; it uses `Store.resume(scan.key)`.

    A scan is an Arrow stream, too: `duckdb.sql("SELECT count(*) FROM scan")`, `polars.DataFrame(scan)`,
    `pandas.DataFrame.from_arrow(scan)` and `pyarrow.table(scan)` read it to its end, once.

    Where retention keeps the snapshot for less than two more hours, a scan holds a lease on it. A store
    that is open for reading alone takes none: its scan ends with `SnapshotExpired` once that is gone.
    `explain()["kept_by"]` says which of the two keeps it.
    """

    def __init__(
        self,
        context: Context,
        table: TableInfo,
        base: Topology,
        key: ContinuationKey,
        ends_lease: bool = True,
        choose: Callable[[], Choice] | None = None,
        access: Access | None = None,
        leased: bool = True,
        layout: ScanLayout | None = None,
        kept: KeptOrder | None = None,
    ) -> None:
        super().__init__(table.name, key)
        self._opened = context
        self._table = table
        self._base = base
        self._ends_lease = ends_lease
        self._kept = kept  # the order that it sorts its first rows by
        self._choose, self.layout = choose, layout  # of a scan that begins; None of one that was resumed
        self._access = access or access_of(context, table, key)
        self._pages = Pages(context, table, base, self._access, key, kept, leased)

    @property
    def _context(self) -> Context:
        return self._opened.per_process.get()

    def __repr__(self) -> str:
        left, all_slots = len(slots_of(self._state.cursors)), len(self._state.slots)
        stats = self._pages.stats
        return (
            f"<elasticscan.Scan of {self._table.name!r} at snapshot {self.snapshot}: {self._returned:,} rows "
            f"in {stats.pages:,} pages, {stats.virtual_reads:,} of them where slots had moved to; "
            f"{all_slots - left:,} of {all_slots:,} slots done>"
        )

    @property
    def snapshot(self) -> int:
        """The commit number that the scan reads at."""
        return self._state.snapshot

    @property
    def stats(self) -> ScanStats:
        """Counts of what was read until now."""
        return self._pages.stats

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self._table, self._state)

    @property
    def key(self) -> str | None:
        """The continuation key of where the scan stands now; None when it is complete.

        Raises `InvalidOption` where the scan sorts its rows itself, and so has only one page.
        """
        if self._kept is not None and self._state.cursors:
            raise InvalidOption(
                "a scan that sorts its rows itself has no key before its page; make an index in its order",
                option="order_by",
            )
        return super().key

    def _seal(self, state: ContinuationKey) -> str:
        return self._context.seal(state)

    def _read(self, columns: tuple[str, ...]) -> Iterator[Page]:
        return self._pages.read(self._state, columns, self._returned)

    def _end(self) -> None:
        self._pages.end(self._ends_lease)

    def parts(self, slots: Sequence[SlotSet]) -> list[str]:
        """Keys of this scan over some of its slots each: how it is divided among tasks.

        The catalog is asked once, however many there are.

        Raises:
            InvalidOption: the scan has a limit, which no part could keep alone.
            ScanConsumed: all rows were given out before, or the scan is closed.
            ScanConsumed: a scan of changes has given out pages, and is only divided before its first.
        """
        state = self._state
        if state.limit is not None:
            raise InvalidOption(
                "a scan with a limit cannot be divided into parts; divide one without a limit", option="limit"
            )
        if not state.cursors and self.stats.pages:
            raise self._used_up()
        self._check_open()
        if state.segments and state != state.begin(state.segments):
            raise ScanConsumed(
                "a scan of changes can be divided only before its first page; begin another one",
                table=self._table.name,
            )
        sealer = self._context.sealer
        return [sealer.seal(state.restrict_to(some)) for some in slots]

    @cached_property
    def choice(self) -> Choice | None:
        """Return the access paths and the chosen one; None for a resumed scan."""
        return None if self._choose is None else self._choose()

    def explain(self) -> dict[str, Any]:
        """Explain the scan's path, and what it has read; and where the slots are that it has not read yet."""
        context, state = self._context, self._state
        placement, pending = context.placement(), slots_of(state.cursors)
        names = dict(self._base.shard_names) | context.shard_names()
        scans = []
        for shard, slots in sorted(placement.split_by_shard(pending).items()):
            home = slots & self._base.placement.at(shard)
            for kind, part in (("base-shard scan", home), ("virtual scan", slots - home)):
                if part:
                    scans.append({"scan": kind, "shard": names.get(shard, str(shard)), "slots": len(part)})
        access = explain_access(self._access, self.choice, self._table)
        if self._kept is not None:
            access["order_by"] = list(self._kept.terms)
        return {
            "table": self._table.name,
            "snapshot": state.snapshot,
            "base_topology": self._base.number,
            "columns": list(state.columns),
            "filter": state.filter,
            **access,
            "limit": state.limit,
            "kept_by": "lease" if self._is_leased() else "retention",
            "actual": {
                "rows_scanned": self.stats.scanned,
                "rows_skipped": self.stats.skipped_rows,
                "rows_returned": self._returned,
                "pages": self.stats.pages,
            },
            "slots": len(state.slots),
            "pending_slots": len(pending),
            "scans": scans,
        }

    @retry_interrupted
    def _is_leased(self) -> bool:
        with self._context.catalog.reading() as tx:
            return lease_end(tx, self._state.lease) > tx.now
