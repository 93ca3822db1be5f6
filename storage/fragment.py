"""The fragment file: a sorted, immutable Arrow IPC file. Written and read here and nowhere else.

Rows are sorted by (slot, primary key, newest first). After the user's columns come system
columns: `_slot` (uint16) always, `_commit` (int64) when rows of several commits are together,
`_deleted` (bool) when some rows are tombstones. A record batch holds up to `BATCH_ROWS` rows and
ends between two slots where it can, so that a page of whole slots is one slice of one batch.
"""

from __future__ import annotations

import re
import uuid
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from elasticscan.base.errors import FragmentDamaged, UsageError
from elasticscan.base.limits import BATCH_BYTES, BATCH_ROWS
from elasticscan.base.order_keys import encode_row
from elasticscan.storage.disk import Disk
from elasticscan.storage.statistics import StatisticsCollector
from elasticscan.topology import SlotSet, StagedFragment, pack_statistics

SLOT, COMMIT, DELETED = "_slot", "_commit", "_deleted"
SYSTEM_COLUMNS = (SLOT, COMMIT, DELETED)
_SYSTEM_TYPES = {SLOT: pa.uint16(), COMMIT: pa.int64(), DELETED: pa.bool_()}
_FORMAT = {b"elasticscan.fragment": b"1"}
_COMPRESSION = b"elasticscan.compression"  # its codec; absent when the file is not compressed
_PATH = re.compile(r"t[0-9]+/[0-9a-f]{32}\.arrow(\.unfinished)?")
_BATCHES_KEPT = 4
PLACES_KEPT = 64  # batches of a mapped file are but pointers into it
_RELEASE_BYTES = 32 << 20

# What Arrow raises on bytes that no writer wrote; several of its errors are kinds of these.
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    NotImplementedError,
    pa.ArrowSerializationError,
    pa.ArrowMemoryError,  # a length that was damaged asks for far more than there is
)


def fragment_schema(table: pa.Schema, versioned: bool, tombstones: bool) -> pa.Schema:
    """The schema of a fragment of a table. Value columns of a tombstone are null."""
    fields = [field.with_nullable(True) if tombstones else field for field in table]
    fields.append(pa.field(SLOT, pa.uint16(), nullable=False))
    if versioned:
        fields.append(pa.field(COMMIT, pa.int64(), nullable=False))
    if tombstones:
        fields.append(pa.field(DELETED, pa.bool_(), nullable=False))
    return pa.schema(fields, metadata=_FORMAT)


class Checksummed:
    """Passes writes on and keeps their CRC-32 and length."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.crc = 0
        self.length = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.crc = zlib.crc32(view, self.crc)
        self.length += len(view)
        done = 0
        while done < len(view):  # an unbuffered file may take less than all
            done += self._file.write(view[done:])
        return len(view)

    def flush(self) -> None:
        """The disk flushes at the end."""

    def tell(self) -> int:
        return self.length

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class _Writer:
    """Cuts sorted rows into record batches, and notes what is in each."""

    def __init__(self, sink: Checksummed, schema: pa.Schema, compression: str | None) -> None:
        self.rows = 0
        self.tombstones = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._has_tombstones = DELETED in schema.names
        self.statistics = StatisticsCollector([f for f in schema if f.name not in SYSTEM_COLUMNS])
        options = ipc.IpcWriteOptions(compression=compression)
        if compression is not None:
            schema = schema.with_metadata({**(schema.metadata or {}), _COMPRESSION: compression.encode()})
        self._writer = ipc.new_file(sink, schema, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        if self._has_tombstones:
            self.tombstones += batch.column(DELETED).true_count
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= 2 * BATCH_ROWS or self._pending_bytes >= 2 * BATCH_BYTES:
            self._flush(last=False)

    def close(self) -> None:
        if self._pending_rows:
            self._flush(last=True)
        self._writer.close()

    def _flush(self, last: bool) -> None:
        rows = pa.concat_batches(self._pending) if len(self._pending) > 1 else self._pending[0]
        limit = max(1, min(BATCH_ROWS, BATCH_BYTES * self._pending_rows // max(self._pending_bytes, 1)))
        slots = rows.column(SLOT).to_numpy(zero_copy_only=True)
        start = 0
        while rows.num_rows - start >= (1 if last else limit + 1):
            end = _batch_end(slots, start, limit)
            batch = rows.slice(start, end - start)
            self._writer.write_batch(batch)
            self.statistics.add(batch)
            start = end
        rest = rows.slice(start)
        self._pending = [rest]
        self._pending_rows, self._pending_bytes = rest.num_rows, rest.nbytes


def _batch_end(slots: np.ndarray[Any, Any], start: int, limit: int) -> int:
    """Where a batch that begins at row `start` ends: before a new slot, unless that makes it small."""
    end = start + limit
    if end >= len(slots):
        return len(slots)
    slot_start = int(np.searchsorted(slots, slots[end], "left"))
    return slot_start if slot_start - start > limit // 2 else end


def new_path(table: int) -> str:
    return f"t{table}/{uuid.uuid4().hex}.arrow"


def is_fragment_path(path: str) -> bool:
    """Whether a file at a shard can be a fragment, finished or not; others are not ours to remove."""
    return _PATH.fullmatch(path) is not None


@dataclass(frozen=True, slots=True)
class FragmentTarget:
    """Where a new fragment goes and what its file looks like."""

    disk: Disk
    shard: int
    table: int
    schema: pa.Schema
    compression: str | None


def write_fragment(
    target: FragmentTarget, slots: SlotSet, batches: Iterable[pa.RecordBatch], unique: bool = True
) -> StagedFragment:
    """Write sorted batches of the target's schema as one fragment, flushed to the disk.

    `slots` are those it speaks for; `unique` says that no key occurs twice.
    """
    path = new_path(target.table)
    with target.disk.create(path) as file:
        sink = Checksummed(file)
        writer = _Writer(sink, target.schema, target.compression)
        for batch in batches:
            writer.write(batch)
        writer.close()
    return StagedFragment(
        shard=target.shard,
        path=path,
        slots=slots,
        rows=writer.rows,
        bytes=sink.length,
        unique=unique,
        tombstones=writer.tombstones,
        versioned=COMMIT in target.schema.names,
        crc=sink.crc,
        statistics=pack_statistics(writer.statistics.finish()),
    )


class BatchReader:
    """Random access to the record batches of an immutable Arrow file, with only some columns.

    Args:
        disk, path: the file.
        size: its length as the catalog knows it; another length means a cut file.
    """

    def __init__(self, disk: Disk, path: str, size: int) -> None:
        self._file = disk.open(path)
        self._path = path
        if self._file.size != size:
            raise self.damaged(f"it has {self._file.size} bytes instead of {size}")
        try:
            self._reader = ipc.open_file(self._file.source)
            schema = self._reader.schema
            wanted = self._choose(schema)
            mapped = isinstance(self._file.source, pa.BufferReader)
            # Of a mapped plain file columns cost nothing until they are touched, but Arrow copies
            # chosen ones. Of any other only the wanted columns are fetched and decompressed.
            self._in_place = mapped and _COMPRESSION not in (schema.metadata or {})
            if not self._in_place:
                self._reader = self._reopened(schema, wanted)
        except UNREADABLE as error:
            raise self.damaged(error) from error
        self.columns = tuple(wanted)
        self.batch_count: int = self._reader.num_record_batches
        self._batches: OrderedDict[int, pa.RecordBatch] = OrderedDict()
        self._sound: set[int] = set()
        self._kept = _BATCHES_KEPT
        self._bytes_seen = 0

    def _choose(self, schema: pa.Schema) -> list[str]:
        """The columns to read. Raises what Arrow raises when the file is not what it should be."""
        raise NotImplementedError

    def _check(self, index: int, batch: pa.RecordBatch) -> None:
        """Raises what Arrow raises when a batch is not sound."""
        raise NotImplementedError

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns to read, of a batch of the file."""
        return batch.select(list(self.columns))

    def _reopened(self, schema: pa.Schema, columns: Iterable[str]) -> Any:
        fields = sorted(schema.names.index(name) for name in columns if name in schema.names)
        return ipc.open_file(self._file.source, options=ipc.IpcReadOptions(included_fields=fields))

    def damaged(self, why: object) -> FragmentDamaged:
        return FragmentDamaged(
            f"fragment {self._path} cannot be read: {why}; restore it from a backup", path=self._path
        )

    def batch(self, index: int) -> pa.RecordBatch:
        found = self._batches.get(index)
        if found is None:
            try:
                found = self._chosen(self._reader.get_batch(index))
                if index not in self._sound:
                    self._check(index, found)
                    self._sound.add(index)
            except UNREADABLE as error:
                raise self.damaged(error) from error
            self._remember(index, found)
        return found

    def _remember(self, index: int, batch: pa.RecordBatch) -> None:
        self._batches[index] = batch
        if len(self._batches) > self._kept:
            self._batches.popitem(last=False)
        self.touched(batch.nbytes)

    def touched(self, size: int) -> None:
        """To be told of bytes that were read, so that mapped memory is given back now and then."""
        self._bytes_seen += size
        if self._bytes_seen > _RELEASE_BYTES:
            self._bytes_seen = 0
            self._file.release()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (self.batch(index) for index in range(self.batch_count))


class FragmentReader(BatchReader):
    """Random access to a fragment by (batch, row), reading only some columns.

    A table may have gained columns since the file was written. Of these every value is null, for whoever
    reads fragments: nothing but this class knows that the file lacks them.

    Args:
        disk, path, size: see `BatchReader`.
        columns: user columns wanted; the system columns that the file has come with them.
        table: the table's schema; without it a column that the file lacks is damage.
    """

    def __init__(
        self, disk: Disk, path: str, columns: Sequence[str], size: int, table: pa.Schema | None = None
    ) -> None:
        self._wanted = tuple(columns)
        self._table = table
        self._lacking: dict[str, pa.Field] = {}
        self._nulls: dict[str, pa.Array] = {}
        self._slots: dict[int, tuple[int, int]] = {}
        self._unchecked: OrderedDict[int, pa.RecordBatch] = OrderedDict()
        self.checked_columns: set[tuple[int, str]] = set()  # of batches that are not checked wholly
        super().__init__(disk, path, size)

    def _choose(self, schema: pa.Schema) -> list[str]:
        known = frozenset(schema.names)
        lacking = [name for name in self._wanted if name not in known]
        if lacking:
            self._lacking = _gained(schema, lacking, self._table)
        return [*self._wanted, *_system_columns(schema)]

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._lacking:
            return super()._chosen(batch)
        there = batch.select([name for name in self.columns if name not in self._lacking])
        there.validate()  # before its number of rows is believed
        columns, fields = [], []
        for name in self.columns:
            field = self._lacking.get(name)
            columns.append(there.column(name) if field is None else self._nulls_of(field, there.num_rows))
            fields.append(there.schema.field(name) if field is None else field)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _nulls_of(self, field: pa.Field, count: int) -> pa.Array:
        """So many nulls; all batches share the longest array."""
        found = self._nulls.get(field.name)
        if found is None or len(found) < count:
            found = self._nulls[field.name] = pa.nulls(count, field.type)
        return found.slice(0, count)

    def _check(self, index: int, batch: pa.RecordBatch) -> None:
        _check_sound(batch)

    def unchecked_batch(self, index: int) -> pa.RecordBatch:
        """A batch whose values nobody has looked at, for those who check what they take of it.

        Its buffers are as long as its rows need; what offsets point to and what texts hold may be
        anything. Checking all of a batch would cost more than taking a few rows of it.
        """
        found = self._unchecked.get(index)
        if found is None:
            try:
                found = self._chosen(self._reader.get_batch(index))
                found.validate()
            except UNREADABLE as error:
                raise self.damaged(error) from error
            self._unchecked[index] = found
            if len(self._unchecked) > (PLACES_KEPT if self._in_place else _BATCHES_KEPT):
                self._unchecked.popitem(last=False)
        return found

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The number of the first row of each batch, then the number of all rows."""
        return self._numbering[0]

    @cached_property
    def slot_starts(self) -> NDArray[np.int64]:
        """How many rows have a lower slot: for each slot up to one beyond the last."""
        return self._numbering[1]

    @cached_property
    def _numbering(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts, slot_starts = [0], [np.zeros(1, dtype=np.int64)]
        upcoming = 1  # the lowest slot of which it is not known how many rows are below
        try:
            reader = self._reader
            if not self._in_place:
                reader = self._reopened(ipc.open_file(self._file.source).schema, (SLOT,))
            for index in range(self.batch_count):
                batch = reader.get_batch(index)
                slots = batch.column(SLOT).to_numpy(zero_copy_only=True)
                last = int(slots[-1])
                below = np.searchsorted(slots, np.arange(upcoming, last + 1, dtype=np.uint16))
                slot_starts.append(starts[-1] + below)
                upcoming = max(upcoming, last + 1)
                starts.append(starts[-1] + len(slots))
        except UNREADABLE as error:
            raise self.damaged(error) from error
        slot_starts.append(np.array([starts[-1]]))
        return np.array(starts), np.concatenate(slot_starts)

    def slots(self, index: int) -> np.ndarray[Any, Any]:
        """The slots of a batch's rows, ascending, without a copy."""
        slots: np.ndarray[Any, Any] = self.batch(index).column(SLOT).to_numpy(zero_copy_only=True)
        return slots

    def slot_range(self, index: int) -> tuple[int, int]:
        """The first and the last slot of a batch."""
        found = self._slots.get(index)
        if found is None:
            slots = self.slots(index)
            found = self._slots[index] = (int(slots[0]), int(slots[-1]))
        return found

    def seek(self, slot: int, key: bytes | None, primary_key: Sequence[str]) -> tuple[int, int]:
        """(batch, row) of the first row of `slot` or later; with `key`, beyond that key in the slot."""

        def is_beyond(index: int) -> bool:
            last = self.slot_range(index)[1]
            if last != slot or key is None:
                return last >= slot
            batch = self.batch(index)
            return self.row_key(batch, batch.num_rows - 1, primary_key) > key

        index = bisect_left(range(self.batch_count), True, key=is_beyond)
        if index == self.batch_count:
            return index, 0
        slots = self.slots(index)
        start = int(np.searchsorted(slots, slot, "left"))
        if key is None:
            return index, start
        batch = self.batch(index)
        end = int(np.searchsorted(slots, slot, "right"))
        rows = range(start, end)
        beyond = bisect_left(rows, True, key=lambda row: self.row_key(batch, row, primary_key) > key)
        return index, start + beyond

    def row_key(self, batch: pa.RecordBatch, row: int, primary_key: Sequence[str]) -> bytes:
        try:
            return encode_row([batch.column(name) for name in primary_key], row)
        except UsageError as error:  # a null, or a type that no key has: no writer lets them in
            raise self.damaged(error) from error


def _system_columns(schema: pa.Schema) -> list[str]:
    found = [name for name in SYSTEM_COLUMNS if name in schema.names]
    if SLOT not in found or any(schema.field(name).type != _SYSTEM_TYPES[name] for name in found):
        raise ValueError("its system columns are not those of a fragment")
    return found


def _gained(file: pa.Schema, lacking: Sequence[str], table: pa.Schema | None) -> dict[str, pa.Field]:
    """The columns that a table gained since a file was written; raises ValueError when it is damaged.

    A table gains columns at its end and loses none, so a file that lacks some has all those before.
    """
    own = [name for name in file.names if name not in SYSTEM_COLUMNS]
    fields = {} if table is None else {field.name: field for field in list(table)[len(own) :]}
    if table is None or own != table.names[: len(own)] or not fields.keys() >= set(lacking):
        raise ValueError(f"it has no column {lacking[0]!r}")
    if not all(fields[name].nullable for name in lacking):
        raise ValueError(f"it lacks a column that is never null, one of {', '.join(lacking)}")
    return {name: fields[name] for name in lacking}


def _check_sound(batch: pa.RecordBatch) -> None:
    """Kernels trust what they are given: one bad offset would end the process, not raise."""
    batch.validate(full=True)
    system = [name for name in SYSTEM_COLUMNS if name in batch.schema.names]
    if not batch.num_rows or any(batch.column(name).null_count for name in system):
        raise ValueError("its rows are not those of a fragment")


def check_sum(disk: Disk, shard: int, path: str, crc: int) -> None:
    """Raises `FragmentDamaged` when a file has changed since it was written."""
    if checksum(disk, path) != crc:
        raise FragmentDamaged(
            f"fragment {path} at shard {shard} has changed since it was written "
            "(its checksum differs); restore it from a backup",
            path=path,
        )


def checksum(disk: Disk, path: str) -> int:
    """CRC-32 of a file, read in steps of 1 MiB."""
    source = disk.open(path).source
    crc = 0
    while data := source.read(1 << 20):
        crc = zlib.crc32(data, crc)
    return crc
