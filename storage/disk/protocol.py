"""The protocol of disks and of their files, and files in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from elasticscan.base.limits import BATCH_BYTES, FAR_BATCH_BYTES
from elasticscan.base.resources import lack_of_memory
from elasticscan.storage.disk.errors import cut_file

AHEAD_BYTES = 12 << 20  # the largest request for a remote file, and how far it is read ahead


class OpenFile(Protocol):
    """An open, immutable file. Threads may share one.

    Attributes:
        size: its bytes.
        is_near: the file is local: a read takes microseconds, so small reads are cheap.
    """

    size: int
    is_near: bool

    def read_into(self, offset: int, room: memoryview) -> None:
        """Fill `room` with the bytes from `offset` on.

        Raises `FragmentDamaged` if the file is too short, `ShardUnavailable` if its disk fails.
        """

    def read_at(self, offset: int, length: int) -> pa.Buffer:
        """Read bytes like `read_into`, but into new memory."""
        try:
            buffer = pa.allocate_buffer(length)
        except MemoryError as error:
            raise lack_of_memory() from error
        self.read_into(offset, memoryview(buffer).cast("B"))
        return buffer

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Start to fetch ascending ranges [begin, end) that are read next, if the file is remote."""
        return

    def forget(self) -> bool:
        """Drop cached bytes of the file; return False if there are none, so a second read is useless."""
        return False


class Disk(Protocol):
    """A shard's files. A path is relative to the shard's root, with `/` between its parts.

    Attributes:
        is_far: a request takes milliseconds, so bytes that are read together should be stored together. The
            root of such a disk is a URL, so nothing else can be mounted at its path.
        uncached: the same files without any cache, to verify them.
    """

    is_far: bool = False

    @property
    def uncached(self) -> Disk:
        return self

    def create(self, path: str) -> Any:
        """Return a context manager that yields a binary file to write.

        If the block ends without an exception, the file appears under its path, complete and flushed to the
        disk; otherwise it never appears. Raises `DiskFull`, `ShardUnavailable`.
        """

    def open(self, path: str) -> OpenFile:
        """Raise `MissingFile` if the file does not exist, `ShardUnavailable` if the root does not."""

    def prefetch(self, paths: Sequence[str]) -> None:
        """Fetch the ends of files that are opened next, in parallel, if they are remote.

        Raises `ShardUnavailable`.
        """
        return

    def delete(self, path: str) -> None:
        """Remove a file, if it exists. Raises `ShardUnavailable`."""

    def note(self, path: str, content: bytes) -> None:
        """Replace a small file atomically: after a power failure, its old or its new content is there.

        Several processes may do this at the same time. Raises `DiskFull`, `ShardUnavailable`.
        """

    def list(self) -> list[tuple[str, float]]:
        """Return (path, time of last change in seconds since 1970) of all files, also unfinished ones."""


def batch_bytes(disk: Disk) -> int:
    """Return the size of record batches for files of a disk: smaller in object storage, for point reads."""
    return FAR_BATCH_BYTES if disk.is_far else BATCH_BYTES


class MemoryFile(OpenFile):
    """A file in memory."""

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
