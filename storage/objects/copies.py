"""Copies on the local disk of what was read from object storage, up to a bound, for all processes of a user.

An object never changes, so a copy of a part of it needs no word with the server. Each block of an object is
a file of its own, written under another name and renamed; beside them lies the object's end, with its size:

    <directory>/3f/3f9c…/17      bytes [17 * BLOCK_BYTES, 18 * BLOCK_BYTES) of an object
    <directory>/3f/3f9c…/end     its size (8 bytes, little-endian), and its last bytes

A name is a hash of server, bucket and key. Nothing here is believed: every byte of a sealed file is compared
with a checksum when it is read, and what differs is forgotten and fetched again (`SealedFile`). What is used
least goes first. A cache that cannot be written, or is full, is gone on without.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from time import time

import pyarrow as pa

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import COPIES_BYTES

DIRECTORY, BOUND = "ELASTICSCAN_CACHE", "ELASTICSCAN_CACHE_BYTES"
BLOCK_BYTES = 64 << 10
_PRIVATE = 0o700
_END = "end"
_SIZE_BYTES = 8
_TOUCH_SECONDS = 600.0  # a block that was used so lately is not marked as used again
_SWEEPS = 16  # in the time that as many bytes are written as there may be
_KEPT_SHARE = 0.9  # of the bound, after a sweep


class Copies:
    """A directory of copies, for this user alone."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory, self._most_bytes = directory, most_bytes
        self._unswept = most_bytes  # bytes written since the last sweep; at first nobody knows what is there
        self._is_ours: bool | None = None

    @staticmethod
    def name(of: str) -> str:
        """The name of an object's copies."""
        return hashlib.sha256(of.encode()).hexdigest()[:40]

    def read_into(self, name: str, number: int, offset: int, room: memoryview) -> bool:
        """Put bytes of a block into place; False if they are not all there."""
        try:
            handle = os.open(self._place(name) / str(number), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.preadv(handle, [room], offset) < len(room):
                return False
            self._use(handle)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def end_of(self, name: str) -> tuple[pa.Buffer, int] | None:
        """The last bytes of an object, and its size."""
        try:
            with open(self._place(name) / _END, "rb") as file:
                content = file.read()
                self._use(file.fileno())
        except OSError:
            return None
        size = int.from_bytes(content[:_SIZE_BYTES], "little")
        end = pa.py_buffer(content).slice(min(_SIZE_BYTES, len(content)))
        return (end, size) if 0 < end.size <= size else None

    def keep(self, name: str, number: int, data: memoryview) -> bool:
        """Keep a block; False if that cannot be."""
        return self._write(name, str(number), data)

    def keep_end(self, name: str, end: memoryview, size: int) -> None:
        self._write(name, _END, size.to_bytes(_SIZE_BYTES, "little") + end)

    def forget(self, name: str) -> None:
        """Drop all copies of an object."""
        shutil.rmtree(self._place(name), ignore_errors=True)

    def _place(self, name: str) -> Path:
        return self._directory / name[:2] / name

    @staticmethod
    def _use(handle: int) -> None:
        now = time()
        if now - os.fstat(handle).st_mtime > _TOUCH_SECONDS:
            os.utime(handle, (now, now))

    def _write(self, name: str, file: str, data: bytes | memoryview) -> bool:
        with suppress(OSError):  # a cache that fails is none
            if not self._may_write():
                return False
            place = self._place(name)
            place.mkdir(_PRIVATE, parents=True, exist_ok=True)
            unfinished = place / f"{file}.{os.getpid()}"
            try:
                unfinished.write_bytes(data)
                os.replace(unfinished, place / file)
            except OSError:
                unfinished.unlink(missing_ok=True)
                raise
            self._unswept += len(data)
            if self._unswept * _SWEEPS > self._most_bytes:
                self._unswept = 0
                self._sweep()
            return True
        return False

    def _may_write(self) -> bool:
        """True for a directory that nobody else may look into."""
        if self._is_ours is None:
            self._directory.mkdir(_PRIVATE, parents=True, exist_ok=True)
            state = self._directory.stat()
            self._is_ours = state.st_uid == os.geteuid() and not S_IMODE(state.st_mode) & 0o077
        return self._is_ours

    def _sweep(self) -> None:
        """Remove what was not used for longest until the rest is within the bound."""
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        if total <= self._most_bytes:
            return
        for _, size, path in files:
            if total <= self._most_bytes * _KEPT_SHARE:
                return
            with suppress(OSError):  # another process may be at it, too
                path.unlink()
                total -= size
                path.parent.rmdir()

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        for shelf in os.scandir(self._directory):
            for place in os.scandir(shelf.path) if shelf.is_dir() else ():
                with suppress(OSError):
                    for file in os.scandir(place.path):
                        state = file.stat()
                        yield state.st_mtime, state.st_size, Path(file.path)


_opened: dict[tuple[str | None, ...], Copies | None] = {}


def copies_here() -> Copies | None:
    """The copies that this process shares with others of its user; None where the environment turns them off.

    Raises:
        InvalidOption: `ELASTICSCAN_CACHE_BYTES` is no number of bytes.
    """
    told = tuple(os.environ.get(name) for name in (DIRECTORY, BOUND, "XDG_CACHE_HOME", "HOME"))
    if told not in _opened:
        _opened[told] = _open(*told)
    return _opened[told]


def _open(directory: str | None, bound: str | None, caches: str | None, _home: str | None) -> Copies | None:
    if directory is not None and directory.strip().lower() in ("", "off"):
        return None
    if bound is not None and not (bound.isascii() and bound.isdigit()):
        raise InvalidOption(
            f"{BOUND} is {bound!r}, which is no number of bytes; 8589934592 are 8 GiB", option=BOUND
        )
    place = Path(directory) if directory else Path(caches or Path.home() / ".cache") / "elasticscan"
    return Copies(place.absolute(), COPIES_BYTES if bound is None else int(bound))
