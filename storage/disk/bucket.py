"""Requests to an S3 bucket, with their errors as our own.

`botocore` sends them, and sends again what a busy server or a broken connection refuses. Endpoint, region
and credentials are what it finds where this process runs: variables of the environment, a profile, the role
of the machine. Each process has a client of its own, so a forked child never speaks on a connection of its
parent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.session import Session
from urllib3.exceptions import HTTPError

from elasticscan.base.concurrency import renewed_in_child
from elasticscan.base.errors import (
    Busy,
    DiskFull,
    ElasticScanError,
    ShardUnavailable,
)
from elasticscan.storage.disk.errors import MissingFile, collected, missing_file

ATTEMPTS = 10  # with growing pauses, which are a minute together where a server says that it is busy
_DROPPED_SECONDS, _PAUSE_SECONDS = 5.0, 0.1
PART_BYTES = 8 << 20  # of an upload

# What a request can end with.
_FAILURES = (BotoCoreError, ClientError, HTTPError, OSError, ValueError)
_BROKEN = (HTTPClientError, IncompleteReadError, HTTPError)  # connections; an answer may be cut

# Credentials were refused, or missing, that may have been renewed in their file since.
_OUTDATED = frozenset(
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
    (*_OUTDATED, "PartialCredentialsError", "ProfileNotFound"), _CREDENTIALS
)

_lock = renewed_in_child(Lock)  # to make a client takes some time: only one thread does


def _client() -> Any:
    """Return the client of this process for what its environment says."""
    # A hash: the variables of a failed call, which tracebacks may print, must hold no secret.
    said = hash(frozenset(item for item in os.environ.items() if item[0].startswith("AWS_")))
    with _lock():
        return _client_of(os.getpid(), said)


@lru_cache(maxsize=1)
def _client_of(process: int, environment: int) -> Any:
    config = Config(
        connect_timeout=10,
        read_timeout=30,
        max_pool_connections=16,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
    )
    # botocore itself knows no AWS_REGION, which all other kits of AWS read.
    region = os.environ.get("AWS_REGION") or None
    return Session().create_client("s3", region_name=region, config=config)


class Bucket:
    """The objects of a bucket.

    Args:
        name: the bucket's.
        root: what errors call the place; it holds no secret.

    All methods raise `ShardUnavailable`, which says what to do, and `MissingFile` where an object that is
    named is not there.
    """

    def __init__(self, name: str, root: str) -> None:
        self.name, self._root = name, root

    def read(self, key: str, span: str) -> tuple[pa.Buffer, int]:
        """Bytes of an object, by HTTP's words for a range ("0-99", "-100"), and its size."""
        answer = self.ask("get_object", key, Range=f"bytes={span}")
        size = answer.get("ContentRange", "").rpartition("/")[2] or len(answer["Body"])
        return pa.py_buffer(answer["Body"]), int(size)

    def put(self, key: str, data: bytes) -> None:
        self.ask("put_object", key, writing=True, Body=data)

    def delete(self, key: str) -> None:
        with suppress(MissingFile):
            self.ask("delete_object", key, writing=True)

    def list(self, prefix: str) -> Iterator[tuple[str, float]]:
        """(key, time of its last change) of each object below a prefix."""
        for item in self.ask("list_objects_v2", None, Prefix=prefix).get("Contents", ()):
            yield item["Key"], item["LastModified"].timestamp()

    def uploads(self, prefix: str) -> Iterator[tuple[str, str, float]]:
        """(key, id, time of its beginning) of each unfinished upload below a prefix."""
        for item in self.ask("list_multipart_uploads", None, Prefix=prefix).get("Uploads", ()):
            yield item["Key"], item["UploadId"], item["Initiated"].timestamp()

    def abort(self, key: str, upload: str) -> None:
        """End an upload of which nothing shall stay; fine when it has ended already."""
        with suppress(Busy, MissingFile):
            self.ask("abort_multipart_upload", key, writing=True, UploadId=upload)

    def ask(self, request: str, key: str | None, writing: bool = False, **parameters: Any) -> Any:
        """Send a request, without a key for all pages of a list; again with credentials that were renewed.

        botocore stops sending requests again while a quota of failures, one for the whole process, is used
        up, and does not see that an answer was cut. So these requests are sent again here, for some seconds.
        """
        if key is not None:
            parameters["Key"] = key
        began, is_renewed = monotonic(), False
        while True:
            try:
                if key is None:
                    pages = _client().get_paginator(request)
                    return pages.paginate(Bucket=self.name, **parameters).build_full_result()
                answer = getattr(_client(), request)(Bucket=self.name, **parameters)
                if "Body" in answer:
                    with answer["Body"] as body:
                        answer["Body"] = body.read()
                return answer
            except _FAILURES as error:
                if _code_of(error) in _OUTDATED and not is_renewed:
                    is_renewed = True
                    _client_of.cache_clear()  # a client keeps the credentials of a file for ever
                elif isinstance(error, _BROKEN) and monotonic() - began < _DROPPED_SECONDS:
                    sleep(_PAUSE_SECONDS)
                else:
                    raise self._ours(error, key, writing) from error

    def _ours(self, error: Exception, key: str | None, writing: bool) -> ElasticScanError:
        """Return the error to raise for one of `_FAILURES`: which of ours it is, and what to do about it."""
        where, code = self._root if key is None else f"s3://{self.name}/{key}", _code_of(error)
        if code in ("NoSuchKey", "404"):
            return missing_file(where)
        if code == "NoSuchUpload":
            return collected(where)
        if code in ("QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity"):
            return DiskFull(
                f"the object storage has no room for {where} ({code}); nothing was committed: free some "
                "space or raise the quota",
                path=where,
            )
        server = "its server"
        with suppress(*_FAILURES):  # the client itself may be what fails
            server = str(_client().meta.endpoint_url)
        return ShardUnavailable(
            f"the shard's storage {where} cannot be {'written' if writing else 'read'} at {server}: "
            f"{_TO_DO.get(code, _OTHERWISE)} ({error})",
            root=self._root,
            server=server,
        )


def _code_of(error: BaseException) -> str:
    """Return the server's word for what is wrong; the error's class when no answer came."""
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return type(error).__name__


class Upload:
    """An object that is written: sent in one piece when it is small, else in parts.

    Nothing is there before it is finished.

    Attributes:
        content: of an object that was sent in one piece.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key, self._size = bucket, key, 0
        self._tags: list[str] = []
        self._id: str | None = None
        self._waiting = bytearray()
        self.content: bytes | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._waiting += view
        # An upload has 10,000 parts at most: later ones are larger.
        if len(self._waiting) >= PART_BYTES << len(self._tags) // 1_000:
            self._send()
        return len(view)

    def _send(self) -> None:
        data, self._waiting = bytes(self._waiting), bytearray()
        if self._id is None:
            self._id = str(self._bucket.ask("create_multipart_upload", self._key, writing=True)["UploadId"])
        part = {"UploadId": self._id, "PartNumber": len(self._tags) + 1, "Body": data}
        self._size += len(data)
        self._tags.append(self._bucket.ask("upload_part", self._key, writing=True, **part)["ETag"])

    def finish(self) -> None:
        if self._id is None:
            self.content = bytes(self._waiting)
            self._bucket.put(self._key, self.content)
            return
        if self._waiting:
            self._send()
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(self._tags, 1)]
        made = {"UploadId": self._id, "MultipartUpload": {"Parts": parts}}
        try:
            self._bucket.ask("complete_multipart_upload", self._key, writing=True, **made)
        except Busy:  # it was collected; or its answer was lost, and this was asked again
            with suppress(MissingFile):
                if int(self._bucket.ask("head_object", self._key)["ContentLength"]) == self._size:
                    return
            raise

    def give_up(self) -> None:
        """Leave nothing of what was sent."""
        if self._id is not None:
            with suppress(ElasticScanError):  # a garbage collection ends it later
                self._bucket.abort(self._key, self._id)
