"""Requests to an S3 bucket: tried again for a while, and their errors told as ours.

`botocore` sends them. Endpoint, region and credentials are what it finds where this process runs: variables
of the environment, a profile, the role of the machine. Each process has a client of its own, so a forked
child never speaks on a connection of its parent.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from mmap import mmap
from threading import Lock
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
from botocore.config import Config
from botocore.session import Session

from elasticscan.base.concurrency import renewed_in_child
from elasticscan.base.errors import ElasticScanError, FragmentMissing, WriteConflict
from elasticscan.base.limits import FIRST_CONNECT_SECONDS, RECONNECT_SECONDS
from elasticscan.storage.objects.refusals import FAILURES, as_ours, is_passing, may_be_renewed

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 5.0
_LARGE_BYTES = 1 << 20
_LARGEST_COPY = 5 << 30  # that one request makes
_COPY_PART_BYTES = 1 << 30
PART_BYTES = 8 << 20  # of an upload
_CONFIG = Config(
    connect_timeout=10,
    read_timeout=30,
    max_pool_connections=16,
    retries={"mode": "standard", "total_max_attempts": 1},  # `Bucket` tries again, also when an answer is cut
)


class _Client:
    """The client of this process for what its environment says, and whether it ever had an answer."""

    def __init__(self) -> None:
        # botocore itself knows no AWS_REGION, which all other kits of AWS read.
        self.service = Session().create_client(
            "s3", region_name=os.environ.get("AWS_REGION") or None, config=_CONFIG
        )
        self.answered = False


_clients: dict[tuple[int, int], _Client] = {}
_lock = renewed_in_child(Lock)


def _client() -> _Client:
    # A hash: the variables of a failed call, which tracebacks may print, must hold no secret.
    key = os.getpid(), hash(frozenset(item for item in os.environ.items() if item[0].startswith("AWS_")))
    client = _clients.get(key)
    if client is None:
        with _lock():
            client = _clients.get(key)
            if client is None:
                client = _Client()
                _clients.clear()  # what a fork, or another environment, left
                _clients[key] = client
    return client


def _let_go(client: _Client) -> None:
    """Have the next request read credentials again: a client keeps those of a file for ever."""
    with _lock():
        for key in [key for key, other in _clients.items() if other is client]:
            del _clients[key]


class Bucket:
    """The objects of a bucket.

    Args:
        name: the bucket's.
        root: what errors call the place; it holds no secret.

    All methods raise `ShardUnavailable`, which says what to do, and `FragmentMissing` where an object that is
    named is not there.
    """

    def __init__(self, name: str, root: str) -> None:
        self.name, self._root = name, root

    def read(self, key: str, span: str) -> tuple[pa.Buffer, int]:
        """Bytes of an object, by HTTP's words for a range ("0-99", "-100"), and its size."""
        answer: tuple[pa.Buffer, int] = self._ask("get_object", key, Range=f"bytes={span}", take=_taken)
        return answer

    def size(self, key: str) -> int:
        return int(self._ask("head_object", key)["ContentLength"])

    def put(self, key: str, data: bytes) -> None:
        self._ask("put_object", key, writing=True, Body=data)

    def delete(self, key: str) -> None:
        with suppress(FragmentMissing):
            self._ask("delete_object", key, writing=True)

    def list(self, prefix: str) -> Iterator[tuple[str, float]]:
        """(key, time of its last change) of each object below a prefix."""
        for page in self._pages("list_objects_v2", prefix, {"ContinuationToken": "NextContinuationToken"}):
            for item in page.get("Contents", ()):
                yield item["Key"], item["LastModified"].timestamp()

    def uploads(self, prefix: str) -> Iterator[tuple[str, str, float]]:
        """(key, id, time of its beginning) of each unfinished upload below a prefix."""
        marks = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        for page in self._pages("list_multipart_uploads", prefix, marks):
            for item in page.get("Uploads", ()):
                yield item["Key"], item["UploadId"], item["Initiated"].timestamp()

    def _pages(self, request: str, prefix: str, marks: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the answers to a request for a list; `marks`: what each needs of the one before."""
        page: dict[str, Any] = {}
        while not page or page.get("IsTruncated"):
            more = {name: page[of] for name, of in marks.items()} if page else {}
            page = self._ask(request, None, Prefix=prefix, **more)
            yield page

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the bucket; its bytes stay where they are."""
        source, size = {"Bucket": self.name, "Key": key}, self.size(key)
        if size <= _LARGEST_COPY:
            self._ask("copy_object", to, writing=True, CopySource=source)
            return
        with self.upload(to) as upload:
            for start in range(0, size, _COPY_PART_BYTES):
                upload.copy(source, start, min(start + _COPY_PART_BYTES, size))

    def upload(self, key: str) -> Upload:
        """Begin an object."""
        return Upload(self._ask, key)

    def abort(self, key: str, upload: str) -> None:
        """End an upload of which nothing shall stay; fine when it has ended already."""
        with suppress(WriteConflict, FragmentMissing):
            self._ask("abort_multipart_upload", key, writing=True, UploadId=upload)

    def _ask(
        self,
        request: str,
        key: str | None,
        writing: bool = False,
        take: Callable[[Any], Any] | None = None,
        **parameters: Any,
    ) -> Any:
        """Send a request until it is answered, or its time is over."""
        if key is not None:
            parameters["Key"] = key
        began, pause, renewed = monotonic(), _FIRST_PAUSE_SECONDS, False
        while True:
            client = None
            try:
                client = _client()
                answer = getattr(client.service, request)(Bucket=self.name, **parameters)
                answer = answer if take is None else take(answer)
            except FAILURES as error:
                if client is not None and not renewed and may_be_renewed(error):
                    renewed = True
                    _let_go(client)
                    continue
                waits = RECONNECT_SECONDS if client and client.answered else FIRST_CONNECT_SECONDS
                pause *= 1 + random.random()
                if not is_passing(error) or monotonic() + pause - began > waits:
                    raise self._ours(error, key, client, writing) from error
                sleep(pause)
                pause = min(pause, _LONGEST_PAUSE_SECONDS)
            else:
                client.answered = True
                return answer

    def _ours(
        self, error: Exception, key: str | None, client: _Client | None, writing: bool
    ) -> ElasticScanError:
        where = self._root if key is None else f"s3://{self.name}/{key}"
        server = "its server" if client is None else str(client.service.meta.endpoint_url)
        return as_ours(error, self._root, where, server, writing)


def _taken(answer: Any) -> tuple[pa.Buffer, int]:
    """Return the bytes of an answer, and the size of the whole object."""
    size = int(answer["ContentLength"])
    # Large ones are the system's own: an allocator would keep them for a while when they are free.
    buffer = pa.allocate_buffer(size) if size < _LARGE_BYTES else pa.py_buffer(mmap(-1, size))
    with answer["Body"] as body:
        _fill(memoryview(buffer).cast("B"), body)
    total = answer.get("ContentRange", "").rpartition("/")[2]
    return buffer, int(total) if total else size


def _fill(room: memoryview, body: Any) -> None:
    done = 0
    while done < len(room) and (count := body.readinto(room[done:])):
        done += count
    if done < len(room):
        raise ConnectionResetError(f"its answer ended after {done:,} of {len(room):,} bytes")


class Upload:
    """An object that is written: sent in one piece when it is small, else in parts.

    Nothing is there before the block ends without an exception.

    Attributes:
        content: of an object that was sent in one piece.
    """

    def __init__(self, ask: Callable[..., Any], key: str) -> None:
        self._ask, self._key, self._size = ask, key, 0
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
        answer = self._ask("upload_part", self._key, writing=True, Body=data, **self._part(len(data)))
        self._tags.append(answer["ETag"])

    def copy(self, source: dict[str, str], start: int, end: int) -> None:
        """Take bytes [start, end) of another object."""
        span = f"bytes={start}-{end - 1}"
        part = self._part(end - start)
        answer = self._ask(
            "upload_part_copy", self._key, writing=True, CopySource=source, CopySourceRange=span, **part
        )
        self._tags.append(answer["CopyPartResult"]["ETag"])

    def _part(self, size: int) -> dict[str, Any]:
        if self._id is None:
            self._id = str(self._ask("create_multipart_upload", self._key, writing=True)["UploadId"])
        self._size += size
        return {"UploadId": self._id, "PartNumber": len(self._tags) + 1}

    def finish(self) -> None:
        if self._id is None:
            self.content = bytes(self._waiting)
            self._ask("put_object", self._key, writing=True, Body=self.content)
            return
        if self._waiting:
            self._send()
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(self._tags, 1)]
        made = {"UploadId": self._id, "MultipartUpload": {"Parts": parts}}
        try:
            self._ask("complete_multipart_upload", self._key, writing=True, **made)
        except WriteConflict:  # it was collected; or its answer was lost, and this was asked again
            with suppress(FragmentMissing):
                if int(self._ask("head_object", self._key)["ContentLength"]) == self._size:
                    return
            raise

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.finish()
        except BaseException:
            self._abort()
            raise
        if kind is not None:
            self._abort()

    def _abort(self) -> None:
        if self._id is not None:
            with suppress(ElasticScanError):  # a garbage collection ends it later
                self._ask("abort_multipart_upload", self._key, writing=True, UploadId=self._id)
