"""Random access to the record batches of a sealed file, by batch or by row, with only some columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from elasticscan.base.errors import FragmentDamaged
from elasticscan.base.resources import lack_of_memory
from elasticscan.metadata import Seal
from elasticscan.storage.batches.cache import BatchCache, KeptBatches
from elasticscan.storage.batches.layout import (
    THREADS_FROM_BYTES,
    BatchLayout,
    ColumnLayout,
    read_columns,
    read_layout,
)
from elasticscan.storage.batches.rows import MOST_BYTES, take_rows
from elasticscan.storage.disk import Disk, Parts
from elasticscan.storage.sealed_file import SEGMENT_BYTES

# The errors that Arrow raises on bytes it cannot read, and their subclasses. Bytes are proven before Arrow
# sees them, so only a file of another kind than the catalog says raises them.
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    NotImplementedError,
    pa.ArrowSerializationError,
)


_MOST = 3 / 4  # of a batch: who needs so much reads it at once
_SLACK = 1 / 32  # by which columns may lie elsewhere in another batch


FAR_WEIGHT = 8  # of batches of a file that is far: what fetches them has copies, and ranges in memory


class BatchReader:
    """Random access to the record batches of a sealed file, with only some columns.

    Recently read batches are kept by the cache; a batch that a caller holds is never read twice.

    Args:
        disk, path, seal, label: see `SealedFile`.
        cache: keeps batches of all readers, as far as its bound allows.
    """

    def __init__(
        self, disk: Disk, path: str, seal: Seal, cache: BatchCache | None = None, label: str = ""
    ) -> None:
        self._cache = cache or BatchCache()
        self._file = self._cache.open(disk, path, seal, label)
        self._ends: Sequence[int] = ()  # of the batches in the file
        self._is_plain = True  # not compressed
        # By columns, how to read those of a file that is far: only these parts, or (None) whole batches.
        self._plans: dict[tuple[str, ...], Parts | None] = {}
        self._by_arrow: dict[tuple[str, ...], Any] = {}
        self._schemas: dict[tuple[str, ...], pa.Schema] = {}
        self._path = path
        with self._readable():
            reader = ipc.open_file(self._file.as_arrow_file())
            self._schema_of_file: pa.Schema = reader.schema
            self._batches_in_file: int = reader.num_record_batches
            self.columns = tuple(self._choose(self._schema_of_file))
        self._numbers: Sequence[int] = range(self._batches_in_file)  # of the batches, in the file
        self.batch_count = len(self._numbers)
        self._kept = self._cache.kept(weight=1 if self._file.is_near else FAR_WEIGHT)

    def _choose(self, schema: pa.Schema) -> list[str]:
        """Return the columns to read. Raises what Arrow raises when the file is not what it should be."""
        raise NotImplementedError

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Translate Arrow's errors into the store's."""
        try:
            yield
        except MemoryError as error:
            raise lack_of_memory() from error
        except UNREADABLE as error:
            raise self.damaged(error) from error

    def damaged(self, why: object) -> FragmentDamaged:
        return self._file.damaged(why)

    def schema_of(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema of some of the reader's columns."""
        names = tuple(columns)
        schema = self._schemas.get(names)
        if schema is None:
            schema = self._schemas[names] = pa.schema([self._field_of(name) for name in names])
        return schema

    def _field_of(self, name: str) -> pa.Field:
        return self._schema_of_file.field(name)

    def holds(self, index: int) -> bool:
        """Return whether a batch is in memory."""
        return index in self._kept

    def batch(self, index: int) -> pa.RecordBatch:
        return self._kept.get(index, self._read_whole)

    def forget(self, indices: Iterable[int]) -> None:
        """Leave the room of batches in the cache to others."""
        self._kept.forget(indices)

    def _read_whole(self, index: int) -> pa.RecordBatch:
        with self._readable():
            return self._read(self._numbers[index], self.columns)

    def kept_beside(self, lasting: bool = False, about_bytes: float = 0) -> KeptBatches:
        """Return a place in the cache for batches derived from the reader's own; see `BatchCache.kept`."""
        return self._cache.kept(lasting, about_bytes)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (self.batch(index) for index in range(self.batch_count))

    def _read(self, number: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Return some columns of a batch in the file; others are not decompressed, nor read if avoidable."""
        if not self._file.is_near:
            self._file.expect(*self._span(number), self._plans.get(tuple(columns)))
        layout = self._layout(number)
        plain = None if layout is None else layout.columns_of(columns)
        if layout is not None and plain is not None:
            if not self._file.is_near and tuple(columns) not in self._plans:
                self._plan(tuple(columns), layout, plain)
            arrays = read_columns(self._file.read, layout, plain)
            fields = [self._schema_of_file.field(name) for name in columns]
            return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        batch = self._arrow_reader(tuple(columns)).get_batch(number)
        if self._is_plain and len(columns) < len(self._schema_of_file):
            # Copy: Arrow puts the few columns that were asked for into one block with room for all columns.
            # What was compressed it puts into blocks of their own, column by column.
            batch = ipc.read_record_batch(batch.serialize(), batch.schema)
        return batch.select(list(columns))

    def _plan(self, names: tuple[str, ...], layout: BatchLayout, columns: Sequence[ColumnLayout]) -> None:
        """Note how to read columns of all batches of a remote file, by their offsets in one batch."""
        length = layout.end - layout.begin
        self._plans[names] = None
        if sum(column.end - column.begin for column in columns) >= _MOST * length:
            return
        shares = sorted(
            ((c.begin - layout.begin) / length - _SLACK, (c.end - layout.begin) / length + _SLACK)
            for c in columns
        )
        places = (
            (int(begin + max(low, 0.0) * (end - begin)), int(begin + min(high, 1.0) * (end - begin)))
            for begin, end in map(self._span, range(self._batches_in_file))
            for low, high in ((0.0, _SLACK), *shares)  # the batch's description comes first
        )
        self._plans[names] = Parts.of(places, SEGMENT_BYTES, self._file.size)

    def _arrow_reader(self, columns: tuple[str, ...]) -> Any:
        reader = self._by_arrow.get(columns)
        if reader is None:
            fields = sorted(self._schema_of_file.names.index(name) for name in columns)
            bytes_of_one = self._file.size // max(self._batches_in_file, 1)
            options = ipc.IpcReadOptions(
                included_fields=fields, use_threads=bytes_of_one >= THREADS_FROM_BYTES
            )
            reader = self._by_arrow[columns] = ipc.open_file(self._file.as_arrow_file(), options=options)
        return reader

    def rows(self, index: int, rows: NDArray[np.int64], columns: Sequence[str]) -> pa.RecordBatch:
        """Rows of a batch, by number, in the order asked, of some of the reader's columns.

        A batch that no caller holds, and that the cache has no room for, is not read for a few rows.
        """
        arrays = None
        if not self.holds(index):
            with self._readable():
                arrays = self._rows_alone(self._numbers[index], rows, columns)
        if arrays is None:
            batch, indices = self.batch(index), pa.array(rows)
            arrays = [batch.column(name).take(indices) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema_of(columns))

    def _rows_alone(
        self, number: int, rows: NDArray[np.int64], columns: Sequence[str]
    ) -> list[pa.Array] | None:
        """Return these rows, read on their own; None where it is better to read the batch."""
        layout = self._layout(number) if self._file.has_cheap_reads else None
        plain = None if layout is None else layout.columns_of(columns)
        if layout is None or plain is None or layout.end - layout.begin > MOST_BYTES:
            return None
        if self._cache.has_room(layout.end - layout.begin):  # the whole batch serves all later reads
            return None
        return take_rows(self._file, layout, plain, rows)

    def _span(self, number: int) -> tuple[int, int]:
        """Return the place in the file where a batch begins, and where it ends."""
        # The first one is behind the magic and the schema.
        begin = self._ends[number - 1] if number else 8 + int(self._schema_of_file.serialize().size)
        return begin, self._ends[number]

    def _layout(self, number: int) -> BatchLayout | None:
        """Return the place of a batch in its file; None where the file is compressed."""
        if not self._is_plain:
            return None
        layout = self._file.layouts.get(number)
        if layout is None:
            begin, end = self._span(number)
            layout = read_layout(self._file.read, begin, end, self._schema_of_file)
            if self._file.is_near:  # others have many small batches, and are read batch by batch
                self._file.layouts[number] = layout
        return layout
