"""Each word of a server is raised as what somebody has to do."""

from __future__ import annotations

import pytest

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from botocore.exceptions import ClientError

from elasticscan.base.errors import (
    DiskFull,
    ElasticScanError,
    FragmentMissing,
    ShardUnavailable,
    WriteConflict,
)
from elasticscan.storage.disk.refusals import as_ours


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("NoSuchKey", FragmentMissing, "missing"),
        ("NoSuchBucket", ShardUnavailable, "no such bucket"),
        ("AccessDenied", ShardUnavailable, "may not"),
        ("InvalidAccessKeyId", ShardUnavailable, "AWS_PROFILE"),
        ("SignatureDoesNotMatch", ShardUnavailable, "secret key"),
        ("ExpiredToken", ShardUnavailable, "renew"),
        ("PermanentRedirect", ShardUnavailable, "AWS_REGION"),
        ("RequestTimeTooSkewed", ShardUnavailable, "clock"),
        ("QuotaExceeded", DiskFull, "quota"),
        ("NoSuchUpload", WriteConflict, "try again"),
        ("SomethingNew", ShardUnavailable, "SomethingNew"),
    ],
)
def test_a_refusal_says_what_to_do(code: str, kind: type[ElasticScanError], message: str) -> None:
    error = as_ours(refused(code), "s3://b/x", "s3://b/x/t1/a", "http://host", writing=True)
    assert type(error) is kind and message in str(error) and "s3://b/x/t1/a" in str(error)
