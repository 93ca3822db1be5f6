"""A disk in memory that keeps all promises of a disk, for tests and simulation."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from elasticscan.storage.disk import Disk, MemoryFile, OpenFile
from elasticscan.storage.disk.errors import missing_file, missing_root


class MemoryDisk(Disk):
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.present = True
        self._ticks = 0.0
        self._times: dict[str, float] = {}

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        self._check_root()
        file = io.BytesIO()
        yield file
        self.note(path, file.getvalue())

    def open(self, path: str) -> OpenFile:
        self._check_root()
        if path not in self.files:
            raise missing_file(path)
        return MemoryFile(self.files[path])

    def delete(self, path: str) -> None:
        self.files.pop(path, None)

    def note(self, path: str, content: bytes) -> None:
        self._check_root()
        self._ticks += 1
        self._times[path] = self._ticks
        self.files[path] = content

    def list(self) -> list[tuple[str, float]]:
        self._check_root()
        return [(path, self._times[path]) for path in list(self.files)]

    def _check_root(self) -> None:
        if not self.present:
            raise missing_root("memory")
