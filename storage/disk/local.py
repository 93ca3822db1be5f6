"""A directory as a disk; and `open_disk`, which returns the disk of a root."""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO
from weakref import ref

from elasticscan.base.concurrency import renewed_in_child
from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import OPEN_FILES
from elasticscan.base.permissions import mode_within
from elasticscan.base.redaction import shown
from elasticscan.storage.disk.errors import cut_file, disk_error, missing_root
from elasticscan.storage.disk.protocol import Disk, OpenFile

OBJECT_SCHEMES = ("s3://", "s3a://")


@contextmanager
def _telling(root: str | Path, path: str | None, writing: bool = True) -> Iterator[None]:
    """Translate the system's errors about a file into errors of the package."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise disk_error(error, str(root), path, writing) from error


class LocalDisk(Disk):
    """A directory. Files are written under a temporary name, flushed, and renamed.

    Its owner may read the files below the root, and its group if the root grants it (`mode_within`).
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with self._renamed(path, ".unfinished") as file:
            yield file
        with _telling(self.root, path):
            flush_directory((self.root / path).parent)

    def note(self, path: str, content: bytes) -> None:
        with self._renamed(path, f".{secrets.token_hex(8)}.unfinished") as file:
            file.write(content)

    @contextmanager
    def _renamed(self, path: str, end: str) -> Iterator[BinaryIO]:
        """Write a file under its name plus `end`, flush it, and rename it."""
        target = self.root / path
        unfinished = target.with_name(target.name + end)
        with _telling(self.root, path):
            try:
                root = self.root.stat()
                _make_directories(self.root, target.parent, root)
                with open(unfinished, "wb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
                    _give(file.fileno(), root)
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(unfinished, target)
            except BaseException:
                with suppress(OSError):
                    unfinished.unlink()
                raise

    def open(self, path: str) -> OpenFile:
        with _telling(self.root, path, writing=False):
            return LocalFile(self.root, path)

    def delete(self, path: str) -> None:
        with _telling(self.root, path):
            (self.root / path).unlink(missing_ok=True)

    def list(self) -> list[tuple[str, float]]:
        files = []

        def tell(error: OSError) -> None:
            """Raise if a directory cannot be read: its files would count as missing."""
            if not isinstance(error, FileNotFoundError):
                raise error

        with _telling(self.root, None, writing=False):
            if not self.root.is_dir():
                raise missing_root(str(self.root))
            for directory, _, names in os.walk(self.root, onerror=tell):
                for file in (Path(directory, name) for name in names):
                    with suppress(FileNotFoundError):  # another process may be cleaning up too
                        status = file.stat()
                        if stat.S_ISREG(status.st_mode):
                            files.append((file.relative_to(self.root).as_posix(), status.st_mtime))
        return files


def _give(file: int | Path, root: os.stat_result, is_directory: bool = False) -> None:
    """Set a file's mode from that of its root and, if this process runs as root, its owner, too."""
    if os.geteuid() == 0:
        os.chown(file, root.st_uid, root.st_gid)
    os.chmod(file, mode_within(root.st_mode, is_directory))  # noqa: PTH101 - it may be an open file


def keep_from_group(file: Any) -> None:
    """Make an open file readable by its owner only, whatever the mode of its root."""
    with suppress(AttributeError, io.UnsupportedOperation):  # it is not a file of this system
        os.fchmod(file.fileno(), 0o600)


def _make_directories(root: Path, directory: Path, like: os.stat_result) -> None:
    if directory == root or directory.is_dir():
        return
    _make_directories(root, directory.parent, like)
    with suppress(FileExistsError):
        directory.mkdir(0o700)
        _give(directory, like, is_directory=True)


def flush_directory(directory: Path) -> None:
    """Flush a directory, which makes the renames in it durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Descriptor:
    """A file descriptor that is closed when the last reference to this object is gone."""

    def __init__(self, path: Path) -> None:
        # O_NONBLOCK: opening a named pipe would block. It has no effect on regular files.
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            with suppress(OSError):
                os.close(self.number)


_open_files: OrderedDict[int, ref[LocalFile]] = OrderedDict()  # by time of their last read, newest last
_lock = renewed_in_child(Lock)


def _used(file: LocalFile) -> None:
    """Mark a file as the most recently read, and close the least recently read ones above the limit."""
    with _lock():
        _open_files[id(file)] = ref(file)
        _open_files.move_to_end(id(file))
        while len(_open_files) > OPEN_FILES:
            _, oldest = _open_files.popitem(last=False)
            if (least_used := oldest()) is not None:
                least_used.release()


class LocalFile(OpenFile):
    """A file that is read with `pread`: a truncated file or a failing disk is an error, not a signal."""

    is_near = True

    def __init__(self, root: Path, path: str) -> None:
        self._root, self._path = root, path
        self._descriptor: _Descriptor | None = _Descriptor(root / path)
        state = os.fstat(self._descriptor.number)
        if not stat.S_ISREG(state.st_mode):
            raise IsADirectoryError(errno.EISDIR, "not a regular file", path)
        self.size = state.st_size
        _used(self)

    def release(self) -> None:
        """Drop the descriptor. If a thread is reading from it, the thread keeps it open until it is done."""
        self._descriptor = None

    def read_into(self, offset: int, room: memoryview) -> None:
        done = 0
        with _telling(self._root, self._path, writing=False):
            descriptor = self._descriptor
            if descriptor is None:
                descriptor = self._descriptor = _Descriptor(self._root / self._path)
            _used(self)
            while done < len(room):
                count = os.preadv(descriptor.number, [room[done:]], offset + done)
                if not count:
                    raise cut_file(str(self._root / self._path), offset, len(room))
                done += count


def open_disk(root: str) -> Disk:
    """Return the disk for a root: a directory, or a prefix of an S3 bucket."""
    if root.lower().startswith(OBJECT_SCHEMES):
        try:
            from elasticscan.storage.disk.objects import ObjectDisk  # noqa: PLC0415 - needs an extra
        except ModuleNotFoundError as error:
            raise InvalidOption(
                f"shards in object storage need the package {error.name!r}, which is not installed here: "
                "pip install 'elasticscan[s3]'",
                option="shards",
            ) from error
        return ObjectDisk(root)
    if "://" in root:
        raise InvalidOption(
            f"{shown(root)} cannot be a shard's storage; name a directory, or write `s3://BUCKET/PREFIX` and "
            "set AWS_ENDPOINT_URL where each process runs",
            option="shards",
        )
    return LocalDisk(root)
