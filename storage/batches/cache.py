"""Files that several readers share, and the record batches that were read lately, up to a bound in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import count
from weakref import WeakValueDictionary

import pyarrow as pa

from elasticscan.base.forks import ChildSafeLock
from elasticscan.base.limits import BATCH_CACHE_BYTES
from elasticscan.metadata import Seal
from elasticscan.storage.disk import Disk
from elasticscan.storage.sealed_file import SealedFile


class BatchCache:
    """Keeps the batches used last. A batch that a reader holds stays usable when the cache drops it.

    Threads may share one.
    """

    def __init__(self, most_bytes: int = BATCH_CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = ChildSafeLock()
        self._batches: OrderedDict[tuple[int, int], tuple[pa.RecordBatch, int]] = OrderedDict()
        self._bytes = 0
        self._readers = count()
        self._files: WeakValueDictionary[tuple[Disk, str, Seal, str], SealedFile] = WeakValueDictionary()

    def open(self, disk: Disk, path: str, seal: Seal, label: str = "") -> SealedFile:
        """A file, open for all its readers: its tail is read and proven once for all of them.

        Raises as `SealedFile` does.
        """
        key = (disk, path, seal, label)
        with self._lock:
            file = self._files.get(key)
        if file is None:
            file = SealedFile(disk, path, seal, label)
            with self._lock:
                self._files[key] = file
        return file

    def new_reader(self) -> int:
        """A number for a reader. It is never used twice, so the cache need not keep the reader."""
        return next(self._readers)

    def used(self, reader: int, index: int, batch: pa.RecordBatch) -> None:
        """Keep a batch for longer than those that were used before."""
        key = (reader, index)
        with self._lock:
            if key in self._batches:
                self._batches.move_to_end(key)
                return
            size: int = batch.nbytes
            self._batches[key] = (batch, size)
            self._bytes += size
            while self._bytes > self._most_bytes and len(self._batches) > 1:
                _, (_, gone) = self._batches.popitem(last=False)
                self._bytes -= gone

    def forget(self, reader: int, indices: Iterable[int]) -> None:
        """Drop batches of a reader that nobody will ask for again."""
        with self._lock:
            for index in indices:
                _, gone = self._batches.pop((reader, index), (None, 0))
                self._bytes -= gone

    def kept(self) -> KeptBatches:
        """A place for the batches of one more reader."""
        return KeptBatches(self, self.new_reader())

    def has_room(self, size: int) -> bool:
        """True if a batch of so many bytes can be kept without dropping another."""
        return self._bytes + size <= self._most_bytes


class KeptBatches:
    """The batches of one reader: what the cache keeps, or somebody holds, is not made twice."""

    def __init__(self, cache: BatchCache, reader: int) -> None:
        self._cache, self._reader = cache, reader
        self._held: WeakValueDictionary[int, pa.RecordBatch] = WeakValueDictionary()

    def __contains__(self, index: int) -> bool:
        return self._held.get(index) is not None

    def peek(self, index: int) -> pa.RecordBatch | None:
        """A batch if it is there."""
        return self._held.get(index)

    def forget(self) -> None:
        """Leave the room of these batches to others."""
        self._cache.forget(self._reader, list(self._held))

    def get(self, index: int, make: Callable[[int], pa.RecordBatch]) -> pa.RecordBatch:
        """A batch; `make` makes it if it is not there."""
        batch = self._held.get(index)
        if batch is None:
            batch = self._held[index] = make(index)
        self._cache.used(self._reader, index, batch)
        return batch
