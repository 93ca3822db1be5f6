"""Paths and URIs that users pass, of stores, roots of shards, backups and files.

They are not compared as text: two may lead to the same place. The marker in each root names its owner.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from elasticscan.base.errors import InvalidOption, NotFound
from elasticscan.base.formatting import brief
from elasticscan.base.permissions import mode_within
from elasticscan.base.redaction import as_cause, shown, without

CATALOG_FILE = "catalog.db"
SHARDS = "shards"  # directory of the roots inside a store's directory
MARKER = "elasticscan-shard"  # file in each shard's root
FROM_ENVIRONMENT = "env:"
PRIVATE = 0o700

# Text that looks like a URI, but lacks the two slashes.
_SHORT = re.compile(r"file:|[a-z][a-z0-9+.-]+:/(?!/)", re.IGNORECASE)


# Texts


def resolve(uri: str) -> str:
    """Return the URI; `env:NAME` stands for the value of an environment variable, which may be secret."""
    if not uri.startswith(FROM_ENVIRONMENT):
        return uri
    name = uri.removeprefix(FROM_ENVIRONMENT)
    value = os.environ.get(name)
    if not value:
        raise InvalidOption(
            f"{uri} names the environment variable {name!r}, which is not set here; set it where the store "
            "is opened (for Spark, at the driver)",
            option="uri",
        )
    return value


def path_or_uri(text: str) -> str:
    """Return a local path, with `file:` removed and `~` expanded, or a URI unchanged.

    Raises `InvalidOption` for an incomplete URI: as a path, its password would be in a directory's name.
    """
    if "://" in text.partition("?")[0].partition("=")[0] or text.startswith("file:/"):
        with suppress(ValueError):  # an invalid host
            parts = urlsplit(text)
            if parts.scheme.lower() != "file":
                return text
            path = unquote(parts.path)
            is_here = parts.netloc.lower() in ("", "localhost") and path and "\0" not in path
            if is_here and not parts.query and not parts.fragment:
                return f"/{path.lstrip('/')}"
    elif shown(text) == text and not _SHORT.match(text):
        return os.path.expanduser(text)  # noqa: PTH111 - a text is made of a text
    raise InvalidOption(
        f"{shown(text)} names no place; write a path, file:///PATH with %3F and %23 for '?' and '#', or a "
        "whole URI, SCHEME://…",
        option="uri",
    )


def file_system_at(text: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path on it. Raises `InvalidOption`, `OSError`."""
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


# Stores


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a store or a backup: the absolute path of a directory, or the URL of a catalog database.

    The catalog stores roots inside the store's directory as relative paths, so that a store can be moved.
    """

    uri: str = field(repr=False)
    directory: Path | None

    @classmethod
    def of(cls, uri: str | Path) -> Location:
        """Return the place for a path or URI. Raises `InvalidOption` if it is neither."""
        text = resolve(str(uri))
        if not text:
            raise InvalidOption("the store's uri is empty; name a directory or a database URL", option="uri")
        text = path_or_uri(text)
        if "://" in text:
            return cls(text, None)
        directory = Path(text).absolute()
        return cls(str(directory), directory)

    @property
    def catalog_url(self) -> str | Path:
        """A database's URL, or the path of an SQLite file (not a URL, where '?' and '#' have a meaning)."""
        return self.uri if self.directory is None else self.directory / CATALOG_FILE

    def check_not_bereft(self) -> None:
        """Raise `NotFound` if the directory is unreadable, or has parts of a store without its catalog.

        Such parts are shards, or an SQLite WAL with the last commits of a process that was killed.
        """
        directory = Path(self.uri)
        names = () if self.directory is None else (MARKER, "t[0-9]*/*.arrow")
        catalog, commits = directory / CATALOG_FILE, directory / f"{CATALOG_FILE}-wal"
        try:
            is_lost = not (catalog.is_file() and catalog.stat().st_size)
            is_bereft = (is_lost and commits.is_file() and commits.stat().st_size > 0) or any(
                any(directory.glob(f"{SHARDS}/*/{name}")) for name in names
            )
        except OSError as error:
            raise NotFound(
                f"{brief(self.uri, 200)} cannot be read: {error.strerror}; check the path, "
                "or let its owner open it to a group (docs/security.md)",
                uri=self.uri,
                kind="store",
            ) from error
        if is_bereft:
            raise NotFound(
                f"{self.uri} holds parts of a store, but {CATALOG_FILE} is missing or empty; restore it "
                f"from a backup, use `elasticscan repair {self.uri} NEW`, or remove what was never a store",
                uri=self.uri,
                kind="store",
            )

    def stored_root(self, shard: str, root: str | None) -> str:
        """Return a shard's root as the catalog stores it, relative if it is inside the store's directory."""
        if root is not None:
            root = path_or_uri(root)
            return root if "://" in root else str(Path(root).absolute())
        if self.directory is None:
            raise InvalidOption(
                f"shard {shard!r} needs a root, as the catalog is in a database: name a directory or a URI",
                option="shards",
            )
        return f"{SHARDS}/{shard}"

    def root(self, stored: str) -> str:
        """Return the absolute path or URI of a stored root."""
        return stored if "://" in stored or self.directory is None else str(self.directory / stored)

    @contextmanager
    def with_directories(self, roots: Collection[str] = ()) -> Iterator[None]:
        """Make the missing directories of the store and of absolute roots, then run the block.

        If the block raises, new directories without files are removed again. A new store's directory is
        private to this user; roots have the permissions of the store's directory.
        """
        store, created = self.directory, list[Path]()
        paths = [Path(root) for root in roots if "://" not in root]
        for path in paths:
            if store is not None and Path(os.path.realpath(store)).is_relative_to(os.path.realpath(path)):
                raise InvalidOption(
                    f"{brief(str(path), 200)} holds the store itself; choose a place within or outside of it",
                    option="uri",
                )
        paths = paths if store is None else [store, *paths]
        for path in paths:
            _check_outside(path)
        try:
            for path in paths:
                _make_directory(path, store, created)
            yield
        except BaseException:
            for path in reversed(created):
                for directory, _, _ in os.walk(path, topdown=False):
                    with suppress(OSError):
                        Path(directory).rmdir()
            raise


def _check_outside(path: Path) -> None:
    """Raise `InvalidOption` for a directory inside a shard's root: it would be lost with the shard."""
    place = Path(os.path.realpath(path))
    for directory in place.parents:
        if os.path.isfile(directory / MARKER):  # noqa: PTH113 - false if this user may not read it
            raise InvalidOption(
                f"{brief(str(place), 200)} lies within {directory}, the storage of a shard; choose a place "
                "outside of it",
                option="uri",
            )


def _make_directory(path: Path, store: Path | None, created: list[Path]) -> None:
    """Make a directory and its parents, independently of the umask; append new ones to `created`."""
    try:
        mode = PRIVATE if store in (None, path) else mode_within(store.stat().st_mode, True)
        for directory in [each for each in (path, *path.parents) if not each.exists()][::-1]:
            is_ours = directory == path or (store is not None and directory.is_relative_to(store))
            with suppress(FileExistsError):  # another process made it: it must not be removed after an error
                directory.mkdir(PRIVATE if is_ours else 0o777)
                created.append(directory)
            if is_ours:
                directory.chmod(mode)
    except OSError as error:
        raise InvalidOption(
            f"{brief(str(path), 200)} cannot be made: {error.strerror}; name a directory that can be written",
            option="uri",
        ) from error
