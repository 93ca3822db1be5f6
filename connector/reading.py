"""Batch reads: a scan planned once, cut into partitions, read by tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from elasticscan.base.errors import NotFound
from elasticscan.base.hashing import slots_of
from elasticscan.base.limits import DEFAULT_PAGE_BYTES
from elasticscan.base.showing import utc
from elasticscan.connector.conversion import ToSpark, match_columns, spark_schema
from elasticscan.connector.explaining import EXPLANATION, Explained
from elasticscan.connector.open_stores import open_store
from elasticscan.connector.options import Options
from elasticscan.connector.partial_rows import PartialRows, read_partial_rows
from elasticscan.connector.partitions import partitions_of, read_partition, resume, rows_of_task
from elasticscan.connector.splits import NOTHING, cut, most_index_parts, slot_bytes
from elasticscan.metadata import SHARD_COLUMN, SLOT_COLUMN, TableInfo, no_such_column
from elasticscan.store import Scan, Store, begin_scan, feed_fields

_METADATA = pa.schema(
    [pa.field(SHARD_COLUMN, pa.string(), nullable=False), pa.field(SLOT_COLUMN, pa.int32(), nullable=False)]
)


def offered_schema(table: TableInfo, options: Options) -> StructType:
    """Return what a read with these options returns when the user gave no schema."""
    chosen = chosen_columns(table, options)
    if options.explain:
        return spark_schema(EXPLANATION)
    if options.partial is not None:
        return spark_schema(PartialRows.of(table.name, table.schema, options.partial).schema)
    feed = feed_fields() if options.changes.feed else []
    metadata = _METADATA if options.metadata else []
    return spark_schema(pa.schema([*(table.schema.field(name) for name in chosen), *feed, *metadata]))


def chosen_columns(table: TableInfo, options: Options) -> list[str]:
    """Return the columns that the option `columns` names, as the table spells them."""
    if options.columns is None:
        return list(table.schema.names)
    by_name = {name.lower(): name for name in table.schema.names}
    for name in options.columns:
        if name.lower() not in by_name:
            raise no_such_column(table.name, name, table.schema.names)
    return [by_name[name.lower()] for name in options.columns]


class ElasticScanReader(DataSourceReader):
    """Plans a scan once, then reads its partitions in the tasks.

    Has no `pushFilters`: Spark fails every action on a reader that has it unless a setting is on.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check `schema`, which Spark expects: all offered columns, or the columns that the user named."""
        self._options = options
        self._schema = schema
        # Fails here, where the plan is made, rather than in every task.
        table = open_store(options.store).table(options.table).definition
        self._columns = match_columns(schema, offered_schema(table, options))
        self._definition = table.definition
        self._scanned = self._columns
        if options.partial is not None:
            self._scanned = tuple(PartialRows.of(table.name, table.schema, options.partial).columns(table))
        elif options.explain:
            self._scanned = tuple(offered_schema(table, replace(options, explain=False)).names)

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the snapshot, and cut the scan by where slots live now."""
        store = open_store(self._options.store)
        scan = self._begin(store)
        if scan.standing.definition != self._definition:  # just now
            table = store.table(self._options.table).definition.at(scan.standing.definition)
            match_columns(self._schema, offered_schema(table, self._options))
        if self._options.explain:
            return [Explained(scan)]
        most = self._options.partitions
        assert scan.layout is not None, "a scan that begins has one"
        places, fragments = scan.layout.places, scan.layout.fragments
        if scan.standing.index is not None or scan.standing.by_key:
            assert scan.choice is not None, "a scan that begins has chosen"
            entries = scan.choice.candidate.rows_scanned
            most = most_index_parts(len(places.placement.shards), entries, most)
        weights = slot_bytes(fragments, places.placement.slot_count)
        size = self._options.split_bytes
        parts = cut(places.placement, places.base.placement, weights, size, most, scan.slots)
        # Spark makes a partition of its own where it gets none.
        return list(partitions_of(store, scan, parts or [NOTHING], places))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows, every time the same."""
        if isinstance(partition, Explained):
            yield ToSpark(EXPLANATION, self._columns, self._schema)(partition.batch())
        elif self._options.partial is not None:
            yield from read_partial_rows(partition, self._options, self._columns, self._schema)
        elif self._wants_metadata:
            yield from self._read_with_metadata(partition)
        else:
            yield from read_partition(partition, self._options, self._columns, self._schema)

    def _read_with_metadata(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        store, scan = resume(partition, self._options)
        table = store.table(self._options.table).definition
        convert = ToSpark(pa.schema([*scan.schema, *_METADATA]), self._columns, self._schema)
        for rows in rows_of_task(scan, self._options):
            yield convert(_with_metadata(rows, store, table))

    @property
    def _wants_metadata(self) -> bool:
        return not {SHARD_COLUMN, SLOT_COLUMN}.isdisjoint(self._scanned)

    def _begin(self, store: Store) -> Scan:
        options = self._options
        table = store.table(options.table).definition
        columns = [name for name in self._scanned if name not in (SHARD_COLUMN, SLOT_COLUMN)]
        if self._wants_metadata:
            columns += [name for name in table.shard_key if name not in columns]
        page = (_page_rows(options), DEFAULT_PAGE_BYTES)
        return begin_chosen(store, options, columns, page, is_divided=not options.explain)


def _page_rows(options: Options) -> int:
    """Return the length of a page: no longer than what a task gives, unless a filter may drop some of it."""
    most = options.task_rows
    if most is None or options.filter or options.task_order:
        return options.batch_rows
    return max(min(options.batch_rows, most), 1)


def begin_chosen(
    store: Store, options: Options, columns: list[str], page: tuple[int, int] | None = None, **how: Any
) -> Scan:
    """Begin the scan that options ask for, in pages of so many rows and bytes; `how` as for `begin_scan`."""
    return begin_scan(
        store.context,
        lambda tx: store.context.table(tx, options.table),
        columns,
        options.filter,
        snapshot_chosen(store, options),
        page or (options.batch_rows, DEFAULT_PAGE_BYTES),
        index=options.index,
        **how,
    )


def snapshot_chosen(store: Store, options: Options) -> int | str | None:
    """Return the snapshot that the options name; None for the newest."""
    if options.timestamp is None:
        return options.version
    store.context.check_newest()
    table, commit = store.table(options.table).definition, store.context.commit_at(options.timestamp)
    if commit < table.created_commit:
        raise NotFound(
            f"table {table.name!r} was made after timestampAsOf={utc(options.timestamp)}; "
            f"its first snapshot is {table.created_commit}",
            table=table.name,
            timestamp=options.timestamp,
            kind="snapshot",
        )
    return commit


def check_snapshot(options: Options) -> None:
    """Raise what a scan would whose snapshot is none, or none any more."""
    store = open_store(options.store)
    store.table(options.table).scan(snapshot=snapshot_chosen(store, options)).close()


def _with_metadata(rows: pa.RecordBatch, store: Store, table: TableInfo) -> pa.RecordBatch:
    """Return the rows with their slots, and the shards where these are at this moment."""
    context = store.context
    slots = slots_of(rows.select(table.shard_key).columns, context.info.slots)
    placement = context.placement()
    names = context.shard_names()
    starts = np.array([tablet.start for tablet in placement.tablets])
    homes = pa.array([names.get(tablet.shard, str(tablet.shard)) for tablet in placement.tablets])
    at: Any = np.searchsorted(starts, slots, "right") - 1
    arrays = [*rows.columns, homes.take(pa.array(at)), pa.array(slots.astype(np.int32))]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*rows.schema, *_METADATA]))
