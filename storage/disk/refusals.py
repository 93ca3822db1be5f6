"""Refusals of an S3 server, and of the way to it: which of our errors each is, and what to do about it."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from elasticscan.base.errors import DiskFull, ElasticScanError, ShardUnavailable
from elasticscan.storage.disk.errors import collected, missing_file

# What a request can end with.
FAILURES = (BotoCoreError, ClientError, HTTPError, OSError, ValueError)

# Credentials were refused, or missing, that may have been renewed in their file since.
OUTDATED = frozenset(
    {
        *("ExpiredToken", "ExpiredTokenException", "InvalidToken", "InvalidAccessKeyId"),
        *("SignatureDoesNotMatch", "NoCredentialsError", "CredentialRetrievalError"),
    }
)
_DENIED = (
    "its credentials may not do this; let them get, put, delete and list objects, and list and abort "
    "multipart uploads, below the prefix (what may not be listed hides which files are missing)"
)
_CREDENTIALS = (
    "its credentials are missing, wrong or expired; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, where this process runs"
)
_OTHERWISE = (
    "look whether it runs; check the bucket, AWS_ENDPOINT_URL (such as http://HOST:9000), AWS_REGION and "
    "AWS_CA_BUNDLE, and try again"
)
_TO_DO = dict.fromkeys(("AccessDenied", "403"), _DENIED) | dict.fromkeys(
    (*OUTDATED, "PartialCredentialsError", "ProfileNotFound"), _CREDENTIALS
)


def code_of(error: BaseException) -> str:
    """Return the server's word for what is wrong; the error's class when no answer came."""
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return type(error).__name__


def as_ours(error: BaseException, root: str, where: str, server: str, writing: bool) -> ElasticScanError:
    """Return the error to raise for one of `FAILURES`.

    Args:
        root, where: the shard's root and the object, without secrets.
        server: the host that was asked.
        writing: whether something was to be changed.
    """
    code = code_of(error)
    if code in ("NoSuchKey", "404"):
        return missing_file(where)
    if code == "NoSuchUpload":
        return collected(where)
    if code in ("QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity"):
        return DiskFull(
            f"the object storage has no room for {where} ({code}); nothing was committed: free some space "
            "or raise the quota",
            path=where,
        )
    return ShardUnavailable(
        f"the shard's storage {where} cannot be {'written' if writing else 'read'} at {server}: "
        f"{_TO_DO.get(code, _OTHERWISE)} ({error})",
        root=root,
        server=server,
    )
