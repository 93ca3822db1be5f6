"""Requests to an S3 bucket, with errors of the package.

`botocore` sends the requests, and retries them if the server is busy or the connection breaks. It finds the
endpoint, region and credentials in the environment of the process: variables, a profile, or the role of the
machine. Each process has its own client, so a forked child never uses a connection of its parent.
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

ATTEMPTS = 10  # with growing pauses: a minute in total if the server is busy
_DROPPED_SECONDS, _PAUSE_SECONDS = 5.0, 0.1
PART_BYTES = 8 << 20  # of an upload

# The errors that a request can raise.
_FAILURES = (BotoCoreError, ClientError, HTTPError, OSError, ValueError)
_BROKEN = (HTTPClientError, IncompleteReadError, HTTPError)  # the connection broke; the answer may be cut

# Credentials were refused or missing; they may have been renewed in their file in the meantime.
_OUTDATED = frozenset(
    {
        *("ExpiredToken", "ExpiredTokenException", "InvalidToken", "InvalidAccessKeyId"),
        *("SignatureDoesNotMatch", "NoCredentialsError", "CredentialRetrievalError"),
    }
)
_DENIED = (
    "its credentials may not do this; let them get, put, delete and list objects, and list and abort "
    "multipart uploads, below the prefix (without the right to list, a missing object looks forbidden)"
)
_CREDENTIALS = (
    "its credentials are missing, wrong or expired; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, where this process runs"
)
_OTHERWISE = (
    "check that it runs; check the bucket, AWS_ENDPOINT_URL (such as http://HOST:9000), AWS_REGION and "
    "AWS_CA_BUNDLE, and try again"
)
_TO_DO = dict.fromkeys(("AccessDenied", "403"), _DENIED) | dict.fromkeys(
    (*_OUTDATED, "PartialCredentialsError", "ProfileNotFound"), _CREDENTIALS
)

_lock = renewed_in_child(Lock)  # creating a client takes time: only one thread does it


def _client() -> Any:
    """Return the client of this process; a changed environment makes a new one."""
    # A hash, because tracebacks may print the arguments of a failed call, and they must contain no secret.
    environment = hash(frozenset(item for item in os.environ.items() if item[0].startswith("AWS_")))
    with _lock():
        return _client_of(os.getpid(), environment)


@lru_cache(maxsize=1)
def _client_of(process: int, environment: int) -> Any:
    config = Config(
        connect_timeout=10,
        read_timeout=30,
        max_pool_connections=16,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
    )
    # botocore ignores AWS_REGION, which all other kits of AWS read.
    region = os.environ.get("AWS_REGION") or None
    return Session().create_client("s3", region_name=region, config=config)


class Bucket:
    """The objects of a bucket; `root` is the shard's root, for errors, and contains no secret.

    All methods raise `ShardUnavailable`, and `MissingFile` if the named object does not exist.
    """

    def __init__(self, name: str, root: str) -> None:
        self.name, self._root = name, root

    def read(self, key: str, span: str) -> tuple[pa.Buffer, int]:
        """Return bytes of an object, and its size; `span` is an HTTP range such as "0-99" or "-100"."""
        answer = self.ask("get_object", key, Range=f"bytes={span}")
        size = answer.get("ContentRange", "").rpartition("/")[2] or len(answer["Body"])
        return pa.py_buffer(answer["Body"]), int(size)

    def put(self, key: str, data: bytes) -> None:
        self.ask("put_object", key, writing=True, Body=data)

    def delete(self, key: str) -> None:
        with suppress(MissingFile):
            self.ask("delete_object", key, writing=True)

    def list(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield (key, time of its last change) of each object below a prefix."""
        for item in self.ask("list_objects_v2", None, Prefix=prefix).get("Contents", ()):
            yield item["Key"], item["LastModified"].timestamp()

    def uploads(self, prefix: str) -> Iterator[tuple[str, str, float]]:
        """Yield (key, id, start time) of each unfinished upload below a prefix."""
        for item in self.ask("list_multipart_uploads", None, Prefix=prefix).get("Uploads", ()):
            yield item["Key"], item["UploadId"], item["Initiated"].timestamp()

    def abort(self, key: str, upload: str) -> None:
        """Abort an upload and drop its parts, if it has not ended."""
        with suppress(Busy, MissingFile):
            self.ask("abort_multipart_upload", key, writing=True, UploadId=upload)

    def ask(self, request: str, key: str | None, writing: bool = False, **parameters: Any) -> Any:
        """Send a request and return the answer; without a key, the joined pages of a list.

        botocore does not retry when the process has used up its quota of retries, nor when an answer was
        cut. So this method retries broken connections for a few seconds. It also retries once after
        refused credentials, with a new client, because they may have been renewed.
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
        """Return the error of the package for one of `_FAILURES`, with the next step."""
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
        with suppress(*_FAILURES):  # creating the client may be what failed
            server = str(_client().meta.endpoint_url)
        return ShardUnavailable(
            f"the shard's storage {where} cannot be {'written' if writing else 'read'} at {server}: "
            f"{_TO_DO.get(code, _OTHERWISE)} ({error})",
            root=self._root,
            server=server,
        )


def _code_of(error: BaseException) -> str:
    """Return the error code of the server, or the name of the error's class if there was no answer."""
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return type(error).__name__


class Upload:
    """A new object: sent in one piece if it is small, else in parts. It is visible only after `finish`.

    Attributes:
        content: the bytes of an object that was sent in one piece, else None.
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
        # An upload has at most 10,000 parts, so later parts are larger.
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
        except Busy:  # garbage collection aborted it; or it was completed, but the answer was lost
            with suppress(MissingFile):
                if int(self._bucket.ask("head_object", self._key)["ContentLength"]) == self._size:
                    return
            raise

    def give_up(self) -> None:
        """Abort the upload and drop its parts."""
        if self._id is not None:
            with suppress(ElasticScanError):  # a later garbage collection aborts it
                self._bucket.abort(self._key, self._id)
