"""The progress of scans, for those who watch a store.

A scan that lasts says every few seconds, between two pages, how far it is: one small transaction of the
catalog, a lease that keeps nothing, which takes a fiftieth of the scan's time at most, waits for no other
transaction, and never fails the scan: where another one writes just then, nothing is said. A shorter one
says nothing, nor does one of a store that is open for reading alone. What was said is forgotten when the scan
ends, or half a minute after its last page.

Tasks of one scan, as Spark has them, each say their part; `scans_in` puts together what they say.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from elasticscan.base.errors import ElasticScanError
from elasticscan.base.limits import MAX_SLOTS
from elasticscan.catalog import Lease, Tx, is_writing
from elasticscan.protocol import ContinuationKey, slots_of
from elasticscan.reader import ScanStats
from elasticscan.store.context import Context
from elasticscan.topology import SlotSet, Topology

REPORT_SECONDS, KEPT_SECONDS = 2.0, 30.0
SHARE_OF_TIME = 0.02  # most that reports take of a scan's time
MOST_RANGES = 64  # of a set of slots; of more, the blocks that it touches are told


@dataclass(frozen=True, slots=True)
class Report:
    """The word of a scan about itself: the table and the snapshot that it reads, and a text."""

    table: int
    snapshot: int
    said: str


class Reporting:
    """Tells how far a scan is."""

    def __init__(self, context: Context, base: Topology, key: ContinuationKey, stats: ScanStats) -> None:
        self._context, self._base, self._stats = context, base, stats
        self._began = self._said_at = context.clock.now()
        self._next = self._began + REPORT_SECONDS
        self._rows_said = 0
        self._id = ""
        self._ended = self._said = False
        self._shared = key.lease

    def note(self, standing: ContinuationKey, rows: int) -> None:
        """Say where a scan stands after a page, and how many rows it gave, if that was not said just now."""
        now = self._context.clock.now()
        if now < self._next or self._ended or self._context.catalog.read_only is not None or is_writing():
            return
        self._id = self._id or secrets.token_hex(8)
        with suppress(ElasticScanError):  # nobody sees how far it is, then
            self._say(standing, rows, now)
        took = self._context.clock.now() - now
        self._next = now + max(REPORT_SECONDS, took / SHARE_OF_TIME)

    def _say(self, standing: ContinuationKey, rows: int, now: float) -> None:
        pending = slots_of(standing.cursors)
        placement, base = self._context.placement(), self._base.placement
        moved = SlotSet.union(
            slots - base.at(shard) for shard, slots in placement.split_by_shard(pending).items()
        )
        said = {
            "scan": self._shared or self._id,
            "kind": "scan" if standing.segments is None else "changes",
            "base_topology": self._base.number,
            "seconds": round(now - self._began, 3),
            "rows": rows,
            "rows_per_second": round((rows - self._rows_said) / max(now - self._said_at, 1e-3)),
            "pages": self._stats.pages,
            "virtual_reads": self._stats.virtual_reads,
            "slots": [len(standing.slots), len(standing.slots - pending), len(moved)],
            "sets": [str(_drawn(slots)) for slots in (standing.slots, pending, moved)],
        }
        with self._context.catalog.leasing(at_once=True) as tx:
            tx.put_lease(self._id, Report(standing.table, standing.snapshot, json.dumps(said)), KEPT_SECONDS)
            if not self._said:  # the first one removes those of scans that died
                tx.end_expired_leases()
        self._said = True
        self._rows_said, self._said_at = rows, now

    def end(self) -> None:
        """Take back what was said, if anything was."""
        self._ended = True
        said, self._id = self._id, ""
        if said and not is_writing():  # else its time ends it
            with suppress(ElasticScanError), self._context.catalog.leasing(at_once=True) as tx:
                tx.remove_lease(Report, said)


def _drawn(slots: SlotSet) -> SlotSet:
    """Return a set of slots, or the blocks that it touches: few ranges, as much as a picture shows."""
    if len(slots.ranges) <= MOST_RANGES:
        return slots
    block = -(-slots.ranges[-1][1] // (2 * MOST_RANGES))
    return SlotSet.of(
        (start // block * block, min(-(-end // block) * block, MAX_SLOTS)) for start, end in slots
    )


def scans_in(tx: Tx) -> list[dict[str, Any]]:
    """Return the scans in flight that say how far they are, the oldest first, as plain values.

    Returns:
        For each `id`, `kind` ("scan" or "changes"), `table`, `snapshot`, `snapshot_at`, `base_topology`,
        `began_at` and `said_at` (seconds since 1970), `parts` (tasks that read it now), and of these parts
        together `rows`, `rows_per_second` (since they said so before), `pages`, `virtual_reads`, `slots`,
        `slots_done`, `slots_moved` (that are not done, and lie elsewhere than when the scan began), and
        ranges of slots, for a picture: `done`, `pending` and `moved`.
    """
    names = {table.id: table.name for table in tx.state.infos()}
    reports = [each for each in tx.leases(Report) if tx.lasts(each) and each.value.table in names]
    parts = defaultdict[str, list[tuple[Lease[Report], dict[str, Any]]]](list)
    for report in sorted(reports, key=lambda report: report.until):
        said = json.loads(report.value.said)
        parts[said["scan"]].append((report, said))
    scans = [_scan(scan, of, tx, names) for scan, of in parts.items()]
    return sorted(scans, key=lambda scan: (scan["began_at"], scan["id"]))


def _scan(
    scan: str, parts: Sequence[tuple[Lease[Report], dict[str, Any]]], tx: Tx, names: Mapping[int, str]
) -> dict[str, Any]:
    first, said = parts[0][0].value, [said for _, said in parts]
    said_at = [report.until / 1e6 - KEPT_SECONDS for report, _ in parts]
    sets = zip(*(map(SlotSet.parse, part["sets"]) for part in said), strict=True)
    slots, pending, moved = map(SlotSet.union, sets)
    drawn = {"done": slots - pending - moved, "pending": pending - moved, "moved": moved}
    counts = {
        name: sum(part["slots"][place] for part in said)
        for place, name in enumerate(("slots", "slots_done", "slots_moved"))
    }
    counted = ("rows", "rows_per_second", "pages", "virtual_reads")
    return {
        "id": scan,
        "kind": said[0]["kind"],
        "table": names[first.table],
        "snapshot": first.snapshot,
        "snapshot_at": tx.made_at(first.snapshot),
        "base_topology": said[0]["base_topology"],
        "began_at": min(at - part["seconds"] for at, part in zip(said_at, said, strict=True)),
        "said_at": max(said_at),
        "parts": len(parts),
        **{name: sum(part[name] for part in said) for name in counted},
        **counts,
        **{name: list(map(list, of)) for name, of in drawn.items()},
    }
