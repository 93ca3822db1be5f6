"""Creation of a store and its shards: wholly, or leaving nothing behind.

Where there is nothing yet, a store is made alongside its place and gets its name when it is whole: so it is
invisible before, two that are made at once do not mix, and what fails is taken back without a doubt of whose
it is. In a directory that is there, in a database and at roots elsewhere a marker claims each root before
anything else is written to it, and the commit of the catalog is the last step. There nothing is taken back
that was not made just now, and nothing that another process has claimed.

A process that is killed leaves no store. What it has made so far stays: alongside the place, by a name that
says that it is unfinished, or as roots with markers, which no store takes over before they are removed.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elasticscan.base.clock import Clock
from elasticscan.base.errors import AlreadyExists, InvalidOption
from elasticscan.base.redaction import shown
from elasticscan.catalog import Catalog, NewStore, Tx, holds_store
from elasticscan.storage import Disk, flush_directory
from elasticscan.store.context import Context
from elasticscan.store.roots import Claims, Location, Marker
from elasticscan.store.roots.aliases import check_apart
from elasticscan.store.roots.location import check_outside, remove_directories
from elasticscan.store.roots.markers import check_free

Disks = Callable[[str], Disk]


@dataclass(frozen=True, slots=True)
class Staging:
    """The place where a store is made that is to be at a location.

    Attributes:
        place: the location, or one alongside it.
    """

    location: Location
    place: Location

    @property
    def is_aside(self) -> bool:
        return self.place is not self.location

    def root(self, stored: str) -> str:
        """Return the root of a shard, as the catalog keeps it, while the store is being made."""
        root = self.location.root(stored)
        if not self.is_aside or "://" in root:
            return root
        assert self.location.directory is not None
        assert self.place.directory is not None
        if not Path(root).is_relative_to(self.location.directory):
            return root
        return str(self.place.directory / Path(root).relative_to(self.location.directory))

    @property
    def moves_to(self) -> Path | None:
        """The path that the catalog's file will have, if that is not the one where it is made."""
        return Path(self.location.catalog_url) if self.is_aside else None

    def settle(self, tx: Tx) -> None:
        """Let a catalog know where it will be."""
        if self.moves_to is not None:
            tx.moves_to(self.moves_to)


@contextmanager
def staging_of(location: Location) -> Iterator[Staging]:
    """Give the place where a store is made; one alongside the location becomes the location after the block.

    Raises:
        AlreadyExists, InvalidOption: meanwhile there is a store, or something else.
    """
    directory = location.directory
    if directory is None or directory.exists() or directory.is_symlink():
        location.make()
        yield Staging(location, location)
        return
    aside = directory.with_name(f"{directory.name[:50]}.unfinished-{secrets.token_hex(4)}")
    place = Location(str(aside), aside)
    made = place.make()
    try:
        yield Staging(location, place)
        try:
            aside.rename(directory)
            flush_directory(directory.parent)
        except OSError as error:
            check_no_store(location)
            raise InvalidOption(
                f"no store can be made at {directory}: {error.strerror}; choose another place", option="uri"
            ) from error
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        remove_directories(made)
        raise


def check_no_store(location: Location) -> None:
    """Raise `AlreadyExists` where there is one."""
    if (location.directory is None or location.exists()) and holds_store(location.catalog_url):
        where = shown(location.uri)
        raise AlreadyExists(f"{where} already holds a store; open it, or choose another place", uri=where)


def make_store(location: Location, disks: Disks, clock: Clock, new: NewStore) -> None:
    """Make a store's catalog, and the roots of its first shards its own.

    Raises:
        AlreadyExists: there is a store.
        InvalidOption: a root is another store's or lies within its places, or two shards have the same.
        StoreNotFound: there are the shards of a store that lost its catalog.
    """
    full = [(name, location.root(root)) for name, root in new.shards]
    check_apart(full)
    opened = [(disks(root), root) for _, root in full]
    if location.exists():
        location.check_not_empty()
    check_no_store(location)
    location.check_not_bereft()
    for disk, root in opened:
        check_outside(root, location.directory)
        check_free(disk, root)
    with staging_of(location) as staging:
        roots = [staging.root(root) for _, root in new.shards]
        claims = Claims()

        def claim_all(tx: Tx) -> None:
            me, shards = tx.identity(), tx.shards()
            ids = [shard.id for shard in shards]
            for shard, root in zip(shards, roots, strict=True):
                marker = Marker(me.store_id, me.incarnation, shard.id, shard.name)
                claims.claim(disks(root), root, marker, ids)

        with take_back_on_error(staging.place, roots), claims.undone_on_errors():
            url, where = staging.place.catalog_url, shown(location.uri)
            Catalog.create(url, clock, where, new, claim_all, staging.moves_to)


@contextmanager
def new_roots(
    context: Context, disks: Disks, names: Sequence[str], roots: Mapping[str, str]
) -> Iterator[list[tuple[str, str]]]:
    """Make directories for shards that the block enters; gives each with its root as it is stored.

    A shard that is there already keeps its root, unless another is given.

    Raises:
        InvalidOption: a root is not free, another shard's, or within a place of others.
    """
    location = context.location
    with context.catalog.reading() as tx:
        kept = {shard.name: shard.root for shard in tx.shards()}
    shards = [
        (
            name,
            kept[name] if name in kept and name not in roots else location.stored_root(name, roots.get(name)),
        )
        for name in names
    ]
    full = [(name, location.root(root)) for name, root in shards if kept.get(name) != root]
    check_apart([(name, location.root(root)) for name, root in kept.items()] + full)
    mine = Marker(context.info.store_id, context.incarnation(), 0, "")
    for _, root in full:
        check_outside(root, location.directory)
        check_free(disks(root), root, mine)
    with take_back_on_error(location, [root for _, root in full]):
        yield shards


@contextmanager
def take_back_on_error(location: Location, roots: Iterable[str]) -> Iterator[None]:
    """Make the directories of roots; remove the empty ones when the block fails."""
    made: list[Path] = []
    try:
        for root in roots:
            made += location.make_root(root)
        yield
    except BaseException:
        remove_directories(made)
        raise
