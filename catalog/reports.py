"""Catalog transactions: reports, by which scans tell those who watch a store how far they are.

A report is a row among the leases, so that it ends with its time as they do, and copies of a store stay
equal. It promises nothing, and no snapshot stays for its sake.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticscan.catalog.state import StateTx
from elasticscan.catalog.tables import REPORT, leases, tables


@dataclass(frozen=True, slots=True)
class Report:
    """The word of a scan about itself.

    Attributes:
        table, snapshot: what it reads.
        said: its text.
        said_at: when, in seconds since 1970.
    """

    table: str
    snapshot: int
    said: str
    said_at: float


class ReportTx(StateTx):
    """Reads and changes of reports."""

    def report(self, report: str, table: int, snapshot: int, said: str, seconds: float) -> None:
        """Say something of a scan, in the place of what `report` said before; it is forgotten after a time.

        The first one of a scan removes those whose time is over. Of a table that was dropped nothing is said.
        """
        lasts = {"seconds": seconds, "expires_at": self.times.stamp + seconds, "purpose": REPORT + said}
        row = self._rows.one(leases, missing_is_checked=False, id=report)
        if row is not None:
            self._rows.update(leases, [(row, lasts)])
            return
        self._rows.delete(
            leases,
            [
                row
                for row in self._rows.all(leases)
                if row.purpose.startswith(REPORT) and row.expires_at < self.times.expiry
            ],
        )
        if self._rows.one(tables, id=table, dropped_at=None) is not None:
            self._rows.insert(leases, {"id": report, "table_id": table, "snapshot": snapshot} | lasts)

    def end_report(self, report: str) -> None:
        """Forget what a scan said."""
        row = self._rows.one(leases, missing_is_checked=False, id=report)
        if row is not None:
            self._rows.delete(leases, [row])

    def reports(self) -> list[Report]:
        """Return the words of scans that count now, the oldest first."""
        names = {row.id: row.name for row in self._rows.all(tables)}
        said = [
            Report(
                names[row.table_id],
                row.snapshot,
                row.purpose.removeprefix(REPORT),
                row.expires_at - row.seconds,
            )
            for row in self._rows.all(leases)
            if row.purpose.startswith(REPORT) and row.expires_at >= self.times.expiry
        ]
        return sorted(said, key=lambda report: report.said_at)
