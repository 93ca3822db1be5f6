"""Deletes and updates of the rows that meet a condition, each one atomic commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from elasticscan.base.errors import FilterError, InvalidOption, NotFound
from elasticscan.base.formatting import brief
from elasticscan.filters import Assignment
from elasticscan.metadata import TableInfo, no_such_column
from elasticscan.storage import conform
from elasticscan.store.rows.keys import tombstones_of
from elasticscan.store.rows.typed import arrow_constant
from elasticscan.store.writing.attempts import OutdatedLookError
from elasticscan.store.writing.publishing import CommitNumber
from elasticscan.store.writing.transactions import WriteTransaction

NewValues: TypeAlias = Callable[[pa.RecordBatch], pa.Array]

_RAISED = "that meet the condition", "try again, or change fewer"


def delete_rows(transaction: WriteTransaction) -> CommitNumber:
    """Delete rows that meet the condition."""

    def attempt() -> CommitNumber:
        table = transaction.table()
        with transaction.read(list(table.primary_key)) as scan:
            tombstones = (tombstones_of(keys, table) for keys in scan.batches())
            return transaction.commit(table, scan.snapshot, tombstones, "delete")

    return transaction.run(attempt, *_RAISED)


def update_rows(transaction: WriteTransaction, new: Mapping[str, Any]) -> CommitNumber:
    """Give columns new values in rows that meet the condition.

    Args:
        transaction: reads the rows.
        new: by column SQL text over the row as it was, or a value that is no text.

    Raises:
        InvalidOption: no column is to be set, or one of the primary key.
        NotFound, FilterError, SchemaMismatch: a value cannot be had, or does not go into its column.
    """

    def attempt() -> CommitNumber:
        with transaction.read(None) as scan:
            # A column that is added from now on has values in rows only that were changed after the snapshot.
            table = transaction.table()
            if scan.standing.definition != table.definition:
                raise OutdatedLookError
            values, names = new_values(new, table), table.schema.names

            def assigned(rows: pa.RecordBatch) -> pa.RecordBatch:
                columns = [values[name](rows) if name in values else rows.column(name) for name in names]
                return conform(pa.RecordBatch.from_arrays(columns, names=names), table.schema)

            return transaction.commit(table, scan.snapshot, map(assigned, scan.batches()))

    new_values(new, transaction.table())  # wrong ones show before anything is read
    return transaction.run(attempt, *_RAISED)


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
