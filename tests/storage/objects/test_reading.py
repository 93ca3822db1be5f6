"""How objects are read: which requests that takes, and that the bytes are the right ones."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from elasticscan.base.errors import FragmentDamaged, FragmentMissing
from tests.base.s3 import S3Server

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from elasticscan.storage.objects import bucket as bucket_module
from elasticscan.storage.objects import copies, reading
from elasticscan.storage.objects.bucket import Bucket
from elasticscan.storage.objects.copies import BLOCK_BYTES, DIRECTORY, Copies
from elasticscan.storage.objects.reading import CopiedObject, Object, Stride, keep_whole

CONTENT = random.Random(1).randbytes(3 << 20)
STRETCH = 8 * BLOCK_BYTES


@pytest.fixture
def objects(bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setattr(reading, "STRETCH_BYTES", STRETCH)
    monkeypatch.setattr(reading, "_SECOND_BYTES", 2 * BLOCK_BYTES)
    monkeypatch.setattr(reading, "_NEAR_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(copies, "MEMORY", copies.Memory())
    objects = Bucket(bucket, f"s3://{bucket}")
    objects.put("x", CONTENT)
    s3_server.line.clear()
    return objects


@pytest.fixture(params=["copies", "memory"])
def opened(
    request: pytest.FixtureRequest, objects: Bucket, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], CopiedObject]:
    if request.param == "memory":
        monkeypatch.setattr(reading, "copies_here", lambda: copies.MEMORY)
    stride = Stride()
    return lambda: CopiedObject(objects, "x", stride)


def part(file: Object, offset: int, length: int) -> bool:
    content: bytes = file.read_at(offset, length).to_pybytes()
    return content == CONTENT[offset : offset + length]


def test_reads_anywhere_give_the_bytes_that_are_there(opened: Callable[[], CopiedObject]) -> None:
    dice, file = random.Random(2), opened()
    for _ in range(100):
        offset = dice.randrange(len(CONTENT))
        assert part(file, offset, dice.randrange(min(400_000, len(CONTENT) - offset) + 1))
    with pytest.raises(FragmentDamaged, match="ends before"):
        file.read_at(len(CONTENT) - 1, 2)


def test_a_scan_is_few_requests_each_for_a_long_stretch(
    opened: Callable[[], CopiedObject], s3_server: S3Server
) -> None:
    file = opened()
    for offset in range(0, len(CONTENT), 100_000):
        assert part(file, offset, min(100_000, len(CONTENT) - offset))
    # The end, the first blocks, some more, then ranges; nothing twice.
    assert len(s3_server.line.requests) <= 3 + -(-len(CONTENT) // STRETCH)
    assert s3_server.line.answered == len(CONTENT)


def test_what_is_expected_comes_with_one_request(
    opened: Callable[[], CopiedObject], s3_server: S3Server
) -> None:
    file = opened()
    file.expect(1_000_000, 1_300_000)
    assert part(file, 1_000_000, 8) and part(file, 1_000_008, 1_000) and part(file, 1_200_000, 100_000)
    assert s3_server.line.methods == {"GET": 2}
    assert s3_server.line.answered <= reading.TAIL_BYTES + 300_000 + 2 * BLOCK_BYTES


def test_copies_are_shared_by_all_who_open_an_object(
    objects: Bucket, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert part(CopiedObject(objects, "x", Stride()), 0, len(CONTENT))
    monkeypatch.setattr(copies, "MEMORY", copies.Memory())
    s3_server.line.clear()
    assert part(CopiedObject(objects, "x", Stride()), 0, len(CONTENT))
    assert s3_server.line.requests == []


def test_what_was_forgotten_is_fetched_again(opened: Callable[[], CopiedObject], s3_server: S3Server) -> None:
    file = opened()
    assert part(file, 0, 1_000_000)
    s3_server.line.clear()
    assert file.forget() and part(file, 0, 1_000_000)
    assert s3_server.line.methods == {"GET": 2}


def test_copies_that_cannot_be_dropped_are_read_past(
    objects: Bucket, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CopiedObject(objects, "x", Stride())
    assert part(file, 0, 1_000_000)
    for path in Path(os.environ[DIRECTORY]).rglob("*"):
        if path.is_file() and path.name != "end":
            path.write_bytes(path.read_bytes().replace(CONTENT[5:9], b"damage"[:4]))
    monkeypatch.setattr(Copies, "forget", lambda *_: False)  # they lie on a disk that is read-only by now
    assert not part(file, 0, 1_000)
    assert file.forget(0, 1_000) and part(file, 0, 1_000_000)


def test_a_small_object_that_was_just_written_is_there_already(objects: Bucket, s3_server: S3Server) -> None:
    objects.put("small", CONTENT[:1_000])
    keep_whole(objects, "small", CONTENT[:1_000])
    s3_server.line.clear()
    assert part(CopiedObject(objects, "small", Stride()), 0, 1_000)
    assert s3_server.line.requests == []


def test_a_stretch_ahead_that_fails_is_asked_for_again(
    opened: Callable[[], CopiedObject], s3_server: S3Server
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
    opened: Callable[[], CopiedObject], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    file = opened()
    with monkeypatch.context() as patch:
        patch.setattr(reading, "Thread", lambda **_: SimpleNamespace(start=refuse))
        for offset in range(0, len(CONTENT), 100_000):
            assert part(file, offset, min(100_000, len(CONTENT) - offset))
    assert s3_server.line.answered == len(CONTENT)
    free = reading._places()
    assert free.acquire(blocking=False) and free.acquire(blocking=False)
    free.release(2)


def test_threads_may_share_an_object(opened: Callable[[], CopiedObject]) -> None:
    file = opened()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda offset: part(file, offset, 200_000), range(0, 2_900_000, 50_000)))


def test_memory_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_REMEMBERED_BYTES", 1_000)
    memory = copies.Memory()
    for number in range(100):
        memory.keep("x", number * 100, memoryview(bytes([number]) * 100))
        assert memory._bytes <= 1_000
    room = bytearray(50)
    assert memory.read_into("x", 9_920, memoryview(room)) and room == bytes([99]) * 50
    assert not memory.read_into("x", 0, memoryview(room))
    assert not memory.read_into("y", 9_920, memoryview(room))
    memory.forget("x")
    assert memory._bytes == 0


def test_an_object_that_is_gone_is_reported_when_it_is_opened(objects: Bucket) -> None:
    with pytest.raises(FragmentMissing):
        CopiedObject(objects, "none", Stride())


def test_what_is_near_needs_no_client(objects: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert part(CopiedObject(objects, "x", Stride()), 0, len(CONTENT))
    monkeypatch.setattr(bucket_module, "_clients", {})
    assert part(CopiedObject(objects, "x", Stride()), 0, len(CONTENT))
    assert bucket_module._clients == {}
