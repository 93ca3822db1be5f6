"""The protocol of disks and of their files, and files in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from elasticscan.base.limits import BATCH_BYTES, FAR_BATCH_BYTES
from elasticscan.base.resources import lack_of_memory
from elasticscan.storage.disk.errors import cut_file

_MOST_PARTS = 32  # that are fetched together
_HOLE_BYTES = 192 << 10  # to leave out so much is worth one more request
_WORTH = 3 / 4  # of a file, or less, in parts


@dataclass(frozen=True, slots=True)
class Parts:
    """Ascending, disjoint parts [begin, end) of a file, each worth a request of its own."""

    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, places: Iterable[tuple[int, int]], align: int, size: int) -> Parts | None:
        """Parts with all of these places, which ascend; None where they are most of a file of this size."""
        begins, ends = list[int](), list[int]()
        for low, high in places:
            begin, end = low // align * align, -(-high // align) * align
            if ends and begin - ends[-1] < _HOLE_BYTES:
                ends[-1] = max(ends[-1], end)
            else:
                begins.append(begin)
                ends.append(end)
        return cls(tuple(begins), tuple(ends)) if sum(ends) - sum(begins) <= _WORTH * size else None

    def end_of_first(self, begin: int, end: int) -> int:
        """Return the end of the part that contains a position, up to `end`; else the position itself."""
        number = bisect_right(self.begins, begin) - 1
        return min(self.ends[number], end) if number >= 0 and begin < self.ends[number] else begin

    def after(self, begin: int, beyond: int, most_bytes: int) -> list[tuple[int, int]]:
        """Return the parts from a place on, up to another, that are about so many bytes together."""
        chosen, total = list[tuple[int, int]](), 0
        number = max(bisect_right(self.begins, begin) - 1, 0)
        while number < len(self.begins) and total < most_bytes and len(chosen) < _MOST_PARTS:
            low, high = max(self.begins[number], begin), min(self.ends[number], beyond)
            if low < high:
                chosen.append((low, high))
                total += high - low
            number += 1
        return chosen


class OpenFile(Protocol):
    """An open, immutable file. Threads may share one.

    Attributes:
        size: its bytes.
        is_near: a read costs some microseconds, and no network, so it may be as small as it likes.
    """

    size: int
    is_near: bool

    def read_into(self, offset: int, room: memoryview) -> None:
        """Read bytes from `offset` on into memory that is there already, until it is full.

        Raises `FragmentDamaged` where the file ends before, `ShardUnavailable` when its disk fails.
        """

    def read_at(self, offset: int, length: int) -> pa.Buffer:
        """As `read_into`, into new memory."""
        try:
            buffer = pa.allocate_buffer(length)
        except MemoryError as error:
            raise lack_of_memory() from error
        self.read_into(offset, memoryview(buffer).cast("B"))
        return buffer

    def expect(self, begin: int, end: int, parts: Parts | None = None) -> None:
        """Hear that these bytes are read next, piece by piece: what is far may get them at once.

        `parts` are what a scan reads of the file, as far as that can be foreseen; None for all of it.
        """
        return

    def forget(self) -> bool:
        """Drop copies that lie nearer than the disk; False if reading it again is of no use."""
        return False


class Disk(Protocol):
    """A shard's files. A path is relative to the shard's root, with `/` between its parts.

    Attributes:
        is_far: a request costs some milliseconds, so what is read together should lie together. A root
            that is far has its place in its name: nothing else can be mounted there.
        uncached: the same files, past any copies of them: for who checks them.
    """

    is_far: bool = False

    @property
    def uncached(self) -> Disk:
        return self

    def create(self, path: str) -> Any:
        """Return a context that yields a binary file to write.

        The file appears under its path, complete and flushed to the disk, when the block ends
        without an exception, and not at all otherwise. Raises `DiskFull`, `ShardUnavailable`.
        """

    def open(self, path: str) -> OpenFile:
        """Raise `FragmentDamaged` when the file is gone, `ShardUnavailable` when the root is."""

    def expect(self, paths: Sequence[str]) -> None:
        """Hear that files are opened next; what is far may ask for all of them at once.

        Raises `ShardUnavailable`.
        """
        return

    def delete(self, path: str) -> None:
        """Remove a file; fine when it is gone already. Raises `ShardUnavailable`."""

    def note(self, path: str, content: bytes) -> None:
        """Put a small file in the place of another: after a power cut it is there, or the one before.

        Several processes may do it at once. Raises `DiskFull`, `ShardUnavailable`.
        """

    def list(self) -> list[tuple[str, float]]:
        """(path, time of last change in seconds) of every file, unfinished ones included."""


def batch_bytes(disk: Disk) -> int:
    """Return the size of record batches in files of a disk: smaller over a network, for point reads."""
    return FAR_BATCH_BYTES if disk.is_far else BATCH_BYTES


class MemoryFile(OpenFile):
    is_near = True

    def __init__(self, content: bytes) -> None:
        self._content = pa.py_buffer(content)
        self.size = len(content)

    def read_at(self, offset: int, length: int) -> pa.Buffer:
        if offset + length > self.size:
            raise cut_file("memory", offset, length)
        return self._content.slice(offset, length)

    def read_into(self, offset: int, room: memoryview) -> None:
        room[:] = memoryview(self.read_at(offset, len(room))).cast("B")
