"""Rows that delete, by the option `deleteColumn` of a write.

The option names a column of the incoming rows. In a boolean column, true deletes the key of the row; false
and null upsert the row. A text column is a change feed's `_change_type`: "delete" deletes; "insert",
"update", "update_postimage" and null upsert; "update_preimage" is skipped; any other word is an error. The
column is stored only if the table has a column of that name.

A change feed may contain several changes of a key. If the rows have a column `_commit_version`, each task
writes the newest change of each key among its rows and skips the others. That column and `_commit_timestamp`
are never stored. Without it, a key that occurs twice is an error, as in every write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticscan.base.errors import NotFound
from elasticscan.base.key_encoding import sort_codes
from elasticscan.base.suggestions import suggest
from elasticscan.connector.conversion import from_spark, mismatch, spell
from elasticscan.metadata import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, TableInfo
from elasticscan.storage import DELETE, INSERT, UPDATE_POSTIMAGE, UPDATE_PREIMAGE, Spool
from elasticscan.store import tombstones_of, with_tombstones

_UPSERTS = (INSERT, "update", UPDATE_POSTIMAGE)


class Deletions:
    """Converter of rows that upsert or delete to rows of a table and tombstones.

    Args:
        column: the option's value.
        rows: the columns of the rows, as the table spells them.
        table: the table; None if it does not exist yet.

    Attributes:
        stored: the columns that are stored in the table.
        keys_alone: whether these are only the primary key; then all rows must delete.

    Raises:
        NotFound: the rows have no column of that name.
        SchemaMismatch: the column is neither boolean nor text, or `_commit_version` is not a whole number.
    """

    def __init__(self, column: str, rows: pa.Schema, table: TableInfo | None = None) -> None:
        (self.column,) = spell([column], rows)
        if self.column not in rows.names:
            hint = suggest(column, rows.names) or f"; they have {', '.join(rows.names)}"
            raise NotFound(
                f"option 'deleteColumn'={column!r}: the rows have no such column{hint}",
                column=column,
                kind="column",
            )
        kind = rows.field(self.column).type
        self._words = pa.types.is_string(kind)
        if not self._words and not pa.types.is_boolean(kind):
            why = f"is {kind}; the option 'deleteColumn' needs a boolean, or a change feed's '_change_type'"
            raise mismatch(self.column, why)
        self._has_versions = COMMIT_VERSION in rows.names
        if self._has_versions and not pa.types.is_integer(rows.field(COMMIT_VERSION).type):
            kind = rows.field(COMMIT_VERSION).type
            why = f"is {kind}, but must order the changes of a key; cast it to bigint"
            raise mismatch(COMMIT_VERSION, why)
        keys, names = (table.primary_key, table.schema.names) if table else ((), ())
        left_out = {COMMIT_VERSION, COMMIT_TIMESTAMP}
        if self.column not in names:
            left_out.add(self.column)
        self.stored = pa.schema([field for field in rows if field.name not in left_out])
        self.keys_alone = sorted(self.stored.names) == sorted(keys)

    def changes(
        self, batches: Iterable[pa.RecordBatch], table: TableInfo, replacing: bool, fill: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield Spark's rows as rows of the table, with tombstones among them.

        With `replacing` all old rows go anyway: a row that deletes only hides older changes of its key. With
        `fill`, columns that the rows lack are null.
        """
        rows: Iterator[pa.RecordBatch] = map(self._without_preimages, batches)
        if self._has_versions:
            rows = newest_only(rows, table.primary_key)
        key_schema = pa.schema([table.schema.field(name) for name in table.primary_key])
        for batch in rows:
            markers = batch.column(self.column)
            gone = pc.fill_null(pc.equal(markers, DELETE) if self._words else markers, False)
            living = batch.select(self.stored.names).filter(pc.invert(gone))
            if self.keys_alone and not living.num_rows:
                upserts = pa.RecordBatch.from_pylist([], schema=table.schema)
            else:
                upserts = from_spark(living, table.schema, fill, table)
            keys = from_spark(batch.select(key_schema.names).filter(gone), key_schema, table=table)
            yield upserts if replacing else with_tombstones(upserts, tombstones_of(keys, table))

    def _without_preimages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows without `update_preimage`s."""
        if not self._words:
            return batch
        markers, known = batch.column(self.column), (DELETE, UPDATE_PREIMAGE, *_UPSERTS)
        unknown = markers.filter(pc.invert(pc.is_in(markers, pa.array([*known, None], markers.type))))
        if len(unknown):
            why = f"has {unknown[0].as_py()!r}, not {', '.join(known)}; use a boolean column"
            raise mismatch(self.column, why)
        return batch.filter(pc.fill_null(pc.not_equal(markers, UPDATE_PREIMAGE), True))


def deletions_of(column: str | None, rows: pa.Schema, table: TableInfo | None = None) -> Deletions | None:
    """Return the deletions of rows of this schema; None without the option `deleteColumn`.

    Raises for a change feed without the option: its deletes would be upserts.
    """
    if column is not None:
        return Deletions(column, rows, table)
    if CHANGE_TYPE in rows.names:
        why = f"is of a change feed; set the option deleteColumn={CHANGE_TYPE!r}, or drop it"
        raise mismatch(CHANGE_TYPE, why)
    return None


def newest_only(batches: Iterable[pa.RecordBatch], keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the highest `_commit_version` of each key.

    The newest row of a key is known only after the last batch. Until then the rows wait in a `Spool`; only
    keys and versions stay in memory.
    """
    versions: list[pa.RecordBatch] = []
    with Spool() as spool:
        for batch in batches:
            if nulls := batch.column(COMMIT_VERSION).null_count:
                raise mismatch(COMMIT_VERSION, f"has {nulls} nulls; fill or drop them")
            spool.write(batch)
            versions.append(batch.select([*keys, COMMIT_VERSION]))
        if not versions:
            return
        chosen, start = _newest(pa.Table.from_batches(versions), keys), 0
        versions.clear()
        for batch in spool.batches():
            yield batch.filter(pa.array(chosen[start : start + len(batch)]))
            start += len(batch)


def _newest(rows: pa.Table, keys: Sequence[str]) -> NDArray[np.bool_]:
    """Mark the rows with the highest version of their key. Equal ones are all marked, an error later."""
    group = np.zeros(rows.num_rows, dtype=np.int64)
    for name in keys:
        _, codes = np.unique(sort_codes(rows[name].combine_chunks()), return_inverse=True)
        _, group = np.unique(group * (codes.max(initial=0) + 1) + codes, return_inverse=True)
    versions = rows[COMMIT_VERSION].to_numpy()
    newest = np.full(rows.num_rows, np.iinfo(versions.dtype).min)
    np.maximum.at(newest, group, versions)
    chosen: NDArray[np.bool_] = versions == newest[group]
    return chosen
