"""Places by what they are: two texts that name one directory or one prefix are found to be equal.

Text alone cannot tell everything (a bind mount, two names of one server); the marker in each root
does (`store/roots/markers.py`). This finds the rest before anything is made.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from elasticscan.base.errors import InvalidOption
from elasticscan.base.redaction import as_cause, shown, without

# Text that is meant for a URI, but lacks its two slashes.
_SHORT = re.compile(r"file:|[a-z][a-z0-9+.-]+:/(?!/)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """A directory (`service` is empty), or a prefix of a bucket. Never holds a password.

    file:///data/../data/a     Place("", "/data/a")
    s3a://B/x/                 Place("s3://b", "/x")
    """

    service: str
    path: str

    def overlaps(self, place: Place) -> bool:
        """One is the other, or lies within it."""
        if self.service != place.service:
            return False
        one, two = f"{self.path.rstrip('/')}/", f"{place.path.rstrip('/')}/"
        return one.startswith(two) or two.startswith(one)

    def __str__(self) -> str:
        if not self.service:
            return self.path
        name, _, options = self.service.partition("?")
        return f"{name}{self.path}{'?' if options else ''}{options}"


def place_of(root: str) -> Place:
    """Return the place that a root names, with symbolic links followed."""
    root = path_or_uri(root)
    if "://" not in root:
        try:
            return Place("", os.path.realpath(root))
        except OSError:  # a link that this user may not follow; using the place raises the error
            return Place("", os.path.abspath(root))  # noqa: PTH100 - a text is made of a text
    parts, options = urlsplit(root), urlsplit(shown(root)).query
    scheme = "s3" if parts.scheme.lower() == "s3a" else parts.scheme.lower()
    where = parts.netloc.rpartition("@")[2].lower()
    return Place(f"{scheme}://{where}{'?' if options else ''}{options}", _path_in(parts.path))


def _path_in(escaped: str) -> str:
    return posixpath.normpath("/" + unquote(escaped).lstrip("/"))


def local_directory(uri: str) -> str | None:
    """Return the directory that a user's `file:` URI names; None for URIs of other kinds.

    Raises:
        InvalidOption: it names another host or no directory, or has what a path takes in another spelling.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() != "file":
        return None
    is_here = parts.netloc.lower() in ("", "localhost") and parts.path and "\0" not in unquote(parts.path)
    if not is_here or parts.query or parts.fragment:
        raise InvalidOption(
            f"{shown(uri)} names no directory of this machine; write file:///PATH, with %3F and %23 for '?' "
            "and '#', or the path alone",
            option="uri",
        )
    return _path_in(parts.path)


def check_apart(roots: Sequence[tuple[str, str]]) -> None:
    """Raise `InvalidOption` when two of these shards (name, root) overlap."""
    places = [(name, place_of(root)) for name, root in roots]
    # In the order of their paths, a place is followed by those within it.
    places.sort(key=lambda each: (each[1].service, f"{each[1].path.rstrip('/')}/"))
    for (name, place), (inner, within) in pairwise(places):
        if place.overlaps(within):
            raise InvalidOption(
                f"the storage of shard {inner!r}, {within}, overlaps with {place} of {name!r}; "
                "each shard needs a place of its own, where its garbage can be collected",
                option="shards",
            )


def whole_uri(text: str) -> str:
    """Return a path or URI as it was given; `file:/a`, another way to write `file:///a`, is written out.

    Raises:
        InvalidOption: any other `scheme:` that lacks its slashes, or what may hold a password: it would
            become a directory of that name; or a URI that cannot be taken apart.
    """
    if "://" in text.partition("?")[0].partition("=")[0]:
        try:
            urlsplit(text)
        except ValueError:  # its text may hold a password
            raise InvalidOption(
                f"{shown(text)} is not a URI: an IPv6 address stands in brackets, as [::1]", option="uri"
            ) from None
        return text
    if text.startswith("file:/"):
        return f"file://{text.removeprefix('file:')}"
    if shown(text) != text or _SHORT.match(text):
        raise InvalidOption(
            f"{shown(text)} is meant for a URI, but lacks its slashes: write SCHEME://…, or ./NAME for a "
            "directory of that name",
            option="uri",
        )
    return text


def with_home(path: str) -> str:
    """Return a path whose `~` or `~user` at its beginning is written out, as a shell does it.

    Raises:
        InvalidOption: there is no such user.
    """
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError as error:
        raise InvalidOption(
            f"{path} begins with the home of a user that is not known here; write the whole path "
            f"(or ./{path} for a directory of that name)",
            option="path",
        ) from error


def path_or_uri(text: str) -> str:
    """Return the path that a user's text names, without `file:` and `~`, or the URI of another place.

    Raises:
        InvalidOption: as `whole_uri`, `local_directory` and `with_home`.
    """
    text = whole_uri(text)
    return local_directory(text) or with_home(text)


def file_system_at(text: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and the path on it of a user's path or URI.

    Raises:
        InvalidOption: it is a URI of a kind that is not known, or not a whole one.
        OSError: a server does not answer.
    """
    text = path_or_uri(text)
    if "://" not in text:
        return fs.LocalFileSystem(), str(Path(text).absolute())
    try:
        system, path = fs.FileSystem.from_uri(text)
    except pa.ArrowInvalid as error:
        raise InvalidOption(
            f"{shown(text)} is no place for files: {without(error, text)}; write a path, or a URI with "
            "file://, s3://, gs://, abfs:// or hdfs://",
            option="uri",
        ) from as_cause(error, text)
    return system, path
