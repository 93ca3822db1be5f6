"""Random access to the record batches of sealed files, by batch or by row, and a cache of batches."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from elasticscan.base.errors import FragmentDamaged
from elasticscan.base.limits import BATCH_CACHE_BYTES
from elasticscan.base.resources import lack_of_memory
from elasticscan.metadata import Seal
from elasticscan.storage.batches.layout import (
    THREADS_FROM_BYTES,
    BatchLayout,
    ColumnLayout,
    read_columns,
    read_layout,
    take_rows,
)
from elasticscan.storage.disk import AHEAD_BYTES, Disk
from elasticscan.storage.sealed_file import SealedFile

# The errors that Arrow raises on bytes that it cannot read. Bytes are verified before Arrow reads them, so
# only a file of another kind than the catalog says raises them.
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    NotImplementedError,
    pa.ArrowSerializationError,
)

# The cache is bounded in number, too: the objects of a batch take about ten KiB, however few bytes it has,
# and each small commit adds batches.
MOST_BATCHES = 4_096
_SLACK = 1 / 32  # the expected difference of a column's relative place between batches

Fields: TypeAlias = dict[str, tuple[str | None, pa.Field]]


class BatchCache:
    """A cache of the most recently used batches, and of open files. Threads may share one.

    A batch stays usable after the cache has dropped it.
    """

    def __init__(self, most_bytes: int = BATCH_CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._batches: OrderedDict[tuple[int, int], tuple[pa.RecordBatch, int]] = OrderedDict()
        self._bytes = 0
        self._readers = count()  # a number is never used twice, so the cache need not keep the reader
        self._files: WeakValueDictionary[tuple[Disk, str, Seal, str], SealedFile] = WeakValueDictionary()

    def open(self, disk: Disk, path: str, seal: Seal, label: str = "") -> SealedFile:
        """Return an open file that its readers share, so that its tail is read and verified only once.

        Raises the same errors as `SealedFile`.
        """
        key = (disk, path, seal, label)
        with self._lock:
            file = self._files.get(key)
        if file is None:
            file = SealedFile(disk, path, seal, label)
            with self._lock:
                self._files[key] = file
        return file

    def kept(self) -> KeptBatches:
        """Return a new, empty set of cached batches for a reader."""
        return KeptBatches(self, next(self._readers))

    def has_room(self, size: int) -> bool:
        """Return whether a batch of `size` bytes fits without dropping another."""
        return self._bytes + size <= self._most_bytes

    def use(self, key: tuple[int, int], batch: pa.RecordBatch) -> None:
        """Mark a batch as the most recently used one, and drop the oldest above the bounds."""
        with self._lock:
            if key in self._batches:
                self._batches.move_to_end(key)
                return
            self._batches[key] = batch, batch.nbytes
            self._bytes += batch.nbytes
            while len(self._batches) > 1 and (
                self._bytes > self._most_bytes or len(self._batches) > MOST_BATCHES
            ):
                self._bytes -= self._batches.popitem(last=False)[1][1]

    def drop(self, keys: Iterable[tuple[int, int]]) -> None:
        """Drop these batches."""
        with self._lock:
            for key in keys:
                self._bytes -= self._batches.pop(key, (None, 0))[1]


class KeptBatches:
    """The batches of one reader. A batch that the cache or a caller still refers to is not made again."""

    def __init__(self, cache: BatchCache, reader: int) -> None:
        self.cache, self._reader = cache, reader
        self._held: WeakValueDictionary[int, pa.RecordBatch] = WeakValueDictionary()

    def peek(self, index: int) -> pa.RecordBatch | None:
        """Return a batch if it is in memory, else None."""
        return self._held.get(index)

    def get(self, index: int, make: Callable[[int], pa.RecordBatch]) -> pa.RecordBatch:
        """Return a batch, made by `make` if it is not in memory."""
        batch = self._held.get(index)
        if batch is None:
            batch = self._held[index] = make(index)
        self.cache.use((self._reader, index), batch)
        return batch

    def forget(self, indices: Iterable[int]) -> None:
        """Drop these batches from the cache."""
        self.cache.drop((self._reader, index) for index in indices)


class BatchReader:
    """Random access to the record batches of a sealed file, in the columns that `_choose` returns.

    `disk`, `path`, `seal` and `label` are as in `SealedFile`; readers may share a `cache`.
    """

    def __init__(
        self, disk: Disk, path: str, seal: Seal, cache: BatchCache | None = None, label: str = ""
    ) -> None:
        self.cache = cache or BatchCache()
        self._file = self.cache.open(disk, path, seal, label)
        self._ends: Sequence[int] = ()  # the end of each batch in the file
        self._is_plain = True  # not compressed
        # For remote files, by columns: the parts of a batch that contain them, as fractions of its length.
        self._shares: dict[tuple[str, ...], list[tuple[float, float]]] = {}
        self._last, self._ahead = -9, range(0)  # the batch read last, and the batches prefetched for a scan
        self._by_arrow: dict[tuple[str, ...], Any] = {}
        self._schemas: dict[tuple[str, ...], pa.Schema] = {}
        self._nulls: dict[str, pa.Array] = {}
        with self._readable():
            self._schema_of_file, self._batches_in_file = self._file.arrow_footer()
            self._numbers: Sequence[int] = range(self._batches_in_file)  # of the batches, in the file
            self._fields = self._choose(self._schema_of_file)
        self.columns = tuple(self._fields)
        self.batch_count = len(self._numbers)
        self.kept = self.cache.kept()

    def _choose(self, schema: pa.Schema) -> Fields:
        """Return, for each column to read, its name in the file (None if the file lacks it) and its field.

        Raises ValueError or an error of Arrow if the file does not fit.
        """
        raise NotImplementedError

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Translate errors of Arrow into errors of the package."""
        try:
            yield
        except MemoryError as error:
            raise lack_of_memory() from error
        except UNREADABLE as error:
            raise self.damaged(error) from error

    def damaged(self, why: object) -> FragmentDamaged:
        return self._file.damaged(why)

    def schema_of(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema of these columns of the reader."""
        names = tuple(columns)
        schema = self._schemas.get(names)
        if schema is None:
            schema = self._schemas[names] = pa.schema([self._fields[name][1] for name in names])
        return schema

    def batch(self, index: int) -> pa.RecordBatch:
        return self.kept.get(index, self._read_whole)

    def _read_whole(self, index: int) -> pa.RecordBatch:
        with self._readable():
            return self._read(self._numbers[index], self.columns)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (self.batch(index) for index in range(self.batch_count))

    def rows(self, index: int, rows: NDArray[np.int64], columns: Sequence[str]) -> pa.RecordBatch:
        """Return rows of a batch by number, in this order, in some of the reader's columns.

        A batch that is not in memory, and that the cache has no room for, is not read as a whole.
        """
        if self.kept.peek(index) is None and self._file.has_cheap_reads:
            with self._readable():
                stored = self._stored(columns)
                plain = self._layout(self._numbers[index], stored)
                # If there is room, read the whole batch: later reads find it in the cache.
                if plain and not self.cache.has_room(plain[0].end - plain[0].begin):
                    arrays = take_rows(self._file, *plain, rows) if stored else []
                    return self._complete(columns, dict(zip(stored, arrays, strict=True)), len(rows))
        batch, indices = self.batch(index), pa.array(rows)
        arrays = [batch.column(name).take(indices) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema_of(columns))

    def _read(self, number: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Read some columns of a batch in the file; others are not decompressed, and not read if possible."""
        stored = tuple(self._stored(columns) or self._schema_of_file.names[-1:])  # one, to count the rows
        if not self._file.is_near:
            self._expect(number, stored)
        plain = self._layout(number, stored)
        if plain:
            if not self._file.is_near:
                self._note_shares(stored, *plain)
            arrays, rows = read_columns(self._file.read, *plain), plain[0].rows
        else:
            batch = self._arrow_reader(stored).get_batch(number)
            if self._is_plain and len(stored) < len(self._schema_of_file):
                # Copy, because Arrow keeps the requested columns in one block of the size of all columns.
                # If they were compressed, each would have its own block.
                batch = ipc.read_record_batch(batch.serialize(), batch.schema)
            arrays, rows = batch.select(list(stored)).columns, batch.num_rows
        return self._complete(columns, dict(zip(stored, arrays, strict=True)), rows)

    def _stored(self, columns: Sequence[str]) -> list[str]:
        """Return the names in the file, for those of the columns that it has."""
        return [stored for stored, _ in map(self._fields.__getitem__, columns) if stored is not None]

    def _complete(self, columns: Sequence[str], arrays: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
        """Return a batch of the columns in their types; columns that the file lacks are null."""
        completed = []
        for stored, field in map(self._fields.__getitem__, columns):
            array = self._nulls_of(field, rows) if stored is None else arrays[stored]
            completed.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(completed, schema=self.schema_of(columns))

    def _nulls_of(self, field: pa.Field, count: int) -> pa.Array:
        """Return `count` nulls; all batches share the longest array."""
        nulls = self._nulls.get(field.name)
        if nulls is None or len(nulls) < count:
            nulls = self._nulls[field.name] = pa.nulls(count, field.type)
        return nulls.slice(0, count)

    def _expect(self, number: int, stored: tuple[str, ...]) -> None:
        """Prefetch columns of a batch of a remote file, and in a scan also of the batches after it."""
        numbers = [number]
        if not self._last < number <= self._last + 2:
            self._ahead = range(number, number + 1)
        elif number >= self._ahead.start:
            begin = max(self._ahead.stop, number)
            self._ahead = range(begin, bisect_right(self._ends, self._ends[begin - 1] + AHEAD_BYTES))
            numbers += [at for at in self._ahead if at != number]
        self._last = number
        self._file.prefetch([place for at in numbers for place in self._bytes_of(at, stored)])

    def _bytes_of(self, number: int, stored: tuple[str, ...]) -> list[tuple[int, int]]:
        begin, end = self._span(number)
        shares = self._shares.get(stored, [(0.0, 1.0)])
        return [(begin + int(low * (end - begin)), begin + int(high * (end - begin))) for low, high in shares]

    def _note_shares(
        self, stored: tuple[str, ...], layout: BatchLayout, columns: Sequence[ColumnLayout]
    ) -> None:
        """Note the relative place of columns in a batch of a remote file; in other batches it is similar."""
        size = layout.end - layout.begin
        places = sorted((column.begin - layout.begin, column.end - layout.begin) for column in columns)
        shares = [(max(low / size - _SLACK, 0.0), min(high / size + _SLACK, 1.0)) for low, high in places]
        self._shares[stored] = [(0.0, _SLACK), *shares]  # the batch's description comes first

    def _arrow_reader(self, stored: tuple[str, ...]) -> Any:
        reader = self._by_arrow.get(stored)
        if reader is None:
            fields = sorted(self._schema_of_file.names.index(name) for name in stored)
            bytes_of_one = self._file.size // max(self._batches_in_file, 1)
            options = ipc.IpcReadOptions(
                included_fields=fields, use_threads=bytes_of_one >= THREADS_FROM_BYTES
            )
            reader = self._by_arrow[stored] = ipc.open_file(self._file.as_arrow_file(), options=options)
        return reader

    def _span(self, number: int) -> tuple[int, int]:
        """Return where a batch begins and ends in the file."""
        # The first batch is after the magic and the schema.
        begin = self._ends[number - 1] if number else 8 + int(self._schema_of_file.serialize().size)
        return begin, self._ends[number]

    def _layout(self, number: int, stored: Sequence[str]) -> tuple[BatchLayout, list[ColumnLayout]] | None:
        """Return the layout of a batch and its columns; None if one is compressed or not of a plain type."""
        if not self._is_plain:
            return None
        layout: BatchLayout | None = self._file.layouts.get(number)
        if layout is None:
            begin, end = self._span(number)
            layout = read_layout(self._file.read, begin, end, self._schema_of_file)
            if self._file.is_near:  # remote files have many small batches that are read only once
                self._file.layouts[number] = layout
        if not all(name in layout.columns for name in stored):
            return None
        return layout, [layout.columns[name] for name in stored]
