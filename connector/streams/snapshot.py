"""The snapshot with which a stream begins: slots of it as tasks, and what keeps it readable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from elasticscan.base.errors import ContinuationKeyError
from elasticscan.base.limits import DEFAULT_PAGE_BYTES
from elasticscan.catalog import Tx
from elasticscan.connector.conversion import ToSpark
from elasticscan.connector.open_stores import opened
from elasticscan.connector.options import Options
from elasticscan.connector.reading import ScanPartition, checked, scan_partition
from elasticscan.connector.splits import cut, slot_bytes
from elasticscan.connector.streams.changes import task_limits
from elasticscan.connector.streams.offsets import SnapshotPart
from elasticscan.metadata import Fragment, TableInfo
from elasticscan.protocol import ContinuationKey, Cursor
from elasticscan.storage import INSERT
from elasticscan.store import Store, feed_fields, keep_lease
from elasticscan.topology import SlotSet


def hold_snapshot(store: Store, table: TableInfo, at: int) -> None:
    """Keep a snapshot readable until its next micro-batch, where retention alone would not.

    Raises:
        SnapshotExpired: it is gone already.
        TableChanged: the table was dropped.
    """
    with store.context.catalog.reading() as tx:
        base = tx.newest_topology_number()
    keep_lease(store.context, _key(store, table, at, base, (table.primary_key[0],), None, 1))


def plan_snapshot(
    store: Store, table: TableInfo, wanted: SnapshotPart, columns: Sequence[str], options: Options
) -> list[ScanPartition]:
    """Tasks that together read the rows of some slots of a snapshot once."""
    context = store.context
    slots = SlotSet.span(wanted.start, wanted.end)
    with context.catalog.reading() as tx:
        now, base = tx.placement(), context.newest_topology(tx)
        fragments = tx.fragments(table=table.id)
        names = {shard.id: shard.name for shard in tx.shards()}
    read = [name for name in columns if name in table.schema.names] or [table.primary_key[0]]
    key = _key(store, table, wanted.at, base.number, read, options.filter, options.batch_rows)
    keep_lease(context, key)
    weights = slot_bytes(fragments, now.slot_count)
    weights[: wanted.start] = weights[wanted.end :] = 0
    size, most = task_limits(float(weights.sum()), _rows(fragments, slots), options)
    parts = [
        replace(part, slots=part.slots & slots)
        for part in cut(now, base.placement, weights, min(size, options.split_bytes), most)
        if part.slots & slots
    ]
    return [scan_partition(store, key, part, names) for part in parts]


def _key(
    store: Store,
    table: TableInfo,
    at: int,
    base: int,
    columns: Sequence[str],
    text: str | None,
    page_rows: int,
) -> ContinuationKey:
    everything = SlotSet.span(0, store.context.info.slots)
    # All micro-batches and all readers of a snapshot share a lease; nobody knows which is the last.
    named = f"{store.context.info.store_id}/{table.id}/{at}"
    return ContinuationKey(
        table=table.id,
        snapshot=at,
        base_topology=base,
        slots=everything,
        cursors=(Cursor(everything),),
        columns=tuple(columns),
        filter=text,
        page_rows=page_rows,
        page_bytes=DEFAULT_PAGE_BYTES,
        lease=hashlib.sha256(named.encode()).hexdigest()[:16],
    )


def _rows(fragments: Sequence[Fragment], slots: SlotSet) -> float:
    """About how many rows some slots hold."""
    return sum(f.rows * len(f.slots & slots) / max(f.slots_written, len(f.slots), 1) for f in fragments)


def rows_left(tx: Tx, table: int, first_slot: int) -> int:
    """About how many rows a snapshot has from a slot on, without opening anything."""
    slots = SlotSet.span(first_slot, tx.placement().slot_count)
    return round(_rows(tx.fragments(table=table), slots))


def end_after_tablets(store: Store, slot: int, tablets: int) -> int:
    """The slot where the tablets end, of which the first holds `slot`."""
    ends = [tablet.end for tablet in store.context.placement().tablets if tablet.end > slot]
    return ends[min(tablets, len(ends)) - 1]


class SnapshotReading:
    """Reads parts of a snapshot, as Spark's schema wants their rows. Holds plain values only."""

    def __init__(self, options: Options, columns: Sequence[str], schema: StructType) -> None:
        self._options, self._columns, self._schema = options, tuple(columns), schema

    def __call__(self, partition: ScanPartition) -> Iterator[pa.RecordBatch]:
        """The partition's rows; every time the same ones, as long as the snapshot is kept."""
        part = checked(partition)
        store = opened(self._options.store, part.store_id)
        key = store.context.sealer.open(part.key)
        scan = store.resume_part(key, ends_lease=False)
        told = _told(store, key) if self._options.changes.feed else []
        found = pa.schema([*scan.schema, *feed_fields()]) if told else scan.schema
        convert = ToSpark(found, self._columns, self._schema)
        for rows in scan.batches():
            if not rows.num_rows:
                continue
            if told:
                more = [pa.repeat(value, rows.num_rows) for value in told]
                yield convert(pa.RecordBatch.from_arrays([*rows.columns, *more], schema=found))
            else:
                yield convert(rows)


def _told(store: Store, key: ContinuationKey) -> list[pa.Scalar]:
    """What a change feed tells of a snapshot's rows: inserts, of the snapshot's number and time."""
    with store.context.catalog.reading() as tx:
        times = [commit.created_at for commit in tx.commits(key.table) if commit.number <= key.snapshot]
    if not times:
        raise ContinuationKeyError("the partition is of a snapshot from before its table; load it again")
    kinds = [field.type for field in feed_fields()]
    stamp = pa.scalar(round(times[-1] * 1e6), pa.int64()).cast(kinds[2])
    return [pa.scalar(INSERT, kinds[0]), pa.scalar(key.snapshot, kinds[1]), stamp]
