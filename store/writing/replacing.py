"""Rows in place of those that meet a condition, in one commit.

The new rows, all of which have to meet the condition, are staged first. Then those that meet it now are read
at one snapshot, and are deleted unless a new row has their key. Where that is done again (`transactions`),
the new rows stay where they are staged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.errors import CommitUnknown, ElasticScanError, InvalidOption
from elasticscan.base.formatting import brief
from elasticscan.base.hashing import slots_of
from elasticscan.catalog import IdempotencyKey, Tx
from elasticscan.filters import Predicate
from elasticscan.metadata import IndexInfo, StagedFragment, TableInfo
from elasticscan.protocol import RowRequest
from elasticscan.storage import PageSource, read_rows, staged_source
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import live_table
from elasticscan.store.rows.keys import tombstones_of
from elasticscan.store.writing.publishing import CommitNumber, CommitRequest, is_committed, publish
from elasticscan.store.writing.staging import conformed_rows, remove_staged, stage
from elasticscan.store.writing.transactions import WriteTransaction


def replace_rows(transaction: WriteTransaction, table: TableInfo, rows: Any) -> CommitNumber:
    """Write rows in place of those that meet the transaction's condition.

    Raises:
        InvalidOption: a row does not meet it; nothing was written.
        WriteConflict: others wrote some of the keys each time that they were read.
    """
    context, txn = transaction.context, transaction.txn
    if txn is not None and is_committed(context, table.id, txn):
        return publish_replacing(transaction, table, ())
    batches = rows_that_meet(transaction.where or "", table, conformed_rows(rows, table))
    staged = stage(context, table, batches)
    try:
        return publish_replacing(transaction, table, staged)
    except CommitUnknown:
        raise
    except Exception:
        with suppress(ElasticScanError):  # then they are garbage
            remove_staged(context, staged)
        raise


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
) -> WriteTransaction:
    """Return a transaction of the rows that meet a condition, whatever name the table has."""

    def find(tx: Tx) -> tuple[TableInfo, tuple[IndexInfo, ...]]:
        return live_table(tx, table.id), tx.state.indexes(table.id)

    return WriteTransaction(context, find, where, None, txn, user_metadata)


def publish_replacing(
    transaction: WriteTransaction, table: TableInfo, staged: Sequence[StagedFragment]
) -> CommitNumber:
    """Publish staged rows in place of those that meet the condition now; they stay staged if that fails.

    A table that is only reserved has none, and is entered with the new ones.
    """
    context = transaction.context
    if context.ask(lambda tx: tx.state.info(table.id)) is None:
        keep = {fragment.path for fragment in staged}
        request = CommitRequest("write", transaction.txn, None, transaction.user_metadata, keep=keep)
        return publish(context, table, staged, request)

    def attempt() -> CommitNumber:
        with transaction.read(list(table.primary_key)) as scan:
            others = _without(staged_source(table, staged, context.disk_of), scan.batches(), context, table)
            tombstones = (tombstones_of(keys, table) for keys in others)
            return transaction.commit(table, scan.snapshot, tombstones, staged=staged)

    rows = "that meet the condition, or have keys of the new ones,"
    number = transaction.run(attempt, rows, "try again")
    if not number.rows:  # it was done before, with other files
        remove_staged(context, staged)
    return number


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
