"""Where a store is: its catalog's URL, and the roots of its shards."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from elasticscan.base.errors import InvalidOption, ShardUnavailable, StoreDamaged

CATALOG_FILE = "catalog.db"
FROM_ENVIRONMENT = "env:"


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
        text = resolved(str(uri))
        if not text:
            raise InvalidOption("the store's uri is empty; name a directory or a database URL", option="uri")
        if text.startswith("file://"):
            text = text.removeprefix("file://")
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

    def make(self) -> None:
        if self.directory is None:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidOption(
                f"{self.directory} cannot be made a store: {error}; name a directory that can be written",
                option="uri",
            ) from error

    def stored_root(self, shard: str, given: str | None) -> str:
        """A shard's root as the catalog keeps it."""
        if given is not None:
            return given if "://" in given else str(Path(given).absolute())
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

    def make_root(self, stored: str) -> None:
        root = self.root(stored)
        if "://" in root:
            return
        try:
            Path(root).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ShardUnavailable(
                f"the shard's storage {root} cannot be made: {error}", root=root
            ) from error


def resolved(uri: str) -> str:
    """The URI itself, or the one that an environment variable holds: `env:NAME`.

    So a URL with a password need not stand in a command line, a notebook or a Spark plan.
    """
    if not uri.startswith(FROM_ENVIRONMENT):
        return uri
    name = uri.removeprefix(FROM_ENVIRONMENT)
    found = os.environ.get(name)
    if not found:
        raise InvalidOption(
            f"{uri} names the environment variable {name!r}, which is not set here; set it where the store "
            "is opened: for Spark, where the driver is started",
            option="uri",
        )
    return found
