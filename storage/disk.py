"""Where files live: one narrow protocol, the local disk, any `pyarrow.fs`, and an in-memory twin."""

from __future__ import annotations

import errno
import io
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from elasticscan.base.errors import DiskFull, FragmentDamaged, ShardUnavailable

# EFBIG: the limit on the size of a file is one more way in which a disk has no room.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class OpenFile(Protocol):
    """An open, immutable file. `source` is what `pyarrow.ipc.open_file` takes."""

    source: Any
    size: int

    def release(self) -> None:
        """Let go of memory held for parts already read; they can still be read again."""


class Disk(Protocol):
    """A shard's files. A path is relative to the shard's root, with `/` between its parts."""

    def create(self, path: str) -> Any:
        """A context that yields a binary file to write.

        The file appears under its path, complete and flushed to the disk, when the block ends
        without an exception, and not at all otherwise. Raises `DiskFull`, `ShardUnavailable`.
        """

    def open(self, path: str) -> OpenFile:
        """Raises `FragmentDamaged` when the file is gone, `ShardUnavailable` when the root is."""

    def delete(self, path: str) -> None:
        """Remove a file; fine when it is gone already. Raises `ShardUnavailable`."""

    def list(self) -> list[tuple[str, float]]:
        """(path, time of last change in seconds) of every file, unfinished ones included."""


def open_disk(root: str) -> Disk:
    """The disk for a shard's root: a directory, or anything `pyarrow.fs` has a URI for."""
    if "://" in root:
        filesystem, path = pafs.FileSystem.from_uri(root)
        return ArrowDisk(pafs.SubTreeFileSystem(path, filesystem), root)
    return LocalDisk(root)


def _full(path: str) -> DiskFull:
    return DiskFull(
        f"the disk is full while writing {path}; nothing was committed: free some space (collect_garbage "
        "removes files that nothing needs) and try again",
        path=path,
    )


def _gone(path: str) -> FragmentDamaged:
    return FragmentDamaged(
        f"{path} is missing although the catalog refers to it; restore the shard's directory from a backup",
        path=path,
    )


def _no_root(root: str, why: object = "it does not exist") -> ShardUnavailable:
    return ShardUnavailable(
        f"the shard's storage {root} cannot be used: {why}; mount or restore it and try again", root=root
    )


class LocalDisk:
    """A directory. Files are memory-mapped, written under a temporary name, flushed, renamed."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        target = self.root / path
        unfinished = target.with_name(target.name + ".unfinished")
        self._check_root()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(unfinished, "wb", buffering=0) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, target)
            _flush_directory(target.parent)
        except BaseException as error:
            with suppress(OSError):
                unfinished.unlink()
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise _full(str(target)) from error
            if isinstance(error, OSError):
                raise _no_root(str(self.root), error) from error
            raise

    def open(self, path: str) -> OpenFile:
        try:
            return MappedFile(self.root / path)
        except FileNotFoundError as error:
            self._check_root()
            raise _gone(str(self.root / path)) from error
        except OSError as error:  # no permission, too many open files, a root that is no directory
            raise _no_root(str(self.root), error) from error
        except ValueError as error:
            raise FragmentDamaged(
                f"{self.root / path} cannot be opened: {error}; restore it from a backup", path=path
            ) from error

    def delete(self, path: str) -> None:
        try:
            (self.root / path).unlink(missing_ok=True)
        except OSError as error:
            raise _no_root(str(self.root), error) from error

    def list(self) -> list[tuple[str, float]]:
        self._check_root()
        found = []
        for file in self.root.rglob("*"):
            with suppress(FileNotFoundError):  # another process may be cleaning up too
                if file.is_file():
                    found.append((file.relative_to(self.root).as_posix(), file.stat().st_mtime))
        return found

    def _check_root(self) -> None:
        if not self.root.is_dir():
            raise _no_root(str(self.root))


def _flush_directory(directory: Path) -> None:
    """A rename is only on the disk once its directory is."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class MappedFile:
    """A memory-mapped file whose pages can be given back.

    Touched pages of a mapping count as the process's memory until the kernel wants them back,
    so a scan of a large table would seem to hold all of it. `release` gives them back at once;
    arrays that still point there read them again from the page cache.
    """

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.size = len(self._map)
        self.source = pa.BufferReader(pa.py_buffer(self._map))

    def release(self) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class ArrowDisk:
    """A directory or bucket prefix of any filesystem that pyarrow knows."""

    def __init__(self, filesystem: pafs.FileSystem, root: str) -> None:
        self._files = filesystem
        self._root = root

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        unfinished = path + ".unfinished"
        try:
            self._files.create_dir(path.rpartition("/")[0] or ".", recursive=True)
            with self._files.open_output_stream(unfinished) as file:
                yield file
            self._files.move(unfinished, path)
        except BaseException as error:
            with suppress(OSError):
                self._files.delete_file(unfinished)
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise _full(f"{self._root}/{path}") from error
            if isinstance(error, OSError):
                raise _no_root(self._root, error) from error
            raise

    def open(self, path: str) -> OpenFile:
        try:
            return _StreamedFile(self._files.open_input_file(path))
        except FileNotFoundError as error:
            if self._files.get_file_info("").type == pafs.FileType.NotFound:
                raise _no_root(self._root) from error
            raise _gone(f"{self._root}/{path}") from error
        except OSError as error:
            raise _no_root(self._root, error) from error

    def delete(self, path: str) -> None:
        try:
            with suppress(FileNotFoundError):
                self._files.delete_file(path)
        except OSError as error:
            raise _no_root(self._root, error) from error

    def list(self) -> list[tuple[str, float]]:
        try:
            found = self._files.get_file_info(pafs.FileSelector("", recursive=True, allow_not_found=True))
        except OSError as error:
            raise _no_root(self._root, error) from error
        return [(info.path, (info.mtime_ns or 0) / 1e9) for info in found if info.is_file]


class _StreamedFile:
    def __init__(self, file: Any) -> None:
        self.source = file
        self.size = file.size()

    def release(self) -> None:
        """Nothing is held."""


class MemoryDisk:
    """The in-memory twin: the same promises without a disk, for tests and simulation."""

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
        self._ticks += 1
        self._times[path] = self._ticks
        self.files[path] = file.getvalue()

    def open(self, path: str) -> OpenFile:
        self._check_root()
        if path not in self.files:
            raise _gone(path)
        return MemoryFile(self.files[path])

    def delete(self, path: str) -> None:
        self.files.pop(path, None)

    def list(self) -> list[tuple[str, float]]:
        self._check_root()
        return [(path, self._times[path]) for path in list(self.files)]

    def _check_root(self) -> None:
        if not self.present:
            raise _no_root("memory")


class MemoryFile:
    def __init__(self, content: bytes) -> None:
        self.source = pa.BufferReader(content)
        self.size = len(content)

    def release(self) -> None:
        """Nothing is held."""
