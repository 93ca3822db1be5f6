"""Creation of a store and its shards: wholly, or leaving nothing behind.

A marker claims each root before anything else is written to it, and the commit of the catalog is the last
step. So a process that is killed leaves no store. What it made so far stays, roots with markers for example,
and no store takes that over: a person removes it first. What fails is taken back, as far as it is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from elasticscan.base.clock import Clock
from elasticscan.base.errors import AlreadyExists
from elasticscan.base.hashing import HASH
from elasticscan.base.limits import MAX_SLOTS
from elasticscan.base.redaction import shown
from elasticscan.catalog import Catalog, NewStore, Tx, holds_store
from elasticscan.storage import Disk
from elasticscan.store import arguments
from elasticscan.store.arguments import Shards
from elasticscan.store.context import Context
from elasticscan.store.roots import Claims, Location, Marker
from elasticscan.store.roots.location import SHARDS, check_apart, check_outside, remove_directories
from elasticscan.store.roots.markers import check_free
from elasticscan.topology import initial_placement

Disks = Callable[[str], Disk]


def first_contents(
    location: Location, shards: Shards, tablets: int, slots: int, hash_name: str, retention_seconds: float
) -> NewStore:
    """Return the first contents of a store; arguments and errors as of `Store.create`."""
    names, roots = arguments.shards(shards)
    slots = arguments.whole_number("slots", slots, 1, MAX_SLOTS)
    tablets = arguments.whole_number("tablets", tablets, 1, MAX_SLOTS)
    retention = arguments.number("retention_seconds", retention_seconds)
    hashed = arguments.choice("hash", hash_name, (HASH,))
    placement = initial_placement(slots, tablets, range(1, len(names) + 1))
    stored = tuple((name, location.stored_root(name, roots.get(name))) for name in names)
    return NewStore(stored, placement, hashed, retention)


def make_store(location: Location, disks: Disks, clock: Clock, new: NewStore) -> None:
    """Make a store's catalog, and the roots of its first shards its own.

    Raises:
        AlreadyExists, InvalidOption, StoreNotFound: as `place_for_store`.
    """
    claims = Claims()

    def claim_all(tx: Tx) -> None:
        me, shards = tx.identity(), tx.state.shards.values()
        for shard in shards:
            root = location.root(shard.root)
            marker = Marker(me.store_id, me.incarnation, shard.id, shard.name)
            claims.claim(disks(root), root, marker, [each.id for each in shards])

    with place_for_store(location, new.shards, disks), claims.undone_on_errors():
        Catalog.create(location.catalog_url, clock, shown(location.uri), new, claim_all)


def check_no_store(location: Location) -> None:
    """Raise `AlreadyExists` where there is one."""
    if (location.directory is None or location.exists()) and holds_store(location.catalog_url):
        where = shown(location.uri)
        raise AlreadyExists(f"{where} already holds a store; open it, or choose another place", uri=where)


@contextmanager
def place_for_store(location: Location, shards: Sequence[tuple[str, str]], disks: Disks) -> Iterator[None]:
    """Make the directories of a store that the block makes, and of its shards (name, root as it is stored).

    Raises:
        AlreadyExists: there is a store.
        InvalidOption: a root is another store's or lies within its places, or two shards have the same.
        StoreNotFound: there are the shards of a store that lost its catalog.
    """
    check_no_store(location)
    location.check_not_bereft()
    if location.directory is not None:
        check_outside(str(location.directory / SHARDS))
    with _free_roots(location, [(name, location.root(root)) for name, root in shards], disks):
        yield


@contextmanager
def new_roots(
    context: Context, names: Sequence[str], roots: Mapping[str, str]
) -> Iterator[list[tuple[str, str]]]:
    """Make directories for shards that the block enters; gives each with its root as it is stored.

    A shard that is there already keeps its root, unless another is given.

    Raises:
        InvalidOption: a root is not free, another shard's, or within a place of others.
    """
    location = context.location
    with context.catalog.reading() as tx:
        kept = {shard.name: shard.root for shard in tx.state.shards.values()}
    shards = [
        (
            name,
            kept[name] if name in kept and name not in roots else location.stored_root(name, roots.get(name)),
        )
        for name in names
    ]
    full = [(name, location.root(root)) for name, root in shards if kept.get(name) != root]
    others = [(name, location.root(root)) for name, root in kept.items()]
    mine = Marker(context.info.store_id, context.incarnation(), 0, "")
    with _free_roots(location, full, context.open_disk, others, mine):
        yield shards


@contextmanager
def _free_roots(
    location: Location,
    roots: Sequence[tuple[str, str]],
    disks: Disks,
    others: Sequence[tuple[str, str]] = (),
    mine: Marker | None = None,
) -> Iterator[None]:
    """Make the directories of roots that nothing else has; remove the empty ones when the block fails.

    Args:
        roots, others: of new shards, and of the store's own shards: names and full roots.
        mine: as for `check_free`.
    """
    check_apart([*others, *roots])
    for _, root in roots:
        check_outside(root, location.directory)
        check_free(disks(root), root, mine)
    made: list[Path] = []
    try:
        made += location.make()
        for _, root in roots:
            made += location.make_root(root)
        yield
    except BaseException:
        remove_directories(made)
        raise
