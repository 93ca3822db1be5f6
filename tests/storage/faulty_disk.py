"""A disk with faults, whose answers may be wrong.

It is full after some bytes, tears files, fails at any call, flips bits, returns an older content or another
file's, loses acknowledged files at a power cut, and its mount vanishes and comes back.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import pyarrow as pa

from elasticscan.base.errors import DiskFull, FragmentDamaged, ShardUnavailable
from elasticscan.storage.disk import Disk, OpenFile
from elasticscan.storage.disk.errors import disk_error
from tests.storage.memory_disk import MemoryDisk

AfterPowerCut = Literal["gone", "zeros", "short"]


class FaultyDisk(Disk):
    """A wrapper of any disk, with faults.

    Attributes:
        full_after: the most bytes of all files together before `DiskFull` is raised; None for no bound.
        tear_after: a longer file silently loses the rest, as after a power cut on a disk that lies
            about flushing; None for no bound.
        raise_at_call: by operation, which call from now fails with EIO: "create", "open", "delete",
            "note", "list", "write", "finish" (a complete file gets its name) or "read_at".
        raise_always: operations that fail with EIO each time.
        flips: by path, the bits (8 * offset + bit) that are read inverted.
        flips_once: the same, each in one read only.
        stale: by path, the content that is read instead: an older one, or another file's.
        flushes: false if files are acknowledged before they are on the disk; see `cut_power`.
        vanished: "gone" if the root does not exist, or "empty" if the directory below the mount is visible,
            and gets new files.
        written, bytes_read: the bytes written to and read from all files together.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk, self.is_far = disk, disk.is_far
        self.full_after: int | None = None
        self.tear_after: int | None = None
        self.raise_at_call: dict[str, int] = {}
        self.raise_always: set[str] = set()
        self.flips: dict[str, set[int]] = {}
        self.flips_once: dict[str, set[int]] = {}
        self.stale: dict[str, bytes] = {}
        self.flushes = True
        self.vanished: Literal["gone", "empty"] | None = None
        self.written = self.bytes_read = 0
        self._unflushed: dict[str, bytes | None] = {}  # the content of these paths before they were written
        self._below = MemoryDisk()

    def content(self, path: str) -> bytes:
        """The real content, without faults."""
        file = self.disk.open(path)
        found: bytes = file.read_at(0, file.size).to_pybytes()
        return found

    def cut_power(self, after: AfterPowerCut = "gone") -> list[str]:
        """Lose the files that were acknowledged and not flushed; return their paths.

        They are missing (or have their old content), are full of zeros, or have lost their end, as on
        file systems that write names before contents.
        """
        lost = list(self._unflushed)
        for path, before in self._unflushed.items():
            content = self.content(path)
            if after == "gone":
                self.disk.delete(path)
                if before is None:
                    continue
                content = before
            else:
                content = bytes(len(content)) if after == "zeros" else content[: len(content) // 2]
            with self.disk.create(path) as file:
                file.write(content)
        self._unflushed.clear()
        return lost

    def _there(self) -> Disk:
        """The disk, or the directory below its mount."""
        if self.vanished == "gone":
            raise ShardUnavailable("the shard's storage cannot be used: it does not exist", root="faulty")
        return self.disk if self.vanished is None else self._below

    def fail(self, name: str) -> None:
        """Raise the error of a failing device, if this operation is to fail now."""
        left = self.raise_at_call.get(name, 0)
        if left:
            self.raise_at_call[name] = left - 1
        if left == 1 or name in self.raise_always:
            error = OSError(errno.EIO, "Input/output error")
            if name in ("write", "finish"):  # the disk below translates the error
                raise error
            raise disk_error(error, "faulty", None, writing=name not in ("open", "read_at", "list"))

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        self.fail("create")
        disk = self._there()
        before = None if self.flushes else self._content_or_none(path)
        try:
            with disk.create(path) as file:
                yield _FaultyFile(self, file)
                self.fail("finish")
            if not self.flushes:
                self._unflushed.setdefault(path, before)
        except OSError as error:
            # A disk that is not local reports a full disk by its own error.
            if error.errno == errno.ENOSPC:
                raise DiskFull(f"the disk is full while writing {path}", path=path) from error
            raise

    def open(self, path: str) -> OpenFile:
        self.fail("open")
        file = self._there().open(path)
        return _FaultyReads(self, path, file)

    def _content_or_none(self, path: str) -> bytes | None:
        try:
            return self.content(path)
        except FragmentDamaged:
            return None

    def delete(self, path: str) -> None:
        self.fail("delete")
        self._there().delete(path)
        self._unflushed.pop(path, None)

    def note(self, path: str, content: bytes) -> None:
        self.fail("note")
        with self.create(path) as file:
            file.write(content)

    def list(self) -> list[tuple[str, float]]:
        self.fail("list")
        return self._there().list()


class _FaultyReads(OpenFile):
    """A file that was opened before its disk began to fail fails with it."""

    def __init__(self, owner: FaultyDisk, path: str, file: OpenFile) -> None:
        self._owner, self._path, self._file = owner, path, file
        stale = owner.stale.get(path)
        self.size = file.size if stale is None else len(stale)
        self.is_near = file.is_near

    def read_at(self, offset: int, length: int) -> pa.Buffer:
        owner, path = self._owner, self._path
        owner.fail("read_at")
        owner.bytes_read += length
        if owner.vanished is not None:
            raise disk_error(OSError(errno.EIO, "Input/output error"), "faulty", None, writing=False)
        stale = owner.stale.get(path)
        if stale is None:
            data = self._file.read_at(offset, length)
        else:
            data = pa.py_buffer(stale[offset : offset + length])
        for flips, once in ((owner.flips, False), (owner.flips_once, True)):
            if path in flips:
                data = _flipped(data, offset, flips[path], once)
        return data

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._file.prefetch(ranges)

    def forget(self) -> bool:
        return self._file.forget()

    def read_into(self, offset: int, room: memoryview) -> None:
        room[:] = memoryview(self.read_at(offset, len(room))).cast("B")


def _flipped(data: pa.Buffer, offset: int, bits: set[int], once: bool) -> pa.Buffer:
    here = [bit for bit in bits if offset <= bit // 8 < offset + data.size]
    if not here:
        return data
    content = bytearray(data.to_pybytes())
    for bit in here:
        content[bit // 8 - offset] ^= 1 << bit % 8
        if once:
            bits.discard(bit)
    return pa.py_buffer(bytes(content))


class _FaultyFile:
    def __init__(self, owner: FaultyDisk, file: Any) -> None:
        self._owner = owner
        self._file = file
        self._length = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        owner = self._owner
        owner.fail("write")
        if owner.full_after is not None and owner.written + len(view) > owner.full_after:
            self._pass_on(view[: max(0, owner.full_after - owner.written)])
            raise OSError(errno.ENOSPC, "No space left on device")
        self._pass_on(view)
        return len(view)

    def _pass_on(self, view: memoryview) -> None:
        self._owner.written += len(view)
        kept = view
        if self._owner.tear_after is not None:
            kept = view[: max(0, self._owner.tear_after - self._length)]
        self._length += len(view)
        if kept:
            self._file.write(kept)
