"""Rows by their primary keys: many at once, through the same door as a scan.

The placement is looked up, the shards of the keys are asked for their rows, and the placement is looked up
again: what moved meanwhile is asked for again. The first of these queries gives the table, too, and serves
the shards of this process: so in a store that does not change, a read costs two small queries. It takes no
lease: if retention ends for the newest snapshot while that is read, the next one is, under a lease.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from elasticscan.base.errors import LimitExceeded, SnapshotExpired
from elasticscan.base.hashing import slots_of
from elasticscan.base.limits import MAX_KEYS
from elasticscan.protocol import RowRequest
from elasticscan.reader import read_by_key
from elasticscan.storage import batches_of, conformed
from elasticscan.store.context import Context
from elasticscan.store.context.leases import end_lease, lease_snapshot
from elasticscan.store.context.lookups import KnownTable
from elasticscan.store.context.tags import snapshot_of
from elasticscan.store.reading.scan import columns_of
from elasticscan.store.rows.conversion import arrow_keys

MOST_KEYS = 1 << 16  # are asked for at once


def get_rows(
    context: Context,
    look: KnownTable,
    keys: Any,
    columns: list[str] | None,
    snapshot: int | str | datetime | None,
    keep_missing: bool,
) -> pa.Table:
    """Return the rows with some keys, in the order of these; for one that is not there none, or one of nulls.

    `look` is one of just now.
    """
    table = look.table
    names, at = columns_of(table, columns), snapshot
    if isinstance(at, str | datetime):  # before keys are taken: those of a stream are there once
        at = snapshot_of(context.catalog.newest(), table, at)
    asked = pa.concat_batches(
        _bounded(conformed(batches_of(arrow_keys(keys, table)), table, table.primary_key))
    )

    def read(look: KnownTable, at: int) -> pa.Table:
        begins = range(0, max(asked.num_rows, 1), MOST_KEYS)
        pieces = (asked.slice(begin, MOST_KEYS) for begin in begins)
        return pa.concat_tables([_read(context, look, piece, names, at, keep_missing) for piece in pieces])

    if at is not None:
        context.table_state(table.id, at, None, look.layout)  # it can be read
        return read(look, at)
    try:
        return read(look, look.last_commit)
    except SnapshotExpired:  # while it was read: the next one is, under a lease
        newer, lease = context.table_state(table.id), secrets.token_hex(8)
        if newer.table.definition != table.definition:
            raise  # columns may be gone that were there
        lease_snapshot(context, lease, newer.table, newer.last_commit)
        try:
            return read(newer, newer.last_commit)
        finally:
            end_lease(context, lease)


def _bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of keys, which may come from a range or a stream without end."""
    count = 0
    for batch in batches:
        count += batch.num_rows
        if count > MAX_KEYS:
            raise LimitExceeded(
                f"get looks up at most {MAX_KEYS:,} keys at once; split them, or use scan(filter=…)",
                limit=MAX_KEYS,
            )
        yield batch


def _read(
    context: Context,
    look: KnownTable,
    asked: pa.RecordBatch,
    names: Sequence[str],
    snapshot: int,
    keep_missing: bool,
) -> pa.Table:
    """Return the rows of a snapshot with some keys, in the order of these."""
    table, cluster = look.table, context.cluster
    slots = slots_of(asked.select(table.shard_key).columns, context.known.slots)
    order = np.argsort(slots, kind="stable")
    request = RowRequest(
        table=table.id,
        shard=0,
        snapshot=snapshot,
        # What the caller has already is not read.
        columns=tuple(name for name in names if name not in table.primary_key),
        slots=slots[order],
        keys=asked.take(pa.array(order)),
        layout=look.layout,
        definition=table.definition,
    )
    places = np.empty(len(order), dtype=np.int64)
    places[order], batches = read_by_key(request, look.placement, cluster.placements, cluster.shards)
    missing, fields = places < 0, [table.schema.field(name) for name in names]
    keys, rows, mask = np.arange(len(places)), places, None
    if keep_missing:
        fields = [field.with_nullable(True) for field in fields]
        mask = missing if missing.any() else None
    else:
        keys, rows = keys[~missing], rows[~missing]
    values = pa.Table.from_batches(batches) if batches else pa.table({})
    of_keys, of_rows = pa.array(keys, mask=mask), pa.array(rows, mask=mask)
    in_order = mask is None and np.array_equal(rows, np.arange(values.num_rows))

    def column(field: pa.Field) -> pa.ChunkedArray:
        if field.name in table.primary_key:
            return asked.column(field.name).take(of_keys)
        if not batches:
            return pa.nulls(len(rows), field.type)
        return values.column(field.name) if in_order else values.column(field.name).take(of_rows)

    return pa.Table.from_arrays([column(field) for field in fields], schema=pa.schema(fields))
