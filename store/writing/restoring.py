"""Restoring: a new commit after which a table is what it was at an older snapshot.

Only the keys that changed since are written. The change feed shows what each was: where a key's first change
since the snapshot is an insert, the key was not there and is deleted; else the row before that change is the
one to bring back. Where the table was overwritten meanwhile, all of it is written.

The commit requires that the table is unchanged since the changes were read, so the snapshot that it makes is
the old one exactly; otherwise all is done again (`transactions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.key_encoding import sort_codes
from elasticscan.metadata import CHANGE_TYPE, NONE, TableInfo
from elasticscan.protocol import ReadRequest
from elasticscan.storage import DELETE, INSERT
from elasticscan.store.context.tags import snapshot_of
from elasticscan.store.reading.scan import begin_changes, begin_scan
from elasticscan.store.rows.keys import tombstones_of, with_tombstones
from elasticscan.store.writing.publishing import CommitNumber, CommitRequest, publish
from elasticscan.store.writing.staging import stage
from elasticscan.store.writing.transactions import OutdatedLookError, WriteTransaction

RESTORED_TO = "restored_to"  # in the commit's user metadata


def restore(transaction: WriteTransaction, to: int | str | datetime) -> int:
    """Make a table's newest snapshot equal to an older one; returns the commit's number.

    Args:
        transaction: of the table, without a condition.
        to: a commit number, a tag, or a time with its zone.

    Raises:
        NotFound, SnapshotExpired: there is no such snapshot, or not any more.
        WriteConflict: others wrote to the table each time.
    """
    transaction.context.check_newest()
    return transaction.run(lambda: _attempt(transaction, to))


def _attempt(transaction: WriteTransaction, to: int | str | datetime) -> CommitNumber:
    """Restore a snapshot of now.

    Raises:
        RowsChanged: another commit came to the table meanwhile.
        OutdatedLookError: its columns changed.
    """
    context = transaction.context
    tx = context.catalog.newest()
    table = transaction.find(tx)[0]
    snapshot = snapshot_of(tx, table, to)
    assert snapshot is not None, "it was given"
    tx.state.check_snapshot(table, snapshot)
    newest = tx.state.tables[table.id].newest
    is_replaced = any(number > snapshot for number in tx.state.overwrites(table.id))
    kind, commits = "overwrite" if is_replaced else "write", (snapshot, max(snapshot, newest))
    if is_replaced:
        scan = begin_scan(context, transaction.find, ReadRequest(None, index=NONE, snapshot=snapshot))
    else:
        scan = begin_changes(context, transaction.find, commits, ReadRequest(None, feed=True))
    with scan:
        if scan.standing.definition != table.definition:
            raise OutdatedLookError
        pages = scan.batches()
        rows = pages if is_replaced else (undone(events, table) for events in pages)
        staged = stage(context, table, rows, kind)
    said = {**(transaction.user_metadata or {}), RESTORED_TO: str(snapshot)}
    return publish(context, table, staged, CommitRequest(kind, user_metadata=said, newest=newest))


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
