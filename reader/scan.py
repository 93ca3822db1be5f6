"""Drives the cursor rule: look up, read a page, look up again, drop what moved, advance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from elasticscan.filters import KeySets
from elasticscan.protocol import (
    ChangeSpan,
    Cursors,
    IndexOrder,
    KeyList,
    KeyRanges,
    PageRequest,
    PageRows,
    Placements,
    ShardReader,
    slots_of,
)
from elasticscan.reader.coverage import Coverage
from elasticscan.reader.cursor import Accepted, ShardRead, accept_page, plan_read, remaining, staying_rows
from elasticscan.topology import Placement, SlotSet


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The definition of a scan, fixed from its start to its end."""

    table: int
    snapshot: int
    columns: tuple[str, ...]
    page_rows: int
    page_bytes: int
    base: Placement
    slots: SlotSet
    order: IndexOrder | None = None
    changes: ChangeSpan | None = None
    key_sets: KeySets = field(default_factory=dict)
    keys: KeyList | KeyRanges | None = None
    definition: int | None = None

    def request(self, read: ShardRead, layout: int | None) -> PageRequest:
        return PageRequest(
            self.table,
            read.shard,
            read.cursors,
            self.snapshot,
            self.columns,
            self.page_rows,
            self.page_bytes,
            self.order,
            self.changes,
            self.key_sets,
            self.keys,
            self.definition,
            layout,
        )


@dataclass(slots=True)
class ScanStats:
    """Counts of a scan so far.

    Attributes:
        pages: pages returned.
        rows: rows read and kept, before any filter.
        virtual_reads: pages with slots that had moved since the start.
        moved_slots: slots found to have moved while a page was read.
        dropped_rows: rows dropped from pages for that reason; they were read again later.
        scanned: rows that were looked at, or entries of an index.
        skipped_rows: rows that were skipped because statistics ruled them out.
    """

    pages: int = 0
    rows: int = 0
    virtual_reads: int = 0
    moved_slots: int = 0
    dropped_rows: int = 0
    scanned: int = 0
    skipped_rows: int = 0
    shards: set[int] = field(default_factory=set)

    def count(
        self, plan: ScanPlan, read: ShardRead, accepted: Accepted, page: PageRows, accepted_page: PageRows
    ) -> None:
        self.pages += 1
        self.rows += accepted_page.rows.num_rows
        self.shards.add(read.shard)
        if not read.slots <= plan.base.at(read.shard):
            self.virtual_reads += 1
        self.moved_slots += len(accepted.moved)
        self.dropped_rows += page.rows.num_rows - accepted_page.rows.num_rows
        self.scanned += page.scanned
        self.skipped_rows += page.skipped


def drive(
    plan: ScanPlan, cursors: Cursors, placements: Placements, shards: ShardReader, stats: ScanStats
) -> Iterator[PageRows]:
    """Yield the pages of a scan from `cursors` to its end, each slot's rows exactly once.

    `after` of a page are the cursors of the whole scan. The generator may be dropped after any page; the
    cursors of the last page are all that is needed to go on. At the end it proves that every slot was
    covered.

    While the placement check of a page is awaited, the next page is read. It counts if no slot of the first
    page moved and if it is requested soon; its own check follows then.
    """
    coverage = Coverage(plan.slots, slots_of(cursors))
    ahead: _Step | None = None
    looked: Placement | None = None
    refused = SlotSet()  # in this pass through the slots that are left

    def step(cursors: Cursors, placement: Placement, shard: int | None = None) -> _Step | None:
        """Read the next page; none at another shard, if one is given."""
        read = plan_read(cursors, placement, refused)
        if read is None or shard not in (None, read.shard):
            return None
        return _Step(cursors, read, shards.read_page(plan.request(read, placements.layout_of(placement))))

    while cursors:
        # The placement that validated a page may plan the next one: an older plan can only drop more rows.
        recent = placements.recent(looked)
        is_read = ahead is not None and ahead.cursors == cursors and recent is looked
        now = ahead if is_read else step(cursors, recent)
        assert now is not None, "where cursors are left there is something to read"
        with placements.look() as look:  # the rows have been read, so it is a second one
            ahead = None
            # Nothing is read ahead of the first page: many scans have no other, or end there. Nor at a shard
            # that has not just answered: it may be down, and this page would wait for it.
            if look.is_awaited and looked is not None:
                with suppress(Exception):  # the error is raised again if that page is needed
                    ahead = step(now.expected, placements.recent(looked), now.read.shard)
            looked = look.answer()
        accepted = accept_page(cursors, now.read, remaining(now.read, now.page), looked)
        coverage.finish(accepted.finished)
        answer = drop_moved(now.page, accepted.moved)
        stats.count(plan, now.read, accepted, now.page, answer)
        cursors = accepted.cursors
        if now.page.refused:
            refused |= now.page.refused
            ahead = None  # planned when these slots were expected to be done
        # A pass asks each slot that is left once. When only refused ones are, the next begins, and reads
        # the placement.
        if refused and slots_of(cursors) <= refused:
            refused, looked = SlotSet(), None
        yield replace(answer, after=cursors)
    coverage.prove()


@dataclass(frozen=True, slots=True)
class _Step:
    """A page of a scan that stood at some cursors, before it is known what has moved meanwhile."""

    cursors: Cursors
    read: ShardRead
    page: PageRows

    @property
    def expected(self) -> Cursors:
        """The cursors after it if nothing has."""
        left = remaining(self.read, self.page)
        return accept_page(self.cursors, self.read, left, self.read.placement).cursors


def drop_moved(page: PageRows, moved: SlotSet) -> PageRows:
    """Return the page without the rows of slots that moved while it was read."""
    if not moved or not page.rows.num_rows:
        return page
    stays = staying_rows(page.slots.to_numpy(zero_copy_only=True), moved)
    if stays.all():
        return page
    mask = pa.array(stays)
    return replace(page, rows=page.rows.filter(mask), slots=page.slots.filter(mask))
