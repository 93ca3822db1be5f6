"""Deletes and updates of the rows that meet a condition, each one atomic commit.

The rows are read at one snapshot, and what becomes of them is staged while they are read. The commit requires
that none of them was changed since, so it is as if it had been done at the snapshot; rows that came
later are later. Where some were changed, everything is done again at a newer snapshot (`attempts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from elasticscan.base.errors import (
    FilterError,
    InvalidOption,
    NotFound,
)
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS
from elasticscan.base.showing import brief
from elasticscan.catalog import IdempotencyKey, retry_interrupted
from elasticscan.filters import Assignment, Predicate
from elasticscan.metadata import AUTO, TableInfo, no_such_column
from elasticscan.storage import conform
from elasticscan.store.context import Context, Find
from elasticscan.store.reading.beginning import begin_scan
from elasticscan.store.rows.keys import tombstones_of
from elasticscan.store.rows.typed import arrow_constant
from elasticscan.store.writing.attempts import OutdatedLookError, until_unchanged
from elasticscan.store.writing.preconditions import Precondition, unchanged
from elasticscan.store.writing.publishing import CommitNumber, CommitRequest, publish_own
from elasticscan.store.writing.staging import stage

NewValues: TypeAlias = Callable[[pa.RecordBatch], pa.Array]
Change: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a table that are to be changed.

    Attributes:
        find: finds the table, as a transaction sees it.
        where: a condition; None for all rows.
        since: those that met the condition at this commit, and nobody may have changed one of them later;
            None for those that meet it now, which nobody may change meanwhile.
        txn: (application, version); a write with the same pair is committed once.
        user_metadata: what the writer says of the commit.
    """

    context: Context
    find: Find
    where: str | None
    since: int | None = None
    txn: IdempotencyKey | None = None
    user_metadata: Mapping[str, str] | None = None

    @retry_interrupted
    def table(self) -> TableInfo:
        with self.context.catalog.reading() as tx:
            return self.find(tx)[0]

    def request(
        self, kind: str = "write", check: Precondition | None = None, keep: Collection[str] = ()
    ) -> CommitRequest:
        """Return the request for the commit of its change."""
        return CommitRequest(kind, self.txn, check, self.user_metadata, keep=keep)


def delete_rows(selection: Selection) -> CommitNumber:
    """Delete rows that meet a condition."""

    def tombstones(table: TableInfo) -> Change:
        return lambda rows: tombstones_of(rows, table)

    return _change(selection, "delete", lambda table: list(table.primary_key), tombstones)


def update_rows(selection: Selection, new: Mapping[str, Any]) -> CommitNumber:
    """Give columns new values in rows that meet a condition.

    Args:
        selection: the rows.
        new: by column SQL text over the row as it was, or a value that is no text.

    Raises:
        InvalidOption: no column is to be set, or one of the primary key.
        NotFound, FilterError, SchemaMismatch: a value cannot be had, or does not go into its column.
    """

    def assignment(table: TableInfo) -> Change:
        given, names = new_values(new, table), table.schema.names

        def assign(rows: pa.RecordBatch) -> pa.RecordBatch:
            columns = [given[name](rows) if name in given else rows.column(name) for name in names]
            return conform(pa.RecordBatch.from_arrays(columns, names=names), table.schema)

        return assign

    assignment(selection.table())  # wrong ones show before anything is read
    return _change(selection, "write", lambda _: None, assignment)


def new_values(new: Mapping[str, Any], table: TableInfo) -> dict[str, NewValues]:
    """For each column a function that gives its new values."""
    if not isinstance(new, Mapping) or not new:
        raise InvalidOption(
            f"set={brief(new)} must be a mapping of columns to their new values, at least one: "
            "{'km': 'km * 2', 'seen': True}",
            option="set",
        )
    values: dict[str, NewValues] = {}
    for name, value in new.items():
        if name not in table.schema.names:
            raise no_such_column(table.name, str(name), table.schema.names)
        if name in table.primary_key:
            raise InvalidOption(
                f"set names {name!r}, a column of the primary key of table {table.name!r}; insert rows with "
                "the new keys and delete the old ones",
                option="set",
            )
        field = table.schema.field(name)
        values[name] = _computed(value, field, table) if isinstance(value, str) else _constant(value, field)
    return values


def _constant(value: Any, field: pa.Field) -> NewValues:
    scalar = arrow_constant(value, field)
    return lambda rows: pa.repeat(scalar, rows.num_rows)


def _computed(text: str, field: pa.Field, table: TableInfo) -> NewValues:
    try:
        return Assignment.parse(text, field, table.schema).values
    except (FilterError, NotFound) as error:
        quoted = "'" + text.replace("'", "''") + "'"
        hint = f'; text is written with quotes inside: "{quoted}"' if text.isidentifier() else ""
        fields = error.fields | {"option": f"set[{field.name!r}]"}
        raise type(error)(f"set[{field.name!r}]={brief(text)}: {error.message}{hint}", **fields) from None


def _change(
    selection: Selection,
    kind: str,
    columns: Callable[[TableInfo], list[str] | None],
    change_of: Callable[[TableInfo], Change],
) -> CommitNumber:
    """Read rows, stage what becomes of them, and commit; again where somebody changed them meanwhile.

    Raises:
        WriteConflict: they were changed each time.
        RowsChanged: they were changed after `since`.
    """
    done = commit_of(selection)
    if done is not None:
        return CommitNumber(done, 0)

    if selection.where is not None:
        Predicate.parse_for_change(selection.where, selection.table().schema)

    return until_unchanged(
        selection.context,
        lambda: _attempt(selection, kind, columns, change_of),
        f"rows of table {selection.table().name!r} that meet the condition",
        "try again, or change fewer",
        is_final=selection.since is not None,
    )


@retry_interrupted
def commit_of(selection: Selection) -> int | None:
    """Return the commit that was made under the same `txn` before."""
    if selection.txn is None:
        return None
    with selection.context.catalog.reading() as tx:
        return tx.commit_of_txn(selection.find(tx)[0].id, selection.txn)


def _attempt(
    selection: Selection,
    kind: str,
    columns: Callable[[TableInfo], list[str] | None],
    change_of: Callable[[TableInfo], Change],
) -> CommitNumber:
    """Stage what becomes of the rows, and commit; raise `OutdatedLookError` if the columns just changed."""
    context, at = selection.context, selection.since
    names, limits = columns(selection.table()), (DEFAULT_PAGE_ROWS, DEFAULT_PAGE_BYTES)
    # What met the condition at `since` counts, so a row that was changed away from it refuses the call.
    with begin_scan(context, selection.find, names, selection.where, at, limits, index=AUTO) as scan:
        # A column that is added from now on has values in rows only that were changed after the snapshot.
        table = selection.table()
        if names is None and scan.standing.definition != table.definition:
            raise OutdatedLookError
        with unchanged(context, table, scan.snapshot if at is None else at, selection.txn) as check:
            staged = stage(context, table, map(change_of(table), scan.batches()), kind)
            return publish_own(context, table, staged, selection.request(kind, check))
