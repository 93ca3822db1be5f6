"""Places as users name them: of a store, of the roots of its shards, of backups and of files.

Two texts that name one directory or one prefix are found to be equal. Text alone cannot tell everything (a
bind mount, two names of one server); the marker in each root does (`store/roots/markers.py`).
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from elasticscan.base.errors import InvalidOption, ShardUnavailable, StoreDamaged, StoreNotFound
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
    """Return the URI itself, or the one that an environment variable holds: `env:NAME`.

    So a URL with a password need not stand in a command line, a notebook or a Spark plan.
    """
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

    Raises:
        InvalidOption: it is no whole URI, and may hold a password: it would become a directory of that name;
            or a `file:` URI of another machine.
    """
    if "://" not in text.partition("?")[0].partition("=")[0] and not text.startswith("file:/"):
        if shown(text) != text or _SHORT.match(text):
            raise InvalidOption(
                f"{shown(text)} is meant for a URI, but lacks its slashes: write SCHEME://…, or ./NAME for a "
                "directory of that name",
                option="uri",
            )
        return os.path.expanduser(text)  # noqa: PTH111 - a text is made of a text
    try:
        parts = urlsplit(text)
    except ValueError:  # its text may hold a password
        raise InvalidOption(
            f"{shown(text)} is not a URI: an IPv6 address stands in brackets, as [::1]", option="uri"
        ) from None
    if parts.scheme.lower() != "file":
        return text
    is_here = parts.netloc.lower() in ("", "localhost") and parts.path and "\0" not in unquote(parts.path)
    if not is_here or parts.query or parts.fragment:
        raise InvalidOption(
            f"{shown(text)} names no directory of this machine; write file:///PATH, with %3F and %23 for '?' "
            "and '#', or the path alone",
            option="uri",
        )
    return _path_in(parts.path)


def _path_in(escaped: str) -> str:
    return posixpath.normpath("/" + unquote(escaped).lstrip("/"))


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


# Places that are compared


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
        one, two = f"{self.path.rstrip('/')}/", f"{place.path.rstrip('/')}/"
        return self.service == place.service and (one.startswith(two) or two.startswith(one))

    def __str__(self) -> str:
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


def check_outside(root: str, own: Path | None = None) -> None:
    """Raise `InvalidOption` for a store's directory, a place within one or within a shard, or an unknown one.

    What lies there is the others' alone: it is lost with them, and may be taken for their garbage.

    Args:
        own: a store's directory in which its own shards may lie.
    """
    place = place_of(root)
    mine = None if own is None else Path(os.path.realpath(own))  # which a loop of links does not end
    path = Path(place.path)
    for directory in () if place.service else (path, *path.parents):
        with _looking_into(place.path):
            # A catalog alone may be that of a store whose URL names it: its directory is not the store's.
            is_store = (directory / CATALOG_FILE).is_file() and (directory / SHARDS).is_dir()
            is_shard = directory != path and (directory / MARKER).is_file()
        if directory != mine and (is_store or is_shard):
            raise InvalidOption(
                f"{place} lies within {directory}, {'a store' if is_store else 'a shard of a store'}; choose "
                "a place alongside it",
                option="uri",
                root=str(place),
            )


@contextmanager
def _looking_into(path: object) -> Iterator[None]:
    """Raise `InvalidOption` for a place of which the system does not tell what is there."""
    try:
        yield
    except OSError as error:
        raise InvalidOption(
            f"{brief(str(path), 200)} cannot be looked into: {error.strerror}; check the path, or choose a "
            "place that this user may use",
            option="uri",
        ) from error


# Stores


@dataclass(frozen=True, slots=True)
class Location:
    """A store directory, or the URL of a catalog database; also the place of a backup.

    Roots of shards inside a store directory are kept relative to it, so that a store can be
    moved or mounted elsewhere.
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
        return cls(text, None if "://" in text else Path(text).absolute())

    @property
    def text(self) -> str:
        """The whole path of the directory, or the URI."""
        return str(self.directory or self.uri)

    @property
    def catalog_url(self) -> str | Path:
        """A database's URL, or the path of an SQLite file: in a URL, some characters mean more."""
        return self.uri if self.directory is None else self.directory / CATALOG_FILE

    def exists(self) -> bool:
        """Return whether there is a store.

        Raises:
            StoreDamaged: the catalog's file, which is there, was cut to nothing.
            StoreNotFound: this user may not look, so it is as if there were none.
            InvalidOption: it cannot be checked.
        """
        if self.directory is None:
            return True
        file = self.directory / CATALOG_FILE
        with self._looking():
            if not file.is_file():
                return False
            if not os.access(file, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            size = file.stat().st_size
        if not size:
            raise StoreDamaged(
                f"{file} is empty; restore it from a backup, or make a new store with "
                f"{self._repairing()} (or, if a store was never made here, remove it)",
                uri=self.uri,
            )
        return True

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Look at the store's directory and at its own files; errors are those of `exists`."""
        with _looking_into(self.directory):
            try:
                yield
            except PermissionError as error:
                raise StoreNotFound(
                    f"{self.directory} holds no elasticscan store that this user may read "
                    f"({error.strerror}); its owner can let a group read it: docs/security.md says how",
                    uri=self.uri,
                ) from error

    def check_not_bereft(self) -> None:
        """Raise `StoreNotFound` where the directory holds shards, but no catalog, or one without a store."""
        if self.directory is None:
            return
        with self._looking():
            is_bereft = any(
                next(self.directory.glob(f"{SHARDS}/*/{pattern}"), None)
                for pattern in (MARKER, "t[0-9]*/*.arrow")
            )
        if is_bereft:
            raise StoreNotFound(
                f"{self.directory} holds shards, but {CATALOG_FILE} is missing or without tables; put it "
                f"back, or use {self._repairing()} (or, if a store was never made here, remove it)",
                uri=self.uri,
            )

    def _repairing(self) -> str:
        """Return the command that makes a store without its catalog."""
        return f"`elasticscan repair {self.directory} NEW`"

    def make(self) -> list[Path]:
        """Make the store's directory, for this user alone, if it is not there; returns the new ones."""
        if self.directory is None:
            return []
        try:
            return _make_directory(self.directory, PRIVATE)
        except OSError as error:
            raise InvalidOption(
                f"{self.directory} cannot be made a store: {error}; name a directory that can be written",
                option="uri",
            ) from error

    def stored_root(self, shard: str, root: str | None) -> str:
        """Return a shard's root as the catalog keeps it."""
        if root is not None:
            root = path_or_uri(root)
            return root if "://" in root else str(Path(root).absolute())
        if self.directory is None:
            raise InvalidOption(
                f"shard {shard!r} needs a root, because the catalog is in a database: name "
                "a directory or a URI for it",
                option="shards",
            )
        return f"{SHARDS}/{shard}"

    def root(self, stored: str) -> str:
        """Return the full root of a shard."""
        if "://" in stored or self.directory is None:
            return stored
        return str(self.directory / stored)

    def make_root(self, root: str) -> list[Path]:
        """Make a shard's directory, its full root; returns the new directories."""
        if "://" in root:
            return []
        # As the store's own says who may read the store, or for the owner alone.
        mode = PRIVATE if self.directory is None else mode_within(self.directory.stat().st_mode, True)
        try:
            return _make_directory(Path(root), mode, self.directory)
        except OSError as error:
            raise ShardUnavailable(
                f"the shard's storage {root} cannot be made: {error}", root=root
            ) from error


def _make_directory(path: Path, mode: int, store: Path | None = None) -> list[Path]:
    """Make a directory of this mode, whatever the umask is, and those above it within the store.

    Returns the new ones, the innermost first.
    """
    new = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(new):
        if directory == path or (store is not None and directory.is_relative_to(store)):
            directory.mkdir(PRIVATE, exist_ok=True)  # another process may make it at the same time
            directory.chmod(mode)
        else:
            directory.mkdir(exist_ok=True)
    return new


def remove_directories(made: Iterable[Path]) -> None:
    """Take back directories that were just made, with those in them, as far as they hold no file."""
    for path in sorted(made, key=lambda p: -len(p.parts)):
        for directory, _, _ in os.walk(path, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()
