"""Files that several readers share, and the record batches that were used last, up to bounds.

The bounds are one in bytes and one in number: a batch of a few rows takes some ten KiB for objects, whatever
its bytes, and each small commit brings some, so that a writer would never come to an end of bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import count
from threading import Lock
from weakref import WeakValueDictionary

import pyarrow as pa

from elasticscan.base.limits import BATCH_CACHE_BYTES
from elasticscan.metadata import Seal
from elasticscan.storage.disk import Disk
from elasticscan.storage.sealed_file import SealedFile

MOST_BATCHES = 4_096


class BatchCache:
    """Keeps the batches used last. A batch that a reader holds stays usable when the cache drops it.

    Threads may share one.
    """

    def __init__(self, most_bytes: int = BATCH_CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._batches: OrderedDict[tuple[int, int], tuple[pa.RecordBatch, int]] = OrderedDict()
        self._bytes = 0
        self._readers = count()  # a number is never used twice, so the cache need not keep the reader
        self._files: WeakValueDictionary[tuple[Disk, str, Seal, str], SealedFile] = WeakValueDictionary()

    def open(self, disk: Disk, path: str, seal: Seal, label: str = "") -> SealedFile:
        """Return a file, open for all its readers: its tail is read and proven once for all of them.

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

    def kept(self) -> KeptBatches:
        """Return a place for the batches of one more reader."""
        return KeptBatches(self, next(self._readers))

    def has_room(self, size: int) -> bool:
        """Return whether a batch of so many bytes can be kept without dropping another."""
        return self._bytes + size <= self._most_bytes

    def use(self, key: tuple[int, int], batch: pa.RecordBatch) -> None:
        """Keep a batch for longer than the ones used before."""
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
        """Drop batches that will not be read again."""
        with self._lock:
            for key in keys:
                self._bytes -= self._batches.pop(key, (None, 0))[1]


class KeptBatches:
    """The batches of one reader in a cache: what that or a caller holds is not made twice."""

    def __init__(self, cache: BatchCache, reader: int) -> None:
        self.cache, self._reader = cache, reader
        self._held: WeakValueDictionary[int, pa.RecordBatch] = WeakValueDictionary()

    def peek(self, index: int) -> pa.RecordBatch | None:
        """Return a batch if it is there."""
        return self._held.get(index)

    def get(self, index: int, make: Callable[[int], pa.RecordBatch]) -> pa.RecordBatch:
        """Return a batch; `make` makes it if it is not there."""
        batch = self._held.get(index)
        if batch is None:
            batch = self._held[index] = make(index)
        self.cache.use((self._reader, index), batch)
        return batch

    def forget(self, indices: Iterable[int] | None = None) -> None:
        """Leave the room of these batches, all by default, to others."""
        self.cache.drop([(self._reader, n) for n in (list(self._held) if indices is None else indices)])
