"""Reads of rows by their primary keys, many at once, exact while tablets move.

The placement is read, the rows are requested from the shards of the keys, and the placement is read again:
rows of slots that moved meanwhile are requested again. The first query of the catalog also returns the table,
and the shards of this process reuse it. So in a store that does not change, a read costs two small queries.
It has no lease: if the newest snapshot expires meanwhile, the read starts again with a newer one and a lease.
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

MOST_KEYS = 1 << 16  # keys in a request


def get_rows(
    context: Context,
    state: KnownTable,
    keys: Any,
    columns: list[str] | None,
    snapshot: int | str | datetime | None,
    keep_missing: bool,
) -> pa.Table:
    """Return the rows with these keys, in the order of the keys; `state` was just read.

    A key that does not exist has no row, or with `keep_missing` a row of nulls.
    """
    table = state.table
    names, at = columns_of(table, columns), snapshot
    if isinstance(at, str | datetime):  # checked before the keys are read: a stream can be read only once
        at = snapshot_of(context.catalog.newest(), table, at)
    requested = pa.concat_batches(
        _bounded(conformed(batches_of(arrow_keys(keys, table)), table, table.primary_key))
    )

    def read(state: KnownTable, at: int) -> pa.Table:
        begins = range(0, max(requested.num_rows, 1), MOST_KEYS)
        pieces = (requested.slice(begin, MOST_KEYS) for begin in begins)
        return pa.concat_tables([_read(context, state, piece, names, at, keep_missing) for piece in pieces])

    if at is not None:
        context.table_state(table.id, at, None, state.layout)  # raises if the snapshot is not readable
        return read(state, at)
    try:
        return read(state, state.last_commit)
    except SnapshotExpired:  # during the read: read a newer snapshot, under a lease
        newer, lease = context.table_state(table.id), secrets.token_hex(8)
        if newer.table.definition != table.definition:
            raise  # the newer definition may lack some of the columns
        lease_snapshot(context, lease, newer.table, newer.last_commit)
        try:
            return read(newer, newer.last_commit)
        finally:
            end_lease(context, lease)


def _bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of keys. Raises `LimitExceeded` for too many: a range or stream may be endless."""
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
    state: KnownTable,
    requested: pa.RecordBatch,
    names: Sequence[str],
    snapshot: int,
    keep_missing: bool,
) -> pa.Table:
    """Return the rows with one request's keys, in the order of the keys."""
    table, cluster = state.table, context.cluster
    slots = slots_of(requested.select(table.shard_key).columns, context.known.slots)
    order = np.argsort(slots, kind="stable")
    request = RowRequest(
        table=table.id,
        shard=0,
        snapshot=snapshot,
        # Key columns are not read: the caller has their values.
        columns=tuple(name for name in names if name not in table.primary_key),
        slots=slots[order],
        keys=requested.take(pa.array(order)),
        layout=state.layout,
        definition=table.definition,
    )
    places = np.empty(len(order), dtype=np.int64)
    places[order], batches = read_by_key(request, state.placement, cluster.placements, cluster.shards)
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
            return requested.column(field.name).take(of_keys)
        if not batches:
            return pa.nulls(len(rows), field.type)
        return values.column(field.name) if in_order else values.column(field.name).take(of_rows)

    return pa.Table.from_arrays([column(field) for field in fields], schema=pa.schema(fields))
