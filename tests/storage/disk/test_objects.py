"""How objects are read: which requests that takes, and that the bytes are the right ones."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
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


def test_what_is_expected_comes_with_one_request(opened: Callable[[], Object], s3_server: S3Server) -> None:
    file = opened()
    file.expect(1_000_000, 1_300_000)
    assert part(file, 1_000_000, 8) and part(file, 1_000_008, 1_000) and part(file, 1_200_000, 100_000)
    assert s3_server.line.methods == {"GET": 2}
    assert s3_server.line.answered <= TAIL_BYTES + 300_000 + 2 * BLOCK_BYTES
    for _ in range(2):  # blocks are shared by all who open it
        assert part(opened(), 1_000_000, 300_000)
    assert s3_server.line.methods == {"GET": 2}


def test_blocks_stay_within_their_bound_and_the_ones_used_last_stay() -> None:
    blocks = BlockCache(1_000)
    for number in range(100):
        blocks.keep("x", pa.py_buffer(b"x" * 90), 90)
        blocks.block("y", number * 100, number * 100 + 100, 1 << 20)
        assert blocks._bytes <= 1_000
    assert blocks.find("x", 89) and blocks.find("y", 9_950) and not blocks.find("y", 0)
    assert blocks.block("y", 8_900, 10_000, 1 << 20)[0].end == 9_100  # where the next one begins
    blocks.forget("x")
    blocks.forget("y")
    assert blocks._bytes == 0 and blocks.size_of("y") is None


def test_threads_share_objects_whose_blocks_come_and_go(objects: Bucket) -> None:
    """With room for few blocks, so that some are pushed out on their way; half of the threads scan."""
    stride, blocks = Stride(), BlockCache(4 * BLOCK_BYTES)
    shared = Object(objects, "x", stride, blocks)

    def read(number: int) -> bool:
        dice, file = random.Random(number), shared if number % 2 else Object(objects, "x", stride, blocks)
        places = [(offset, 100_000) for offset in range(0, len(CONTENT) - 100_000, 50_000)]
        if number % 4 > 1:
            places = [(offset, dice.randrange(400_000)) for offset, _ in dice.sample(places, 40)]
        return all(part(file, offset, min(length, len(CONTENT) - offset)) for offset, length in places)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    with pytest.raises(FragmentDamaged, match="ends before"):
        shared.read_at(len(CONTENT) - 1, 2)


# ---------------------------------------------------------------------------- files of a shard, as objects


def test_a_small_file_is_one_request_and_a_large_one_is_sent_in_parts_under_its_own_name(
    bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "PART_BYTES", 5 << 20)
    disk, line = ObjectDisk(f"s3://{bucket}/x"), s3_server.line
    line.clear()
    with disk.create(PATH) as file:
        file.write(bytes(50_000))
    for place, requests in ((disk, {"PUT": 1}), (disk.uncached, {"PUT": 1, "GET": 1})):
        opened = place.open(PATH)
        assert opened.size == 50_000 and opened.read_at(5, 40_000).size == 40_000
        assert line.methods == requests
    line.clear()
    content = os.urandom(12 << 20)
    with disk.create(PATH) as file:
        for start in range(0, len(content), 1 << 20):
            file.write(content[start : start + (1 << 20)])
    assert line.methods == {"POST": 2, "PUT": 3}
    assert all(f"/{bucket}/x/{PATH}" in request.path for request in line.requests)
    opened = disk.open(PATH)
    assert opened.read_at(0, opened.size).to_pybytes() == content


def test_what_a_dead_writer_sent_is_listed_as_unfinished_and_can_be_removed(bucket: str) -> None:
    disk, others = ObjectDisk(f"s3://{bucket}/x"), ObjectDisk(f"s3://{bucket}/xy")
    writing = [place.create(PATH) for place in (disk, others)]
    for block in writing:
        block.__enter__().write(bytes(bucket_module.PART_BYTES))
    ((path, began),) = disk.list()
    assert path == f"{PATH}.unfinished" and began > 0
    disk.delete(path)
    assert disk.list() == [] and len(others.list()) == 1
    others.rename(path, f"trash/1/{path}")
    assert others.list() == []
    del writing
