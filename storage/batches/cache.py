"""Files that several readers share, and the record batches that were used lately, up to bounds.

The bounds are one in bytes and one in number: a batch of a few rows takes some ten KiB for objects, whatever
its bytes, and each small commit brings some, so that a writer would never come to an end of bytes.

Batches that are small alongside what they cost to make, such as the places of newer rows among those of a
large fragment, are kept apart (`lasting`). A scan of a table that is larger than the bound pushes out all
that it reads before it comes back to it, and would push these out, too; they stay until many times the bound
came in since they were used. Of a full cache they have half at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import TypeAlias
from weakref import WeakValueDictionary

import pyarrow as pa

from elasticscan.base.limits import BATCH_CACHE_BYTES
from elasticscan.metadata import Seal
from elasticscan.storage.disk import Disk
from elasticscan.storage.sealed_file import SealedFile

LASTING_AGE = 32  # a lasting batch that is unused goes after so many times the bound came in


MOST_BATCHES = 4_096


@dataclass(slots=True)
class _Entry:
    """A batch in the cache, its size, and how many bytes had come in when it was used last."""

    batch: pa.RecordBatch
    bytes: int
    used_at: int


Batches: TypeAlias = OrderedDict[tuple[int, int], _Entry]


class BatchCache:
    """Keeps the batches used last. A batch that a reader holds stays usable when the cache drops it.

    Threads may share one.
    """

    def __init__(self, most_bytes: int = BATCH_CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._batches: Batches = OrderedDict()
        self._lasting: Batches = OrderedDict()
        self._bytes = self._lasting_bytes = 0
        self._passed = 0  # bytes of all batches that ever came in
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

    def used(
        self, reader: int, index: int, batch: pa.RecordBatch, lasting: bool = False, weight: int = 1
    ) -> None:
        """Keep a batch for longer than the ones used before; it counts as `weight` times its bytes."""
        key, kept = (reader, index), self._lasting if lasting else self._batches
        with self._lock:
            if (before := kept.get(key)) is not None:
                before.used_at = self._passed
                kept.move_to_end(key)
                return
            size: int = batch.nbytes * weight
            self._bytes += size
            self._passed += size
            self._lasting_bytes += size * lasting
            kept[key] = _Entry(batch, size, self._passed)
            while (batches := len(self._batches) + len(self._lasting)) > 1 and (
                self._bytes > self._most_bytes or batches > MOST_BATCHES
            ):
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._lasting.values()), None)
        if oldest is not None and (
            not self._batches
            or self._lasting_bytes > self._most_bytes // 2
            or len(self._lasting) > MOST_BATCHES // 2
            or self._passed - oldest.used_at > LASTING_AGE * self._most_bytes
        ):
            _, gone = self._lasting.popitem(last=False)
            self._lasting_bytes -= gone.bytes
        else:
            _, gone = self._batches.popitem(last=False)
        self._bytes -= gone.bytes

    def forget(self, reader: int, indices: Iterable[int]) -> None:
        """Drop batches of a reader that will not be read again."""
        with self._lock:
            for key in ((reader, index) for index in indices):
                if (gone := self._batches.pop(key, None)) is not None:
                    self._bytes -= gone.bytes
                elif (gone := self._lasting.pop(key, None)) is not None:
                    self._bytes -= gone.bytes
                    self._lasting_bytes -= gone.bytes

    def kept(self, lasting: bool = False, about_bytes: float = 0, weight: int = 1) -> KeptBatches:
        """Return a place for the batches of one more reader.

        Lasting batches stay longer than others. If they are too many bytes for their half of the cache, they
        are kept as any others.
        """
        return KeptBatches(self, next(self._readers), lasting and about_bytes <= self._most_bytes / 2, weight)

    def has_room(self, size: int) -> bool:
        """Return whether a batch of so many bytes can be kept without dropping another."""
        return self._bytes + size <= self._most_bytes


class KeptBatches:
    """The batches of one reader: what the cache or a caller holds is not made twice."""

    def __init__(self, cache: BatchCache, reader: int, lasting: bool, weight: int) -> None:
        self._cache, self._reader, self._lasting, self._weight = cache, reader, lasting, weight
        self._held: WeakValueDictionary[int, pa.RecordBatch] = WeakValueDictionary()

    def __contains__(self, index: int) -> bool:
        return self._held.get(index) is not None

    def peek(self, index: int) -> pa.RecordBatch | None:
        """Return a batch if it is there."""
        return self._held.get(index)

    def forget(self, indices: Iterable[int] | None = None) -> None:
        """Leave the room of these batches, all by default, to others."""
        self._cache.forget(self._reader, list(self._held) if indices is None else indices)

    def has_room(self, size: int) -> bool:
        """Return whether a batch of so many bytes can be kept without dropping another."""
        return self._cache.has_room(size)

    def get(self, index: int, make: Callable[[int], pa.RecordBatch]) -> pa.RecordBatch:
        """Return a batch; `make` makes it if it is not there."""
        batch = self._held.get(index)
        if batch is None:
            batch = self._held[index] = make(index)
        self._cache.used(self._reader, index, batch, self._lasting, self._weight)
        return batch
