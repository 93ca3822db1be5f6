"""A shard's files as the objects below a prefix of an S3 bucket."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from elasticscan.base.errors import InvalidOption
from elasticscan.base.redaction import shown
from elasticscan.storage.disk.bucket import Bucket
from elasticscan.storage.disk.objects import (
    BLOCK_BYTES,
    BlockCache,
    Object,
    fetch_ends,
    name_of,
    shared_blocks,
)
from elasticscan.storage.disk.protocol import OpenFile

_UNFINISHED, _UNCHANGING = ".unfinished", ".arrow"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


def parse_root(root: str) -> tuple[str, str]:
    """Return the bucket and the prefix that an `s3://` or `s3a://` root names; the prefix ends with a slash.

    Raises:
        InvalidOption: it names none, or says more than that: who asks, and where the server is, belongs into
            the environment, where no catalog, plan or log shows it.
    """
    parts = urlsplit(root)
    if not parts.query and not parts.fragment and _BUCKET.fullmatch(parts.netloc):
        path = posixpath.normpath("/" + unquote(parts.path).lstrip("/")).lstrip("/")
        return parts.netloc, f"{path}/" if path else ""
    raise InvalidOption(
        f"{shown(root)} cannot be a shard's storage; write `s3://BUCKET/PREFIX`, and set AWS_PROFILE, "
        "AWS_ENDPOINT_URL and AWS_REGION where each process runs",
        option="shards",
    )


class ObjectDisk:
    """The objects below a prefix. An object is sent once, under its own name, and seen when it is whole.

    What was read of files that never change, which end so, stays in memory, unless `cached` is false.
    """

    is_far = True

    def __init__(self, root: str, cached: bool = True) -> None:
        self._root, self._cached = root, cached
        name, self._prefix = parse_root(root)
        self._bucket = Bucket(name, root)

    @property
    def uncached(self) -> ObjectDisk:
        return ObjectDisk(self._root, cached=False) if self._cached else self

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        key = self._prefix + path
        file = self._bucket.upload(key)
        try:
            yield file
            file.finish()
        except BaseException:
            file.give_up()
            raise
        shared_blocks().forget(name := name_of(self._bucket, key))
        if file.content and len(file.content) <= BLOCK_BYTES:  # its writer often reads it next
            shared_blocks().keep_end(name, pa.py_buffer(file.content), len(file.content))

    def open(self, path: str) -> OpenFile:
        blocks = shared_blocks() if self._cached and path.endswith(_UNCHANGING) else BlockCache()
        return Object(self._bucket, self._prefix + path, blocks)

    def expect(self, paths: Sequence[str]) -> None:
        if self._cached:
            keys = [self._prefix + path for path in paths if path.endswith(_UNCHANGING)]
            fetch_ends(self._bucket, keys)

    def delete(self, path: str) -> None:
        if path.endswith(_UNFINISHED):
            self._abort(self._prefix + path.removesuffix(_UNFINISHED))
        else:
            self._bucket.delete(self._prefix + path)

    def note(self, path: str, content: bytes) -> None:
        self._bucket.put(self._prefix + path, content)

    def list(self) -> list[tuple[str, float]]:
        files = [(key, time) for key, time in self._bucket.list(self._prefix)]
        files += [(key + _UNFINISHED, time) for key, _, time in self._bucket.uploads(self._prefix)]
        return [(key.removeprefix(self._prefix), time) for key, time in files]

    def _abort(self, key: str) -> None:
        for other, upload, _ in self._bucket.uploads(key):
            if other == key:
                self._bucket.abort(key, upload)
