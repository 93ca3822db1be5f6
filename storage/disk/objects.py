"""A shard's files as objects below a prefix of an S3 bucket: few requests, and the next ones ahead of time.

An object is cut into blocks of `BLOCK_BYTES`; neighbouring blocks come with one request. The blocks that were
used last stay in memory, those of all objects of the process together, up to a bound. A block that is on its
way is among them, so threads that want the same bytes wait for one request.

A reader says which ranges it reads next (`prefetch`): the first one is fetched at once, the others by threads
ahead of time. Ranges that lie near each other come as one run of blocks.
"""

from __future__ import annotations

import posixpath
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from elasticscan.base.concurrency import parallel, renewed_in_child
from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import BLOCK_CACHE_BYTES
from elasticscan.base.redaction import shown
from elasticscan.storage.disk.bucket import Bucket, Upload
from elasticscan.storage.disk.errors import MissingFile, cut_file
from elasticscan.storage.disk.protocol import AHEAD_BYTES, OpenFile

BLOCK_BYTES = 64 << 10  # and the end of an object that is fetched when it is opened
# Requests ahead of time; with those of readers they leave some of 16 connections.
MOST_AT_ONCE = 6
_RUN_BLOCKS = AHEAD_BYTES // BLOCK_BYTES  # come with one request at most
_HOLE_BLOCKS = 3  # to leave out so many is worth one more request
_END = -1  # the number of the block that is the end of an object, wherever that begins
_UNFINISHED, _UNCHANGING = ".unfinished", ".arrow"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")

Block: TypeAlias = "Future[tuple[int, pa.Buffer]]"  # where it begins, and its bytes; cancelled if it failed
Run: TypeAlias = dict[int, Block]  # neighbours, by number, which one request brings


class BlockCache:
    """The blocks that were used last, of any objects, up to a bound in bytes; threads may share one."""

    def __init__(self, most_bytes: int = BLOCK_CACHE_BYTES) -> None:
        self._most_blocks = most_bytes // BLOCK_BYTES
        self._lock = Lock()
        self._blocks: OrderedDict[tuple[str, int], Block] = OrderedDict()

    def size_of(self, name: str) -> int | None:
        """Return the size of an object whose end is kept."""
        end = self._blocks.get((name, _END))
        return None if end is None else end.result()[0] + int(end.result()[1].size)

    def keep_end(self, name: str, content: pa.Buffer, size: int) -> None:
        """Keep the end of an object; what was kept of another one under its name goes."""
        if self.size_of(name) != size:
            self.forget(name)
        end: Block = Future()
        end.set_result((size - content.size, content))
        wholly_in_it = range(-(-(size - content.size) // BLOCK_BYTES), -(-size // BLOCK_BYTES))
        with self._lock:
            self._blocks |= {(name, number): end for number in (_END, *wholly_in_it)}
            self._drop_oldest(1)

    def find(self, name: str, offset: int) -> Block | None:
        """Return the block that has a byte, if it is there or on its way."""
        with self._lock:
            for key in ((name, offset // BLOCK_BYTES), (name, _END)):
                block = self._blocks.get(key)
                if block is not None and (key[1] != _END or offset >= block.result()[0]):
                    self._blocks.move_to_end(key)
                    return block
            return None

    def claim(self, name: str, blocks: Iterable[int]) -> list[Run]:
        """Return new runs with those of some ascending blocks that are not there; the caller fetches them."""
        runs: list[Run] = []
        with self._lock:
            for block in blocks:
                if (name, block) in self._blocks:
                    continue
                run = runs[-1] if runs else {}
                hole = range(max(run, default=block) + 1, block)
                is_near = len(hole) <= _HOLE_BLOCKS and block - min(run, default=0) < _RUN_BLOCKS
                if not run or not is_near or any((name, number) in self._blocks for number in hole):
                    runs.append(run := {})
                    hole = range(0)
                for number in (*hole, block):
                    run[number] = self._blocks[name, number] = Future()
            self._drop_oldest(sum(map(len, runs)))
        return runs

    def _drop_oldest(self, new: int) -> None:
        """Drop the blocks used longest ago that are too many, but none of the new ones."""
        while len(self._blocks) > max(self._most_blocks, new):
            self._blocks.popitem(last=False)

    def give_up(self, name: str, run: Run) -> None:
        """Drop blocks that could not be fetched."""
        with self._lock:
            for number, block in run.items():
                if self._blocks.get((name, number)) is block:
                    del self._blocks[name, number]
                block.cancel()

    def forget(self, name: str) -> None:
        """Forget all of an object."""
        with self._lock:
            for key in [key for key in self._blocks if key[0] == name]:
                del self._blocks[key]


shared_blocks = renewed_in_child(BlockCache)
_ahead = renewed_in_child(lambda: ThreadPoolExecutor(MOST_AT_ONCE, "elasticscan-ahead"))


class Object(OpenFile):
    """An object whose last bytes are there since it was opened: they say what else is in it.

    Threads may share one.
    """

    is_near = False

    def __init__(self, bucket: Bucket, key: str, blocks: BlockCache) -> None:
        self._bucket, self._key, self._blocks = bucket, key, blocks
        self.name = f"{bucket.name}/{key}"  # of its blocks; keys of fragments are never given twice
        size = blocks.size_of(self.name)
        if size is None:
            end, size = bucket.read(key, f"-{BLOCK_BYTES}")
            blocks.keep_end(self.name, end, size)
        self.size = size

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._request(ranges)

    def forget(self) -> bool:
        self._blocks.forget(self.name)
        return True

    def read_into(self, offset: int, room: memoryview) -> None:
        at, end = offset, offset + len(room)
        if end > self.size:
            raise cut_file(self._key, offset, len(room))
        while at < end:
            block = self._blocks.find(self.name, at) or self._request([(at, end)])
            with suppress(CancelledError):  # another thread failed to fetch it: it is requested again
                if block is not None:
                    begin, content = block.result()
                    part = memoryview(content).cast("B")[at - begin :][: end - at]
                    room[at - offset :][: len(part)] = part
                    at += len(part)

    def _request(self, ranges: Sequence[tuple[int, int]]) -> Block | None:
        """Have what is not there of ascending ranges fetched; returns the block where they begin, if new."""
        blocks = (
            block
            for begin, end in ranges
            for block in range(begin // BLOCK_BYTES, -(-min(end, self.size) // BLOCK_BYTES))
        )
        runs = self._blocks.claim(self.name, blocks)
        first = runs.pop(0) if runs and ranges[0][0] // BLOCK_BYTES in runs[0] else {}
        for run in runs:
            try:
                _ahead().submit(self._fetch, run)
            except RuntimeError:  # the system gives no more threads: it is fetched when it is read
                self._blocks.give_up(self.name, run)
        if first:
            self._fetch(first)
        return first.get(ranges[0][0] // BLOCK_BYTES)

    def _fetch(self, run: Run) -> None:
        begin, end = min(run) * BLOCK_BYTES, min((max(run) + 1) * BLOCK_BYTES, self.size)
        try:
            content = self._bucket.read(self._key, f"{begin}-{end - 1}")[0]
            if content.size < end - begin:
                raise cut_file(self._key, begin, end - begin)
        except BaseException:
            self._blocks.give_up(self.name, run)
            raise
        for number, block in run.items():  # each in memory of its own, which goes with it
            at = number * BLOCK_BYTES
            part = memoryview(content)[at - begin :][:BLOCK_BYTES]
            block.set_result((at, pa.py_buffer(bytes(part))))


def parse_root(root: str) -> tuple[str, str]:
    """Return the bucket and the prefix that an `s3://` or `s3a://` root names; the prefix ends with a slash.

    Raises:
        InvalidOption: it names none, or says more than that: who asks, and where the server is, belongs into
            the environment, where no catalog, plan or log shows it.
    """
    parts = urlsplit(root)
    if not parts.query and not parts.fragment and _BUCKET.fullmatch(parts.netloc):
        path = posixpath.normpath("/" + unquote(parts.path).lstrip("/")).lstrip("/")
        return parts.netloc, f"{path}/" if path else ""
    raise InvalidOption(
        f"{shown(root)} cannot be a shard's storage; write `s3://BUCKET/PREFIX`, and set AWS_PROFILE, "
        "AWS_ENDPOINT_URL and AWS_REGION where each process runs",
        option="shards",
    )


class ObjectDisk:
    """The objects below a prefix. An object is sent once, under its own name, and seen when it is whole.

    What was read of files that never change, which end so, stays in memory, unless `cached` is false.
    """

    is_far = True

    def __init__(self, root: str, cached: bool = True) -> None:
        self._root, self._cached = root, cached
        name, self._prefix = parse_root(root)
        self._bucket = Bucket(name, root)

    @property
    def uncached(self) -> ObjectDisk:
        return ObjectDisk(self._root, cached=False) if self._cached else self

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        file = Upload(self._bucket, self._prefix + path)
        try:
            yield file
            file.finish()
        except BaseException:
            file.give_up()
            raise
        shared_blocks().forget(name := self._name(path))
        if file.content and len(file.content) <= BLOCK_BYTES:  # its writer often reads it next
            shared_blocks().keep_end(name, pa.py_buffer(file.content), len(file.content))

    def open(self, path: str) -> OpenFile:
        blocks = shared_blocks() if self._cached and path.endswith(_UNCHANGING) else BlockCache()
        return Object(self._bucket, self._prefix + path, blocks)

    def prefetch(self, paths: Sequence[str]) -> None:
        """Fetch the ends of objects that are opened next, some at once."""

        def fetch(path: str) -> None:
            with suppress(MissingFile):  # opening it raises the error
                self.open(path)

        known = shared_blocks().size_of
        missing = [path for path in paths if path.endswith(_UNCHANGING) and known(self._name(path)) is None]
        parallel(fetch, missing if self._cached else [], MOST_AT_ONCE)

    def delete(self, path: str) -> None:
        key = self._prefix + path.removesuffix(_UNFINISHED)
        if not path.endswith(_UNFINISHED):
            self._bucket.delete(key)
            return
        for other, upload, _ in self._bucket.uploads(key):
            if other == key:
                self._bucket.abort(key, upload)

    def note(self, path: str, content: bytes) -> None:
        self._bucket.put(self._prefix + path, content)

    def list(self) -> list[tuple[str, float]]:
        files = [(key, time) for key, time in self._bucket.list(self._prefix)]
        files += [(key + _UNFINISHED, time) for key, _, time in self._bucket.uploads(self._prefix)]
        return [(key.removeprefix(self._prefix), time) for key, time in files]

    def _name(self, path: str) -> str:
        return f"{self._bucket.name}/{self._prefix}{path}"
