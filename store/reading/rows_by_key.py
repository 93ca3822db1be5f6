"""Rows by their primary keys: many at once, through the same door as a scan.

The placement is looked up, the shards of the keys are asked for their rows, and the placement is looked up
again: what moved meanwhile is asked for again. The first of these queries gives the table, too, and serves
the shards of this process: so in a store that does not change, a read costs two small queries. It takes no
lease: if retention ends for the newest snapshot while that is read, the next one is, under a lease.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.errors import LimitExceeded, SnapshotExpired
from elasticscan.base.hashing import slots_of
from elasticscan.base.limits import MAX_KEYS
from elasticscan.metadata import TableInfo
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

Numbers = NDArray[np.int64]


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
    names, at = columns_of(table, columns), _number_of(context, table, snapshot)
    given = batches_of(arrow_keys(keys, table))
    asked = pa.concat_batches(_bounded(conformed(given, table, table.primary_key)))
    slots = slots_of(asked.select(table.shard_key).columns, context.known.slots)
    order = np.argsort(slots, kind="stable")
    request = RowRequest(
        table=table.id,
        shard=0,
        snapshot=0,
        # What the caller has already is not read.
        columns=tuple(name for name in names if name not in table.primary_key),
        slots=slots[order],
        keys=asked.take(pa.array(order)),
        layout=look.layout,
        definition=table.definition,
    )
    places = np.empty(len(order), dtype=np.int64)
    places[order], batches = _read(context, look, request, at)
    return _answer(table, names, asked, places, batches, keep_missing)


def _number_of(context: Context, table: TableInfo, snapshot: int | str | datetime | None) -> int | None:
    """Return a snapshot's number, before keys are taken: those of a stream are there once."""
    if not isinstance(snapshot, str | datetime):
        return snapshot
    return snapshot_of(context.catalog.newest(), table, snapshot)


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
    context: Context, look: KnownTable, request: RowRequest, snapshot: int | None
) -> tuple[Numbers, list[pa.RecordBatch]]:
    """For each key the number of its row, -1 for none, in the rows that are there."""
    if snapshot is not None:
        context.table_state(request.table, snapshot, None, look.layout)  # it can be read
        return _read_at(context, look, request, snapshot)
    try:
        return _read_at(context, look, request, look.last_commit)
    except SnapshotExpired:  # while it was read: the next one is, under a lease
        newer, lease = context.table_state(request.table), secrets.token_hex(8)
        if newer.table.definition != request.definition:
            raise  # columns may be gone that were there
        lease_snapshot(context, lease, newer.table, newer.last_commit)
        try:
            return _read_at(context, newer, request, newer.last_commit)
        finally:
            end_lease(context, lease)


def _read_at(
    context: Context, look: KnownTable, request: RowRequest, snapshot: int
) -> tuple[Numbers, list[pa.RecordBatch]]:
    cluster, count, rows = context.cluster, len(request.slots), 0
    request = replace(request, snapshot=snapshot, layout=look.layout)
    places, batches = [np.empty(0, dtype=np.int64)], list[pa.RecordBatch]()
    for begin in range(0, count, MOST_KEYS):
        slots = request.slots[begin : begin + MOST_KEYS]
        part = replace(request, slots=slots, keys=request.keys.slice(begin, MOST_KEYS))
        numbers, more = read_by_key(part, look.placement, cluster.placements, cluster.shards)
        places.append(np.where(numbers < 0, -1, numbers + rows))
        batches += more
        rows += sum(batch.num_rows for batch in more)
    return np.concatenate(places), batches


def _answer(
    table: TableInfo,
    names: Sequence[str],
    asked: pa.RecordBatch,
    places: Numbers,
    batches: Sequence[pa.RecordBatch],
    keep_missing: bool,
) -> pa.Table:
    """Return the rows in the order of the keys."""
    missing, fields = places < 0, [table.schema.field(name) for name in names]
    keys, rows = np.arange(len(places)), places
    if keep_missing:
        fields = [field.with_nullable(True) for field in fields]
        mask = missing if missing.any() else None
    else:
        keys, rows, mask = keys[~missing], rows[~missing], None
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
