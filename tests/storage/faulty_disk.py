"""The lying twin of a disk: it is full after some bytes, tears files, fails, or dies before a rename."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elasticscan.base.errors import DiskFull
from elasticscan.storage.disk import Disk, OpenFile


class Crashed(BaseException):
    """The process died here; nothing behind this point may run, so nobody catches it by name."""


class FaultyDisk:
    """Any disk, with faults.

    Attributes:
        full_after: most bytes that all files together may grow to, from now on `DiskFull`; None
            for no bound.
        tear_after: a file that is longer than this silently loses the rest, as after a power cut
            on a disk that lies about flushing; None for no bound.
        raise_at: errors to raise, once, by the name of the operation: "create", "open", "delete",
            "rename", "note" or "list".
        raise_at_operation: raises `error` at the k-th operation from now (1 is the next one).
        crash_before_rename: die when a file is complete, before it gets its name.
        operations: how often each operation was called.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.full_after: int | None = None
        self.tear_after: int | None = None
        self.raise_at: dict[str, BaseException] = {}
        self.raise_at_operation: int | None = None
        self.error: BaseException = OSError(errno.EIO, "Input/output error")
        self.crash_before_rename = False
        self.operations: Counter[str] = Counter()
        self.written = 0

    def _operate(self, name: str) -> None:
        self.operations[name] += 1
        if self.raise_at_operation is not None:
            self.raise_at_operation -= 1
            if self.raise_at_operation == 0:
                self.raise_at_operation = None
                raise self.error
        if name in self.raise_at:
            raise self.raise_at.pop(name)

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        self._operate("create")
        try:
            with self.disk.create(path) as file:
                yield _FaultyFile(self, file)
                if self.crash_before_rename:
                    raise Crashed
        except OSError as error:
            # A disk that is not local tells of a full disk in an error of its own.
            if error.errno == errno.ENOSPC:
                raise DiskFull(f"the disk is full while writing {path}", path=path) from error
            raise

    def open(self, path: str) -> OpenFile:
        self._operate("open")
        return self.disk.open(path)

    def delete(self, path: str) -> None:
        self._operate("delete")
        self.disk.delete(path)

    def rename(self, path: str, to: str) -> None:
        self._operate("rename")
        self.disk.rename(path, to)

    def note(self, path: str, content: bytes) -> None:
        self._operate("note")
        self.disk.note(path, content)

    def list(self) -> list[tuple[str, float]]:
        self._operate("list")
        return self.disk.list()


class _FaultyFile:
    def __init__(self, owner: FaultyDisk, file: Any) -> None:
        self._owner = owner
        self._file = file
        self._length = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        owner = self._owner
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
