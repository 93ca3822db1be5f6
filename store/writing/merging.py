"""Merges: new rows are matched with a table's rows by primary key, and the result is one commit.

The new rows are processed in pieces, so that only one piece is in memory. For each piece, the table's rows
with its keys are read at the merge's snapshot, and the resulting rows are staged. If the merge is repeated at
a newer snapshot (`transactions`), it starts again from the rows that were passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.errors import InvalidOption
from elasticscan.metadata import TableInfo
from elasticscan.storage import Spool, batches_of, conform, conformed, parts_of
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import KnownTable
from elasticscan.store.reading.rows_by_key import MOST_KEYS, get_rows
from elasticscan.store.reading.scan import columns_of
from elasticscan.store.rows.conversion import arrow_rows, tombstones_of, with_tombstones
from elasticscan.store.writing.publishing import CommitNumber
from elasticscan.store.writing.transactions import OutdatedReadError, WriteTransaction

UPDATE, DELETE, INSERT, IGNORE = "update", "delete", "insert", "ignore"
WHEN_MATCHED, WHEN_NOT_MATCHED = (UPDATE, DELETE, IGNORE), (INSERT, IGNORE)

PIECE_BYTES = 64 << 20  # about; of new rows, or of the table's rows with their keys


@dataclass(frozen=True, slots=True)
class Clauses:
    """The two clauses of a merge.

    Attributes:
        matched, not_matched: the action for rows whose key is in the table, and for all others.
        columns: the columns that are written, in addition to the primary key; None for all.
    """

    matched: str = UPDATE
    not_matched: str = INSERT
    columns: Sequence[str] | None = None

    def columns_for(self, table: TableInfo) -> tuple[list[str], list[str], bool]:
        """Return (columns that new rows must have, columns to read, whether new rows may have others).

        In columns that are not written, updated rows keep their values, and inserted rows have nulls.
        """
        key, names, written = list(table.primary_key), table.schema.names, self.columns
        kept = [] if written is None else [name for name in names if name not in (*written, *key)]
        is_by_key = self.matched != UPDATE and self.not_matched == IGNORE
        needed = key if is_by_key else [name for name in names if name not in kept]
        return needed, [*key, *kept] if self.matched == UPDATE else key, written is not None or needed == key

    def check(self, table: TableInfo) -> None:
        """Raise `NotFound` for an unknown column, `InvalidOption` if the merge would do nothing."""
        columns_of(table, self.columns)
        if (self.matched, self.not_matched) == (IGNORE, IGNORE):
            raise InvalidOption(
                "when_matched and when_not_matched are both 'ignore'; choose another", option="when_matched"
            )


def merge_rows(
    transaction: WriteTransaction, read_table: Callable[[], KnownTable], rows: Any, clauses: Clauses
) -> CommitNumber:
    """Merge rows, in any form that `Table.upsert` accepts, in one commit; `read_table` reads the table."""
    table = transaction.table()
    clauses.check(table)
    if clauses == Clauses():
        return transaction.write(table, arrow_rows(rows, table))
    needed, _, is_any = clauses.columns_for(table)
    rows = arrow_rows(rows, table, needed if is_any else None)
    is_table = isinstance(rows, pa.Table | pa.RecordBatch)
    with Spool() as spool:
        for batch in () if is_table else batches_of(rows):  # a stream can be read only once
            spool.write(batch)

        def attempt() -> CommitNumber:
            current = read_table()
            table, at = current.table, transaction.since
            clauses.check(table)
            at = current.last_commit if at is None else at
            batches = batches_of(rows) if is_table else spool.batches()
            merged = rows_merged(transaction.context, read_table, current, at, batches, clauses)
            return transaction.commit(table, at, merged)

        return transaction.run(attempt)


def rows_merged(
    context: Context,
    read_table: Callable[[], KnownTable],
    current: KnownTable,
    at: int,
    batches: Iterator[pa.RecordBatch],
    clauses: Clauses,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows to commit, from the batches and the rows with the same keys at the snapshot `at`.

    The commit must require that the keys are unchanged since `at`. Raises `OutdatedReadError` if the columns
    are no longer those of `current`.
    """
    table = current.table
    needed, columns, is_any = clauses.columns_for(table)
    for piece in parts_of(conformed(batches, table, needed, is_any), PIECE_BYTES, _piece_rows(current)):
        now = read_table()
        if now.table.definition != table.definition:
            raise OutdatedReadError
        keys = piece.select(list(table.primary_key))
        existing = get_rows(context, now, keys, columns, at, keep_missing=True)
        yield _merged(piece, existing, table, clauses)


def _piece_rows(state: KnownTable) -> int:
    """Return the number of rows in a piece whose matching rows take about `PIECE_BYTES`."""
    rows, size = sum(f.rows for f in state.fragments), sum(f.bytes for f in state.fragments)
    return max(1, min(MOST_KEYS, PIECE_BYTES * rows // size)) if size else MOST_KEYS


def _merged(piece: pa.RecordBatch, existing: pa.Table, table: TableInfo, clauses: Clauses) -> pa.RecordBatch:
    """Return the rows to write for a piece and the matching `existing` rows, tombstones included."""
    exists = existing.column(table.primary_key[0]).is_valid().combine_chunks()
    upserts = pa.RecordBatch.from_pylist([], schema=table.schema)
    if clauses.matched == UPDATE or clauses.not_matched == INSERT:
        columns = []
        for field in table.schema:  # from the piece, else from the table's rows, else nulls
            if field.name in piece.schema.names:
                columns.append(piece.column(field.name))
            elif field.name in existing.schema.names:
                columns.append(existing.column(field.name).combine_chunks())
            else:
                columns.append(pa.nulls(piece.num_rows, field.type))
        written = pa.RecordBatch.from_arrays(columns, names=table.schema.names)
        if clauses.matched != UPDATE:
            written = written.filter(pc.invert(exists))
        elif clauses.not_matched == IGNORE:
            written = written.filter(exists)
        upserts = conform(written, table.schema)
    if clauses.matched != DELETE:
        return upserts
    return with_tombstones(upserts, tombstones_of(piece.filter(exists), table))
