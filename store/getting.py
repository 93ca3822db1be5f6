"""Rows by their primary keys: many at once, through the same door as a scan.

A list of keys is read as a scan of the slots that they hash to, whose pages hold rows with these keys alone:
the placement is looked up before a page and after it, and what moved meanwhile is read again. It takes no
lease: if retention ends for the newest snapshot while that is read, the next one is, under a lease.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.errors import SnapshotExpired
from elasticscan.base.hashing import slots_of
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS
from elasticscan.base.order_keys import sort_codes
from elasticscan.metadata import TableInfo
from elasticscan.protocol import Cursor, KeyList
from elasticscan.reader import ScanPlan, ScanStats, drive
from elasticscan.storage import first_of_keys
from elasticscan.store.beginning import columns_of
from elasticscan.store.context import Context
from elasticscan.store.leases import end_lease, lease_snapshot
from elasticscan.store.tags import snapshot_of
from elasticscan.store.typed import arrow_keys
from elasticscan.store.writer import conform_keys
from elasticscan.topology import SlotSet

FEW_SLOTS = 256  # of more slots all between the first and the last are read: fewer ranges cost less

Numbers = NDArray[np.int64]


def get_rows(
    context: Context,
    table: TableInfo,
    keys: Any,
    columns: list[str] | None,
    snapshot: int | str | None,
    keep_missing: bool,
) -> pa.Table:
    """The rows with some keys, in the order of these; for one that is not there none, or one of nulls."""
    names, hashing = columns_of(table, columns), context.hashing
    asked = pa.concat_batches(conform_keys(arrow_keys(keys, table), table))
    slots = slots_of([asked.column(name) for name in table.shard_key], hashing.slots, hashing.hash)
    order, first = _sorted(asked.columns, slots)
    distinct = order[first]
    listed = KeyList(slots[distinct], asked.take(pa.array(distinct)))
    rows = _read(context, table, listed, tuple(dict.fromkeys((*names, *table.primary_key))), snapshot)
    places = _places(listed, rows, table)
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(first) - 1
    taken = places[number]
    fields = [table.schema.field(name) for name in names]
    if keep_missing:
        fields = [field.with_nullable(True) for field in fields]
        picked = rows.select(names).take(pa.array(taken, mask=taken < 0))
    else:
        picked = rows.select(names).take(pa.array(taken[taken >= 0]))
    return pa.Table.from_arrays(picked.columns, schema=pa.schema(fields))


def _read(
    context: Context, table: TableInfo, listed: KeyList, columns: tuple[str, ...], snapshot: int | str | None
) -> pa.Table:
    """The rows that are there, as shards give them."""
    if isinstance(snapshot, str):
        with context.catalog.reading() as tx:
            snapshot = snapshot_of(tx, table, snapshot)
    if snapshot is not None:
        return _read_at(context, table, listed, columns, snapshot)
    context.check_newest()
    try:
        return _read_at(context, table, listed, columns, context.catalog.versions()[1])
    except SnapshotExpired:  # while it was read
        lease = secrets.token_hex(8)
        at, _ = lease_snapshot(context, lease, table, None, lambda _: None)
        try:
            return _read_at(context, table, listed, columns, at)
        finally:
            end_lease(context, lease)


def _read_at(
    context: Context, table: TableInfo, listed: KeyList, columns: tuple[str, ...], snapshot: int
) -> pa.Table:
    table = context.table_state(table.id, snapshot).table
    slots = _slots(listed)
    plan = ScanPlan(
        table=table.id,
        snapshot=snapshot,
        columns=columns,
        page_rows=DEFAULT_PAGE_ROWS,
        page_bytes=DEFAULT_PAGE_BYTES,
        base=context.placement(),
        slots=slots,
        keys=listed,
    )
    cluster = context.cluster
    cursors = (Cursor(slots),) if slots else ()
    pages = drive(plan, cursors, cluster.placements, cluster.shards, ScanStats())
    schema = pa.schema([table.schema.field(name) for name in columns])
    return pa.Table.from_batches([page.rows for page in pages], schema=schema)


def _slots(listed: KeyList) -> SlotSet:
    """The slots of the keys, or more."""
    if not listed.count:
        return SlotSet()
    slots = np.unique(listed.slots).tolist()
    return (
        SlotSet.of((slot, slot + 1) for slot in slots)
        if len(slots) <= FEW_SLOTS
        else SlotSet.span(slots[0], slots[-1] + 1)
    )


def _sorted(columns: list[pa.Array], slots: NDArray[np.uint16]) -> tuple[Numbers, NDArray[np.bool_]]:
    """The order of keys by (slot, key), and in it a mark at the first of equal ones."""
    codes = [sort_codes(column) for column in columns]
    order = np.lexsort((*reversed(codes), slots))
    return order, first_of_keys(order, (slots, *codes))


def _places(listed: KeyList, rows: pa.Table, table: TableInfo) -> Numbers:
    """For each key of a list the number of its row, -1 for none."""
    found = rows.select(list(table.primary_key)).combine_chunks()
    together = [
        pa.concat_arrays([key, *column.chunks])
        for key, column in zip(listed.keys.columns, found.columns, strict=True)
    ]
    # A key sorts before the row that has it, since equal ones stay in their order.
    order, first = _sorted(together, np.zeros(len(together[0]), dtype=np.uint16))
    at = np.flatnonzero(~first)
    places = np.full(listed.count, -1, dtype=np.int64)
    places[order[at - 1]] = order[at] - listed.count
    return places
