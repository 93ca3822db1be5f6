"""A shard's files as objects; what every disk promises is in `tests/storage/test_disk.py`."""

from __future__ import annotations

import os

import pytest

from elasticscan.base.errors import InvalidOption
from tests.base.s3 import S3Server

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from elasticscan.storage.disk import bucket as bucket_module
from elasticscan.storage.disk.prefix import ObjectDisk, parse_root

PATH = "t1/0123456789abcdef0123456789abcdef.arrow"


@pytest.mark.parametrize(
    ("root", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket/x", "bucket", "x/"),
        ("s3a://bucket//x/./y/../z/", "bucket", "x/z/"),
        ("S3://bucket/a%20b/ü", "bucket", "a b/ü/"),
    ],
)
def test_a_root_names_a_bucket_and_a_prefix(root: str, bucket: str, prefix: str) -> None:
    assert parse_root(root) == (bucket, prefix)


@pytest.mark.parametrize(
    "root",
    [
        "s3://KEY:hidden@bucket/x",
        "s3://KEY@bucket/x",
        "s3://bucket/x?secret_key=hidden",
        "s3a://bucket/x?endpoint_override=http://a:hidden@host",
        "s3://bucket/x?region=eu-west-1",
        "s3://bucket:9000/x",
        "s3://bucket/x#y",
        "s3:///x",
    ],
)
def test_a_root_that_says_more_is_refused(root: str) -> None:
    with pytest.raises(InvalidOption, match="AWS_ENDPOINT_URL") as caught:
        parse_root(root)
    assert "hidden" not in str(caught.value)


def test_a_small_file_is_one_request_to_write_and_one_to_read(bucket: str, s3_server: S3Server) -> None:
    disk, line = ObjectDisk(f"s3://{bucket}/x"), s3_server.line
    line.clear()
    with disk.create(PATH) as file:
        file.write(bytes(50_000))
    assert line.methods == {"PUT": 1}
    for place, requests in ((disk, {"PUT": 1}), (disk.uncached, {"PUT": 1, "GET": 1})):
        opened = place.open(PATH)
        assert opened.size == 50_000 and opened.read_at(5, 40_000).size == 40_000
        assert line.methods == requests


def test_a_large_file_is_sent_in_parts_under_its_own_name(
    bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "PART_BYTES", 5 << 20)
    disk, content = ObjectDisk(f"s3://{bucket}/x"), os.urandom(12 << 20)
    s3_server.line.clear()
    with disk.create(PATH) as file:
        for start in range(0, len(content), 1 << 20):
            file.write(content[start : start + (1 << 20)])
    assert s3_server.line.methods == {"POST": 2, "PUT": 3}
    assert all(f"/{bucket}/x/{PATH}" in request.path for request in s3_server.line.requests)
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
