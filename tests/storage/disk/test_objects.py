"""Objects of a real server, through a proxy that fails: the number of requests, and right bytes."""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elasticscan.base.errors import (
    Busy,
    ElasticScanError,
    FragmentDamaged,
    ShardUnavailable,
)
from tests.base.s3 import SECRET, Fault, Request, S3Server

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from elasticscan.storage.disk import bucket as bucket_module
from elasticscan.storage.disk import objects as objects_module
from elasticscan.storage.disk.bucket import Bucket, Upload
from elasticscan.storage.disk.errors import MissingFile
from elasticscan.storage.disk.objects import BLOCK_BYTES, BlockCache, Object, ObjectDisk

PATH = "t1/0123456789abcdef0123456789abcdef.arrow"
OTHER = "t2/0123456789abcdef0123456789abcdef.arrow"
CONTENT = random.Random(1).randbytes(3 << 20)
FETCHED_BYTES = 8 * BLOCK_BYTES


@pytest.fixture
def objects(bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setattr(objects_module, "_RUN_BLOCKS", FETCHED_BYTES // BLOCK_BYTES)
    objects = Bucket(bucket, f"s3://{bucket}")
    objects.put("before", b"x")
    objects.put("x", CONTENT)
    s3_server.line.clear()
    return objects


@pytest.fixture
def opened(objects: Bucket) -> Callable[[], Object]:
    blocks = BlockCache(2 << 20)
    return lambda: Object(objects, "x", blocks)


def part(file: Object, offset: int, length: int) -> bool:
    content: bytes = file.read_at(offset, length).to_pybytes()
    return content == CONTENT[offset : offset + length]


@pytest.mark.parametrize("trouble", ["none", "a run ahead fails", "there are no threads"])
def test_what_is_expected_comes_with_few_requests_and_nothing_twice(
    opened: Callable[[], Object], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    file, line = opened(), s3_server.line
    if trouble == "there are no threads":
        monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    for begin in range(0, len(CONTENT), FETCHED_BYTES):
        if trouble == "a run ahead fails" and begin == 2 * FETCHED_BYTES:
            line.fault = first(["denied"])
        file.prefetch([(begin, begin + 2 * FETCHED_BYTES)])
        for offset in range(begin, begin + FETCHED_BYTES, 100_000):
            assert part(file, offset, min(100_000, len(CONTENT) - offset))
    again = trouble == "a run ahead fails"
    if trouble != "there are no threads":
        assert len(line.requests) <= 1 + again + len(CONTENT) // FETCHED_BYTES
    assert line.answered <= len(CONTENT) + BLOCK_BYTES


def test_ranges_near_each_other_come_as_one(opened: Callable[[], Object], s3_server: S3Server) -> None:
    file, line = opened(), s3_server.line
    file.prefetch([(0, 10), (3 * BLOCK_BYTES, 4 * BLOCK_BYTES), (9 * BLOCK_BYTES + 5, 10 * BLOCK_BYTES)])
    assert part(file, 9 * BLOCK_BYTES + 5, 1_000) and part(file, 5, 4 * BLOCK_BYTES - 5)
    assert len(line.requests) == 3 and line.answered == 6 * BLOCK_BYTES


def test_threads_share_objects_whose_blocks_come_and_go(objects: Bucket) -> None:
    """The cache has room for few blocks, so some are dropped during reads; half of the threads scan."""
    blocks = BlockCache(4 * BLOCK_BYTES)
    shared = Object(objects, "x", blocks)

    def read(number: int) -> bool:
        dice, file = random.Random(number), shared if number % 2 else Object(objects, "x", blocks)
        places = [(offset, 100_000) for offset in range(0, len(CONTENT) - 100_000, 50_000)]
        if number % 4 > 1:
            places = [(offset, dice.randrange(400_000)) for offset, _ in dice.sample(places, 40)]
        pieces = ((offset, min(length, len(CONTENT) - offset)) for offset, length in places)
        return all(part(file, *piece) and len(blocks._blocks) <= 8 for piece in pieces)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    with pytest.raises(FragmentDamaged, match="ends before"):
        shared.read_at(len(CONTENT) - 1, 2)
    assert shared.forget() and not blocks._blocks


# ------------------------------------------------------------------------- refusals, and the environment


def first(faults: Iterable[Fault | None]) -> Callable[[Request], Fault | None]:
    """Let the first requests fail in this way; all others pass."""
    ahead = iter(faults)
    return lambda request: next(ahead, None)


def test_a_line_that_breaks_is_tried_again_when_the_client_does_not(
    objects: Bucket, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After very many failures in a process botocore does not retry; one attempt simulates this."""
    monkeypatch.setattr(bucket_module, "ATTEMPTS", 1)
    monkeypatch.setattr(bucket_module, "_PAUSE_SECONDS", 0.01)
    bucket_module._client_of.cache_clear()
    s3_server.line.fault = first(["drop", "drop"])
    assert objects.read("before", "-1")[1] == 1
    monkeypatch.setattr(bucket_module, "_DROPPED_SECONDS", 0.0)
    s3_server.line.fault = first(["drop"])
    with pytest.raises(ShardUnavailable):
        objects.read("before", "-1")
    bucket_module._client_of.cache_clear()


def test_what_no_repetition_mends_is_asked_once_and_an_error_of_ours(
    objects: Bucket, s3_server: S3Server
) -> None:
    with pytest.raises(MissingFile):
        objects.read("none", "-1")
    asked = list[Request]()

    def denied(request: Request) -> Fault:
        asked.append(request)
        return "denied"

    s3_server.line.fault = denied
    for work in (
        lambda: objects.read("before", "-1"),
        lambda: objects.put("x", b""),
        lambda: objects.delete("x"),
        lambda: list(objects.list("")),
        lambda: list(objects.uploads("")),
        lambda: Upload(objects, "x").finish(),
    ):
        asked.clear()
        with pytest.raises(ElasticScanError, match="may not"):
            work()
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"AWS_PROFILE": "nobody"}, "AWS_PROFILE"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "credentials are missing"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "127.0.0.1:1"),
        ({"AWS_ENDPOINT_URL": "127.0.0.1:9000"}, "http://HOST:9000"),
        ({"AWS_ENDPOINT_URL": "TLS"}, "AWS_CA_BUNDLE"),
        ({"AWS_REGION": "no region"}, "AWS_REGION"),
        ({}, "may not"),
    ],
)
def test_an_environment_that_leads_nowhere_is_reported_without_a_secret(
    objects: Bucket,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str | None],
    message: str,
) -> None:
    for name, value in changed.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            tls = s3_server.endpoint.replace("http:", "https:")
            monkeypatch.setenv(name, tls if value == "TLS" else value)
    s3_server.line.fault = lambda _: "denied"
    with pytest.raises(ShardUnavailable, match=message) as caught:
        objects.read("before", "-1")
    assert SECRET not in str(caught.value)
    # No variable in our stack frames has a secret, either.
    error: BaseException | None = caught.value
    seen = repr(vars(bucket_module))
    while error is not None:
        frames = traceback.TracebackException.from_exception(error, capture_locals=True).stack
        seen += repr([frame.locals for frame in frames if "elasticscan/storage" in frame.filename])
        error = error.__cause__ or error.__context__
    assert "writing" in seen and SECRET not in seen


def test_the_region_is_what_the_environment_says(objects: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")  # botocore itself does not read this variable
    assert bucket_module._client().meta.region_name == "eu-central-1"
    monkeypatch.delenv("AWS_REGION")
    assert bucket_module._client().meta.region_name == "eu-west-1"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert objects.read("before", "-1")[1] == 1  # your own server needs no region


def test_credentials_that_were_renewed_in_their_file_are_read_again(
    objects: Bucket, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"

    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")

    write("AKIAOLDOLDOLDOLDOLD")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    assert objects.read("before", "-1")[1] == 1
    asked = list[str]()

    def old_ones_expired(request: Request) -> Fault | None:
        asked.append(request.signed_by)
        return "key" if request.signed_by == "AKIAOLDOLDOLDOLDOLD" else None

    s3_server.line.fault = old_ones_expired
    with pytest.raises(ShardUnavailable, match="wrong or expired") as refused:
        objects.read("before", "-1")
    assert len(asked) == 2 and SECRET not in str(refused.value)
    write("AKIANEWNEWNEWNEWNEW")
    assert objects.read("before", "-1")[1] == 1
    assert asked[-2:] == ["AKIAOLDOLDOLDOLDOLD", "AKIANEWNEWNEWNEWNEW"]


def test_a_forked_child_asks_on_a_line_of_its_own(objects: Bucket) -> None:
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if objects.read("before", "-1")[0].to_pybytes() == b"x" else 2
        finally:
            os._exit(code)
    for _ in range(20):
        assert objects.read("before", "-1")[0].to_pybytes() == b"x"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_answer_that_was_lost_is_no_failure_of_an_upload_and_a_collection_is(
    objects: Bucket, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "PART_BYTES", 1)
    upload = Upload(objects, "large")
    upload.write(b"x")
    s3_server.line.fault = first(["cut", "gone"])
    upload.finish()
    assert objects.read("large", "-1")[1] == 1
    upload = Upload(objects, "collected")
    upload.write(b"x")
    ((key, number, _),) = objects.uploads("")
    objects.abort(key, number)
    objects.abort(key, number)
    s3_server.line.fault = first(["gone"])
    with pytest.raises(Busy, match="orphans"):
        upload.finish()


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
    """The parts of a dead writer are listed as unfinished, only below their prefix, and can be removed."""
    monkeypatch.setattr(bucket_module, "PART_BYTES", 5 << 20)
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
    failing = disk.create(OTHER)
    failing.__enter__().write(bytes(5 << 20))
    assert {path for path, _ in disk.list()} == {f"{OTHER}.unfinished", PATH}
    assert not failing.__exit__(KeyError, KeyError(), None)
    assert [path for path, _ in disk.list()] == [PATH]
    opened = disk.open(PATH)
    assert opened.read_at(0, opened.size).to_pybytes() == content
    unfinished = [path for path, began in others.list() if began > 0]
    assert sorted(unfinished) == [f"{PATH}.unfinished", f"{OTHER}.unfinished"]
    for path in unfinished:
        others.delete(path)
    assert others.list() == []
