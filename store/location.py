"""Where a store is: its catalog's URL, and the roots of its shards."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from elasticscan.base.errors import InvalidOption, ShardUnavailable, StoreDamaged
from elasticscan.store.aliases import with_home

CATALOG_FILE = "catalog.db"


@dataclass(frozen=True, slots=True)
class Location:
    """A store directory, or the URL of a catalog database.

    Roots of shards inside a store directory are kept relative to it, so that a store can be
    moved or mounted elsewhere.
    """

    uri: str
    directory: Path | None

    @classmethod
    def of(cls, uri: str | Path) -> Location:
        text = str(uri)
        if not text:
            raise InvalidOption("the store's uri is empty; name a directory or a database URL", option="uri")
        if text.startswith("file://"):
            text = text.removeprefix("file://")
        text = with_home(text)
        return cls(text, None if "://" in text else Path(text).absolute())

    @property
    def catalog_url(self) -> str | Path:
        """A database's URL, or the path of an SQLite file: in a URL, some characters mean more."""
        return self.uri if self.directory is None else self.directory / CATALOG_FILE

    def exists(self) -> bool:
        return self.directory is None or (self.directory / CATALOG_FILE).is_file()

    def check_not_empty(self) -> None:
        """Raises `StoreDamaged` when the catalog's file was cut to nothing."""
        if self.directory is not None and (self.directory / CATALOG_FILE).stat().st_size == 0:
            raise StoreDamaged(
                f"{self.directory / CATALOG_FILE} is empty; restore it from a backup (or, if a store was "
                "never made here, remove it)",
                uri=self.uri,
            )

    def make(self) -> list[Path]:
        """The store's directory; returns what was made."""
        if self.directory is None:
            return []
        try:
            return _make_directories(self.directory)
        except OSError as error:
            raise InvalidOption(
                f"{self.directory} cannot be made a store: {error}; name a directory that can be written",
                option="uri",
            ) from error

    def remove_catalog(self) -> None:
        """Of a directory that was just made, and holds no store after all."""
        if self.directory is not None:
            for rest in ("", "-wal", "-shm"):
                (self.directory / (CATALOG_FILE + rest)).unlink(missing_ok=True)

    def stored_root(self, shard: str, given: str | None) -> str:
        """A shard's root as the catalog keeps it."""
        if given is not None:
            return given if "://" in given else str(Path(with_home(given)).absolute())
        if self.directory is None:
            raise InvalidOption(
                f"shard {shard!r} needs a root, because the catalog is in a database: pass "
                "shards={name: directory or URI}",
                option="shards",
            )
        return f"shards/{shard}"

    def root(self, stored: str) -> str:
        """The full root of a shard."""
        if "://" in stored or self.directory is None:
            return stored
        return str(self.directory / stored)

    def is_inside(self, stored: str) -> bool:
        """A root that is part of the store's directory, and is copied with it."""
        return self.directory is not None and "://" not in stored and not Path(stored).is_absolute()

    def make_root(self, stored: str) -> list[Path]:
        """A shard's directory; returns what was made."""
        root = self.root(stored)
        if "://" in root:
            return []
        try:
            return _make_directories(Path(root))
        except OSError as error:
            raise ShardUnavailable(
                f"the shard's storage {root} cannot be made: {error}", root=root
            ) from error


def _make_directories(path: Path) -> list[Path]:
    """Make a directory and those above it; returns the new ones, the innermost first."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return new


def remove_directories(made: Iterable[Path]) -> None:
    """Take back directories that were just made, as far as they are empty."""
    for path in sorted(made, key=lambda each: -len(each.parts)):
        with suppress(OSError):
            path.rmdir()
