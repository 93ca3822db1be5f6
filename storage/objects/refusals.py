"""Refusals of an S3 server, and of the way to it: which of our errors each is, and what to do about it."""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
)
from botocore.exceptions import ConnectionError as NoConnection
from urllib3.exceptions import HTTPError

from elasticscan.base.errors import DiskFull, ElasticScanError, ShardUnavailable, WriteConflict
from elasticscan.base.resources import lack_in
from elasticscan.storage.disk_errors import missing_file

# What a request can end with that may go well when it is sent again.
FAILURES = (BotoCoreError, ClientError, HTTPError, OSError, ValueError)

_BUSY = frozenset({"OperationAborted", "RequestTimeout", "SlowDown"})
_OUTDATED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)
_SET = "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, where this process runs"
_REGION = "the bucket is in another region; set AWS_REGION to it"
_RENEW = f"the credentials have expired; renew them: {_SET}"
_REFUSED = {
    "AccessDenied": "its credentials may not do this; let them get, put, delete and list objects, and list "
    "and abort multipart uploads, below the prefix (what may not be listed hides which files are missing)",
    "InvalidAccessKeyId": f"the server does not know the access key; correct {_SET}",
    "SignatureDoesNotMatch": f"the secret key is not that of the access key; correct {_SET}",
    "ExpiredToken": _RENEW,
    "InvalidToken": _RENEW,
    "NoSuchBucket": "there is no such bucket; make it, or correct AWS_ENDPOINT_URL or the root",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "301": _REGION,
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    "403": "its credentials may not do this, or are not valid; look at the bucket's policy",
}
_TLS = "its certificate is not trusted, or it speaks no TLS; set AWS_CA_BUNDLE, or write http:// for https://"
_UNSENT: tuple[tuple[type[BotoCoreError], str], ...] = (
    (NoCredentialsError, f"there are no credentials; set {_SET}"),
    (PartialCredentialsError, f"a part of the credentials is missing; set {_SET}"),
    (ProfileNotFound, "there is no such profile; correct AWS_PROFILE, or make it with `aws configure`"),
    (
        CredentialRetrievalError,
        "the credentials cannot be fetched; see who gives them out (a role, a login)",
    ),
    (SSLError, _TLS),
    (InvalidRegionError, "AWS_REGION is no region; correct it"),
    (NoRegionError, "no region is set; set AWS_REGION (any, for a server of your own)"),
)


def code_of(error: BaseException) -> str:
    """Return the server's word for what is wrong; empty when no answer came."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def is_passing(error: BaseException) -> bool:
    """Return whether the same request may go well a little later."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or status in (408, 429) or code_of(error) in _BUSY
    return isinstance(error, (HTTPClientError, HTTPError, NoConnection, OSError))


def may_be_renewed(error: BaseException) -> bool:
    """Return whether credentials were refused, or missing, that may have been renewed in their file since."""
    return code_of(error) in _OUTDATED or isinstance(error, (NoCredentialsError, CredentialRetrievalError))


def _cause_of(error: BaseException | None) -> OSError | None:
    """Return the first error of the operating system in what caused an error."""
    for _ in range(10):
        if error is None or (isinstance(error, OSError) and error.errno is not None):
            break
        error = error.__cause__ or error.__context__
    return error if isinstance(error, OSError) else None


def as_ours(error: BaseException, root: str, where: str, server: str, writing: bool) -> ElasticScanError:
    """Return the error to raise for one of `FAILURES`.

    Args:
        root, where: the shard's root and the object, without secrets.
        server: the host that was asked.
        writing: whether something was to be changed.
    """
    code = code_of(error)
    cause = None if code else _cause_of(error)
    if cause is not None and (lack := lack_in(cause)) is not None:
        return lack
    if code in ("NoSuchKey", "404"):
        return missing_file(where)
    if code == "NoSuchUpload":
        return WriteConflict(
            f"the upload of {where} was ended by a garbage collection; nothing was committed: try again, "
            "and collect with a longer grace",
            path=where,
        )
    if code in ("QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity"):
        return DiskFull(
            f"the object storage has no room for {where} ({code}); nothing was committed: free some space "
            "or raise the quota",
            path=where,
        )
    why = _REFUSED.get(code) or next((said for kind, said in _UNSENT if isinstance(error, kind)), None)
    if why is None and "Invalid endpoint" in str(error):
        why = "AWS_ENDPOINT_URL is no address; write http://HOST:9000, say, or https://HOST"
    if why is None and is_passing(error):
        why = "it did not answer in time, or is busy; look whether it runs (AWS_ENDPOINT_URL), and try again"
    return ShardUnavailable(
        f"the shard's storage {where} cannot be {'written' if writing else 'read'} at {server}: "
        f"{why or 'see what the server says'} ({str(error).replace(' (reached max retries: 0)', '')})",
        root=root,
        server=server,
    )
