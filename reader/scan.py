"""Drives the cursor rule: look up, read a page, look up again, drop what moved, advance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from elasticscan.reader.coverage import Coverage
from elasticscan.reader.cursor import Accepted, Cursors, ShardRead, accept_page, plan_read, slots_of
from elasticscan.reader.protocol import PageRequest, PageRows, Placements, Shards
from elasticscan.topology import Placement, SlotSet


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a scan reads; fixed from its start to its end."""

    table: int
    snapshot: int
    columns: tuple[str, ...]
    page_rows: int
    page_bytes: int
    base: Placement
    slots: SlotSet


@dataclass(slots=True)
class ScanStats:
    """What happened in a scan so far.

    Attributes:
        pages: pages returned.
        rows: rows read and kept, before any filter.
        base_reads: pages read at the shard where all their slots were at the start.
        virtual_reads: pages with slots that had moved since.
        moved_slots: slots found to have moved while a page was read.
        dropped_rows: rows dropped from pages for that reason; they were read again later.
    """

    pages: int = 0
    rows: int = 0
    base_reads: int = 0
    virtual_reads: int = 0
    moved_slots: int = 0
    dropped_rows: int = 0
    shards: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """Rows that may leave, and the cursors after them."""

    rows: pa.RecordBatch
    cursors: Cursors


def drive(
    plan: ScanPlan, cursors: Cursors, placements: Placements, shards: Shards, stats: ScanStats
) -> Iterator[ScannedPage]:
    """Pages of a scan from `cursors` to its end, each slot's rows exactly once.

    The generator may be dropped after any page; the cursors of the last page are all that is
    needed to go on. At the end it proves that every slot was covered.
    """
    coverage = Coverage(plan.slots, slots_of(cursors))
    while (read := plan_read(cursors, placements.current())) is not None:
        page = shards.read_page(
            PageRequest(
                plan.table,
                read.shard,
                read.cursors,
                plan.snapshot,
                plan.columns,
                plan.page_rows,
                plan.page_bytes,
            )
        )
        accepted = accept_page(cursors, read, page.after, placements.current())
        coverage.finish(accepted.finished)
        rows = keep_settled(page, accepted.moved)
        _count(stats, plan, read, accepted, page, rows)
        cursors = accepted.cursors
        yield ScannedPage(rows, cursors)
    coverage.prove()


def keep_settled(page: PageRows, moved: SlotSet) -> pa.RecordBatch:
    """The page without the rows of slots that moved while it was read."""
    if not moved or not page.rows.num_rows:
        return page.rows
    slots = page.slots.to_numpy(zero_copy_only=True)
    keep = np.ones(len(slots), dtype=bool)
    for start, end in moved:
        keep &= (slots < start) | (slots >= end)
    return page.rows if keep.all() else page.rows.filter(pa.array(keep))


def _count(
    stats: ScanStats,
    plan: ScanPlan,
    read: ShardRead,
    accepted: Accepted,
    page: PageRows,
    rows: pa.RecordBatch,
) -> None:
    stats.pages += 1
    stats.rows += rows.num_rows
    stats.shards.add(read.shard)
    if read.slots <= plan.base.at(read.shard):
        stats.base_reads += 1
    else:
        stats.virtual_reads += 1
    stats.moved_slots += len(accepted.moved)
    stats.dropped_rows += page.rows.num_rows - rows.num_rows
