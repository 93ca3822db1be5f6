"""The place of a store: its catalog's URL, and the roots of its shards."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from elasticscan.base.errors import (
    InvalidOption,
    ShardUnavailable,
    StoreDamaged,
    StoreNotFound,
)
from elasticscan.base.permissions import mode_within
from elasticscan.base.showing import brief
from elasticscan.store.roots.aliases import path_or_uri, place_of

CATALOG_FILE = "catalog.db"
SHARDS = "shards"  # the directory of roots within a store's
MARKER = "elasticscan-shard"  # in each shard's root
BACKUP_MARKER = "elasticscan-backup"  # in each place of backups
FROM_ENVIRONMENT = "env:"
PRIVATE = 0o700


@dataclass(frozen=True, slots=True)
class Location:
    """A store directory, or the URL of a catalog database.

    Roots of shards inside a store directory are kept relative to it, so that a store can be
    moved or mounted elsewhere.
    """

    uri: str = field(repr=False)
    directory: Path | None

    @classmethod
    def of(cls, uri: str | Path) -> Location:
        """Return the place of a store; raises `InvalidOption` where none can be."""
        location = cls.of_files(uri)
        if location.uri == ":memory:":
            raise InvalidOption(
                "a store is a directory, also a temporary one: create(tempfile.mkdtemp(), shards=['s1'])",
                option="uri",
            )
        return location

    @classmethod
    def of_files(cls, uri: str | Path) -> Location:
        """Return the place of files, a backup's for example: a directory, or a prefix of a bucket."""
        text = resolve(str(uri))
        if not text:
            raise InvalidOption("the store's uri is empty; name a directory or a database URL", option="uri")
        text = path_or_uri(text)
        return cls(text, None if "://" in text else _absolute(text))

    @property
    def catalog_url(self) -> str | Path:
        """A database's URL, or the path of an SQLite file: in a URL, some characters mean more."""
        return self.uri if self.directory is None else self.directory / CATALOG_FILE

    def exists(self) -> bool:
        """Return whether there is a store.

        Raises:
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
        return True

    def check_not_empty(self) -> None:
        """Raise `StoreDamaged` when the catalog's file, which is there, was cut to nothing."""
        if self.directory is None:
            return
        with self._looking():
            size = (self.directory / CATALOG_FILE).stat().st_size
        if not size:
            raise StoreDamaged(
                f"{self.directory / CATALOG_FILE} is empty; restore it from a backup, or make a new store "
                f"with {repairing(self.directory)} (or, if a store was never made here, remove it)",
                uri=self.uri,
            )

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Look at the store's directory and at its own files; errors are those of `exists`."""
        try:
            yield
        except PermissionError as error:
            raise StoreNotFound(
                f"{self.directory} holds no elasticscan store that this user may read ({error.strerror}); "
                "its owner can let a group read it: docs/security.md says how",
                uri=self.uri,
            ) from error
        except OSError as error:
            raise InvalidOption(
                f"the store's directory {brief(str(self.directory), 200)} cannot be looked into: "
                f"{error.strerror}; check the path",
                option="uri",
            ) from error

    def check_not_bereft(self) -> None:
        """Raise `StoreNotFound` where the directory holds shards, but no catalog, or an empty one."""
        if self.directory is None:
            return
        with self._looking():
            is_bereft = any(
                next(self.directory.glob(f"{SHARDS}/*/{pattern}"), None)
                for pattern in (MARKER, "t[0-9]*/*.arrow")
            )
        if is_bereft:
            lost = (
                f"its catalog ({CATALOG_FILE}) has lost its tables"
                if self.exists()
                else (f"not its catalog ({CATALOG_FILE})")
            )
            raise StoreNotFound(
                f"{self.directory} holds shards of a store, but {lost}; put that "
                f"back from a backup, or make a new store with {repairing(self.directory)}",
                uri=self.uri,
            )

    def _mode(self) -> int:
        """Return the mode of directories made for this store: that of its own, or the owner's alone."""
        return PRIVATE if self.directory is None else mode_within(self.directory.stat().st_mode, True)

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
            return root if "://" in root else str(_absolute(root))
        if self.directory is None:
            raise InvalidOption(
                f"shard {shard!r} needs a root, because the catalog is in a database: pass "
                "shards={name: directory or URI}",
                option="shards",
            )
        return f"{SHARDS}/{shard}"

    def root(self, stored: str) -> str:
        """Return the full root of a shard."""
        if "://" in stored or self.directory is None:
            return stored
        return str(self.directory / stored)

    def is_inside(self, stored: str) -> bool:
        """Return whether a root is part of the store's directory, and is copied with it."""
        if self.directory is None or "://" in stored or Path(stored).is_absolute():
            return False
        # A link may lead out of it: a copy of that is another way to the original's shard.
        return Path(os.path.realpath(self.root(stored))).is_relative_to(os.path.realpath(self.directory))

    def make_root(self, stored: str) -> list[Path]:
        """Make a shard's directory; returns the new directories."""
        root = self.root(stored)
        if "://" in root:
            return []
        try:
            return _make_directory(Path(root), self._mode(), self.directory)
        except OSError as error:
            raise ShardUnavailable(
                f"the shard's storage {root} cannot be made: {error}", root=root
            ) from error


def _absolute(text: str) -> Path:
    """Return the whole path of one that begins, it may be, at the current directory."""
    try:
        return Path(text).absolute()
    except FileNotFoundError as error:
        raise InvalidOption(
            f"{brief(text, 200)} begins at the current directory, which is gone; name the whole path, or "
            "change to a directory that is there",
            option="uri",
        ) from error


def repairing(directory: Path) -> str:
    """Return the command that makes a store without its catalog."""
    return f"`elasticscan repair {directory} NEW`"


def _make_directory(path: Path, mode: int, store: Path | None = None) -> list[Path]:
    """Make a directory of this mode, whatever the umask is, and those above it within the store.

    Returns the new ones, the innermost first.
    """
    if path.is_dir():
        return []
    if store is not None and path.parent.is_relative_to(store):
        above = _make_directory(path.parent, mode, store)
    else:
        above = [parent for parent in path.parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(PRIVATE)
    except FileExistsError:
        if path.is_dir():  # made by another process at the same time
            return above
        raise
    path.chmod(mode)
    return [path, *above]


def remove_directories(made: Iterable[Path]) -> None:
    """Take back directories that were just made, as far as they are empty."""
    for path in sorted(made, key=lambda p: -len(p.parts)):
        with suppress(OSError):
            path.rmdir()


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


def check_outside(root: str, own: Path | None = None) -> None:
    """Raise `InvalidOption` for a place within a store's directory, a shard's root or a place of backups.

    What lies there is the others' alone: it is lost with them, and may be taken for their garbage. So is a
    place that cannot be checked here.

    Args:
        own: a store's directory in which its own shards may lie.
    """
    place = place_of(root)
    mine = None if own is None else Path(os.path.realpath(own))  # which a loop of links does not end
    for directory in () if place.service else Path(place.path).parents:
        try:
            holder = None if directory == mine else _holder(directory)
        except OSError as error:
            raise InvalidOption(
                f"{brief(str(place), 200)} cannot be looked into: {error.strerror}; choose a place that this "
                "user may use, or check the path",
                option="uri",
            ) from error
        if holder is not None:
            raise InvalidOption(
                f"{place} lies within {directory}, {holder}; choose a place alongside it",
                option="uri",
                root=str(place),
            )


def _holder(directory: Path) -> str | None:
    """Return the owner of all that lies in a directory."""
    if (directory / MARKER).is_file():
        return "a shard of a store"
    if (directory / BACKUP_MARKER).is_file():
        return "a place of backups"
    # A catalog alone may be that of a store whose URL names it: its directory is not the store's.
    is_store = (directory / CATALOG_FILE).is_file() and (directory / SHARDS).is_dir()
    return "a store" if is_store else None
