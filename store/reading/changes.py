"""Scans of changes, which read each change exactly once while tablets move.

A range of commits is divided at overwrites. An overwrite deletes every row that it does not write, so it is
read alone. The parts are scans over the same slots, one after the other. Therefore the changes of a key are
returned in the order of their commits.
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
    """Return the columns that a change feed adds to those of the table."""
    return [
        pa.field(CHANGE_TYPE, pa.string(), nullable=False),
        pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
        pa.field(COMMIT_TIMESTAMP, _STAMP, nullable=False),
    ]


def history(context: Context, find: Find, most: int | None) -> tuple[Commit, ...]:
    """Return the newest `most` commits of a table, or all, oldest first. Raises `ShardMismatch`."""
    context.check_newest()
    tx = context.catalog.newest()
    table = find(tx)[0].id
    return tx.commits(table) if most is None else tx.commits(table, most=most, newest=True)


class CommitFacts(NamedTuple):
    """The table's overwrites, and the time of each commit that a feed returns."""

    overwrites: tuple[int, ...]
    times: dict[int, float]


def commit_facts(tx: Tx, table: TableInfo, key: ContinuationKey) -> CommitFacts:
    """Return the facts for a scan. Raises `SnapshotExpired` unless the changes left to read are kept."""
    if key.segments is None:
        return CommitFacts((), {key.snapshot: tx.newest_upto(table.id, key.snapshot).created_at})
    if not key.segments:
        return CommitFacts((), {})
    after, upto = key.segments[0].after, key.segments[-1].upto
    check_kept(table, after)
    commits = tx.commits(table.id, after, most=upto - after) if key.feed else ()
    times = {commit.number: commit.created_at for commit in commits}
    return CommitFacts(tx.state.overwrites(table.id), times)


def change_pages(
    key: ContinuationKey,
    plan: ScanPlan,
    facts: CommitFacts,
    cluster: Cluster,
    stats: ScanStats,
) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
    """Yield the pages of changes from a scan's position to its end, each with the position after it."""
    while key.cursors:
        assert key.segments, "a scan of changes that is not complete has segments left"
        segment = key.segments[0]
        # Read the commits before the next overwrite, or if there are none, the overwrite alone.
        within = (number for number in facts.overwrites if segment.after < number <= segment.upto)
        number = min(within, default=segment.upto + 1)
        is_alone = number == segment.after + 1
        upto, floor = number if is_alone else number - 1, floor_at(facts.overwrites, segment.after)
        span, slots = ChangeSpan(segment.after, upto, floor, is_alone, key.feed), key.slots & segment.slots
        request = replace(plan.request, cursors=key.cursors, snapshot=span.upto, changes=span, key_sets={})
        part = replace(plan, request=request, slots=slots)
        for page in drive(part, cluster.placements, cluster.shards, stats):
            key = key.advance(page.after, span.upto)
            yield page.rows, key


def feed_arrays(rows: pa.RecordBatch, key: ContinuationKey, facts: CommitFacts) -> list[pa.Array]:
    """Return the columns that a feed adds to rows; rows of a snapshot are inserts of that commit."""
    if key.segments is None:
        kinds = pa.repeat(INSERT, rows.num_rows)
        versions = pa.repeat(pa.scalar(key.snapshot, pa.int64()), rows.num_rows)
    else:
        kinds, versions = rows.column(CHANGE_TYPE), rows.column(COMMIT_VERSION)
    numbers, places = np.unique(versions.to_numpy(), return_inverse=True)
    stamps = pa.array([round(facts.times[int(n)] * 1e6) for n in numbers], pa.int64()).cast(_STAMP)
    return [kinds, versions, stamps.take(pa.array(places))]
