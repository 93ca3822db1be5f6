"""Copies on the local disk of what was read from object storage, up to a bound, for all processes of a user.

An object never changes, so a copy of a part of it needs no word with the server. What was read of 16 MB of an
object is a file, with holes where nothing was read yet, so that a long read takes few calls; alongside them
lies the object's end, with its size:

    <directory>/3f/3f9c…/2       bytes [2 * EXTENT_BYTES, 3 * EXTENT_BYTES) of an object, then a byte for each
                                 block of 64 KB: 1 once the block is there. It is written last.
    <directory>/3f/3f9c…/end     its size (8 bytes, little-endian), and its last bytes

A name is a hash of bucket and key. Nothing here is trusted: every byte of a sealed file is compared
with a checksum when it is read, and what differs is forgotten and fetched again (`SealedFile`). What is used
least goes first. Where there is no such directory, or it cannot be written, the pieces and ends that came
last are remembered by the process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from threading import Lock
from time import time

import pyarrow as pa

from elasticscan.base.concurrency import renewed_in_child
from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import COPIES_BYTES

DIRECTORY, BOUND = "ELASTICSCAN_CACHE", "ELASTICSCAN_CACHE_BYTES"
BLOCK_BYTES = 64 << 10
EXTENT_BYTES = 16 << 20
_EXTENT_BLOCKS = EXTENT_BYTES // BLOCK_BYTES
_THERE = b"\x01"
_PRIVATE = 0o700
_END = "end"
_SIZE_BYTES = 8
_TOUCH_SECONDS = 600.0  # an extent that was used so lately is not marked as used again
_SWEEPS = 16  # in the time that as many bytes are written as there may be
_KEPT_SHARE = 0.9  # of the bound, after a sweep
_REMEMBERED_BYTES = 24 << 20  # by a process, of all objects
_MOST_ENDS = 128  # 8 MB

End = tuple[pa.Buffer, int]  # the last bytes of an object, and its size


def name_of(bucket: str, key: str) -> str:
    """Return the name of an object's copies.

    It leaves out the server, which costs more to find out than a read of copies: keys of fragments are never
    given twice, and what another server's object has in them is found out like other damage.
    """
    return hashlib.sha256(f"{bucket}\n{key}".encode()).hexdigest()[:40]


class Memory:
    """The pieces and the ends of objects that came last; in use where there are no copies on the disk."""

    def __init__(self) -> None:
        self._lock = renewed_in_child(Lock)
        self._pieces: OrderedDict[tuple[str, int], pa.Buffer] = OrderedDict()
        self._ends: OrderedDict[str, End] = OrderedDict()
        self._bytes = 0

    def read_into(self, name: str, offset: int, room: memoryview) -> int:
        """Put bytes of an object into place, as far as one piece has them; how many came."""
        with self._lock():
            for (other, begin), data in reversed(self._pieces.items()):
                if other == name and begin <= offset < begin + data.size:
                    part = memoryview(data).cast("B")[offset - begin :][: len(room)]
                    room[: len(part)] = part
                    return len(part)
        return 0

    def missing(self, name: str, begin: int, end: int) -> tuple[int, int]:
        """Return the range: the little that is remembered was read already."""
        return begin, end

    def keep(self, name: str, offset: int, data: memoryview) -> None:
        with self._lock():
            before = self._pieces.pop((name, offset), None)
            self._pieces[name, offset] = pa.py_buffer(data)
            self._bytes += len(data) - (0 if before is None else before.size)
            while self._bytes > _REMEMBERED_BYTES and len(self._pieces) > 1:
                self._bytes -= self._pieces.popitem(last=False)[1].size

    def end_of(self, name: str) -> End | None:
        """Return the last bytes of an object, and its size, once."""
        with self._lock():
            return self._ends.pop(name, None)

    def keep_end(self, name: str, end: memoryview, size: int, is_next: bool = False) -> None:
        """Keep the end of an object that is opened next; others are read when they are opened."""
        with self._lock():
            if is_next:
                self._ends[name] = pa.py_buffer(bytes(end)), size
            while len(self._ends) > _MOST_ENDS:
                self._ends.popitem(last=False)

    def forget(self, name: str, begin: int = 0, end: int | None = None) -> bool:
        """Drop what is remembered of an object."""
        with self._lock():
            self._ends.pop(name, None)
            for key in [key for key in self._pieces if key[0] == name]:
                self._bytes -= self._pieces.pop(key).size
        return True


MEMORY = Memory()


class Copies:
    """A directory of copies, for this user alone; what it cannot keep is remembered."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory, self._most_bytes = directory, most_bytes
        self._unswept = most_bytes  # bytes written since the last sweep; at first what is there is unknown
        self._is_ours: bool | None = None

    def read_into(self, name: str, offset: int, room: memoryview) -> int:
        """Put bytes of an object into place, up to the first that is not there; how many came."""
        done = 0
        while done < len(room):
            extent, at = divmod(offset + done, EXTENT_BYTES)
            part = room[done : done + EXTENT_BYTES - at]
            count = self._read_extent(self._place(name, str(extent)), at, part)
            done += count
            if count < len(part):
                break
        return done or MEMORY.read_into(name, offset, room)

    def _read_extent(self, path: str, at: int, room: memoryview) -> int:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            first, beyond = at // BLOCK_BYTES, -(-(at + len(room)) // BLOCK_BYTES)
            there = os.pread(handle, beyond - first, EXTENT_BYTES + first)
            blocks = len(there) - len(there.lstrip(_THERE))
            length = min(len(room), max((first + blocks) * BLOCK_BYTES - at, 0))
            if not length or os.preadv(handle, [room[:length]], at) < length:
                return 0
            self._use(handle)
        except OSError:
            return 0
        finally:
            os.close(handle)
        return length

    def missing(self, name: str, begin: int, end: int) -> tuple[int, int]:
        """Return the range between two blocks, or to the object's end, without cached blocks at its edges."""
        numbers = range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        there = b"".join(
            self._blocks_there(name, extent)
            for extent in range(begin // EXTENT_BYTES, -(-end // EXTENT_BYTES))
        )[numbers.start % _EXTENT_BLOCKS :][: len(numbers)]
        left, right = len(there) - len(there.lstrip(_THERE)), len(there) - len(there.rstrip(_THERE))
        return min(begin + left * BLOCK_BYTES, end), end if not right else (
            numbers.stop - right
        ) * BLOCK_BYTES

    def _blocks_there(self, name: str, extent: int) -> bytes:
        """One byte for each block of an extent."""
        with suppress(OSError), open(self._place(name, str(extent)), "rb", buffering=0) as file:
            file.seek(EXTENT_BYTES)
            return file.read(_EXTENT_BLOCKS).ljust(_EXTENT_BLOCKS, b"\0")
        return bytes(_EXTENT_BLOCKS)

    def end_of(self, name: str) -> End | None:
        """Return the last bytes of an object, and its size."""
        try:
            with open(self._place(name, _END), "rb") as file:
                content = file.read()
                self._use(file.fileno())
        except OSError:
            return MEMORY.end_of(name)
        size = int.from_bytes(content[:_SIZE_BYTES], "little")
        end = pa.py_buffer(content).slice(min(_SIZE_BYTES, len(content)))
        return (end, size) if 0 < end.size <= size else None

    def keep(self, name: str, offset: int, data: memoryview) -> None:
        """Keep whole blocks, of which an object's last may be shorter."""
        assert offset % BLOCK_BYTES == 0
        with suppress(OSError):
            self._check_ours(name)
            done = 0
            while done < len(data):
                extent, at = divmod(offset + done, EXTENT_BYTES)
                part = data[done : done + EXTENT_BYTES - at]
                self._write_extent(self._place(name, str(extent)), at, part)
                done += len(part)
            self._written(len(data))
            return
        MEMORY.keep(name, offset, data)

    @staticmethod
    def _write_extent(path: str, at: int, data: memoryview) -> None:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(handle, data[done:], at + done)
            # Who finds these finds the blocks: writes are seen in their order.
            os.pwrite(handle, _THERE * -(-len(data) // BLOCK_BYTES), EXTENT_BYTES + at // BLOCK_BYTES)
        finally:
            os.close(handle)

    def keep_end(self, name: str, end: memoryview, size: int, is_next: bool = False) -> None:
        """Keep an object's last bytes, and its size."""
        with suppress(OSError):
            self._check_ours(name)
            place = Path(self._place(name, _END))
            unfinished = place.with_name(f"{_END}.{os.getpid()}")
            try:
                unfinished.write_bytes(size.to_bytes(_SIZE_BYTES, "little") + end)
                os.replace(unfinished, place)
            except OSError:
                unfinished.unlink(missing_ok=True)
                raise
            self._written(len(end))
            return
        MEMORY.keep_end(name, end, size, is_next)

    def forget(self, name: str, begin: int = 0, end: int | None = None) -> bool:
        """Drop copies of what bytes [begin, end) are among, or all of an object; False if that cannot be."""
        MEMORY.forget(name)
        if end is None:
            shutil.rmtree(self._place(name), ignore_errors=True)
            return not Path(self._place(name)).exists()
        try:
            for extent in range(begin // EXTENT_BYTES, -(-end // EXTENT_BYTES)):
                Path(self._place(name, str(extent))).unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def _place(self, name: str, file: str = "") -> str:
        return f"{self._directory}/{name[:2]}/{name}/{file}"

    @staticmethod
    def _use(handle: int) -> None:
        now = time()
        if now - os.fstat(handle).st_mtime > _TOUCH_SECONDS:
            os.utime(handle, (now, now))

    def _check_ours(self, name: str) -> None:
        """Make a place for an object; raises OSError unless the directory is private to this user."""
        place = self._place(name)
        if self._is_ours is None or (self._is_ours and not Path(place).is_dir()):
            self._directory.mkdir(_PRIVATE, parents=True, exist_ok=True)
            state = self._directory.stat()
            self._is_ours = state.st_uid == os.geteuid() and not S_IMODE(state.st_mode) & 0o077
            if self._is_ours:
                Path(place).mkdir(_PRIVATE, parents=True, exist_ok=True)
        if not self._is_ours:
            raise PermissionError(f"{self._directory} is open to others")

    def _written(self, count: int) -> None:
        self._unswept += count
        if self._unswept * _SWEEPS > self._most_bytes:
            self._unswept = 0
            self._sweep()

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
        for shelf in _entries(self._directory):
            for file in (file for place in _entries(shelf) for file in _entries(place)):
                with suppress(OSError):
                    state = file.stat()
                    yield state.st_mtime, 512 * state.st_blocks, Path(file.path)  # holes take no room


def _entries(directory: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(directory) as entries:
        return list(entries)
    return []


_opened: dict[tuple[str | None, ...], Copies | Memory] = {}


def copies_here() -> Copies | Memory:
    """Return the copies shared by the user's processes; `MEMORY` where the environment disables them.

    Raises:
        InvalidOption: `ELASTICSCAN_CACHE_BYTES` is no number of bytes.
    """
    message = tuple(os.environ.get(name) for name in (DIRECTORY, BOUND, "XDG_CACHE_HOME", "HOME"))
    if message not in _opened:
        _opened[message] = _open(*message)
    return _opened[message]


def _open(directory: str | None, bound: str | None, caches: str | None, _home: str | None) -> Copies | Memory:
    if directory is not None and directory.strip().lower() in ("", "off"):
        return MEMORY
    if bound is not None and not (bound.isascii() and bound.isdigit()):
        raise InvalidOption(
            f"{BOUND} is {bound!r}, which is no number of bytes; 8589934592 are 8 GiB", option=BOUND
        )
    place = Path(directory) if directory else Path(caches or Path.home() / ".cache") / "elasticscan"
    return Copies(place.absolute(), COPIES_BYTES if bound is None else int(bound))
