"""How objects are read: which requests that takes, and that the bytes are the right ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pyarrow as pa
import pytest

from elasticscan.base.errors import FragmentDamaged
from tests.base.s3 import S3Server

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from elasticscan.storage.disk import objects as objects_module
from elasticscan.storage.disk.bucket import Bucket
from elasticscan.storage.disk.objects import TAIL_BYTES, BlockCache, Object, Stride

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


def test_reads_anywhere_give_the_bytes_that_are_there(opened: Callable[[], Object]) -> None:
    dice, file = random.Random(2), opened()
    for _ in range(100):
        offset = dice.randrange(len(CONTENT))
        assert part(file, offset, dice.randrange(min(400_000, len(CONTENT) - offset) + 1))
    with pytest.raises(FragmentDamaged, match="ends before"):
        file.read_at(len(CONTENT) - 1, 2)


def test_a_scan_is_few_requests_each_for_a_long_stretch(
    opened: Callable[[], Object], s3_server: S3Server
) -> None:
    file = opened()
    for offset in range(0, len(CONTENT), 100_000):
        assert part(file, offset, min(100_000, len(CONTENT) - offset))
    # The end, the first blocks, some more, then ranges; nothing twice.
    assert len(s3_server.line.requests) <= 3 + -(-len(CONTENT) // FETCHED_BYTES)
    assert s3_server.line.answered <= len(CONTENT) + TAIL_BYTES


def test_what_is_expected_comes_with_one_request(opened: Callable[[], Object], s3_server: S3Server) -> None:
    file = opened()
    file.expect(1_000_000, 1_300_000)
    assert part(file, 1_000_000, 8) and part(file, 1_000_008, 1_000) and part(file, 1_200_000, 100_000)
    assert s3_server.line.methods == {"GET": 2}
    assert s3_server.line.answered <= TAIL_BYTES + 300_000 + 2 * BLOCK_BYTES


def test_a_stretch_ahead_that_fails_is_asked_for_again(
    opened: Callable[[], Object], s3_server: S3Server
) -> None:
    file, asked = opened(), list[str]()
    for offset in range(0, 1_000_000, 100_000):
        assert part(file, offset, 100_000)

    def once(request: object) -> None:
        asked.append("denied")

    s3_server.line.fault = lambda request: "denied" if not asked and not once(request) else None
    for offset in range(1_000_000, 3_000_000, 100_000):
        assert part(file, offset, 100_000)
    assert asked


def test_a_scan_goes_on_where_there_are_no_threads(
    opened: Callable[[], Object], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    file = opened()
    with monkeypatch.context() as patch:
        patch.setattr(objects_module, "_ahead", lambda: SimpleNamespace(submit=refuse))
        for offset in range(0, len(CONTENT), 100_000):
            assert part(file, offset, min(100_000, len(CONTENT) - offset))
    assert s3_server.line.answered <= len(CONTENT) + TAIL_BYTES


def test_blocks_that_fit_are_shared_by_all_who_open_an_object(objects: Bucket, s3_server: S3Server) -> None:
    blocks = BlockCache()
    for _ in range(2):
        assert part(Object(objects, "x", Stride(), blocks), 0, len(CONTENT))
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
        file = shared if number % 2 else Object(objects, "x", stride, blocks)
        offsets = list(range(0, len(CONTENT) - 100_000, 50_000))
        if number % 4 > 1:
            random.Random(number).shuffle(offsets)
        return all(part(file, offset, 100_000) for offset in offsets)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
