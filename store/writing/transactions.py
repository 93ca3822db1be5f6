"""Writes that depend on rows of the table, each in one commit (optimistic concurrency).

Rows are read at one snapshot, and new versions are staged while they are read. The commit requires that no
other commit has written one of its keys since the snapshot. So the result is the same as if all had happened
at the snapshot, before later commits of other rows. If another commit has written one of the keys, the whole
write is repeated at a newer snapshot, after a random pause whose bound doubles (backoff with full jitter). So
if several processes write the same rows all the time, their attempts spread out, and each of them succeeds.

**Replace** (`overwrite` with a condition): new rows are staged once and used by all attempts. Rows that match
the condition are deleted unless a new row has their key.

**Restore**: only keys that changed since the snapshot are written. The change feed has the old row of each
key. If a key's first change since the snapshot is an insert, the key did not exist and is deleted; otherwise
the row before that change is restored. If the table was overwritten meanwhile, all rows are written. The
commit requires that the table is unchanged, so the new snapshot equals the old one exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.errors import (
    Busy,
    FilterError,
    InvalidOption,
    NotFound,
    RowsChanged,
    SnapshotExpired,
    TableChanged,
)
from elasticscan.base.formatting import brief
from elasticscan.base.hashing import slots_of
from elasticscan.base.key_encoding import sort_codes
from elasticscan.catalog import IdempotencyKey
from elasticscan.filters import Assignment, Predicate
from elasticscan.metadata import CHANGE_TYPE, NONE, StagedFragment, TableInfo
from elasticscan.protocol import ReadRequest, RowRequest
from elasticscan.storage import (
    DELETE,
    INSERT,
    batches_of,
    conform,
    conformed,
    files_of,
    python_rows,
    read_rows,
    staged_source,
)
from elasticscan.store.context import Context, Find
from elasticscan.store.context.tags import snapshot_of
from elasticscan.store.reading.scan import begin_changes, begin_scan, columns_of
from elasticscan.store.rows.conversion import tombstones_of, typed, with_tombstones
from elasticscan.store.writing.publishing import (
    CommitNumber,
    CommitRequest,
    earlier_commit,
    publish,
    remove_staged,
    removed_on_error,
    stage,
    write,
)

# A write gives up only after both, so that long attempts are repeated, too.
ATTEMPTS_SECONDS, FEWEST_ATTEMPTS = 60.0, 10
_DOUBLINGS = 7
_MOST_PAUSE_SECONDS = 1.0

RESTORED_TO = "restored_to"  # in the commit's user metadata

T = TypeVar("T")
NewValues: TypeAlias = Callable[[pa.RecordBatch], pa.Array]
Change: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


class OutdatedReadError(Exception):
    """The columns of a table changed, or its snapshot expired, since an attempt read them: read again."""


def until_unchanged(
    context: Context, attempt: Callable[[], T], rows: str, advice: str, *, is_final: bool = False
) -> T:
    """Return the result of the first attempt during which no other commit wrote the rows that it read.

    An attempt is also repeated if columns changed, or if an index by which rows were found was dropped, since
    the caller did not choose that index.

    Args:
        context: of the store. If it cannot be written, no attempt is made.
        attempt: reads rows at a snapshot, and commits changes of them.
        rows, advice: parts of the error's text: which rows, and the next step.
        is_final: the caller named the snapshot, so a later change of the rows is an error at once.

    Raises:
        Busy: other commits wrote the rows during each attempt, for a minute and ten attempts.
    """
    context.catalog.check_writable()
    began, conflict = context.clock.now(), None
    for attempts in count(1):
        try:
            return attempt()
        except OutdatedReadError:
            pass
        except TableChanged as error:
            if error.fields.get("kind") != "index":
                raise
        except RowsChanged as error:
            if is_final:
                raise
            conflict = error
        if attempts >= FEWEST_ATTEMPTS and context.clock.now() - began > ATTEMPTS_SECONDS:
            break
        bound = _MOST_PAUSE_SECONDS * 2.0 ** (min(attempts, _DOUBLINGS) - _DOUBLINGS)
        context.clock.sleep(random.uniform(0, bound))
    raise Busy(
        f"{rows} were written by others each of the {attempts} times that they were read; nothing was "
        f"written: {advice}",
        **({} if conflict is None else conflict.fields),
    )


@dataclass(frozen=True, slots=True)
class WriteTransaction:
    """A write to a table that may read rows and commit changes of them.

    Attributes:
        find: finds the table in a catalog transaction.
        where: a condition on the rows to read; None for all rows.
        since: the snapshot to read, after which the rows may not have changed; None for the newest one at
            each attempt.
        txn: the idempotency key.
        user_metadata: the writer's metadata, part of the history.
    """

    context: Context
    find: Find
    where: str | None = None
    since: int | None = None
    txn: IdempotencyKey | None = None
    user_metadata: Mapping[str, str] | None = None

    def table(self) -> TableInfo:
        return self.context.ask(self.find)[0]

    def run(self, attempt: Callable[[], CommitNumber]) -> CommitNumber:
        """Return the commit of the first attempt whose rows no other commit changed meanwhile.

        An attempt reads rows and ends with `commit`. If `txn` was committed before, no attempt is made.
        Raises `FilterError` or `NotFound` for an invalid condition.
        """
        table = self.table()
        earlier = earlier_commit(self.context, table.id, self.txn)
        if earlier is not None:
            return CommitNumber(earlier)
        if self.where is not None:
            Predicate.parse_for_change(self.where, table.schema)
        rows, is_final = f"rows of table {table.name!r}", self.since is not None
        return until_unchanged(self.context, attempt, rows, "try again, or change fewer", is_final=is_final)

    def write(
        self, table: TableInfo, data: Any, kind: str = "write", *, is_insert: bool = False
    ) -> CommitNumber:
        """Commit the rows of `data`; if `kind` is "delete", delete the keys of `data`.

        With `is_insert`, keys that exist are refused.
        """
        batches = conformed(batches_of(data), table, table.primary_key if kind == "delete" else None)
        if kind == "delete":
            batches = (tombstones_of(keys, table) for keys in batches)
        request = CommitRequest(kind, self.txn, self.since, is_insert, self.user_metadata)
        return write(self.context, table, batches, request)

    def commit(
        self,
        table: TableInfo,
        at: int,
        batches: Iterable[pa.RecordBatch],
        kind: str = "write",
        staged: Sequence[StagedFragment] = (),
    ) -> CommitNumber:
        """Commit rows, tombstones and `staged` fragments, if no commit after `at` changed their keys."""
        request = CommitRequest(kind, self.txn, at, user_metadata=self.user_metadata)
        try:
            return write(self.context, table, batches, request, staged)
        except SnapshotExpired as error:
            if self.since is not None:
                raise
            raise OutdatedReadError from error

    def change(
        self,
        columns: list[str] | None,
        change_of: Callable[[TableInfo], Change],
        kind: str = "write",
        staged: Sequence[StagedFragment] = (),
    ) -> CommitNumber:
        """Read the rows that match the condition, and commit their changes.

        Args:
            columns: the columns to read; None for all.
            change_of: returns, for a definition of the table, the function from rows that were read to rows
                and tombstones to commit.
            kind: the commit's name in the table's history.
            staged: fragments to commit as well, with other keys.
        """

        def attempt() -> CommitNumber:
            # The condition is evaluated at `since`: a row that matched then and was changed is a conflict.
            request = ReadRequest(columns, self.where, snapshot=self.since)
            with begin_scan(self.context, self.find, request) as scan:
                # A column that is added later has values only in rows that are changed later: a conflict.
                table = self.table()
                if scan.standing.definition != table.definition:
                    raise OutdatedReadError
                rows = map(change_of(table), scan.batches())
                return self.commit(table, scan.snapshot, rows, kind, staged)

        return self.run(attempt)


def delete_rows(transaction: WriteTransaction) -> CommitNumber:
    """Delete the rows that match the condition."""
    keys = list(transaction.table().primary_key)
    return transaction.change(keys, lambda table: partial(tombstones_of, table=table), "delete")


def update_rows(transaction: WriteTransaction, new: Mapping[str, Any]) -> CommitNumber:
    """Update columns of the rows that match the condition.

    `new` maps columns to SQL expressions over the old row (text), or to values of other types.
    """

    def assigned(table: TableInfo) -> Change:
        values, names = _new_values(new, table), table.schema.names

        def change(rows: pa.RecordBatch) -> pa.RecordBatch:
            columns = [values[name](rows) if name in values else rows.column(name) for name in names]
            return conform(pa.RecordBatch.from_arrays(columns, names=names), table.schema)

        return change

    assigned(transaction.table())  # raises for invalid values before any row is read
    return transaction.change(None, assigned)


def _new_values(new: Mapping[str, Any], table: TableInfo) -> dict[str, NewValues]:
    """Return a function from rows to new values for each column."""
    names = columns_of(table, list(new), "set")
    if keys := {*names} & {*table.primary_key}:
        raise InvalidOption(
            f"set names {min(keys)!r} of the primary key; insert rows with the new keys, delete the old ones",
            option="set",
        )
    return {name: _new_value(new[name], table.schema.field(name), table) for name in names}


def _new_value(value: Any, field: pa.Field, table: TableInfo) -> NewValues:
    if not isinstance(value, str):
        scalar = typed([value], field)[0]
        return lambda rows: pa.repeat(scalar, rows.num_rows)
    try:
        return Assignment.parse(value, field, table.schema).values
    except (FilterError, NotFound) as error:
        hint = f"; text is written with quotes inside: \"'{value}'\"" if value.isidentifier() else ""
        fields = error.fields | {"option": f"set[{field.name!r}]"}
        raise type(error)(f"set[{field.name!r}]={brief(value)}: {error.message}{hint}", **fields) from None


# Replace the rows that match a condition


def replace_rows(transaction: WriteTransaction, table: TableInfo, rows: Any) -> CommitNumber:
    """Replace the rows that match the transaction's condition by new rows, which must match it, too."""
    context = transaction.context
    if earlier_commit(context, table.id, transaction.txn) is not None:
        return publish_replacing(transaction, table, ())
    batches = conformed(batches_of(rows), table)
    staged = stage(context, table, checked_rows(transaction.where or "", table, batches))
    with removed_on_error(context, files_of(staged)):
        return publish_replacing(transaction, table, staged)


def checked_rows(
    where: str, table: TableInfo, batches: Iterable[pa.RecordBatch], option: str = "where"
) -> Iterator[pa.RecordBatch]:
    """Yield the batches. Raises `InvalidOption` if the condition is not true for a row."""
    predicate = Predicate.parse_for_change(where, table.schema)
    for batch in batches:
        refused = batch.filter(pc.invert(pc.fill_null(predicate.mask(batch), False)))
        if refused.num_rows:
            row = python_rows(refused.select([*table.primary_key]).slice(0, 1))[0]
            key = ", ".join(f"{name} = {brief(value)}" for name, value in row.items())
            raise InvalidOption(
                f"row {key} does not meet {option}={brief(where)}, and nothing was written; leave it out",
                option=option,
            )
        yield batch


def publish_replacing(
    transaction: WriteTransaction, table: TableInfo, staged: Sequence[StagedFragment]
) -> CommitNumber:
    """Commit staged rows and delete the rows that match the condition; `staged` stays staged on an error.

    A reserved table has no rows yet, and is created with the staged ones.
    """
    context = transaction.context
    if context.ask(lambda tx: tx.state.info(table.id)) is None:
        request = CommitRequest(txn=transaction.txn, user_metadata=transaction.user_metadata)
        return publish(context, table, staged, request)
    source = staged_source(table, staged, context.disk_of)

    def tombstones(keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return tombstones of the keys that no staged row has."""
        slots = slots_of(keys.select(table.shard_key).columns, context.known.slots)
        order = np.argsort(slots, kind="stable")
        ordered = keys.take(pa.array(order))
        # The source of staged rows presents them as commit 1.
        request = RowRequest(table.id, shard=0, snapshot=1, columns=(), slots=slots[order], keys=ordered)
        return tombstones_of(ordered.filter(pa.array(read_rows(source, request).places < 0)), table)

    number = transaction.change(list(table.primary_key), lambda _: tombstones, staged=staged)
    if not number.rows:  # `txn` was committed before, with other files
        remove_staged(context, files_of(staged))
    return number


# Restores


def restore(transaction: WriteTransaction, to: int | str | datetime) -> int:
    """Make a table's newest snapshot equal to an older one; `to` is that of `Table.restore`."""
    transaction.context.check_newest()
    return transaction.run(lambda: _restored(transaction, to))


def _restored(transaction: WriteTransaction, to: int | str | datetime) -> CommitNumber:
    """Restore a snapshot in one attempt; raises `RowsChanged` if the table has a new commit meanwhile."""
    context = transaction.context
    tx = context.catalog.newest()
    table = transaction.find(tx)[0]
    snapshot = snapshot_of(tx, table, to)
    assert snapshot is not None, "it was given"
    tx.state.check_snapshot(table, snapshot)
    newest = tx.state.tables[table.id].newest
    is_replaced = any(number > snapshot for number in tx.state.overwrites(table.id))
    if is_replaced:
        kind, read = "overwrite", ReadRequest(None, index=NONE, snapshot=snapshot)
        scan = begin_scan(context, transaction.find, read)
    else:
        kind, commits = "write", (snapshot, max(snapshot, newest))
        scan = begin_changes(context, transaction.find, commits, ReadRequest(None, feed=True))
    with scan:
        if scan.standing.definition != table.definition:
            raise OutdatedReadError
        rows = (events if is_replaced else undone(events, table) for events in scan.batches())
        metadata = {**(transaction.user_metadata or {}), RESTORED_TO: str(snapshot)}
        request = CommitRequest(kind, user_metadata=metadata, based_on=tx.state.number)
        return write(context, table, rows, request)


def undone(events: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    """Return rows and tombstones that undo a page of a change feed; the page has all changes of its keys."""
    first, last = _ends(events, table.primary_key)
    kinds = events.column(CHANGE_TYPE)
    first_kinds, last_kinds = kinds.filter(pa.array(first)), kinds.filter(pa.array(last))
    rows = events.filter(pa.array(first)).select(table.schema.names)
    inserted = pc.equal(first_kinds, INSERT)
    # A key that was inserted and deleted again needs no change.
    tombstones = tombstones_of(rows.filter(pc.and_(inserted, pc.not_equal(last_kinds, DELETE))), table)
    return with_tombstones(rows.filter(pc.invert(inserted)), tombstones)


def _ends(events: pa.RecordBatch, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of each key's first and last event; the events of a key are adjacent and in order."""
    begins = np.zeros(len(events), dtype=bool)
    begins[:1] = True
    for name in keys:
        codes = sort_codes(events.column(name))
        begins[1:] |= codes[1:] != codes[:-1]
    return begins, np.append(begins[1:], [True])[: len(events)]
