"""The index run file: entries of some rows of one fragment, sorted. Written and read here alone.

It is a sealed Arrow IPC file, never compressed. An entry is the index's columns, the included ones and
the primary key (each once), then `_slot` (uint16) and `_row` (uint32), the number of the row in its
fragment. A hash index has `_hash` (int32) before all of them. Entries are sorted by (index key, primary
key), where the index key is that of the index's columns or of the hash, and every row that is not a
tombstone has one, older versions too.

Its seal also says how many entries each record batch has, and with which key it begins (cut to
`KEY_BYTES`): most steps of a search look at no entry.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import ipc

from elasticscan.base.errors import ElasticScanError
from elasticscan.base.key_encoding import (
    can_be_sought,
    encode_value,
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
    KeyHistogram,
    Origin,
    StagedFragment,
    StagedRun,
    TableInfo,
    pack_histogram,
)
from elasticscan.storage.batches.cache import BatchCache
from elasticscan.storage.batches.reader import BatchReader
from elasticscan.storage.conform import check_key_bytes
from elasticscan.storage.disk import Disk, batch_bytes
from elasticscan.storage.fragment import DELETED, SLOT, FragmentReader
from elasticscan.storage.fragment_writer import manifest_of, new_path
from elasticscan.storage.lookup import gather
from elasticscan.storage.merge import pack, taken
from elasticscan.storage.sealed_file import SealingSink

HASH_VALUE, ROW = "_hash", "_row"
# Names that an indexed or an included column cannot have; nor can it have `_slot`, as no column can.
RUN_COLUMNS = frozenset({HASH_VALUE, ROW})
HISTOGRAM_STEPS = 128
FEW_RANGES = 8  # up to so many are found before it is decided that a run is read

_FORMAT = {b"elasticscan.index_run": b"1"}
_NEAR = (0, 1, 3, 7, 15)  # how far a search looks on before it begins again


def run_columns(table: TableInfo, index: IndexInfo) -> tuple[str, ...]:
    """Return the table's columns that entries carry, in the order in which they do."""
    return tuple(dict.fromkeys((*index.columns, *index.include, *table.primary_key)))


def key_columns(table: TableInfo, index: IndexInfo) -> tuple[str, ...]:
    """Return the columns of a run that its order keys are made of; one may be there twice."""
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
    reader: FragmentReader | None = None,
) -> tuple[StagedRun, ...]:
    """Write the entries of all rows of a fragment: at least one run, even if it has no entry.

    Memory: what `RUN_ROWS` entries, or `RUN_BYTES`, take three times over.

    Args:
        disk: of the fragment's shard, where its runs go too.
        table, index: what the fragment is of, and what is indexed.
        fragment: a file that is complete.
        origin: who builds.
        reader: of the fragment, with all columns of `run_columns` at least; None to open one for this alone.

    Raises:
        InvalidKey: an entry's key is too long for a continuation key.
        FragmentDamaged, DiskFull, ShardUnavailable: a file or a disk.
        Nothing of what was written so far remains.
    """
    if reader is None:
        reader = FragmentReader(disk, fragment.path, run_columns(table, index), fragment.seal, table)
    write = partial(_write_run, disk, table, index, fragment, origin)
    staged: list[StagedRun] = []
    try:
        # One after another, so that those before one that fails are known.
        staged.extend(write(entries) for entries in _parts(reader, table, index))
    except BaseException:
        for run in staged:
            with suppress(OSError, ElasticScanError):
                disk.delete(run.path)
        raise
    return tuple(staged)


def _parts(reader: FragmentReader, table: TableInfo, index: IndexInfo) -> Iterator[pa.RecordBatch]:
    """Yield the entries of consecutive rows, unsorted, as many as one run may have."""
    schema = run_schema(table, index)
    pending: list[pa.RecordBatch] = []
    covered = size = first_row = 0
    yielded = False
    for batch in reader:
        at = 0
        while at < batch.num_rows:
            part = batch.slice(at, RUN_ROWS - covered)
            pending.append(_entries(part, first_row + at, index, schema))
            covered, size, at = covered + part.num_rows, size + pending[-1].nbytes, at + part.num_rows
            if covered >= RUN_ROWS or size >= RUN_BYTES:
                yield pa.concat_batches(pending)
                pending, covered, size, yielded = [], 0, 0, True
        first_row += batch.num_rows
    if pending or not yielded:
        yield pa.concat_batches(pending or [pa.RecordBatch.from_pylist([], schema=schema)])


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
    """Raise `InvalidKey` where the key of an entry for a row would be too long."""
    _entries(rows, 0, index, run_schema(table, index))


def _write_run(
    disk: Disk,
    table: TableInfo,
    index: IndexInfo,
    fragment: Fragment | StagedFragment,
    origin: Origin,
    entries: pa.RecordBatch,
) -> StagedRun:
    codes = {name: value_sort_codes(entries.column(name)) for name in key_columns(table, index)}
    order = _order([code for name in key_columns(table, index) for code in codes[name]])
    histogram = _histogram(entries, [(name, codes[name]) for name in _index_key(index)], order)
    del codes
    count = entries.num_rows
    step = max(1, min(BATCH_ROWS, batch_bytes(disk) * count // max(entries.nbytes, 1)))
    starts = range(0, max(count, 1), step)  # an Arrow writer writes no schema before the first batch
    keys = [entries.column(name) for name in key_columns(table, index)]
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
        sink = SealingSink(file)
        writer = ipc.new_file(sink, entries.schema)
        batches = []  # entries, key of the first one, end in the file
        for start, key in zip(starts, first_keys, strict=True):
            writer.write_batch(entries.take(pa.array(order[start : start + step])))
            batches.append((min(step, count - start), key, sink.tell()))
        sink.hold()
        writer.close()
        seal = sink.seal(manifest, batches=batches)
    return StagedRun(index.id, path, count, seal.bytes, seal.tail, seal.digest, pack_histogram(histogram))


def _order(codes: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Return what `numpy.lexsort` gives for codes the most significant first, but for the order of equals."""
    packed = pack(codes)
    order: NDArray[np.int64] = np.lexsort(codes[::-1]) if packed is None else np.argsort(packed[0])
    return order


def _histogram(
    entries: pa.RecordBatch,
    codes: Sequence[tuple[str, Sequence[NDArray[Any]]]],
    order: NDArray[np.int64],
) -> KeyHistogram:
    """Return the exact histogram of the index keys."""
    count = len(order)
    if not count:
        return KeyHistogram(0, (0,) * len(codes), ())
    differ = np.zeros(count - 1, dtype=bool)
    distinct = []
    for _, parts in codes:
        for part in parts:
            ordered = part[order]
            differ |= ordered[1:] != ordered[:-1]
        distinct.append(1 + int(np.count_nonzero(differ)))
    columns = [entries.column(name) for name, _ in codes]
    steps = np.linspace(0, count - 1, min(HISTOGRAM_STEPS + 1, max(count, 2))).astype(np.int64)
    bounds = (encode_values(columns, row)[:KEY_BYTES] for row in order[steps].tolist())
    return KeyHistogram(count, tuple(distinct), tuple(bounds))


# -------------------------------------------------------------------------------------- reading


class RunReader(BatchReader):
    """Search in an index run, by order key, and entries by number. Threads may share one.

    Numbers of entries ascend with their order keys: `encode_values` of the index's columns (or of
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
        # A column is found by its place in a tenth of the time that its name takes.
        self._places = {name: place for place, name in enumerate(self._schema.names)}
        self._key_places = [self._places[name] for name in key_columns(table, index)]
        self._is_sought = can_be_sought(self._schema.field(self._key_places[0]).type)
        self.entries = run.rows
        self._ranges: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        super().__init__(disk, run.path, run.seal, cache, label)

    def _choose(self, schema: pa.Schema) -> Fields:
        if schema.names != self._schema.names or schema.types != self._schema.types:
            raise ValueError("its columns are not those of the index")
        batches = self._file.more["batches"]
        self.starts: NDArray[np.int64] = np.cumsum([0, *(rows for rows, *_ in batches)])
        self._starts: list[int] = self.starts.tolist()  # a single look-up is faster there
        self._keys = [key for _, key, _ in batches]
        self._ends = [end for *_, end in batches]
        if len(batches) != self._batches_in_file or self._starts[-1] != self.entries:
            raise ValueError(f"it has {self._starts[-1]} entries instead of {self.entries}")
        return {field.name: (field.name, field) for field in self._schema}

    def lower_bound(self, key: bytes, start: int = 0) -> int:
        """Return the first entry from `start` on whose order key is not below `key`; `entries` for none."""
        return self._search(key, False, start)

    def upper_bound(self, key: bytes, start: int = 0) -> int:
        """Return the first entry from `start` on whose order key is above `key`; `entries` for none."""
        return self._search(key, True, start)

    def range_of(self, low: bytes, high: bytes) -> tuple[int, int]:
        """[first, end) of the entries with low <= key < high.

        The last few are remembered: who plans a scan counts the entries that its pages then look for.
        """
        place = self._ranges.get((low, high))
        if place is None:
            first = self.lower_bound(low)
            place = first, self.lower_bound(high, first)
            if len(self._ranges) >= FEW_RANGES:
                self._ranges = {}
            if len(low) + len(high) <= 4 * KEY_BYTES:
                self._ranges[low, high] = place
        return place

    def key(self, entry: int) -> bytes:
        columns, row = self._place(entry)
        return encode_values(columns, row)

    def take(self, entries: NDArray[np.int64], columns: Sequence[str]) -> pa.RecordBatch:
        """Entries by number, in the order asked; slices of the file where that is one range of it."""
        places = [self._places[name] for name in columns]

        def part(index: int, rows: NDArray[np.int64]) -> pa.RecordBatch:
            return taken(self.batch(index).select(places), rows)

        return gather(self.starts, entries, part, self.schema_of(columns))

    def _place(self, entry: int) -> tuple[list[pa.Array], int]:
        """Return the key columns of the batch where an entry is, and its row there."""
        index = bisect_right(self._starts, entry) - 1
        batch = self.batch(index)
        return [batch.column(at) for at in self._key_places], entry - self._starts[index]

    def _search(self, key: bytes, or_equal: bool, start: int) -> int:
        if start and not self._is_sought:
            for ahead in _NEAR:
                at = start + ahead
                if at >= self.entries:
                    break
                if not is_below(*self._place(at), key, or_equal):
                    return self._between(start + ahead // 2 + (ahead > 0), at, key, or_equal)
        begun = bisect_right if or_equal else bisect_left
        index = begun(self._keys, key) - 1
        while index >= 0:
            # Keys that were cut, and equal ones, may have led beyond the place; then it is before.
            low, high = self._starts[index], self._starts[index + 1]
            place = self._between(low, high, key, or_equal)
            if place > low:
                return max(place, start)
            index -= 1
        return start

    def _between(self, low: int, high: int, key: bytes, or_equal: bool) -> int:
        """Return the first of these entries, all within one batch, that is not below; `high` for none."""
        if low >= high:
            return high
        columns, row = self._place(low)
        first, end = low - row, high - low + row
        if end > len(columns[0]):  # a short step that crosses the end of a batch
            return bisect_left(
                range(high), True, low, key=lambda at: not is_below(*self._place(at), key, or_equal)
            )
        if self._is_sought:
            begin, end_of_value = place_of(columns[0], key)
            row, end = min(max(row, begin), end), min(max(row, end_of_value), end)
        rows = range(end)
        return first + bisect_left(rows, True, row, key=lambda at: not is_below(columns, at, key, or_equal))


def is_below(columns: Sequence[pa.Array], row: int, bound: bytes, or_equal: bool) -> bool:
    """Return whether a row's key is below `bound` (or equal to it); encodes no more than that takes."""
    at = 0
    for column in columns:
        part = encode_value(column[row])
        end = at + len(part)
        if bound[at:end] != part:
            return part < bound[at:end]
        at = end
    return or_equal or at < len(bound)
