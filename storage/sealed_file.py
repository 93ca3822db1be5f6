"""Sealed files: Arrow files that contain their own checksums and a description of themselves.

A sealed file is an Arrow IPC file that every Arrow reader can read. Between its last record batch and
Arrow's footer it has a manifest and a trailer, which Arrow ignores:

    [0, data)      as Arrow wrote it: magic, schema, record batches
    [data, …)      the manifest, msgpack (see `Manifest`), with a checksum of every `SEGMENT_BYTES` of
                   [0, data) and one of the bytes after the trailer
    24 bytes       the trailer: xxh3-64 of the manifest, its length (8 bytes each, little-endian), "ESsealed"
    [… , size)     Arrow's end marker, footer, length of the footer, magic

Everything from `data` on is the *tail*. The catalog stores the length and the digest of the tail. So a byte
is verified before it is used: the tail by this digest, and each segment by its checksum, on every read. A
reader without a catalog relies on the trailer instead (`read_manifest`).

Files are read, never mapped. If a mapped file is truncated or its disk fails, an access ends the process
with a signal; a read fails with an error that can be raised. A read costs a copy from the page cache, but
checksums and kernels then find the bytes in the processor's cache.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray
from pyarrow import ipc

from elasticscan.base.errors import RESTORE, FragmentDamaged
from elasticscan.metadata import Manifest, Seal
from elasticscan.storage.disk import AHEAD_BYTES, Disk, OpenFile
from elasticscan.storage.disk.errors import MissingFile, missing_file
from elasticscan.topology import SlotSet

SEGMENT_BYTES = 64 << 10
SMALL_FILE_BYTES = 2 * SEGMENT_BYTES  # a file up to this size is read as a whole when it is opened
PIECE_BYTES = 8 * SEGMENT_BYTES  # read and then verified, while the bytes are in the processor's cache
MANIFEST_VERSION = 1

_MAGIC = b"ESsealed"
_TRAILER_BYTES = 24
_ARROW_MAGIC = b"ARROW1"
_END_BYTES = 8 + 4 + len(_ARROW_MAGIC)  # Arrow's end marker, the length of the footer, the magic
_FIELDS = tuple(field.name for field in fields(Manifest))


def digest_of(data: Any) -> int:
    """Return xxh3-64 as a signed integer, as databases store it."""
    digest: int = xxhash.xxh3_64_intdigest(data)
    return digest - (1 << 64) if digest >> 63 else digest


# -------------------------------------------------------------------------------------- writing


class SealedWriter:
    """Writes record batches of a schema to a binary file, and seals it; see `pyarrow.ipc.new_file`."""

    def __init__(self, file: Any, schema: pa.Schema, options: ipc.IpcWriteOptions | None = None) -> None:
        self._sink = _Sink(file)
        self._writer = ipc.new_file(self._sink, schema, options=options)
        self.batches: list[tuple[Any, ...]] = []  # of each: its rows, the writer's notes, its end in the file

    def write(self, batch: pa.RecordBatch, *notes: Any) -> None:
        self._writer.write_batch(batch)
        self.batches.append((batch.num_rows, *notes, self._sink.length))

    def seal(self, manifest: Manifest) -> Seal:
        """Write the manifest and, after it, Arrow's footer."""
        length, file, end = self._sink.length, self._sink.file, io.BytesIO()
        checksums = [*self._sink.checksums, self._sink.segment.intdigest()][: -(-length // SEGMENT_BYTES)]
        self._sink.file = end  # Arrow's footer goes to memory first, because it comes after the manifest
        self._writer.close()
        # Not `asdict`, which copies the epochs and slots of thousands of tablets one by one.
        values = {name: getattr(manifest, name) for name in _FIELDS} | {"slots": manifest.slots.ranges}
        values |= {"version": MANIFEST_VERSION, "checksums": np.array(checksums, dtype="<u8").tobytes()}
        body: bytes = msgpack.packb(values | {"end": digest_of(end.getvalue()), "batches": self.batches})
        trailer = xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
        tail = body + trailer + len(body).to_bytes(8, "little") + _MAGIC + end.getvalue()
        file.write(tail)
        return Seal(length + len(tail), len(tail), digest_of(tail))


class _Sink(io.RawIOBase):
    """A file for Arrow's writer: it forwards the data and computes a checksum of each segment."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.length = 0
        self.checksums: list[int] = []  # of complete segments
        self.segment = xxhash.xxh3_64()  # of the segment that is being written

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.file.write(view)
        for start in range(-(self.length % SEGMENT_BYTES), len(view), SEGMENT_BYTES):
            part = view[max(start, 0) : start + SEGMENT_BYTES]
            self.segment.update(part)
            if start + SEGMENT_BYTES <= len(view):
                self.checksums.append(self.segment.intdigest())
                self.segment.reset()
        self.length += len(view)
        return len(view)

    def tell(self) -> int:
        return self.length

    def writable(self) -> bool:
        return True


# -------------------------------------------------------------------------------------- reading


_UNREADABLE = (ValueError, TypeError, KeyError, AssertionError, msgpack.UnpackException)


def _parse_tail(tail: memoryview, path: str) -> tuple[Manifest, dict[str, Any]]:
    """Return the manifest of the file at a path, and the other entries; raises one of `_UNREADABLE`."""
    sealed = tail[: len(tail) - _held_bytes(tail)]
    trailer = sealed[-_TRAILER_BYTES:]
    body = sealed[-_TRAILER_BYTES - _manifest_bytes(trailer) : -_TRAILER_BYTES]
    if xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") != trailer[:8]:
        raise ValueError("its manifest has changed since it was written")
    values = msgpack.unpackb(body, strict_map_key=True, max_ext_len=0, use_list=False)
    if values.pop("version") != MANIFEST_VERSION:
        raise ValueError("it was sealed by another release")
    values["slots"] = SlotSet.of((int(start), int(end)) for start, end in values["slots"])
    manifest = Manifest(**{name: values.pop(name) for name in _FIELDS})
    if manifest.path != path:
        raise ValueError(f"it was written as {manifest.path}")
    return manifest, values


class SealedFile:
    """An open sealed file. Threads may share one, and a forked child may continue to use it.

    Args:
        disk, path: the file.
        seal: its seal in the catalog.
        label: text for errors about the file, such as its table and slots.

    Raises:
        FragmentDamaged: the file is missing, has another length, or its tail was changed.
        ShardUnavailable: the disk cannot be read.
    """

    def __init__(self, disk: Disk, path: str, seal: Seal, label: str = "") -> None:
        self._path, self._label = path, label
        self._twice(lambda: self._open(disk, seal))

    def _open(self, disk: Disk, seal: Seal) -> None:
        try:
            self._file: OpenFile = disk.open(self._path)
        except MissingFile as error:
            raise missing_file(str(error.fields["path"]), self._label) from error
        if self._file.size != seal.bytes or not 0 < seal.tail <= seal.bytes:
            raise self.damaged(f"it has {self._file.size} bytes instead of {seal.bytes}")
        self.size = seal.bytes
        self._data_bytes = seal.bytes - seal.tail
        begin = 0 if seal.bytes <= SMALL_FILE_BYTES else self._data_bytes
        self.is_near = self._file.is_near
        self.has_cheap_reads = begin > 0 and self.is_near  # `read_segments` costs less than `read`
        end = self._file.read_at(begin, seal.bytes - begin)
        self._tail = end.slice(self._data_bytes - begin)
        if digest_of(self._tail) != seal.digest:
            raise self.damaged("its footer has changed since it was written (its checksum differs)")
        self.layouts: dict[int, Any] = {}  # a cache for readers: layouts of record batches, by number
        self._whole: pa.Buffer | None = None
        try:
            self.manifest, self.more = _parse_tail(memoryview(self._tail).cast("B"), self._path)
            self._checksums: NDArray[np.uint64] = np.frombuffer(self.more["checksums"], dtype="<u8")
            if len(self._checksums) != -(-self._data_bytes // SEGMENT_BYTES):
                raise ValueError("the number of its checksums does not fit its length")
        except _UNREADABLE as error:
            raise self.damaged(error) from error
        if not begin:
            self._prove(memoryview(end)[: self._data_bytes], 0)
            self._whole = end

    def _twice(self, read: Callable[[], None]) -> None:
        """Read damaged bytes a second time if the first came from a cache: the file itself may be sound."""
        try:
            read()
        except MissingFile:
            raise
        except FragmentDamaged:
            if not self._file.forget():
                raise
            read()

    def damaged(self, why: object) -> FragmentDamaged:
        return FragmentDamaged(
            f"file {self._path}{self._label} cannot be read: {why}; `elasticscan verify` lists all damage: "
            f"{RESTORE}",
            path=self._path,
        )

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return verified bytes of the file; fewer than `length` only at its end."""
        end = min(offset + length, self.size)
        if self._whole is not None:
            return self._whole.slice(offset, max(end - offset, 0))
        if offset >= self._data_bytes:
            return pa.py_buffer(self._tail).slice(offset - self._data_bytes, max(end - offset, 0))
        assert end <= self._data_bytes, "one read does not cross from the data into the tail"
        start = offset // SEGMENT_BYTES * SEGMENT_BYTES
        stop = min(-(-end // SEGMENT_BYTES) * SEGMENT_BYTES, self._data_bytes)
        data = pa.allocate_buffer(stop - start)
        room = memoryview(data).cast("B")
        self._twice(lambda: self._fill(room, start))
        return data.slice(offset - start, end - offset)

    def _fill(self, room: memoryview, start: int) -> None:
        """Read whole segments into `room`, and verify each piece before the next is read."""
        for at in range(0, len(room), PIECE_BYTES):
            piece = room[at : at + PIECE_BYTES]
            self._file.read_into(start + at, piece)
            self._prove(piece, (start + at) // SEGMENT_BYTES)

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Prefetch ascending ranges of the data; see `OpenFile.prefetch`."""
        if self._whole is None:
            self._file.prefetch([(begin, min(end, self._data_bytes)) for begin, end in ranges])

    def read_segments(self, room: NDArray[np.uint8], first: int, chosen: NDArray[np.bool_]) -> None:
        """Read the chosen segments of a range of the data into their places in `room`, and verify them.

        Args:
            room: memory for the whole range; the bytes of other segments are not touched.
            first: the number of the range's first segment.
            chosen: a mask of the segments to read.
        """
        edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False)).tolist()
        view, begin = room.data, first * SEGMENT_BYTES
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            at, stop = start * SEGMENT_BYTES, min(end * SEGMENT_BYTES, self._data_bytes - begin)
            self._fill(view[at:stop], begin + at)

    def _prove(self, data: memoryview, first: int) -> None:
        """Compare whole segments with their checksums; `first` is the number of the first one."""
        last = first + -(-len(data) // SEGMENT_BYTES)
        for number, checksum in enumerate(self._checksums[first:last].tolist(), first):
            at = (number - first) * SEGMENT_BYTES
            if xxhash.xxh3_64_intdigest(data[at : at + SEGMENT_BYTES]) != checksum:
                raise self.damaged(
                    f"bytes from {number * SEGMENT_BYTES:,} on have changed since they were written (their "
                    "checksum differs)"
                )

    def prove_all(self) -> None:
        """Read the whole file again, also cached bytes. Raises `FragmentDamaged` if it has changed."""
        self._whole = None
        for start in range(0, self._data_bytes, AHEAD_BYTES):
            self._file.prefetch([(start, start + 2 * AHEAD_BYTES)])
            self.read(start, min(AHEAD_BYTES, self._data_bytes - start))

    def arrow_footer(self) -> tuple[pa.Schema, int]:
        """Return the schema and the number of batches in Arrow's footer.

        The footer is copied into memory of Arrow, because threads of Arrow may be the last to release it:
        if it were memory of Python, a release while Python exits would abort the process.
        """
        end = pa.allocate_buffer(self._tail.size)
        memoryview(end).cast("B")[:] = memoryview(self._tail).cast("B")
        reader = ipc.open_file(pa.BufferReader(end))
        return reader.schema, reader.num_record_batches

    def as_arrow_file(self) -> pa.NativeFile:
        """Return the file as input for an Arrow reader, which must live as long as this object."""
        if self._whole is not None:
            return pa.BufferReader(self._whole)
        return pa.PythonFile(_ArrowFile(self), mode="r")


class _ArrowFile(io.RawIOBase):
    """A sealed file with the interface of Python's files; Arrow calls it from one thread at a time."""

    def __init__(self, file: SealedFile) -> None:
        self._file = file
        self._at = 0

    def read_buffer(self, length: int = -1) -> Any:
        buffer = self._file.read(self._at, self._file.size - self._at if length < 0 else length)
        self._at += buffer.size
        return buffer

    read = read_buffer

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._file.size)[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True


def _held_bytes(end: memoryview) -> int:
    """Return the length of Arrow's marker, footer and magic, given the end of a file; raises ValueError."""
    footer = int.from_bytes(end[-4 - len(_ARROW_MAGIC) : -len(_ARROW_MAGIC)], "little")
    if end[-len(_ARROW_MAGIC) :] != _ARROW_MAGIC:
        raise ValueError("it does not end like an Arrow file")
    return footer + _END_BYTES


def _manifest_bytes(trailer: memoryview) -> int:
    """Return the length of the manifest before a trailer; raises ValueError."""
    if len(trailer) < _TRAILER_BYTES or trailer[-8:] != _MAGIC:
        raise ValueError("it was never sealed")
    return int.from_bytes(trailer[8:16], "little")


def find_seal(disk: Disk, path: str) -> tuple[Manifest, Seal]:
    """Read a file's manifest and seal from the file alone, without a catalog.

    Raises:
        FragmentDamaged: it is not a complete sealed file, or was written under another name.
        ShardUnavailable: the disk cannot be read.
    """
    file = disk.uncached.open(path)

    def last(count: int) -> memoryview:
        if count > file.size:
            raise ValueError("it is too short")
        return memoryview(file.read_at(file.size - count, count)).cast("B")

    try:
        held = _held_bytes(last(_END_BYTES))
        length = _manifest_bytes(last(held + _TRAILER_BYTES)[:_TRAILER_BYTES])
        tail = last(length + _TRAILER_BYTES + held)
        manifest, more = _parse_tail(tail, path)
        if more["end"] != digest_of(tail[len(tail) - held :]):
            raise ValueError("its footer has changed since it was written")
    except _UNREADABLE as error:
        raise FragmentDamaged(f"file {path} is not a complete file of a store: {error}", path=path) from error
    return manifest, Seal(file.size, len(tail), digest_of(tail))


def read_manifest(disk: Disk, path: str) -> Manifest:
    """Read a file's manifest; raises the same errors as `find_seal`."""
    return find_seal(disk, path)[0]


def verify_file(disk: Disk, path: str, seal: Seal, label: str = "") -> None:
    """Read a whole file, past all caches. Raises `FragmentDamaged` if it has changed since it was written."""
    SealedFile(disk.uncached, path, seal, label).prove_all()
