"""Creation of a store and its shards: wholly, or leaving nothing behind.

A store is there from the commit of its catalog on, and its roots' markers are written before that. A process
that is killed leaves at most files and markers that no catalog knows, and whoever makes the store there again
goes on with them.
"""

from __future__ import annotations

import errno
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from elasticscan.base.clock import Clock
from elasticscan.base.errors import AlreadyExists, InvalidOption
from elasticscan.base.redaction import shown
from elasticscan.catalog import Catalog, NewStore, Tx, holds_store
from elasticscan.storage import Disk, flush_directory
from elasticscan.store.context import Context
from elasticscan.store.copies.disks import disk_at
from elasticscan.store.roots import Claims, Location, Marker
from elasticscan.store.roots.aliases import check_apart
from elasticscan.store.roots.location import check_outside, remove_directories
from elasticscan.store.roots.markers import check_free

Disks = Callable[[str], Disk]


def make_store(location: Location, disks: Disks, clock: Clock, new: NewStore) -> None:
    """Make a store's catalog, and the roots of its first shards its own.

    Raises:
        AlreadyExists: there is a store.
        InvalidOption: a root is another store's or lies within its places, or two shards have the same.
        StoreNotFound: there are the shards of a store that lost its catalog.
    """
    full = [(name, location.root(root)) for name, root in new.shards]
    check_apart(full)
    opened = [disk_at(disks, root) for _, root in full]
    remains = [() if location.is_inside(root) else None for _, root in new.shards]
    if location.holds_rows() and location.exists():
        location.check_not_empty()
    if not holds_store(location.catalog_url):  # else Catalog.create raises AlreadyExists
        location.check_not_bereft()
        for disk, (_, root), left in zip(opened, full, remains, strict=True):
            check_outside(root, location.directory)
            check_free(disk, root, remains=left)

    claims = Claims()

    def claim_all(tx: Tx) -> None:
        me, shards = tx.identity(), tx.shards()
        ids = [shard.id for shard in shards]
        for shard, disk, left in zip(shards, opened, remains, strict=True):
            marker = Marker(me.store_id, me.incarnation, shard.id, shard.name)
            claims.claim(disk, location.root(shard.root), marker, ids, left)

    with (
        take_back_on_error(location, [root for _, root in new.shards], catalog=True),
        claims.undone_on_errors(),
    ):
        Catalog.create(location.catalog_url, clock, shown(location.uri), new, claim_all)


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
        check_free(disk_at(disks, root), root, mine)
    with take_back_on_error(
        location, [root for name, root in shards if kept.get(name) != root], catalog=False
    ):
        yield shards


@contextmanager
def made_aside(location: Location) -> Iterator[Path]:
    """Give a place beside a store's, for a store that takes longer to make; it gets its name after the block.

    When the block fails, what is there goes again. Of a process that is killed it stays, by a name that says
    that it is unfinished, and is no store at `location`.

    Raises:
        AlreadyExists: there is a store.
        InvalidOption: there is something else, or there can be no directory.
    """
    directory = location.directory
    if directory is None:
        raise InvalidOption(
            f"{shown(location.uri)} is a database; name a directory that is not there yet", option="into"
        )
    if location.exists():
        raise AlreadyExists(f"{directory} already holds a store; choose another place", uri=str(directory))
    aside = directory.with_name(f"{directory.name}.unfinished-{secrets.token_hex(4)}")
    new = [aside, *(parent for parent in directory.parents if not parent.exists())]
    with _told_of(directory):
        if directory.is_symlink() or (directory.exists() and any(directory.iterdir())):
            raise OSError(errno.ENOTEMPTY, "it is not an empty directory")
    try:
        yield aside
        with _told_of(directory):
            aside.rename(directory)
            flush_directory(directory.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        remove_directories(new)
        raise


@contextmanager
def _told_of(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidOption(
            f"no store can be made at {directory}: {error.strerror}; name a directory that is not there yet",
            option="into",
        ) from error


@contextmanager
def take_back_on_error(location: Location, roots: Sequence[str], catalog: bool) -> Iterator[None]:
    """Make directories; when the block fails, those that are empty go again."""
    made: list[Path] = []
    try:
        if catalog:
            made += location.make()
        for root in roots:
            made += location.make_root(root)
        yield
    except BaseException:
        if location.directory in made:
            with suppress(OSError):  # the error that led here says what is the matter
                location.remove_catalog()
        remove_directories(made)
        raise
