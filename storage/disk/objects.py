"""Objects that are open for reading: few requests, each for a run of blocks, and the next runs ahead of time.

An object is cut into blocks of `BLOCK_BYTES`; a run is neighbouring blocks that come with one request. The
runs that were used last stay in memory, those of all objects of the process together, up to a bound. A run
that is on its way is among them, so threads that want the same bytes wait for one request.

A reader says which ranges it reads next (`expect`): the first one is fetched at once, the others by threads
ahead of time. Ranges that lie near each other come as one run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
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
from elasticscan.storage.disk.protocol import AHEAD_BYTES, OpenFile

BLOCK_BYTES = 64 << 10  # and the end of an object that is fetched when it is opened
# Requests ahead of time; with those of readers they leave some of 16 connections.
MOST_AT_ONCE = 6
_HOLE_BLOCKS = 3  # to leave out so many is worth one more request
_END = -1  # the number under which the end of an object is found, whatever its size


@dataclass(eq=False, slots=True)
class Run:
    """Blocks of an object that one request brings; `content` is cancelled where it failed.

    Attributes:
        begin: the byte of the object where the content begins.
        blocks: the blocks that are wholly in it.
    """

    name: str
    begin: int
    blocks: list[int]
    content: Future[pa.Buffer] = field(default_factory=Future)


class BlockCache:
    """The runs that were used last, of any objects, up to a bound in bytes; threads may share one."""

    def __init__(self, most_bytes: int = BLOCK_CACHE_BYTES) -> None:
        self._most_blocks = most_bytes // BLOCK_BYTES
        self._lock = Lock()
        self._runs: OrderedDict[Run, None] = OrderedDict()
        self._blocks: dict[tuple[str, int], Run] = {}

    def size_of(self, name: str) -> int | None:
        """Return the size of an object whose end is kept."""
        end = self._blocks.get((name, _END))
        return None if end is None else end.begin + int(end.content.result().size)

    def keep_end(self, name: str, content: pa.Buffer, size: int) -> None:
        """Keep the end of an object; what was kept of another one under its name goes."""
        if self.size_of(name) not in (None, size):
            self.forget(name)
        first, last = -(-(size - content.size) // BLOCK_BYTES), -(-size // BLOCK_BYTES)
        run = Run(name, size - content.size, [_END, *range(first, last)])
        run.content.set_result(content)
        with self._lock:
            if (name, _END) not in self._blocks:
                self._add(run)

    def find(self, name: str, offset: int) -> Run | None:
        """Return the run that has a byte, if it is there or on its way."""
        with self._lock:
            run, end = self._blocks.get((name, offset // BLOCK_BYTES)), self._blocks.get((name, _END))
            if run is None and end is not None and offset >= end.begin:
                run = end
            if run is not None:
                self._runs.move_to_end(run)
            return run

    def claim(self, name: str, blocks: Iterable[int]) -> list[Run]:
        """Return new runs with those of some ascending blocks that are not there; the caller fetches them."""
        runs: list[Run] = []
        with self._lock:
            for block in blocks:
                if (name, block) in self._blocks:
                    continue
                there = runs[-1].blocks if runs else [block]
                between = range(there[-1] + 1, block)
                is_near = len(between) <= _HOLE_BLOCKS and block - there[0] < AHEAD_BYTES // BLOCK_BYTES
                if runs and is_near and not any((name, number) in self._blocks for number in between):
                    there.extend(range(there[-1] + 1, block + 1))
                else:
                    runs.append(Run(name, block * BLOCK_BYTES, [block]))
            for run in runs:
                self._add(run)
        return runs

    def _add(self, run: Run) -> None:
        self._runs[run] = None
        for block in run.blocks:
            self._blocks.setdefault((run.name, block), run)
        while len(self._blocks) > self._most_blocks and len(self._runs) > 1:
            self._remove(next(iter(self._runs)))

    def drop(self, run: Run) -> None:
        """Forget one run, if it is there still."""
        with self._lock:
            if run in self._runs:
                self._remove(run)

    def forget(self, name: str) -> None:
        """Forget all of an object."""
        with self._lock:
            for run in [run for run in self._runs if run.name == name]:
                self._remove(run)

    def _remove(self, run: Run) -> None:
        del self._runs[run]
        for block in run.blocks:
            if self._blocks.get((run.name, block)) is run:
                del self._blocks[run.name, block]


shared_blocks = renewed_in_child(BlockCache)
_ahead = renewed_in_child(lambda: ThreadPoolExecutor(MOST_AT_ONCE, "elasticscan-ahead"))


def name_of(bucket: Bucket, key: str) -> str:
    """Return the name of an object's blocks; keys of fragments are never given twice."""
    return f"{bucket.name}/{key}"


def fetch_end(bucket: Bucket, key: str, blocks: BlockCache) -> int:
    """Fetch the last bytes of an object; returns its size."""
    end, size = bucket.read(key, f"-{BLOCK_BYTES}")
    blocks.keep_end(name_of(bucket, key), end, size)
    return size


def fetch_ends(bucket: Bucket, keys: Sequence[str]) -> None:
    """Fetch the ends of objects that are opened next, some at once; one that is not there is left out."""
    blocks = shared_blocks()

    def fetch(key: str) -> None:
        with suppress(FragmentMissing):  # opening it raises the error
            fetch_end(bucket, key, blocks)

    parallel(fetch, [key for key in keys if blocks.size_of(name_of(bucket, key)) is None], MOST_AT_ONCE)


class Object(OpenFile):
    """An object whose last bytes are there since it was opened: they say what else is in it.

    Threads may share one.
    """

    is_near = False

    def __init__(self, bucket: Bucket, key: str, blocks: BlockCache) -> None:
        self._bucket, self._key, self._blocks = bucket, key, blocks
        self._name = name_of(bucket, key)
        size = blocks.size_of(self._name)
        self.size = fetch_end(bucket, key, blocks) if size is None else size

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._request(ranges)

    def forget(self) -> bool:
        self._blocks.forget(self._name)
        return True

    def read_into(self, offset: int, room: memoryview) -> None:
        at, end = offset, offset + len(room)
        if end > self.size:
            raise cut_file(self._key, offset, len(room))
        while at < end:
            run = self._blocks.find(self._name, at) or self._request([(at, end)])
            with suppress(CancelledError):  # another thread failed to fetch it: it is requested again
                if run is not None:
                    part = memoryview(run.content.result()).cast("B")[at - run.begin :][: end - at]
                    room[at - offset :][: len(part)] = part
                    at += len(part)

    def _request(self, ranges: Sequence[tuple[int, int]]) -> Run | None:
        """Have what is not there of ascending ranges fetched; returns the run where they begin, if new."""
        blocks = (
            block
            for begin, end in ranges
            for block in range(begin // BLOCK_BYTES, -(-min(end, self.size) // BLOCK_BYTES))
        )
        runs = self._blocks.claim(self._name, blocks)
        first = runs.pop(0) if runs and runs[0].begin <= ranges[0][0] else None
        for run in runs:
            try:
                _ahead().submit(self._fetch, run)
            except RuntimeError:  # the system gives no more threads: it is fetched when it is read
                self._give_up(run)
        if first is not None:
            self._fetch(first)
        return first

    def _fetch(self, run: Run) -> None:
        end = min((run.blocks[-1] + 1) * BLOCK_BYTES, self.size)
        try:
            content = self._bucket.read(self._key, f"{run.begin}-{end - 1}")[0]
            if content.size < end - run.begin:
                raise cut_file(self._key, run.begin, end - run.begin)
        except BaseException:
            self._give_up(run)
            raise
        run.content.set_result(content)

    def _give_up(self, run: Run) -> None:
        self._blocks.drop(run)
        run.content.cancel()
