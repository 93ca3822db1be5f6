"""Objects that are open for reading: few requests, each for a long stretch, and the next one ahead of time.

An object is cut into blocks. What is asked for is taken from memory (the stretches that came last), from
copies on the local disk, or fetched, with the blocks beside it that are expected to be asked for. Who goes on
where the last stretch ended, twice, is taken for a scan: stretches become long, and the next one is fetched
while this one is read. A scan that comes to its next object begins with a long one there.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from threading import BoundedSemaphore, Thread

import pyarrow as pa

from elasticscan.base.errors import ElasticScanError
from elasticscan.base.forks import ChildSafeLock
from elasticscan.storage.disk import OpenFile
from elasticscan.storage.disk_errors import cut_file
from elasticscan.storage.objects.bucket import Bucket
from elasticscan.storage.objects.copies import BLOCK_BYTES, Copies

TAIL_BYTES = 64 << 10
STRETCH_BYTES = 12 << 20  # of a scan; a whole number of blocks
_SECOND_BYTES = 1 << 20  # where somebody may begin to scan
_NEAR_BYTES = 1 << 20  # who leaves out so little still scans
_REMEMBERED_BYTES = 2 * STRETCH_BYTES  # by a process, of all objects
_AHEAD = 2  # stretches that a process fetches ahead of time


class Object(OpenFile):
    """An object whose last bytes are there since it was opened: they say what else is in it."""

    is_near = False

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._tail, self.size = self._end()
        self._data_bytes = self.size - self._tail.size

    def _end(self) -> tuple[pa.Buffer, int]:
        return self._bucket.read(self._key, f"-{TAIL_BYTES}")

    def read_at(self, offset: int, length: int) -> pa.Buffer:
        end = offset + length
        if end > self.size:
            raise cut_file(self._key, offset, length)
        if offset >= self._data_bytes:
            return self._tail.slice(offset - self._data_bytes, length)
        if end <= self._data_bytes:
            return self._read(offset, end)
        data = self._read(offset, self._data_bytes)
        return pa.py_buffer(b"".join((data, self._tail.slice(0, end - self._data_bytes))))

    def _read(self, offset: int, end: int) -> pa.Buffer:
        """Bytes that lie before the tail."""
        return self._fetch(offset, end)

    def _fetch(self, begin: int, end: int) -> pa.Buffer:
        return self._bucket.read(self._key, f"{begin}-{end - 1}")[0]


class _Memory:
    """The stretches of objects that came last."""

    def __init__(self) -> None:
        self._lock = ChildSafeLock()
        self._stretches: OrderedDict[tuple[str, int], pa.Buffer] = OrderedDict()
        self._bytes = 0

    def add(self, name: str, begin: int, data: pa.Buffer) -> None:
        with self._lock:
            before = self._stretches.pop((name, begin), None)
            self._stretches[name, begin] = data
            self._bytes += data.size - (0 if before is None else before.size)
            while self._bytes > _REMEMBERED_BYTES and len(self._stretches) > 1:
                self._bytes -= self._stretches.popitem(last=False)[1].size

    def copy(self, name: str, offset: int, room: memoryview) -> bool:
        """Put bytes of an object into place, if one stretch has them."""
        end = offset + len(room)
        with self._lock:
            for (other, begin), data in reversed(self._stretches.items()):
                if other == name and begin <= offset and end <= begin + data.size:
                    room[:] = memoryview(data).cast("B")[offset - begin : end - begin]
                    return True
        return False

    def forget(self, name: str) -> None:
        with self._lock:
            for key in [key for key in self._stretches if key[0] == name]:
                self._bytes -= self._stretches.pop(key).size


_memory = _Memory()


class _Gate:
    """Lets so many fetch ahead at a time. A child has none of its parent's threads: it is empty there."""

    def __init__(self) -> None:
        self.free = BoundedSemaphore(_AHEAD)
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.free = BoundedSemaphore(_AHEAD)


_gate = _Gate()


def name_of(bucket: Bucket, key: str) -> str:
    """The name of an object among those of all servers."""
    return f"{bucket.endpoint}\n{bucket.name}\n{key}"


def keep_whole(bucket: Bucket, key: str, copies: Copies | None, content: bytes) -> None:
    """Keep a copy of a small object that was just written: its writer often reads it next."""
    if copies is not None and 0 < len(content) <= TAIL_BYTES:
        copies.keep_end(copies.name(name_of(bucket, key)), memoryview(content), len(content))


class Stride:
    """The stride of who reads the objects of a shard: it is long in a scan."""

    is_scan = False


class CopiedObject(Object):
    """An object of which parts are kept nearer; threads may share it.

    Args:
        copies: on the local disk, if there are any.
        stride: of all objects of the shard.
    """

    def __init__(self, bucket: Bucket, key: str, copies: Copies | None, stride: Stride) -> None:
        self._copies, self._stride = copies, stride
        self._name = name_of(bucket, key)
        self._copy = "" if copies is None else copies.name(self._name)
        self._expected = (0, 0)
        self._reached: int | None = None  # where the last stretch ended
        self._steps = 0  # so many stretches followed each other
        self._ahead: tuple[int, int, int, Future[None]] | None = None  # process, begin, end, that it is there
        self._lock = ChildSafeLock()
        super().__init__(bucket, key)

    def _end(self) -> tuple[pa.Buffer, int]:
        kept = None if self._copies is None else self._copies.end_of(self._copy)
        if kept is None:
            kept = super()._end()
            if self._copies is not None:
                self._copies.keep_end(self._copy, memoryview(kept[0]).cast("B"), kept[1])
        return kept

    def expect(self, begin: int, end: int) -> None:
        self._expected = begin, end

    def forget(self) -> bool:
        if self._copies is not None:
            self._copies.forget(self._copy)
        _memory.forget(self._name)
        self._ahead = None
        self._tail, self.size = self._end()
        return True

    def _read(self, offset: int, end: int) -> pa.Buffer:
        if self._ahead is not None and end > self._ahead[1]:
            with self._lock:
                self._take_over(offset, end)
        data = pa.allocate_buffer(end - offset)
        view = memoryview(data).cast("B")
        first, beyond = offset // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        for number in range(first, beyond):
            begin, stop = max(offset, number * BLOCK_BYTES), min(end, (number + 1) * BLOCK_BYTES)
            room = view[begin - offset : stop - offset]
            if not self._take(number, begin, room):
                self._go_on(number, beyond, begin, room)
        return data

    def _take(self, number: int, begin: int, room: memoryview) -> bool:
        """Put bytes of one block into place, if they are near."""
        if _memory.copy(self._name, begin, room):
            return True
        at = begin - number * BLOCK_BYTES
        return self._copies is not None and self._copies.read_into(self._copy, number, at, room)

    def _go_on(self, number: int, beyond: int, begin: int, room: memoryview) -> None:
        """Fetch the stretch that begins with a block, and put bytes of that block into place."""
        with self._lock:
            self._take_over(begin, begin + len(room))
            if not self._take(number, begin, room):  # or another thread has fetched it meanwhile
                start, data = number * BLOCK_BYTES, self._fetch_from(number, beyond)
                room[:] = memoryview(data).cast("B")[begin - start : begin - start + len(room)]
                if self._stride.is_scan and self._reached is not None:
                    self._fetch_ahead(self._reached)

    def _take_over(self, offset: int, end: int) -> None:
        """Wait for the stretch that is fetched ahead of time, if it is read now; send for the next one."""
        ahead = self._ahead
        if ahead is None or end <= ahead[1]:
            return
        self._ahead = None
        if ahead[0] != os.getpid() or offset > ahead[2] + _NEAR_BYTES:
            return
        with suppress(ElasticScanError):  # whoever asks for these bytes is told himself
            ahead[3].result()
            self._reached = ahead[2]
            self._fetch_ahead(ahead[2])

    def _fetch_from(self, number: int, beyond: int) -> pa.Buffer:
        """Fetch blocks, and those that come next if somebody scans."""
        begin, end = number * BLOCK_BYTES, beyond * BLOCK_BYTES
        if self._expected[0] - BLOCK_BYTES < begin < self._expected[1]:
            end = max(end, -(-self._expected[1] // BLOCK_BYTES) * BLOCK_BYTES)
        if self._reached is not None:
            self._steps = self._steps + 1 if 0 <= begin - self._reached <= _NEAR_BYTES else 0
            self._stride.is_scan = self._steps > 1
        if self._stride.is_scan and (self._steps or number == 0):
            end = max(end, begin + STRETCH_BYTES)
        elif self._steps:
            end = max(end, begin + _SECOND_BYTES)
        if self._data_bytes - end < BLOCK_BYTES:  # a rest that is worth no request
            end = self._data_bytes
        self._reached = end
        return self._keep(begin, self._fetch(begin, end))

    def _keep(self, begin: int, data: pa.Buffer) -> pa.Buffer:
        """Copy what was fetched to the local disk, or else remember it for a while."""
        view, copies = memoryview(data).cast("B"), self._copies
        if copies is None or not all(
            copies.keep(self._copy, (begin + at) // BLOCK_BYTES, view[at : at + BLOCK_BYTES])
            for at in range(0, len(view), BLOCK_BYTES)
        ):
            _memory.add(self._name, begin, data)
        return data

    def _fetch_ahead(self, begin: int) -> None:
        if begin >= self._data_bytes or not _gate.free.acquire(blocking=False):
            return
        end, future, gate = min(begin + STRETCH_BYTES, self._data_bytes), Future[None](), _gate.free
        self._ahead = os.getpid(), begin, end, future

        def fetch() -> None:
            try:
                self._keep(begin, self._fetch(begin, end))
                future.set_result(None)
            except BaseException as error:  # told to whoever waits for it
                future.set_exception(error)
            finally:
                gate.release()

        Thread(target=fetch, name="elasticscan-ahead", daemon=True).start()
