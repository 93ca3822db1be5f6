"""Faults of changed columns in upkeep, restores and backups; see `planted`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from elasticscan.metadata import TableInfo
from elasticscan.store.context import Context
from elasticscan.store.copies import backup
from elasticscan.store.writing import transactions
from tests.faults.planted import Patch, fault, replacing


@fault("programs", "a restore brings back columns that came later", style="kept columns change")
@replacing(transactions, "undone")
def restores_forget_later_columns(honest: Any, events: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    rows, later = honest(events, table), {name for name, c in table.by_name().items() if c.since > 1}
    columns = [
        pa.nulls(len(rows), field.type) if field.name in later else column
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


@fault("programs", "a backup has the log of the moment of its files", style="kept columns change")
def backups_tell_definitions_of_another_moment(patch: Patch) -> None:
    contents, pack, contexts = backup._contents, backup._pack, list[Context]()

    def remembering(context: Context) -> Any:
        contexts.append(context)
        return contents(context)

    def with_the_newest(one: Any) -> bytes:
        return pack(replace(one, catalog=contexts[-1].catalog.dump()[0]))

    patch.setattr(backup, "_contents", remembering)
    patch.setattr(backup, "_pack", with_the_newest)
