"""Refusals of an S3 server, and of the way to it: which of our errors each is, and what to do about it."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from elasticscan.base.errors import DiskFull, ElasticScanError, ShardUnavailable, WriteConflict
from elasticscan.base.resources import lack_in
from elasticscan.storage.disk.errors import missing_file

# What a request can end with.
FAILURES = (BotoCoreError, ClientError, HTTPError, OSError, ValueError)

# Credentials were refused, or missing, that may have been renewed in their file since.
OUTDATED = frozenset(
    {
        *("ExpiredToken", "ExpiredTokenException", "InvalidToken", "InvalidAccessKeyId"),
        *("SignatureDoesNotMatch", "NoCredentialsError", "CredentialRetrievalError"),
    }
)
_SET = "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, where this process runs"
_REGION = "the bucket is in another region; set AWS_REGION to it"
_RENEW = f"the credentials have expired; renew them: {_SET}"
_DENIED = (
    "its credentials may not do this; let them get, put, delete and list objects, and list and abort "
    "multipart uploads, below the prefix (what may not be listed hides which files are missing)"
)
_TO_DO = {
    "AccessDenied": _DENIED,
    "403": _DENIED,
    "InvalidAccessKeyId": f"the server does not know the access key; correct {_SET}",
    "SignatureDoesNotMatch": f"the secret key is not that of the access key; correct {_SET}",
    "ExpiredToken": _RENEW,
    "InvalidToken": _RENEW,
    "NoSuchBucket": "there is no such bucket; make it, or correct AWS_ENDPOINT_URL or the root",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "301": _REGION,
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    "NoCredentialsError": f"there are no credentials; set {_SET}",
    "PartialCredentialsError": f"a part of the credentials is missing; set {_SET}",
    "ProfileNotFound": "there is no such profile; correct AWS_PROFILE, or make it with `aws configure`",
    "SSLError": "its certificate is not trusted, or it speaks no TLS; set AWS_CA_BUNDLE, or write http://",
    "InvalidRegionError": "AWS_REGION is no region; correct it",
    "ValueError": "AWS_ENDPOINT_URL is no address; write http://HOST:9000, say, or https://HOST",
}
_OTHERWISE = "look whether it runs (AWS_ENDPOINT_URL), and try again"


def code_of(error: BaseException) -> str:
    """Return the server's word for what is wrong; the error's class when no answer came."""
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return type(error).__name__


def _lack_in(error: BaseException | None) -> ElasticScanError | None:
    """Return the want of files or memory that is the first cause of an error, if it is that."""
    while error is not None:
        if isinstance(error, (OSError, MemoryError)) and (lack := lack_in(error)) is not None:
            return lack
        error = error.__cause__ or error.__context__
    return None


def as_ours(error: BaseException, root: str, where: str, server: str, writing: bool) -> ElasticScanError:
    """Return the error to raise for one of `FAILURES`.

    Args:
        root, where: the shard's root and the object, without secrets.
        server: the host that was asked.
        writing: whether something was to be changed.
    """
    code = code_of(error)
    if (lack := _lack_in(error)) is not None:
        return lack
    if code in ("NoSuchKey", "404"):
        return missing_file(where)
    if code == "NoSuchUpload":
        return WriteConflict(
            f"the upload of {where} was ended by a garbage collection; nothing was committed: try again "
            "with a longer `gc --orphans`",
            path=where,
        )
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
