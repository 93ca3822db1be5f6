"""How objects are read: which requests that takes, and that the bytes are the right ones."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from elasticscan.base.errors import FragmentDamaged
from tests.base.s3 import Fault, S3Server

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from elasticscan.storage.disk import bucket as bucket_module
from elasticscan.storage.disk import objects as objects_module
from elasticscan.storage.disk.bucket import Bucket
from elasticscan.storage.disk.objects import TAIL_BYTES, BlockCache, Object, Stride
from elasticscan.storage.disk.prefix import ObjectDisk

PATH = "t1/0123456789abcdef0123456789abcdef.arrow"
OTHER = "t2/0123456789abcdef0123456789abcdef.arrow"
CONTENT = random.Random(1).randbytes(3 << 20)
BLOCK_BYTES = 64 << 10
FETCHED_BYTES = 8 * BLOCK_BYTES


@pytest.fixture
def objects(bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setattr(objects_module, "STRETCH_BYTES", FETCHED_BYTES)
    monkeypatch.setattr(objects_module, "_SECOND_BYTES", 2 * BLOCK_BYTES)
    monkeypatch.setattr(objects_module, "_NEAR_BYTES", BLOCK_BYTES)
    objects = Bucket(bucket, f"s3://{bucket}")
    objects.put("x", CONTENT)
    s3_server.line.clear()
    return objects


@pytest.fixture
def opened(objects: Bucket) -> Callable[[], Object]:
    stride, blocks = Stride(), BlockCache(2 << 20)
    return lambda: Object(objects, "x", stride, blocks)


def part(file: Object, offset: int, length: int) -> bool:
    content: bytes = file.read_at(offset, length).to_pybytes()
    return content == CONTENT[offset : offset + length]


@pytest.mark.parametrize("trouble", ["none", "a stretch ahead fails", "there are no threads"])
def test_a_scan_is_few_requests_each_for_a_long_stretch(
    opened: Callable[[], Object], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    file, line = opened(), s3_server.line
    faults: Iterator[Fault | None] = iter(["denied"])
    if trouble == "there are no threads":
        monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    for offset in range(0, len(CONTENT), 100_000):
        if trouble == "a stretch ahead fails" and offset == 1_000_000:
            line.fault = lambda _: next(faults, None)
        assert part(file, offset, min(100_000, len(CONTENT) - offset))
    # The end, the first blocks, some more, then ranges; nothing twice.
    again = trouble == "a stretch ahead fails"
    if trouble != "there are no threads":
        assert len(line.requests) <= 3 + again + -(-len(CONTENT) // FETCHED_BYTES)
    assert line.answered <= len(CONTENT) + TAIL_BYTES + again * FETCHED_BYTES


def test_threads_share_objects_whose_blocks_come_and_go(objects: Bucket) -> None:
    """With room for few blocks, so that some are pushed out on their way; half of the threads scan."""
    stride, blocks, most = Stride(), BlockCache(4 * BLOCK_BYTES), max(4 * BLOCK_BYTES, FETCHED_BYTES)
    shared = Object(objects, "x", stride, blocks)

    def read(number: int) -> bool:
        dice, file = random.Random(number), shared if number % 2 else Object(objects, "x", stride, blocks)
        places = [(offset, 100_000) for offset in range(0, len(CONTENT) - 100_000, 50_000)]
        if number % 4 > 1:
            places = [(offset, dice.randrange(400_000)) for offset, _ in dice.sample(places, 40)]
        pieces = ((offset, min(length, len(CONTENT) - offset)) for offset, length in places)
        return all(part(file, *piece) and blocks._bytes <= most for piece in pieces)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    with pytest.raises(FragmentDamaged, match="ends before"):
        shared.read_at(len(CONTENT) - 1, 2)
    assert blocks.size_of(f"{objects.name}/x") == len(CONTENT)
    assert shared.forget() and blocks._bytes == 0


# ---------------------------------------------------------------------------- files of a shard, as objects


def test_a_small_file_is_one_request(bucket: str, s3_server: S3Server) -> None:
    disk, line = ObjectDisk(f"s3://{bucket}/x"), s3_server.line
    line.clear()
    with disk.create(PATH) as file:
        file.write(bytes(50_000))
    for place, requests in ((disk, {"PUT": 1}), (disk.uncached, {"PUT": 1, "GET": 1})):
        opened = place.open(PATH)
        assert opened.size == 50_000 and opened.read_at(5, 40_000).size == 40_000
        assert line.methods == requests


def test_a_large_file_is_sent_in_parts_and_seen_when_it_is_whole(
    bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a dead writer sent is listed as unfinished, alone below its prefix, and can be removed."""
    monkeypatch.setattr(bucket_module, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(bucket_module, "_COPY_PART_BYTES", 5 << 20)
    disk, others = ObjectDisk(f"s3://{bucket}/x"), ObjectDisk(f"s3://{bucket}/xy")
    dead = [others.create(path) for path in (PATH, OTHER)]
    for block in dead:
        block.__enter__().write(bytes(5 << 20))
    s3_server.line.clear()
    content = os.urandom(12 << 20)
    with disk.create(PATH) as file:
        for start in range(0, len(content), 1 << 20):
            file.write(content[start : start + (1 << 20)])
    assert s3_server.line.methods == {"POST": 2, "PUT": 3}
    assert all(f"/{bucket}/x/{PATH}" in request.path for request in s3_server.line.requests)
    disk.rename(PATH, OTHER)
    failing = disk.create(PATH)
    failing.__enter__().write(bytes(5 << 20))
    assert {path for path, _ in disk.list()} == {f"{PATH}.unfinished", OTHER}
    assert not failing.__exit__(KeyError, KeyError(), None)
    assert [path for path, _ in disk.list()] == [OTHER]
    opened = disk.open(OTHER)
    assert opened.read_at(0, opened.size).to_pybytes() == content
    unfinished = [path for path, began in others.list() if began > 0]
    assert sorted(unfinished) == [f"{PATH}.unfinished", f"{OTHER}.unfinished"]
    others.delete(unfinished[0])
    others.rename(unfinished[1], f"trash/1/{unfinished[1]}")
    assert others.list() == []
