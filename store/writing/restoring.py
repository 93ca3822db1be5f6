"""Restoring: a new commit after which a table is what it was at an older snapshot.

Only the keys that changed since are written. The change feed tells what each was: where a key's first change
since the snapshot is an insert, the key was not there and is deleted; else the row before that change is the
one to bring back. Where the table was overwritten meanwhile, all of it is written.

The commit requires that nobody has written to the table since the changes were read, so the snapshot that it
makes is the old one exactly; if somebody has, all is done again (`attempts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.errors import RowsChanged, SnapshotExpired
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS
from elasticscan.base.order_keys import sort_codes
from elasticscan.catalog import retry_interrupted
from elasticscan.metadata import CHANGE_TYPE, TableInfo
from elasticscan.storage import DELETE, INSERT
from elasticscan.store.context import Context, Find
from elasticscan.store.context.tags import snapshot_of
from elasticscan.store.reading.beginning import begin_changes, begin_scan
from elasticscan.store.reading.scan import Scan
from elasticscan.store.rows.keys import tombstones_of, with_tombstones
from elasticscan.store.writing.attempts import until_unchanged
from elasticscan.store.writing.preconditions import Untouched
from elasticscan.store.writing.publishing import CommitRequest, publish_own
from elasticscan.store.writing.staging import stage

RESTORED_TO = "restored_to"  # in the commit's user metadata

_LIMITS = (DEFAULT_PAGE_ROWS, DEFAULT_PAGE_BYTES)


@retry_interrupted
def restore(context: Context, find: Find, to: int | str | datetime, said: Mapping[str, str]) -> int:
    """Make a table's newest snapshot equal to an older one; returns the commit's number.

    Args:
        to: a commit number, a tag, or a time with its zone.
        said: what its caller says of the commit.

    Raises:
        NotFound, SnapshotExpired: there is no such snapshot, or not any more.
        WriteConflict: others wrote to the table each time.
    """
    context.check_newest()
    with context.catalog.reading() as tx:
        table = find(tx)[0]
        snapshot = snapshot_of(tx, table, to)
    assert snapshot is not None, "it was given"

    def attempt() -> int:
        try:
            return _attempt(context, find, snapshot, {**said, RESTORED_TO: str(snapshot)})
        except SnapshotExpired:
            with context.catalog.reading() as tx:
                tx.check_snapshot(find(tx)[0], snapshot)  # which it was, until a merge let go of it
            raise

    rows = f"rows of table {table.name!r}, which was to be restored to snapshot {snapshot},"
    return until_unchanged(context, attempt, rows, "pause them, and try again")


def _attempt(context: Context, find: Find, snapshot: int, said: Mapping[str, str]) -> int:
    """Raise `RowsChanged` when somebody wrote to the table meanwhile."""
    with context.catalog.reading() as tx:
        table, newest = find(tx)[0], 0
        tx.check_snapshot(table, snapshot)
        newest = tx.last_commit_of(table.id)
        replaced = any(number > snapshot for number in tx.overwrites(table.id))
    kind = "overwrite" if replaced else "write"
    upto = max(snapshot, newest)  # others may have committed since
    with _rows(context, find, table, (snapshot, upto), replaced) as rows:
        staged = stage(context, table, rows, kind)
    check = Untouched(context, table, newest)
    return publish_own(context, table, staged, CommitRequest(kind, check=check, user_metadata=said))


@contextmanager
def _rows(
    context: Context, find: Find, table: TableInfo, commits: tuple[int, int], replaced: bool
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the rows to be written; raise `RowsChanged` where the columns changed since."""
    if replaced:
        with begin_scan(context, find, None, None, commits[0], _LIMITS, index="none") as scan:
            _check_columns(table, scan)
            yield scan.batches()
    else:
        with begin_changes(context, find, commits, None, None, True, _LIMITS) as feed:
            _check_columns(table, feed)
            yield (undone(events, table) for events in feed.batches())


def _check_columns(table: TableInfo, scan: Scan) -> None:
    if scan.standing.definition != table.definition:
        raise RowsChanged(f"the columns of table {table.name!r} were changed; try again", table=table.name)


def undone(events: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    """Return rows and tombstones that undo a page of a feed, which has all changes of its keys."""
    first, last = _ends(events, table.primary_key)
    kinds = events.column(CHANGE_TYPE)
    begins, ends = kinds.filter(pa.array(first)), kinds.filter(pa.array(last))
    rows = events.filter(pa.array(first)).select(table.schema.names)
    came = pc.equal(begins, INSERT)
    # What came and went again needs nothing.
    tombstones = tombstones_of(rows.filter(pc.and_(came, pc.not_equal(ends, DELETE))), table)
    return with_tombstones(rows.filter(pc.invert(came)), tombstones)


def _ends(events: pa.RecordBatch, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Masks of each key's first and last event; those of a key stand together, in order."""
    begins = np.zeros(len(events), dtype=bool)
    begins[:1] = True
    for name in keys:
        codes = sort_codes(events.column(name))
        begins[1:] |= codes[1:] != codes[:-1]
    return begins, np.append(begins[1:], [True])[: len(events)]
