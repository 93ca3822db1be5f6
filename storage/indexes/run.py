"""The index run file: sorted entries for rows of one fragment. Only this module writes and reads it.

It is a sealed Arrow IPC file, never compressed. An entry has the columns of the index, the included columns
and the primary key (each column once), then `_slot` (uint16) and `_row` (uint32), the number of the row in
its fragment. A hash index has `_hash` (int32) as the first column. Entries are sorted by (index key, primary
key); the index key is the index's columns, or the hash. Every row except tombstones has an entry, older
versions included.

The manifest also has the number of entries and the first key (truncated to `KEY_BYTES`) of each record batch,
so that most steps of a search read no entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticscan.base.errors import ElasticScanError
from elasticscan.base.key_encoding import (
    can_be_sought,
    encode_values,
    index_hash,
    place_of,
    value_sort_codes,
)
from elasticscan.base.limits import BATCH_ROWS, RUN_BYTES, RUN_ROWS
from elasticscan.metadata import (
    HASH,
    INDEX_RUN,
    KEY_BYTES,
    Fragment,
    IndexInfo,
    IndexRun,
    Origin,
    StagedFragment,
    StagedRun,
    TableInfo,
)
from elasticscan.storage.batches.reader import BatchCache, BatchReader, Fields
from elasticscan.storage.conform import check_key_bytes
from elasticscan.storage.disk import Disk, batch_bytes
from elasticscan.storage.fragment import DELETED, SLOT, FragmentReader
from elasticscan.storage.fragment_writer import manifest_of, new_path
from elasticscan.storage.lookup import gather
from elasticscan.storage.merge import pack, taken
from elasticscan.storage.sealed_file import SealedWriter

HASH_VALUE, ROW = "_hash", "_row"
# Names that indexed and included columns cannot have. (No column of a table can have the name `_slot`.)
RUN_COLUMNS = frozenset({HASH_VALUE, ROW})

_FORMAT = {b"elasticscan.index_run": b"1"}
_MOST_REMEMBERED = 64  # ranges


def run_columns(table: TableInfo, index: IndexInfo) -> tuple[str, ...]:
    """Return the table's columns in entries, in order."""
    return tuple(dict.fromkeys((*index.columns, *index.include, *table.primary_key)))


def key_columns(table: TableInfo, index: IndexInfo) -> tuple[str, ...]:
    """Return the columns of a run's order keys; a column may occur twice."""
    return (*_index_key(index), *table.primary_key)


def _index_key(index: IndexInfo) -> tuple[str, ...]:
    return (HASH_VALUE,) if index.kind == HASH else index.columns


def run_schema(table: TableInfo, index: IndexInfo) -> pa.Schema:
    fields = [table.schema.field(name) for name in run_columns(table, index)]
    if index.kind == HASH:
        fields.insert(0, pa.field(HASH_VALUE, pa.int32(), nullable=False))
    fields.append(pa.field(SLOT, pa.uint16(), nullable=False))
    fields.append(pa.field(ROW, pa.uint32(), nullable=False))
    return pa.schema(fields, metadata=_FORMAT)


# ------------------------------------------------------------------------------------- building


def build_runs(
    disk: Disk,
    table: TableInfo,
    index: IndexInfo,
    fragment: Fragment | StagedFragment,
    origin: Origin,
) -> tuple[StagedRun, ...]:
    """Write the entries of all rows of a fragment: at least one run, which may be empty.

    After an error, no run is left. Memory: three times the size of `RUN_ROWS` entries, or of `RUN_BYTES`.

    `disk` is that of the fragment's shard, `origin` the operation that builds. Raises `LimitExceeded` if an
    entry's key is too long for a continuation key.
    """
    reader = FragmentReader(disk, fragment.path, run_columns(table, index), fragment.seal, table)
    write = partial(_write_run, disk, table, index, fragment, origin)
    staged: list[StagedRun] = []
    try:
        # Not a list comprehension: if a run fails, `staged` has the earlier ones to delete.
        staged.extend(write(entries) for entries in _parts(reader, table, index))
    except BaseException:
        for run in staged:
            with suppress(OSError, ElasticScanError):
                disk.delete(run.path)
        raise
    return tuple(staged)


def _parts(reader: FragmentReader, table: TableInfo, index: IndexInfo) -> Iterator[pa.RecordBatch]:
    """Yield the unsorted entries of consecutive batches, in parts of about the size of a run."""
    schema, pending, rows = run_schema(table, index), list[pa.RecordBatch](), 0
    for batch, first_row in zip(reader, reader.starts.tolist(), strict=False):
        pending.append(_entries(batch, first_row, index, schema))
        rows += batch.num_rows
        if rows >= RUN_ROWS or sum(entries.nbytes for entries in pending) >= RUN_BYTES:
            yield pa.concat_batches(pending)
            pending, rows = [], 0
    if pending:
        yield pa.concat_batches(pending)


def _entries(rows: pa.RecordBatch, first_row: int, index: IndexInfo, schema: pa.Schema) -> pa.RecordBatch:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns[ROW] = pa.array(np.arange(first_row, first_row + rows.num_rows, dtype=np.uint32))
    if DELETED in columns:
        living = pc.invert(columns[DELETED])
        columns = {name: column.filter(living) for name, column in columns.items()}
    if index.kind == HASH:
        columns[HASH_VALUE] = pa.array(index_hash([columns[name] for name in index.columns]))
    entries = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    key = _index_key(index)
    check_key_bytes(entries, key, f"key of index {index.name!r}", len(key))
    return entries


def check_entries(table: TableInfo, index: IndexInfo, rows: pa.RecordBatch) -> None:
    """Raise `LimitExceeded` if the key of an entry for a row would be too long."""
    _entries(rows, 0, index, run_schema(table, index))


def _write_run(
    disk: Disk,
    table: TableInfo,
    index: IndexInfo,
    fragment: Fragment | StagedFragment,
    origin: Origin,
    entries: pa.RecordBatch,
) -> StagedRun:
    keys = [entries.column(name) for name in key_columns(table, index)]
    order = np.argsort(pack([code for key in keys for code in value_sort_codes(key)])[0])
    count = entries.num_rows
    step = max(1, min(BATCH_ROWS, batch_bytes(disk) * count // max(entries.nbytes, 1)))
    starts = range(0, max(count, 1), step)  # at least one batch, before which Arrow writes the schema
    first_keys = [encode_values(keys, int(order[start]))[:KEY_BYTES] if count else b"" for start in starts]
    path = new_path(table.id)
    manifest = manifest_of(
        table,
        origin,
        kind=INDEX_RUN,
        shard=fragment.shard,
        path=path,
        slots=fragment.slots,
        min_commit=0,
        max_commit=0,
        rows=count,
        unique=True,
        tombstones=0,
        index=(index.name, index.kind, index.columns, index.include, fragment.path),
    )
    with disk.create(path) as file:
        writer = SealedWriter(file, entries.schema)
        for start, key in zip(starts, first_keys, strict=True):
            writer.write(entries.take(pa.array(order[start : start + step])), key)
        seal = writer.seal(manifest)
    return StagedRun(index.id, path, count, seal.bytes, seal.tail, seal.digest)


# -------------------------------------------------------------------------------------- reading


class RunReader(BatchReader):
    """A reader of an index run: search by order key, and entries by number. Threads may share one.

    Entries are numbered in the order of their order keys: `encode_values` of the index's columns (or of
    the hash) and of the primary key.
    """

    def __init__(
        self,
        disk: Disk,
        table: TableInfo,
        index: IndexInfo,
        run: IndexRun | StagedRun,
        cache: BatchCache | None = None,
        label: str = "",
    ) -> None:
        self._schema = run_schema(table, index)
        self._key = key_columns(table, index)
        self._is_sought = can_be_sought(self._schema.field(self._key[0]).type)
        self.entry_count = run.rows
        self._ranges: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        super().__init__(disk, run.path, run.seal, cache, label)

    def _choose(self, schema: pa.Schema) -> Fields:
        if schema.names != self._schema.names or schema.types != self._schema.types:
            raise ValueError("its columns are not those of the index")
        batches = self._file.more["batches"]
        self.starts: NDArray[np.int64] = np.cumsum([0, *(rows for rows, *_ in batches)])
        self._starts: list[int] = self.starts.tolist()  # a list, which is faster for single values
        self._keys = [key for _, key, _ in batches]
        self._ends = [end for *_, end in batches]
        if len(batches) != self._batches_in_file or self._starts[-1] != self.entry_count:
            raise ValueError(f"it has {self._starts[-1]} entries instead of {self.entry_count}")
        return {field.name: (field.name, field) for field in self._schema}

    def lower_bound(self, key: bytes) -> int:
        """Return the first entry whose order key is at or above `key`; `entry_count` if there is none."""
        for index in range(bisect_left(self._keys, key) - 1, -1, -1):
            # Truncated and equal first keys may lead to a batch after the right one: then go back.
            batch = self.batch(index)
            columns, rows = [batch.column(name) for name in self._key], range(batch.num_rows)
            low, high = place_of(columns[0], key) if self._is_sought else (0, len(rows))
            place = bisect_left(rows, True, low, high, key=lambda at: encode_values(columns, at) >= key)
            if place > 0:
                return self._starts[index] + place
        return 0

    def range_of(self, low: bytes, high: bytes) -> tuple[int, int]:
        """Return [first, end) of the entries with low <= key < high.

        The last few results are cached, because a plan counts the entries that the pages search again.
        """
        found = self._ranges.get((low, high))
        if found is None:
            if len(self._ranges) >= _MOST_REMEMBERED:
                self._ranges = {}
            found = self._ranges[low, high] = self.lower_bound(low), self.lower_bound(high)
        return found

    def key(self, entry: int) -> bytes:
        index = bisect_right(self._starts, entry) - 1
        batch = self.batch(index)
        return encode_values([batch.column(name) for name in self._key], entry - self._starts[index])

    def take(self, entries: NDArray[np.int64], columns: Sequence[str]) -> pa.RecordBatch:
        """Return entries by number, in this order; consecutive entries of a batch are a slice of it."""

        def part(index: int, rows: NDArray[np.int64]) -> pa.RecordBatch:
            return taken(self.batch(index).select(list(columns)), rows)

        return gather(self.starts, entries, part, self.schema_of(columns))
