"""The loop of the cursor rule: read placement, page, and placement again; drop rows that moved; advance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from elasticscan.protocol import PageRequest, PageRows, Placements, ShardReader, slots_of
from elasticscan.reader.coverage import Coverage
from elasticscan.reader.cursor import accept_page, plan_read, remaining, staying_rows
from elasticscan.topology import Placement, SlotSet


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The definition of a scan, fixed from its start to its end.

    Attributes:
        request: the request of all pages; each page sets its shard and cursors.
        base: the placement of the base topology.
        slots: all slots of the scan, read or not.
    """

    request: PageRequest
    base: Placement
    slots: SlotSet


@dataclass(slots=True)
class ScanStats:
    """Counts of a scan so far.

    Attributes:
        pages: pages returned.
        rows: rows read and kept, before any filter.
        virtual_reads: pages with slots that had moved since the base topology.
        moved_slots: slots that moved while a page was read.
        dropped_rows: rows of these slots, dropped from pages and read again later.
        scanned: versions of rows, or index entries, that shards examined.
        skipped_rows: rows that statistics ruled out, approximately.
    """

    pages: int = 0
    rows: int = 0
    virtual_reads: int = 0
    moved_slots: int = 0
    dropped_rows: int = 0
    scanned: int = 0
    skipped_rows: int = 0


def drive(
    plan: ScanPlan, placements: Placements, shards: ShardReader, stats: ScanStats, lowest: bool = False
) -> Iterator[PageRows]:
    """Yield the pages of a scan from the cursors of its request to the end, each row exactly once.

    `after` of a page are the cursors of the whole scan. The caller may stop after any page: the cursors
    of the last page are enough to resume. At the end, it proves that every slot was read.
    `lowest` is as for `plan_read`.
    """
    cursors = plan.request.cursors
    coverage = Coverage(plan.slots, slots_of(cursors))
    looked: Placement | None = None
    refused = SlotSet()  # slots that were refused in this pass
    while cursors:
        # The placement that validated a page may plan the next one: an older plan can only drop more rows.
        now = placements.recent(looked)
        read = plan_read(cursors, now, refused, lowest)
        assert read is not None, "there are cursors, and not all of their slots were refused"
        request = replace(
            plan.request, shard=read.shard, cursors=read.cursors, layout=placements.layout_of(now)
        )
        page = shards.read_page(request)
        looked = placements.current()  # only now: it validates the rows that were read before
        accepted = accept_page(cursors, read, remaining(read, page), looked)
        coverage.finish(accepted.finished)
        answer = drop_moved(page, accepted.moved)
        stats.pages += 1
        stats.rows += answer.rows.num_rows
        stats.virtual_reads += not read.slots <= plan.base.at(read.shard)
        stats.moved_slots += len(accepted.moved)
        stats.dropped_rows += page.rows.num_rows - answer.rows.num_rows
        stats.scanned += page.scanned
        stats.skipped_rows += page.skipped
        cursors = accepted.cursors
        refused |= page.refused
        # In one pass, a refused slot is requested once. If only refused slots are left, the next pass begins
        # and reads the placement.
        if refused and slots_of(cursors) <= refused:
            refused, looked = SlotSet(), None
        yield replace(answer, after=cursors)
    coverage.prove()


def drop_moved(page: PageRows, moved: SlotSet) -> PageRows:
    """Return the page without the rows of slots that moved while it was read."""
    if not moved or not page.rows.num_rows:
        return page
    mask = pa.array(staying_rows(page.slots.to_numpy(zero_copy_only=True), moved))
    return replace(page, rows=page.rows.filter(mask), slots=page.slots.filter(mask))
