"""Rows in place of those that meet a condition, in one commit.

The new rows, all of which have to meet the condition, are staged first. Then those that meet it now are read
at one snapshot, and are deleted unless a new row has their key. The commit requires that nobody has written
any of these keys since: it is as if it had been made at the snapshot. Where somebody has, the condition is
looked at again (`attempts`); the new rows stay where they are staged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.errors import (
    ElasticScanError,
    InvalidOption,
    TableChanged,
)
from elasticscan.base.hashing import slots_of
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS
from elasticscan.base.showing import brief
from elasticscan.catalog import IdempotencyKey, Tx, retry_interrupted
from elasticscan.filters import Predicate
from elasticscan.metadata import AUTO, IndexInfo, StagedFragment, TableInfo
from elasticscan.protocol import RowRequest
from elasticscan.storage import PageSource, read_rows, staged_source
from elasticscan.store.context import Context
from elasticscan.store.reading.beginning import begin_scan
from elasticscan.store.rows.keys import tombstones_of
from elasticscan.store.writing.attempts import until_unchanged
from elasticscan.store.writing.by_condition import Selection, commit_of
from elasticscan.store.writing.preconditions import unchanged
from elasticscan.store.writing.publishing import CommitNumber, publish, publish_own
from elasticscan.store.writing.staging import conformed_rows, remove_staged, stage


def replace_rows(selection: Selection, table: TableInfo, rows: Any) -> CommitNumber:
    """Write rows in place of those that meet the selection's condition.

    Raises:
        InvalidOption: a row does not meet it; nothing was written.
        WriteConflict: others wrote some of the keys each time that they were read.
    """
    done = commit_of(selection)
    if done is not None:
        return CommitNumber(done, 0)
    batches = rows_that_meet(selection.where or "", table, conformed_rows(rows, table))
    staged = stage(selection.context, table, batches)
    try:
        return publish_replacing(selection, table, staged)
    except BaseException:
        with suppress(ElasticScanError):  # then they are garbage
            remove_staged(selection.context, staged)
        raise


def check_condition(where: str, table: TableInfo) -> None:
    """Raise `FilterError` or `NotFound` unless a table's rows can meet a condition."""
    Predicate.parse_for_change(where, table.schema)


def rows_that_meet(
    where: str, table: TableInfo, batches: Iterable[pa.RecordBatch], option: str = "where"
) -> Iterator[pa.RecordBatch]:
    """Yield the rows, which are all to meet a condition.

    Raises:
        InvalidOption: one does not, or it is unknown if it does.
        FilterError, NotFound: the condition cannot be read.
    """
    predicate = Predicate.parse_for_change(where, table.schema)
    for batch in batches:
        others = batch.filter(pc.invert(pc.fill_null(predicate.mask(batch), False)))
        if others.num_rows:
            row = others.select([*table.primary_key]).slice(0, 1).to_pylist()[0]
            key = ", ".join(f"{name} = {brief(value)}" for name, value in row.items())
            raise InvalidOption(
                f"row {key} does not meet {option}={brief(where)}, and nothing was written; leave it out",
                option=option,
            )
        yield batch


def replacing_in(
    context: Context,
    table: TableInfo,
    where: str,
    txn: IdempotencyKey | None,
    user_metadata: Mapping[str, str] | None,
) -> Selection:
    """Return the rows of a table that meet a condition, whatever name the table has."""

    def find(tx: Tx) -> tuple[TableInfo, tuple[IndexInfo, ...]]:
        now = tx.table_by_id(table.id)
        if now is None:
            raise TableChanged(
                f"table {table.name!r} was dropped while rows were written to it; nothing was committed",
                table=table.name,
            )
        return now, tx.indexes(table.id)

    return Selection(context, find, where, None, txn, user_metadata)


def publish_replacing(
    selection: Selection, table: TableInfo, staged: Sequence[StagedFragment]
) -> CommitNumber:
    """Publish staged rows in place of those that meet the condition now; they stay staged if that fails.

    A table that is only reserved has none, and is entered with the new ones.
    """
    context = selection.context
    if not _is_entered(context, table):
        return publish(context, table, staged, selection.request())
    rows = f"rows of table {table.name!r} that meet the condition, or have keys of the new ones,"
    return until_unchanged(selection.context, lambda: _attempt(selection, table, staged), rows, "try again")


@retry_interrupted
def _is_entered(context: Context, table: TableInfo) -> bool:
    with context.catalog.reading() as tx:
        return tx.table_by_id(table.id) is not None


def _attempt(selection: Selection, table: TableInfo, staged: Sequence[StagedFragment]) -> CommitNumber:
    context, limits = selection.context, (DEFAULT_PAGE_ROWS, DEFAULT_PAGE_BYTES)
    key, paths = list(table.primary_key), frozenset(fragment.path for fragment in staged)
    with (
        begin_scan(context, selection.find, key, selection.where, None, limits, index=AUTO) as scan,
        unchanged(context, table, scan.snapshot, selection.txn) as check,
    ):
        others = _without(staged_source(table, staged, context.disk_of), scan.batches(), context, table)
        gone = stage(context, table, (tombstones_of(keys, table) for keys in others), "delete")
        request = selection.request(check=check, keep=paths)
        return publish_own(context, table, [*staged, *gone], request, handed_in=paths)


def _without(
    staged: PageSource, batches: Iterable[pa.RecordBatch], context: Context, table: TableInfo
) -> Iterator[pa.RecordBatch]:
    """Yield the keys that no staged row has."""
    for keys in batches:
        slots = slots_of(keys.select(table.shard_key).columns, context.info.slots)
        order = np.argsort(slots, kind="stable")
        ordered = keys.take(pa.array(order))
        # What was staged is, as its source has it, commit 1.
        asked = RowRequest(table.id, shard=0, snapshot=1, columns=(), slots=slots[order], keys=ordered)
        yield ordered.filter(pa.array(read_rows(staged, asked).places < 0))
