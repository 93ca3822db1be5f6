"""Errors of a disk, the disk of temporary files and an S3 server become errors sorted by what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from elasticscan.base.errors import (
    Busy,
    DiskFull,
    ElasticScanError,
    InvalidOption,
    OutOfResources,
    ShardUnavailable,
    TryAgain,
)
from elasticscan.storage.disk.errors import MissingFile, disk_error, temporary_error

# By error number: the class and text of a disk's error, and of one for temporary files.
CASES = [
    (errno.ENOSPC, DiskFull, "free some space", DiskFull, "/tmp, is full"),
    (errno.EDQUOT, DiskFull, "free some space", DiskFull, "TMPDIR"),
    (errno.EFBIG, DiskFull, "free some space", DiskFull, "TMPDIR"),
    (errno.EMFILE, OutOfResources, "ulimit -n", OutOfResources, "ulimit -n"),
    (errno.ENFILE, OutOfResources, "ulimit -n", OutOfResources, "ulimit -n"),
    (errno.ENOMEM, OutOfResources, "memory", OutOfResources, "memory"),
    (errno.EACCES, ShardUnavailable, "Permission denied; check its device", InvalidOption, "TMPDIR"),
    (errno.EROFS, ShardUnavailable, "Read-only file system", InvalidOption, "TMPDIR"),
    (errno.EIO, ShardUnavailable, "Input/output error", InvalidOption, "TMPDIR"),
    (errno.ENOTCONN, ShardUnavailable, "not connected", InvalidOption, "TMPDIR"),
]


@pytest.mark.parametrize("case", CASES, ids=[errno.errorcode[case[0]] for case in CASES])
@pytest.mark.parametrize("writing", [False, True])
def test_each_error_of_a_disk_has_its_own_kind_and_text(
    tmp_path: Path,
    case: tuple[int, type[ElasticScanError], str, type[ElasticScanError], str],
    writing: bool,
) -> None:
    number, kind, says, temporary_kind, temporary_says = case
    error = OSError(number, os.strerror(number))
    raised = disk_error(error, str(tmp_path), "t1/a.arrow", writing)
    assert type(raised) is kind and says in str(raised)
    assert (kind is OutOfResources or "t1/a.arrow" in str(raised)) and "restore" not in str(raised)
    temporary = temporary_error(error, "/tmp")
    assert type(temporary) is temporary_kind and temporary_says in str(temporary)


def test_a_missing_file_is_told_from_a_missing_root_and_from_one_that_was_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, here, path = FileNotFoundError(errno.ENOENT, "No such file"), str(tmp_path), "t1/a.arrow"
    assert type(disk_error(gone, here, path, writing=False)) is MissingFile
    collected = disk_error(gone, here, f"{path}.unfinished", writing=True)
    assert type(collected) is Busy and isinstance(collected, TryAgain)
    for root, of in ((here, None), (str(tmp_path / "gone"), path)):
        assert type(disk_error(gone, root, of, writing=False)) is ShardUnavailable

    def fail(*_: object, **__: object) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fail)  # the root cannot be examined
        raised = disk_error(gone, here, path, writing=False)
    assert type(raised) is ShardUnavailable


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("NoSuchKey", MissingFile, "missing"),
        ("NoSuchBucket", ShardUnavailable, "check the bucket"),
        ("AccessDenied", ShardUnavailable, "may not"),
        ("InvalidAccessKeyId", ShardUnavailable, "AWS_PROFILE"),
        ("SignatureDoesNotMatch", ShardUnavailable, "AWS_SECRET_ACCESS_KEY"),
        ("ExpiredToken", ShardUnavailable, "expired"),
        ("PermanentRedirect", ShardUnavailable, "AWS_REGION"),
        ("QuotaExceeded", DiskFull, "quota"),
        ("NoSuchUpload", Busy, "try again"),
        ("SomethingNew", ShardUnavailable, "SomethingNew"),
    ],
)
def test_a_refusal_of_a_server_says_what_to_do(code: str, kind: type[ElasticScanError], says: str) -> None:
    exceptions = pytest.importorskip("botocore.exceptions", reason="pip install 'elasticscan[s3]'")
    from elasticscan.storage.disk.bucket import Bucket  # noqa: PLC0415 - it imports botocore

    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    refused = exceptions.ClientError(answer, "GetObject")
    raised = Bucket("b", "s3://b/x")._ours(refused, "x/t1/a", writing=True)
    assert type(raised) is kind and says in str(raised)
    assert "s3://b/x/t1/a" in str(raised)
