"""The embedded store as a back end: what Spark and the command line need beyond `Store` and `Table`.

`EmbeddedBackend` implements the reads that every back end has. Its `changes` serve streams, which read new
commits from several processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.errors import TableChanged
from elasticscan.base.hashing import slots_of
from elasticscan.catalog import IdempotencyKey
from elasticscan.metadata import TableInfo
from elasticscan.protocol import ReadRequest, ScanStart, of_another_read
from elasticscan.store.context import Context
from elasticscan.store.moves.balancing import slot_bytes
from elasticscan.store.reading.scan import Scan, begin_scan, resume_scan
from elasticscan.store.reading.streams import CommitReads
from elasticscan.store.writing import merging
from elasticscan.store.writing.transactions import OutdatedReadError, WriteTransaction


class EmbeddedTable:
    """A table, with the reads that Spark divides among tasks."""

    def __init__(self, context: Context, info: TableInfo) -> None:
        self._context, self.info = context, info
        self.name, self.schema = info.name, info.schema
        self.primary_key, self.shard_key = info.primary_key, info.shard_key

    def begin(self, read: ReadRequest) -> ScanStart:
        """Begin a scan, and return it with the sizes by which it is divided among tasks."""
        scan, context = self.scan(read), self._context
        standing, entries = scan.standing, None
        if (standing.index is not None or standing.by_key) and scan.choice is not None:
            entries = scan.choice.candidate.rows_scanned
        state = context.table_state(standing.table, standing.snapshot)
        return ScanStart(
            scan,
            state.placement,
            scan.base.placement,
            slot_bytes(state.fragments, context.known.slots),
            entries,
        )

    def access_paths(self, read: ReadRequest) -> list[dict[str, Any]]:
        """Return the access paths that the optimizer compared; `chosen` marks the one of the scan."""
        with self.scan(read) as scan:
            choice = scan.choice
            assert choice is not None, "a new scan has chosen its path"
            return [asdict(each) | {"chosen": each == choice.candidate} for each in choice.candidates]

    def places(self, rows: pa.RecordBatch) -> tuple[pa.Array, NDArray[np.uint16]]:
        """Return the name of the shard where each row is now, and the row's slot."""
        slots = slots_of(rows.select(self.shard_key).columns, self._context.known.slots)
        placement, names = self._context.placement(), self._context.shard_names()
        homes = pa.array([names.get(tablet.shard, str(tablet.shard)) for tablet in placement.tablets])
        at: Any = np.searchsorted(placement.starts, slots, "right") - 1
        return homes.take(pa.array(at)), slots

    def scan(self, read: ReadRequest, **how: Any) -> Scan:
        """Begin a scan; `how` has further arguments of `begin_scan`."""
        return begin_scan(self._context, partial(self._context.table, name=self.name), read, **how)


class EmbeddedBackend:
    """The embedded store, behind the interface of all back ends."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.slot_count, self.identity = context.known.slots, context.known.store_id
        self.changes = CommitReads(context)

    # Reads

    def table(self, name: str, schema: pa.Schema | None = None) -> EmbeddedTable:
        """Return a table; `schema` is for back ends that do not store the columns."""
        return EmbeddedTable(self._context, self._context.state().table_named(name))

    def resume(self, key: str, table: str, filter: str | None) -> Scan:  # noqa: A002
        """Return the part of a scan that a task reads. It does not end the lease: the task may be retried."""
        scan = resume_scan(self._context, key, ends_lease=False)
        read, table_id = scan.standing, self._context.state().table_named(table).id
        if (read.table, read.filter, read.limit) != (table_id, filter, None):
            raise of_another_read()
        return scan

    def selection(
        self,
        table: str,
        where: str | None,
        user_metadata: Mapping[str, str] | None,
        txn: IdempotencyKey | None = None,
        table_id: int | None = None,
    ) -> WriteTransaction:
        """Return a transaction that changes the rows of a table that match a condition."""
        find = partial(self._context.table, name=table, table_id=table_id)
        return WriteTransaction(self._context, find, where, None, txn, user_metadata)

    # The catalog

    def newest(self) -> int:
        """Return the newest commit, after checking that no shard has seen a newer one."""
        self._context.check_newest()
        return self.versions()[1]

    def versions(self) -> tuple[int, int]:
        """Return (layout, newest commit). Reads return the same while both are unchanged."""
        return self._context.state().versions

    def tables(self) -> tuple[tuple[TableInfo, ...], int]:
        """Return all tables and the newest commit, from one state of the catalog."""
        state = self._context.state()
        return state.infos(), state.commit


def complete_rows(
    context: Context, table: TableInfo, since: int, rows: Iterator[pa.RecordBatch], given: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield complete rows: the given columns, and all other columns from the stored rows with the same keys.

    Raises `TableChanged` if the columns of the table were changed since `table` was read.
    """
    find = partial(context.table_state, table.id)
    current = find()
    try:
        if current.table.definition != table.definition:
            raise OutdatedReadError
        yield from merging.rows_merged(context, find, current, since, rows, merging.Clauses(columns=given))
    except OutdatedReadError:
        raise TableChanged(
            f"the columns of table {table.name!r} were changed while rows were written that keep some of "
            "them; nothing was committed: write again",
            table=table.name,
        ) from None
