"""Writes of rows that follow from rows of the table, each in one commit.

Rows are read at one snapshot, and what becomes of them is staged while they are read. The commit requires
that no other one has written a key of it since, so it is as if all had been done at the snapshot; rows that
came later are later. Where another one has, all is done again at a newer snapshot (`attempts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import SnapshotExpired
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS
from elasticscan.catalog import IdempotencyKey, retry_interrupted
from elasticscan.filters import Predicate
from elasticscan.metadata import AUTO, StagedFragment, TableInfo
from elasticscan.store.context import Context, Find
from elasticscan.store.reading.beginning import begin_scan
from elasticscan.store.reading.scan import Scan
from elasticscan.store.writing import writer
from elasticscan.store.writing.attempts import OutdatedLookError, until_unchanged
from elasticscan.store.writing.preconditions import absent, unchanged
from elasticscan.store.writing.publishing import CommitNumber, CommitRequest, publish
from elasticscan.store.writing.staging import stage


@dataclass(frozen=True, slots=True)
class WriteTransaction:
    """A write to a table, which may read rows and commit what becomes of them.

    Attributes:
        find: finds the table, as a catalog transaction sees it.
        where: a condition on the rows that it reads; None for all rows.
        since: the commit at which rows are read, none of which may have changed later; None for the newest
            commit at each attempt.
        txn: (application, version); a write with the same pair is committed once.
        user_metadata: what the writer says of the commit.
    """

    context: Context
    find: Find
    where: str | None = None
    since: int | None = None
    txn: IdempotencyKey | None = None
    user_metadata: Mapping[str, str] | None = None

    def table(self) -> TableInfo:
        return self._table_and_earlier_commit()[0]

    def run(self, attempt: Callable[[], CommitNumber], rows: str, advice: str) -> CommitNumber:
        """Return the commit of the first attempt whose rows no other commit changed meanwhile.

        An earlier commit under the same `txn` is returned without an attempt.

        Args:
            attempt: reads, and ends with `commit`.
            rows: which ones, for the error: "that meet the condition".
            advice: what to do about it, for the error.

        Raises:
            FilterError, NotFound: the condition cannot be read.
            WriteConflict: rows were changed each time.
            RowsChanged: rows were changed after `since`.
        """
        table, done = self._table_and_earlier_commit()
        if done is not None:
            return CommitNumber(done, 0)
        if self.where is not None:
            Predicate.parse_for_change(self.where, table.schema)
        rows = f"rows of table {table.name!r} {rows}"
        return until_unchanged(self.context, attempt, rows, advice, is_final=self.since is not None)

    @retry_interrupted
    def _table_and_earlier_commit(self) -> tuple[TableInfo, int | None]:
        with self.context.catalog.reading() as tx:
            table = self.find(tx)[0]
            return table, None if self.txn is None else tx.commit_of_txn(table.id, self.txn)

    def write(
        self, table: TableInfo, data: Any, kind: str = "write", *, is_insert: bool = False
    ) -> CommitNumber:
        """Commit rows, or delete keys, that the caller has; an insert refuses keys that exist."""
        with unchanged(self.context, table, self.since, self.txn) as since:
            check = absent(self.context, table, self.txn) if is_insert else since
            said = self.user_metadata
            return writer.write(self.context, table, data, kind, self.txn, check=check, user_metadata=said)

    def read(self, columns: list[str] | None) -> Scan:
        """Begin a scan of the rows that meet the condition, with these columns or all."""
        # What met it at `since` counts, so a row that was changed away from it refuses the write.
        limits = DEFAULT_PAGE_ROWS, DEFAULT_PAGE_BYTES
        return begin_scan(self.context, self.find, columns, self.where, self.since, limits, index=AUTO)

    def commit(
        self,
        table: TableInfo,
        at: int,
        batches: Iterable[pa.RecordBatch],
        kind: str = "write",
        staged: Sequence[StagedFragment] = (),
    ) -> CommitNumber:
        """Commit rows and tombstones, and what was staged before, if no commit after one changed their keys.

        What was staged before stays staged where this fails.
        """
        with ExitStack() as stack:
            try:
                check = stack.enter_context(unchanged(self.context, table, at, self.txn))
            except SnapshotExpired as error:
                if self.since is not None:
                    raise
                raise OutdatedLookError from error
            made = stage(self.context, table, batches, kind)
            keep = {fragment.path for fragment in staged}
            request = CommitRequest(kind, self.txn, check, self.user_metadata, keep=keep)
            return publish(self.context, table, [*staged, *made], request)
