"""A shard's files as objects below a prefix of an S3 bucket, with prefetching and few requests.

An object is divided into blocks of `BLOCK_BYTES`; one request fetches a run of neighbouring blocks. A bounded
cache keeps the most recently used blocks of all objects in this process. It also contains blocks that are
being fetched, so threads that need the same bytes wait for one request.

A reader announces the ranges that it reads next (`prefetch`). The first one is fetched immediately, the
others in other threads. Ranges that are near each other are fetched as one run.
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

BLOCK_BYTES = 64 << 10  # also the size of an object's end that is fetched when it is opened
MOST_AT_ONCE = 6  # parallel prefetches, which leave some of the client's 16 connections for readers
_RUN_BLOCKS = AHEAD_BYTES // BLOCK_BYTES  # of one request at most
_HOLE_BLOCKS = 3  # up to so many unneeded blocks are fetched rather than sending one more request
_END = -1  # the number of the block at the end of an object, which may begin at any byte
_UNFINISHED, _UNCHANGING = ".unfinished", ".arrow"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")

Block: TypeAlias = "Future[tuple[int, pa.Buffer]]"  # its first byte and its content; cancelled if it failed
Run: TypeAlias = dict[int, Block]  # neighbouring blocks by number, which one request fetches


class BlockCache:
    """A cache of the most recently used blocks of all objects, bounded in bytes. Threads may share one."""

    def __init__(self, most_bytes: int = BLOCK_CACHE_BYTES) -> None:
        self._most_blocks = most_bytes // BLOCK_BYTES
        self._lock = Lock()
        self._blocks: OrderedDict[tuple[str, int], Block] = OrderedDict()

    def size_of(self, name: str) -> int | None:
        """Return the size of an object if its end is cached, else None."""
        end = self._blocks.get((name, _END))
        return None if end is None else end.result()[0] + int(end.result()[1].size)

    def keep_end(self, name: str, content: pa.Buffer, size: int) -> None:
        """Cache the end of an object; if its size has changed, drop the blocks of the older object."""
        if self.size_of(name) != size:
            self.forget(name)
        end: Block = Future()
        end.set_result((size - content.size, content))
        wholly_in_it = range(-(-(size - content.size) // BLOCK_BYTES), -(-size // BLOCK_BYTES))
        with self._lock:
            self._blocks |= {(name, number): end for number in (_END, *wholly_in_it)}
            self._drop_oldest(1)

    def find(self, name: str, offset: int) -> Block | None:
        """Return the block that contains a byte, if it is cached or being fetched."""
        with self._lock:
            for key in ((name, offset // BLOCK_BYTES), (name, _END)):
                block = self._blocks.get(key)
                if block is not None and (key[1] != _END or offset >= block.result()[0]):
                    self._blocks.move_to_end(key)
                    return block
            return None

    def claim(self, name: str, blocks: Iterable[int]) -> list[Run]:
        """Reserve those of the ascending blocks that are missing, as runs that the caller must fetch."""
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
        """Drop the least recently used blocks above the bound, but none of the `new` last ones."""
        while len(self._blocks) > max(self._most_blocks, new):
            self._blocks.popitem(last=False)

    def give_up(self, name: str, run: Run) -> None:
        """Drop blocks whose fetch failed."""
        with self._lock:
            for number, block in run.items():
                if self._blocks.get((name, number)) is block:
                    del self._blocks[name, number]
                block.cancel()

    def forget(self, name: str) -> None:
        """Drop all blocks of an object."""
        with self._lock:
            for key in [key for key in self._blocks if key[0] == name]:
                del self._blocks[key]


shared_blocks = renewed_in_child(BlockCache)
_ahead = renewed_in_child(lambda: ThreadPoolExecutor(MOST_AT_ONCE, "elasticscan-ahead"))


class Object(OpenFile):
    """An open object; its end was fetched when it was opened. Threads may share one."""

    is_near = False

    def __init__(self, bucket: Bucket, key: str, blocks: BlockCache) -> None:
        self._bucket, self._key, self._blocks = bucket, key, blocks
        self.name = f"{bucket.name}/{key}"  # identifies its blocks: a key of a fragment is never used again
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
            with suppress(CancelledError):  # the fetch of another thread failed: request the block again
                if block is not None:
                    begin, content = block.result()
                    part = memoryview(content).cast("B")[at - begin :][: end - at]
                    room[at - offset :][: len(part)] = part
                    at += len(part)

    def _request(self, ranges: Sequence[tuple[int, int]]) -> Block | None:
        """Fetch the missing blocks of ascending ranges; return their first block if it was missing."""
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
            except RuntimeError:  # no more threads: the run is fetched when it is read
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
        for number, block in run.items():  # each with its own memory, which is freed with it
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
    """The objects below a prefix. An object is written once, under its own name, and visible when complete.

    Blocks of files that never change (`.arrow`) are cached, unless `cached` is false.
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
        """Fetch the ends of objects that are opened next, in parallel."""

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
