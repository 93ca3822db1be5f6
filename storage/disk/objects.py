"""Objects that are open for reading: few requests, each for a long block, and the next one ahead of time.

Blocks of bytes that came last stay in memory, those of all objects of the process together, up to a bound. A
block that is on its way is among them, so threads that want the same bytes wait for one request.

Who goes on where the last block ended, twice, is taken for a scan: blocks become long, and the next one is
fetched while this one is read. A scan that comes to its next object begins with a long one there. Of a block
only those parts are fetched that the reader expects to need, if it has said so, each by a request.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa

from elasticscan.base.concurrency import parallel, renewed_in_child
from elasticscan.base.errors import FragmentMissing
from elasticscan.base.limits import BLOCK_CACHE_BYTES
from elasticscan.storage.disk.bucket import Bucket
from elasticscan.storage.disk.errors import cut_file
from elasticscan.storage.disk.protocol import OpenFile, Parts

TAIL_BYTES = 64 << 10
# Requests ahead of time; with those of who reads they leave some of 16 connections.
MOST_AT_ONCE = 6
STRETCH_BYTES = 12 << 20  # of a scan
_SECOND_BYTES = 1 << 20  # where a scan may begin
_NEAR_BYTES = 1 << 20  # who leaves out so little still scans


@dataclass(eq=False, slots=True)
class ObjectBlock:
    """Bytes [begin, end) of an object; `content` is cancelled where they could not be fetched."""

    begin: int
    end: int
    content: Future[pa.Buffer] = field(default_factory=Future)


@dataclass(slots=True)
class _KnownObject:
    """The blocks of an object that are kept: none overlaps another."""

    size: int
    begins: list[int] = field(default_factory=list)


class BlockCache:
    """The blocks that were used last, of any objects, up to a bound in bytes; threads may share one."""

    def __init__(self, most_bytes: int = BLOCK_CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._objects: dict[str, _KnownObject] = {}
        self._blocks: OrderedDict[tuple[str, int], ObjectBlock] = OrderedDict()
        self._bytes = 0

    def size_of(self, name: str) -> int | None:
        """Return the size of an object of which blocks are kept."""
        known = self._objects.get(name)
        return None if known is None else known.size

    def keep(self, name: str, content: pa.Buffer, size: int) -> None:
        """Keep the end of an object; what was kept of another one under its name goes."""
        if self.size_of(name) not in (None, size):
            self.forget(name)
        if content.size:
            block, is_new = self.block(name, size - content.size, size, size)
            if is_new:
                block.content.set_result(content)

    def find(self, name: str, offset: int) -> ObjectBlock | None:
        """Return the block that has a byte, if it is there or on its way."""
        with self._lock:
            return self._find(name, offset)

    def block(self, name: str, begin: int, end: int, size: int) -> tuple[ObjectBlock, bool]:
        """Return the block that has a byte; True with it if it is a new one, which the caller fetches.

        A new one ends where another one begins.
        """
        with self._lock:
            found = self._find(name, begin)
            if found is not None:
                return found, False
            begins = self._objects.setdefault(name, _KnownObject(size)).begins
            following = begins[bisect_right(begins, begin) :][:1]
            block = ObjectBlock(begin, min([end, *following]))
            insort(begins, begin)
            self._blocks[name, begin] = block
            self._bytes += block.end - begin
            while self._bytes > self._most_bytes and len(self._blocks) > 1:
                self._drop(*next(iter(self._blocks)))
            return block, True

    def _find(self, name: str, offset: int) -> ObjectBlock | None:
        known = self._objects.get(name)
        number = bisect_right(known.begins, offset) - 1 if known else -1
        if known is None or number < 0:
            return None
        key = name, known.begins[number]
        if offset >= self._blocks[key].end:
            return None
        self._blocks.move_to_end(key)
        return self._blocks[key]

    def drop(self, name: str, block: ObjectBlock) -> None:
        """Forget one block, if it is there still."""
        with self._lock:
            if self._blocks.get((name, block.begin)) is block:
                self._drop(name, block.begin)

    def forget(self, name: str) -> None:
        """Forget all of an object."""
        with self._lock:
            while known := self._objects.get(name):
                self._drop(name, known.begins[0])

    def _drop(self, name: str, begin: int) -> None:
        block, known = self._blocks.pop((name, begin)), self._objects[name]
        self._bytes -= block.end - begin
        known.begins.remove(begin)
        if not known.begins:
            del self._objects[name]


shared_blocks = renewed_in_child(BlockCache)
_ahead = renewed_in_child(lambda: ThreadPoolExecutor(MOST_AT_ONCE, "elasticscan-ahead"))


def name_of(bucket: Bucket, key: str) -> str:
    """Return the name of an object's blocks; keys of fragments are never given twice."""
    return f"{bucket.name}/{key}"


def fetch_end(bucket: Bucket, key: str, blocks: BlockCache) -> int:
    """Fetch the last bytes of an object; returns its size."""
    end, size = bucket.read(key, f"-{TAIL_BYTES}")
    blocks.keep(name_of(bucket, key), end, size)
    return size


def fetch_ends(bucket: Bucket, keys: Sequence[str]) -> None:
    """Fetch the ends of objects that are opened next, some at once; one that is not there is left out."""
    blocks = shared_blocks()

    def fetch(key: str) -> None:
        with suppress(FragmentMissing):  # opening it raises the error
            fetch_end(bucket, key, blocks)

    parallel(fetch, [key for key in keys if blocks.size_of(name_of(bucket, key)) is None], MOST_AT_ONCE)


class Stride:
    """The stride of who reads the objects of a shard: it is long in a scan."""

    is_scan = False


class Object(OpenFile):
    """An object whose last bytes are there since it was opened: they say what else is in it.

    Threads may share one. `stride` is that of the whole shard.
    """

    is_near = False

    def __init__(self, bucket: Bucket, key: str, stride: Stride, blocks: BlockCache) -> None:
        self._bucket, self._key, self._stride, self._blocks = bucket, key, stride, blocks
        self._name = name_of(bucket, key)
        self._expected = (0, 0)
        self._parts: Parts | None = None
        self._reached: int | None = None  # where the last block ended
        self._steps = 0  # so many blocks followed each other
        self._sent: tuple[int, int] | None = None  # what is fetched ahead of time
        size = blocks.size_of(self._name)
        self.size = fetch_end(bucket, key, blocks) if size is None else size

    def expect(self, begin: int, end: int, parts: Parts | None = None) -> None:
        self._expected, self._parts = (begin, end), parts

    def forget(self) -> bool:
        self._blocks.forget(self._name)
        return True

    def read_into(self, offset: int, room: memoryview) -> None:
        done, length = 0, len(room)
        end = offset + length
        if end > self.size:
            raise cut_file(self._key, offset, length)
        while done < length:
            begin, content = self._content(offset + done, end)
            part = memoryview(content).cast("B")[offset + done - begin :][: length - done]
            room[done : done + len(part)] = part
            done += len(part)
        sent = self._sent
        if sent is not None and end > sent[0]:
            self._sent = None
            if offset <= sent[1] + _NEAR_BYTES:
                self._send_for(sent[1])

    def _content(self, offset: int, end: int) -> tuple[int, pa.Buffer]:
        """Return the block that has a byte, and where it begins; raises what its request raises."""
        while True:
            block, is_new = self._blocks.find(self._name, offset), False
            if block is None:
                block_end = self._block_end(offset, end)
                block, is_new = self._blocks.block(self._name, offset, block_end, self.size)
            if is_new:
                content = self._fetch(block)
                if self._stride.is_scan:
                    self._send_for(block.end)
                return offset, content
            with suppress(CancelledError):  # another thread failed to fetch it: it is requested again
                return block.begin, block.content.result()
            self._reached = block.begin

    def _block_end(self, offset: int, end: int) -> int:
        """Return the end of the block to fetch: that of what is expected, and of more during a scan."""
        least = end
        if self._expected[0] <= offset < self._expected[1]:
            end = max(end, self._expected[1])
        if self._reached is not None:
            self._steps = self._steps + 1 if 0 <= offset - self._reached <= _NEAR_BYTES else 0
            self._stride.is_scan = self._steps > 1
        if self._stride.is_scan and (self._steps or not offset):
            end = max(end, offset + STRETCH_BYTES)
            if self._parts is not None:  # the others are fetched ahead of time, some at once
                end = max(least, self._parts.end_of_first(offset, end))
        elif self._steps:
            end = max(end, offset + _SECOND_BYTES)
        if self.size - end < 2 * TAIL_BYTES:  # a rest that is worth no request
            end = self.size
        self._reached = end
        return end

    def _send_for(self, begin: int) -> None:
        """Have what a scan reads from a place on fetched by other threads."""
        parts = [(begin, min(begin + STRETCH_BYTES, self.size))]
        if self._parts is not None:
            parts = self._parts.after(begin, self.size, STRETCH_BYTES)
        for low, high in parts:
            self._sent, self._reached = (self._sent[0] if self._sent else low, high), high
            at = low
            while at < high:
                block, is_new = self._blocks.block(self._name, at, high, self.size)
                if is_new:
                    self._fetch_ahead(block)
                at = block.end

    def _fetch_ahead(self, block: ObjectBlock) -> None:
        try:
            _ahead().submit(self._fetch, block)
        except RuntimeError:  # the system gives no more threads: it is fetched when it is read
            self._blocks.drop(self._name, block)
            block.content.cancel()

    def _fetch(self, block: ObjectBlock) -> pa.Buffer:
        try:
            content = self._bucket.read(self._key, f"{block.begin}-{block.end - 1}")[0]
            if content.size < block.end - block.begin:
                raise cut_file(self._key, block.begin, block.end - block.begin)
        except BaseException:
            self._blocks.drop(self._name, block)
            block.content.cancel()
            raise
        block.content.set_result(content)
        return content
