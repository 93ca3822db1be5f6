"""Scans of changes, under the cursor rule while tablets move.

A range of commits is cut at overwrites: such a commit deletes every row that it does not write, so
it is read on its own. Each part is a scan over the same slots, one after the other; the changes of
one key therefore come in the order of its commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from elasticscan.catalog import Commit, Tx
from elasticscan.metadata import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, TableInfo, floor_at
from elasticscan.protocol import ChangeSpan, Cluster, ContinuationKey
from elasticscan.reader import ScanPlan, ScanStats, drive
from elasticscan.storage import INSERT
from elasticscan.store.context import Context, Find
from elasticscan.store.context.lookups import check_kept

_STAMP = pa.timestamp("us", tz="UTC")


def feed_fields() -> list[pa.Field]:
    """Return the columns that a change feed adds."""
    return [
        pa.field(CHANGE_TYPE, pa.string(), nullable=False),
        pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
        pa.field(COMMIT_TIMESTAMP, _STAMP, nullable=False),
    ]


def history(context: Context, find: Find, most: int | None) -> tuple[Commit, ...]:
    """Return the newest commits of a table, or all, the oldest first. Raises `ShardMismatch`."""
    context.check_newest()
    tx = context.catalog.newest()
    table = find(tx)[0].id
    return tx.commits(table) if most is None else tx.commits(table, most=most, newest=True)


class CommitFacts(NamedTuple):
    """The commits that replaced the whole table, and the time of each commit that a feed names."""

    overwrites: tuple[int, ...]
    times: dict[int, float]


def commit_facts(tx: Tx, table: TableInfo, key: ContinuationKey) -> CommitFacts:
    """Return what a scan of changes needs; raises `SnapshotExpired` unless what is left to read is kept."""
    if key.segments is None:
        return CommitFacts((), {key.snapshot: tx.newest_upto(table.id, key.snapshot).created_at})
    if not key.segments:
        return CommitFacts((), {})
    after, upto = key.segments[0].after, key.segments[-1].upto
    check_kept(table, after)
    made = tx.commits(table.id, after, most=upto - after) if key.feed else ()
    return CommitFacts(tx.state.overwrites(table.id), {commit.number: commit.created_at for commit in made})


def change_pages(
    key: ContinuationKey,
    plan: ScanPlan,
    facts: CommitFacts,
    cluster: Cluster,
    stats: ScanStats,
) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
    """Yield the changes from a scan's position to its end, with the position after each page."""
    while key.cursors:
        assert key.segments, "a scan of changes that is not complete has segments left"
        segment = key.segments[0]
        # Up to an overwrite, or an overwrite, which is read on its own.
        within = (number for number in facts.overwrites if segment.after < number <= segment.upto)
        number = min(within, default=segment.upto + 1)
        is_alone = number == segment.after + 1
        upto, floor = number if is_alone else number - 1, floor_at(facts.overwrites, segment.after)
        span, slots = ChangeSpan(segment.after, upto, floor, is_alone, key.feed), key.slots & segment.slots
        asked = replace(plan.request, cursors=key.cursors, snapshot=span.upto, changes=span, key_sets={})
        part = replace(plan, request=asked, slots=slots)
        for page in drive(part, cluster.placements, cluster.shards, stats):
            key = key.advance(page.after, span.upto)
            yield page.rows, key


def feed_arrays(rows: pa.RecordBatch, key: ContinuationKey, facts: CommitFacts) -> list[pa.Array]:
    """Return the columns that a feed adds to rows; rows of a snapshot count as inserted by it."""
    if key.segments is None:
        kinds = pa.repeat(INSERT, rows.num_rows)
        versions = pa.repeat(pa.scalar(key.snapshot, pa.int64()), rows.num_rows)
    else:
        kinds, versions = rows.column(CHANGE_TYPE), rows.column(COMMIT_VERSION)
    numbers, places = np.unique(versions.to_numpy(), return_inverse=True)
    stamps = pa.array([round(facts.times[int(n)] * 1e6) for n in numbers], pa.int64()).cast(_STAMP)
    return [kinds, versions, stamps.take(pa.array(places))]
