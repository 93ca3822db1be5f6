"""Places as users name them: of a store, of the roots of its shards, of backups and of files.

No two texts are compared: they may lead to one place. The marker in each root says whose it is.
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
SHARDS = "shards"  # the directory of roots within a store's
MARKER = "elasticscan-shard"  # in each shard's root
FROM_ENVIRONMENT = "env:"
PRIVATE = 0o700

# Text that is meant for a URI, but lacks its two slashes.
_SHORT = re.compile(r"file:|[a-z][a-z0-9+.-]+:/(?!/)", re.IGNORECASE)


# Texts


def resolve(uri: str) -> str:
    """Return the URI itself, or the one in an environment variable (`env:NAME`), for URLs with passwords."""
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
    """Return the path that a user's text names, without `file:` and `~`, or the URI of another place.

    Raises `InvalidOption` for a part of a URI: it may hold a password, and would become a directory's name.
    """
    if "://" in text.partition("?")[0].partition("=")[0] or text.startswith("file:/"):
        with suppress(ValueError):  # the host is not one
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
    """Return the file system and the path on it of a user's text. Raises `InvalidOption`, `OSError`."""
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
    """A store directory, whose URI is its absolute path, or the URL of a catalog database; also of a backup.

    Roots of shards inside a store directory are kept relative to it, so that a store can be moved.
    """

    uri: str = field(repr=False)
    directory: Path | None

    @classmethod
    def of(cls, uri: str | Path) -> Location:
        """Return the place that a user's text names; raises `InvalidOption` where that is none."""
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
        """A database's URL, or the path of an SQLite file: in a URL, some characters mean more."""
        return self.uri if self.directory is None else self.directory / CATALOG_FILE

    def check_not_bereft(self) -> None:
        """Raise `NotFound` where this user may not look, or a store's parts lie, without its catalog.

        These are shards, or the newest commits of a process that was killed, next to where the catalog was.
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
                f"{brief(self.uri, 200)} cannot be looked into: {error.strerror}; check the path, "
                "or let its owner open it to a group (docs/security.md)",
                uri=self.uri,
                kind="store",
            ) from error
        if is_bereft:
            raise NotFound(
                f"{self.uri} holds parts of a store, but {CATALOG_FILE} is missing or has none; restore it "
                f"from a backup, use `elasticscan repair {self.uri} NEW`, or remove what was never a store",
                uri=self.uri,
                kind="store",
            )

    def stored_root(self, shard: str, root: str | None) -> str:
        """Return a shard's root as the catalog keeps it."""
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
        """Return the full root of a shard."""
        return stored if "://" in stored or self.directory is None else str(self.directory / stored)

    @contextmanager
    def with_directories(self, roots: Collection[str] = ()) -> Iterator[None]:
        """Make the store's directory, and those of full roots, where they are missing, for a block.

        When that raises, those in which no file is are removed. What is made is this user's alone, but shards
        are open to whom the store's directory is.
        """
        store, made = self.directory, list[Path]()
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
                _make_directory(path, store, made)
            yield
        except BaseException:
            for path in reversed(made):
                for directory, _, _ in os.walk(path, topdown=False):
                    with suppress(OSError):
                        Path(directory).rmdir()
            raise


def _check_outside(path: Path) -> None:
    """Raise `InvalidOption` for a directory within a shard's: it would be lost with the shard."""
    place = Path(os.path.realpath(path))
    for directory in place.parents:
        if os.path.isfile(directory / MARKER):  # noqa: PTH113 - false where this user may not look
            raise InvalidOption(
                f"{brief(str(place), 200)} lies within {directory}, the storage of a shard; choose a place "
                "outside of it",
                option="uri",
            )


def _make_directory(path: Path, store: Path | None, made: list[Path]) -> None:
    """Make a directory, whatever the umask is, and those above it; note the new ones."""
    try:
        mode = PRIVATE if store in (None, path) else mode_within(store.stat().st_mode, True)
        for directory in [each for each in (path, *path.parents) if not each.exists()][::-1]:
            made.append(directory)
            if directory == path or (store is not None and directory.is_relative_to(store)):
                directory.mkdir(PRIVATE, exist_ok=True)  # another process may make it at the same time
                directory.chmod(mode)
            else:
                directory.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidOption(
            f"{brief(str(path), 200)} cannot be made: {error.strerror}; name a directory that can be written",
            option="uri",
        ) from error
