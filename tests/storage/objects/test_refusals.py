"""Each word of a server is raised as what somebody has to do."""

from __future__ import annotations

import pytest

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from urllib3.exceptions import ProtocolError

from elasticscan.base.errors import (
    DiskFull,
    ElasticScanError,
    FragmentMissing,
    ShardUnavailable,
    WriteConflict,
)
from elasticscan.storage.objects.refusals import as_ours, is_passing


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


@pytest.mark.parametrize(
    "error",
    [
        refused("SlowDown", 503),
        refused("InternalError", 500),
        refused("RequestTimeout"),
        refused("TooMany", 429),
        EndpointConnectionError(endpoint_url="http://host"),
        ReadTimeoutError(endpoint_url="http://host"),
        ConnectionResetError("reset"),
        ProtocolError("cut, as botocore 1.36 tells it"),
    ],
)
def test_trouble_that_may_pass(error: Exception) -> None:
    assert is_passing(error)
    message = as_ours(error, "s3://b", "s3://b/x", "http://host", writing=False)
    assert type(message) is ShardUnavailable and "http://host" in str(message)


@pytest.mark.parametrize(
    "error", [refused("AccessDenied", 403), NoCredentialsError(), ValueError("endpoint")]
)
def test_trouble_that_does_not_pass(error: Exception) -> None:
    assert not is_passing(error)
