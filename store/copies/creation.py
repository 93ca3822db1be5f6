"""Creation of a store and its shards: complete, or without a trace.

A marker claims each root before anything else is written there, and the commit of the catalog is the last
step. So a killed process leaves no store. Its directories and markers stay, and no other store uses them
until a person removes them. If a step fails without a kill, everything new is removed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex

from elasticscan.base.clock import Clock
from elasticscan.base.errors import AlreadyExists
from elasticscan.base.hashing import HASH
from elasticscan.base.limits import MAX_SLOTS
from elasticscan.base.redaction import shown
from elasticscan.catalog import Tx, create_catalog, holds_store
from elasticscan.metadata import StoreCreated
from elasticscan.storage import Disk
from elasticscan.store import arguments
from elasticscan.store.arguments import Shards
from elasticscan.store.context import Context
from elasticscan.store.roots import Claims, Location
from elasticscan.topology import Shard, initial_placement

Disks = Callable[[str], Disk]


def first_record(
    location: Location, shards: Shards, tablets: int, slots: int, hash_name: str, retention_seconds: float
) -> StoreCreated:
    """Return the first record of a store; arguments and errors as for `Store.create`."""
    names, roots = arguments.shards(shards)
    slots = arguments.whole_number("slots", slots, 1, MAX_SLOTS)
    tablets = arguments.whole_number("tablets", tablets, 1, MAX_SLOTS)
    retention = arguments.number("retention_seconds", retention_seconds)
    hashed = arguments.choice("hash", hash_name, (HASH,))
    placement = initial_placement(slots, tablets, range(1, len(names) + 1))
    stored = [location.stored_root(name, roots.get(name)) for name in names]
    first = tuple(map(Shard, range(1, len(names) + 1), names, stored))
    return StoreCreated(token_hex(16), hashed, retention, first, placement.tablets, token_hex(16))


def make_store(location: Location, disks: Disks, clock: Clock, new: StoreCreated) -> None:
    """Make a store's catalog, and claim the roots of its first shards.

    Raises as `place_for_store`, and `InvalidOption` if a root belongs to another shard.
    """
    claims = Claims(location, disks, new.store_id, new.incarnation)

    def claim_all(_: Tx) -> None:
        for shard in new.shards:
            claims.claim(shard)

    with place_for_store(location, [shard.root for shard in new.shards]), claims:
        create_catalog(location.catalog_url, clock, new, claim_all)


@contextmanager
def place_for_store(location: Location, roots: Sequence[str]) -> Iterator[None]:
    """Make the directories of a new store and of its stored roots; the block makes the store.

    Raises:
        AlreadyExists: there is a store.
        InvalidOption: a directory cannot be made.
        NotFound: the directory has shards of a store that lost its catalog.
    """
    with suppress(OSError):  # the next check raises a better error
        if holds_store(location.catalog_url):
            where = shown(location.uri)
            raise AlreadyExists(f"{where} already holds a store; open it, or choose another place", uri=where)
    location.check_not_bereft()
    with location.with_directories([location.root(root) for root in roots]):
        yield


@contextmanager
def new_roots(
    context: Context, names: Sequence[str], roots: Mapping[str, str]
) -> Iterator[list[tuple[str, str]]]:
    """Make directories for new shards and yield (name, stored root) pairs; the block adds the shards.

    A shard that the store already has keeps its root, unless another root is given. Raises `InvalidOption` if
    a directory cannot be made.
    """
    location, kept = context.location, {each.name: each.root for each in context.state().shards.values()}
    given = {name: location.stored_root(name, root) for name, root in roots.items()}
    shards = [(name, (kept | given).get(name) or location.stored_root(name, None)) for name in names]
    new = [location.root(root) for name, root in shards if kept.get(name) != root]
    with location.with_directories(new):
        yield shards
