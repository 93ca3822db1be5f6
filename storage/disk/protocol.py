"""The protocol of disks and of their files, and files in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from elasticscan.base.limits import BATCH_BYTES, FAR_BATCH_BYTES
from elasticscan.base.resources import lack_of_memory
from elasticscan.storage.disk.errors import cut_file

AHEAD_BYTES = 12 << 20  # of a file that is far are fetched by one request at most, and ahead of time


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

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ascending ranges [begin, end), which are read next, ahead of time if they are far."""
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

    def prefetch(self, paths: Sequence[str]) -> None:
        """Fetch what opening some files needs, of all at once, if they are far.

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
