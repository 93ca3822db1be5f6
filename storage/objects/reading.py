"""Objects that are open for reading: few requests, each for a long range, and the next one ahead of time.

An object is cut into blocks. What is asked for is taken from memory (the ranges that came last), from
copies on the local disk, or fetched, with the blocks alongside it that are expected to be asked for. Who
goes on where the last range ended, twice, is taken for a scan: ranges become long, and the next one is
fetched while this one is read. A scan that comes to its next object begins with a long one there. Of a range
only those parts are fetched that the reader expects to need, if it has said so, each by a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import BoundedSemaphore, Lock, Thread

import pyarrow as pa

from elasticscan.base.concurrency import parallel, renewed_in_child
from elasticscan.base.errors import ElasticScanError, FragmentMissing
from elasticscan.storage.disk import OpenFile, Parts
from elasticscan.storage.disk_errors import cut_file
from elasticscan.storage.objects.bucket import Bucket
from elasticscan.storage.objects.copies import BLOCK_BYTES, MEMORY, copies_here, name_of

TAIL_BYTES = 64 << 10
# Requests alongside each other; two ranges ahead of time, and who reads, leave some of 16 connections.
MOST_AT_ONCE = 6
STRETCH_BYTES = 12 << 20  # of a scan; a whole number of blocks
_SECOND_BYTES = 1 << 20  # where a scan may begin
_NEAR_BYTES = 1 << 20  # who leaves out so little still scans
_NO_ROOM = memoryview(b"")
_AHEAD = 2  # ranges that a process fetches ahead of time


class Object(OpenFile):
    """An object whose last bytes are there since it was opened: they say what else is in it."""

    is_near = False

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._tail, self.size = self._end()
        self._data_bytes = self.size - self._tail.size

    def _end(self) -> tuple[pa.Buffer, int]:
        return read_end(self._bucket, self._key)

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
        return self._bucket.read(self._key, f"{offset}-{end - 1}")[0]

    def forget(self, begin: int = 0, end: int | None = None) -> bool:
        """Read again what may have been damaged on its way: the end at once."""
        if end is None or end > self._data_bytes:
            self._tail, self.size = self._end()
        return True


_places = renewed_in_child(lambda: BoundedSemaphore(_AHEAD))


def keep_whole(bucket: Bucket, key: str, content: bytes) -> None:
    """Keep a copy of a small object that was just written: its writer often reads it next."""
    if 0 < len(content) <= TAIL_BYTES:
        copies_here().keep_end(name_of(bucket.name, key), memoryview(content), len(content))


def fetch_ends(bucket: Bucket, keys: Sequence[str]) -> None:
    """Fetch the ends of objects that are opened next, some at once; one that is not there is left out."""
    copies = copies_here()

    def fetch(key: str) -> None:
        name = name_of(bucket.name, key)
        if copies.end_of(name) is None:
            with suppress(FragmentMissing):  # opening it raises the error
                end, size = read_end(bucket, key)
                copies.keep_end(name, memoryview(end).cast("B"), size, is_next=True)

    parallel(fetch, keys, MOST_AT_ONCE)


def read_end(bucket: Bucket, key: str) -> tuple[pa.Buffer, int]:
    """Return the last bytes of an object, and its size."""
    return bucket.read(key, f"-{TAIL_BYTES}")


class Stride:
    """The stride of who reads the objects of a shard: it is long in a scan."""

    is_scan = False


class CopiedObject(Object):
    """An object of which parts are kept nearer; threads may share it. `stride` is that of the whole shard."""

    def __init__(self, bucket: Bucket, key: str, stride: Stride) -> None:
        self._copies, self._stride = copies_here(), stride
        self._name = name_of(bucket.name, key)
        self._expected = (0, 0)
        self._parts: Parts | None = None
        self._reached: int | None = None  # where the last range ended
        self._steps = 0  # so many ranges followed each other
        self._ahead: tuple[int, int, Future[None]] | None = None  # begin, end, that it is there
        self._lock = Lock()
        super().__init__(bucket, key)

    def _end(self) -> tuple[pa.Buffer, int]:
        kept = self._copies.end_of(self._name)
        if kept is None:
            kept = super()._end()
            self._copies.keep_end(self._name, memoryview(kept[0]).cast("B"), kept[1])
        return kept

    def expect(self, begin: int, end: int, parts: Parts | None = None) -> None:
        self._expected, self._parts = (begin, end), parts

    def forget(self, begin: int = 0, end: int | None = None) -> bool:
        if end is not None and end > self._data_bytes:  # the damage may lie in the end, which has data, too
            end = None
        if not self._copies.forget(self._name, begin, end):
            self._copies = MEMORY  # they stay as they are: read past them
        self._ahead = None
        return super().forget(begin, end)

    def _read(self, offset: int, end: int) -> pa.Buffer:
        if self._ahead is not None and end > self._ahead[0]:
            with self._lock:
                self._take_over(offset, end)
        data = pa.allocate_buffer(end - offset)
        view, done = memoryview(data).cast("B"), 0
        while done < len(view):
            done += self._take(offset + done, view[done:])
            if done < len(view):
                done += self._go_on(offset + done, view[done:])
        return data

    def _take(self, offset: int, room: memoryview) -> int:
        """Put bytes that are near into place, up to the first that is not; how many came."""
        done = 0
        while done < len(room) and (count := self._copies.read_into(self._name, offset + done, room[done:])):
            done += count
        return done

    def _go_on(self, offset: int, room: memoryview) -> int:
        """Fetch the range that begins at a place, and put bytes of it into place; how many came."""
        with self._lock:
            self._take_over(offset, offset + len(room))
            count = self._take(offset, room)  # another thread may have fetched it meanwhile
            if not count:
                self._fetch_from(offset, room)
                if self._stride.is_scan and self._reached is not None:
                    self._fetch_ahead(self._reached)
        return count or len(room)

    def _take_over(self, offset: int, end: int) -> None:
        """Wait for the range that is fetched ahead of time, if it is read now; send for the next one."""
        ahead = self._ahead
        if ahead is None or end <= ahead[0]:
            return
        self._ahead = None
        if offset > ahead[1] + _NEAR_BYTES:
            return
        with suppress(ElasticScanError):  # whoever asks for these bytes is told himself
            ahead[2].result()
            self._reached = ahead[1]
            self._fetch_ahead(ahead[1])

    def _fetch_from(self, offset: int, room: memoryview) -> None:
        """Fetch blocks, and the following ones during a scan."""
        begin = offset // BLOCK_BYTES * BLOCK_BYTES
        end = least = -(-(offset + len(room)) // BLOCK_BYTES) * BLOCK_BYTES
        if self._expected[0] - BLOCK_BYTES < begin < self._expected[1]:
            end = max(end, -(-self._expected[1] // BLOCK_BYTES) * BLOCK_BYTES)
        if self._reached is not None:
            self._steps = self._steps + 1 if 0 <= begin - self._reached <= _NEAR_BYTES else 0
            self._stride.is_scan = self._steps > 1
        if self._stride.is_scan and (self._steps or not begin):
            end = max(end, begin + STRETCH_BYTES)
            if self._parts is not None:  # the others are fetched ahead of time, some at once
                end = max(least, self._parts.end_of_first(begin, end))
        elif self._steps:
            end = max(end, begin + _SECOND_BYTES)
        if self._data_bytes - end < BLOCK_BYTES:  # a rest that is worth no request
            end = self._data_bytes
        self._reached = end
        self._fetch(begin, end, offset, room)

    def _fetch(self, begin: int, end: int, offset: int = 0, room: memoryview = _NO_ROOM) -> None:
        """Fetch whole blocks, and keep them; put what belongs to a place in memory there."""
        data = memoryview(self._bucket.read(self._key, f"{begin}-{end - 1}")[0]).cast("B")
        if len(data) < end - begin:
            raise cut_file(self._key, begin, end - begin)
        low, high = max(begin, offset), min(end, offset + len(room))
        if low < high:
            room[low - offset : high - offset] = data[low - begin : high - begin]
        self._copies.keep(self._name, begin, data)

    def _fetch_ahead(self, begin: int) -> None:
        free = _places()
        if begin >= self._data_bytes or not free.acquire(blocking=False):
            return
        parts = [(begin, min(begin + STRETCH_BYTES, self._data_bytes))]
        if self._parts is not None:
            parts = self._parts.after(begin, self._data_bytes, STRETCH_BYTES)
        parts = [self._copies.missing(self._name, *part) for part in parts]
        parts = [(low, high) for low, high in parts if low < high]
        if not parts:
            free.release()
            return
        future = Future[None]()
        self._ahead = parts[0][0], parts[-1][1], future

        def fetch() -> None:
            try:
                parallel(lambda part: self._fetch(*part), parts, MOST_AT_ONCE)
                future.set_result(None)
            except BaseException as error:  # raised where its result is awaited
                future.set_exception(error)
            finally:
                free.release()

        try:
            Thread(target=fetch, name="elasticscan-ahead", daemon=True).start()
        except RuntimeError:  # the system gives no more threads: it is fetched when it is read
            self._ahead = None
            free.release()
