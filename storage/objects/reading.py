"""Objects that are open for reading: few requests, each for a long range, and the next one ahead of time.

An object is cut into blocks. What is asked for is taken from memory (the ranges that came last), from
copies on the local disk, or fetched, with the blocks alongside it that are expected to be asked for. Who
goes on where the last range ended, twice, is taken for a scan: ranges become long, and the next one is
fetched while this one is read. A scan that comes to its next object begins with a long one there. Of a range
only those parts are fetched that the reader expects to need, if it has said so, each by a request.

What comes is handed on piece by piece, so a range lies in memory only where there are no copies.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from mmap import mmap
from threading import BoundedSemaphore, Lock, Thread

import pyarrow as pa

from elasticscan.base.concurrency import parallel, renewed_in_child
from elasticscan.base.errors import ElasticScanError, FragmentMissing
from elasticscan.storage.disk import OpenFile
from elasticscan.storage.disk_errors import cut_file
from elasticscan.storage.objects.bucket import Bucket
from elasticscan.storage.objects.copies import BLOCK_BYTES, Copies
from elasticscan.storage.parts import Parts

TAIL_BYTES = 64 << 10
# Requests alongside each other; two ranges ahead of time, and who reads, leave some of 16 connections.
MOST_AT_ONCE = 6
STRETCH_BYTES = 12 << 20  # of a scan; a whole number of blocks
_SECOND_BYTES = 1 << 20  # where a scan may begin
_NEAR_BYTES = 1 << 20  # who leaves out so little still scans
_REMEMBERED_BYTES = 2 * STRETCH_BYTES  # by a process, of all objects
_MOST_ENDS = 128  # 8 MB
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


class _Memory:
    """The pieces of objects that came last."""

    def __init__(self) -> None:
        self._lock = renewed_in_child(Lock)
        self._pieces: OrderedDict[tuple[str, int], pa.Buffer] = OrderedDict()
        self._bytes = 0

    def add(self, name: str, begin: int, data: pa.Buffer) -> None:
        with self._lock():
            before = self._pieces.pop((name, begin), None)
            self._pieces[name, begin] = data
            self._bytes += data.size - (0 if before is None else before.size)
            while self._bytes > _REMEMBERED_BYTES and len(self._pieces) > 1:
                self._bytes -= self._pieces.popitem(last=False)[1].size

    def copy(self, name: str, offset: int, room: memoryview) -> int:
        """Put bytes of an object into place, as far as one piece has them; how many came."""
        with self._lock():
            for (other, begin), data in reversed(self._pieces.items()):
                if other == name and begin <= offset < begin + data.size:
                    part = memoryview(data).cast("B")[offset - begin :][: len(room)]
                    room[: len(part)] = part
                    return len(part)
        return 0

    def forget(self, name: str) -> None:
        with self._lock():
            for key in [key for key in self._pieces if key[0] == name]:
                self._bytes -= self._pieces.pop(key).size


class _Ends:
    """The ends of objects that are opened next, where no copies can be kept; the newest of them."""

    def __init__(self) -> None:
        self._lock = renewed_in_child(Lock)
        self._ends: OrderedDict[str, tuple[pa.Buffer, int]] = OrderedDict()

    def put(self, name: str, end: pa.Buffer, size: int) -> None:
        with self._lock():
            self._ends[name] = end, size
            while len(self._ends) > _MOST_ENDS:
                self._ends.popitem(last=False)

    def take(self, name: str) -> tuple[pa.Buffer, int] | None:
        with self._lock():
            return self._ends.pop(name, None)


_memory, _ends = _Memory(), _Ends()


_places = renewed_in_child(lambda: BoundedSemaphore(_AHEAD))


def name_of(bucket: Bucket, key: str) -> str:
    """Return the name of an object in its bucket.

    It leaves out the server, which costs more to find out than a read of copies: keys of fragments are never
    given twice, and what another server's object has in them is found out like other damage.
    """
    return f"{bucket.name}\n{key}"


def keep_whole(bucket: Bucket, key: str, copies: Copies | None, content: bytes) -> None:
    """Keep a copy of a small object that was just written: its writer often reads it next."""
    if copies is not None and 0 < len(content) <= TAIL_BYTES:
        copies.keep_end(copies.name(name_of(bucket, key)), memoryview(content), len(content))


def fetch_ends(bucket: Bucket, keys: Sequence[str], copies: Copies | None) -> None:
    """Fetch the ends of objects that are opened next, some at once; one that is not there is left out."""

    def fetch(key: str) -> None:
        name = name_of(bucket, key)
        copy = "" if copies is None else copies.name(name)
        if copies is None or copies.end_of(copy) is None:
            with suppress(FragmentMissing):  # opening it raises the error
                end, size = read_end(bucket, key)
                if copies is None or not copies.keep_end(copy, memoryview(end).cast("B"), size):
                    _ends.put(name, end, size)

    parallel(fetch, keys, MOST_AT_ONCE)


def read_end(bucket: Bucket, key: str) -> tuple[pa.Buffer, int]:
    """Return the last bytes of an object, and its size."""
    return bucket.read(key, f"-{TAIL_BYTES}")


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
        self._parts: Parts | None = None
        self._reached: int | None = None  # where the last range ended
        self._steps = 0  # so many ranges followed each other
        self._ahead: tuple[int, int, Future[None]] | None = None  # begin, end, that it is there
        self._lock = Lock()
        super().__init__(bucket, key)

    def _end(self) -> tuple[pa.Buffer, int]:
        kept = _ends.take(self._name)
        if kept is None and self._copies is not None:
            kept = self._copies.end_of(self._copy)
        if kept is None:
            kept = super()._end()
            if self._copies is not None:
                self._copies.keep_end(self._copy, memoryview(kept[0]).cast("B"), kept[1])
        return kept

    def expect(self, begin: int, end: int, parts: Parts | None = None) -> None:
        self._expected, self._parts = (begin, end), parts

    def forget(self, begin: int = 0, end: int | None = None) -> bool:
        if end is not None and end > self._data_bytes:  # the damage may lie in the end, which has data, too
            end = None
        if self._copies is not None and not self._copies.forget(self._copy, begin, end):
            self._copies = None  # they stay as they are: read past them
        _memory.forget(self._name)
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
        while done < len(room) and (count := self._take_piece(offset + done, room[done:])):
            done += count
        return done

    def _take_piece(self, offset: int, room: memoryview) -> int:
        count = 0 if self._copies is None else self._copies.read_into(self._copy, offset, room)
        return count or _memory.copy(self._name, offset, room)

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
        """Fetch whole blocks; put what belongs to a place in memory there.

        They are copied to the local disk, or else remembered for a while.
        """

        def take(at: int, piece: memoryview) -> None:
            low, high = max(at, offset), min(at + len(piece), offset + len(room))
            if low < high:
                room[low - offset : high - offset] = piece[low - at : high - at]
            copies = self._copies
            if copies is None or not copies.keep(self._copy, at, piece):
                own = mmap(-1, len(piece))  # the system's, which has it back at once
                own.write(piece)
                _memory.add(self._name, at, pa.py_buffer(own))

        self._bucket.fetch(self._key, begin, end, take)

    def _fetch_ahead(self, begin: int) -> None:
        free = _places()
        if begin >= self._data_bytes or not free.acquire(blocking=False):
            return
        parts = [(begin, min(begin + STRETCH_BYTES, self._data_bytes))]
        if self._parts is not None:
            parts = self._parts.after(begin, self._data_bytes, STRETCH_BYTES)
        if self._copies is not None:
            parts = [self._copies.missing(self._copy, *part) for part in parts]
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
