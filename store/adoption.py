"""Adoption: a copy becomes a store of its own, or a store goes on from an older catalog.

Both begin a new *incarnation*: with another secret, so that keys and offsets of the other copy are
refused, and with markers that name it in all roots, so that no root belongs to two catalogs.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, replace

from elasticscan.base.errors import ElasticScanError, ShardUnavailable
from elasticscan.base.redaction import shown
from elasticscan.catalog import StoreState, take_incarnation
from elasticscan.storage import newest_commit_of
from elasticscan.store.context import Context
from elasticscan.store.roots import Marker
from elasticscan.store.roots.markers import alone_at, check_owner, read_marker, write_marker
from elasticscan.topology import Shard


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of an adoption.

    Attributes:
        incarnation: the new one.
        commits: (the catalog's newest commit, the newest that the shards knew); commits in between are lost.
    """

    incarnation: str
    commits: tuple[int, int]


def adopt(context: Context) -> Adopted:
    """Make this catalog the owner of its shards, whatever another copy of it did since.

    Commits that it does not know are lost; their files become orphans, which stay for a while.
    Commit numbers go on beyond them.

    Raises:
        ShardUnavailable: a shard is away, or has no marker and lacks files that the catalog refers to.
        WrongRoot, StoreDamaged: a root is another shard's, or the catalog is not as it was written.
    """
    seen = context.known.versions  # also beyond what the shards know
    context.roots.take_any_catalog()
    context.catalog.check_whole()
    with context.catalog.leasing() as tx:
        before, active = tx.state, tx.state.shards
        gone, live = {(file.shard, file.path) for file in before.removed_files()}, dict[int, set[str]]()
        for shard, path in before.known_paths() - gone:
            live.setdefault(shard, set()).add(path)
        known = [_known_at(context, shard, live.get(shard.id, set())) for shard in active.values()]
        layout, commit = map(max, zip(seen, *known, strict=True))
        adopted = replace(before, incarnation=secrets.token_hex(16), layout=layout, commit=commit)
        for every in before.all_shards:
            _take_over(context, every.id, adopted, every.id in active)
        take_incarnation(tx, adopted.incarnation, adopted.versions)
    context.roots.note_newest(active)
    return Adopted(adopted.incarnation, (before.commit, commit))


def _known_at(context: Context, shard: Shard, live: set[str]) -> tuple[int, int]:
    """Return the (layout, commit) that a root knows by its marker, and by files that are not `live`."""
    disk, root = context.disk_of(shard.id), context.root_of(shard.id)
    marker, expected = read_marker(disk, root), Marker(context.known.store_id, "", shard.id, shard.name)
    files = {path for path, _ in disk.list()}
    if marker is not None:  # of whichever incarnation
        check_owner(marker, root, replace(expected, incarnation=marker.incarnation, catalog=marker.catalog))
    elif not live <= files:
        raise ShardUnavailable(
            f"{shown(root)} has no marker and lacks {len(live - files)} files of {expected}; mount its disk",
            root=shown(root),
            shard=shard.name,
        )
    marker = marker or expected
    commit = newest_commit_of(expected.store, ((disk, path) for path in files - live))
    return marker.layout, max(marker.commit, commit)


def _take_over(context: Context, shard: int, state: StoreState, is_active: bool) -> None:
    """Make a root that of an incarnation; that of a removed shard as far as it can be reached.

    What it knows stays known, so that nothing is lost where an adoption is cut off.
    """
    disk, root, marker = context.disk_of(shard), context.root_of(shard), context.roots.marker_of(shard, state)
    with suppress(*() if is_active else (ElasticScanError,)), alone_at(root):
        found = read_marker(disk, root)
        if is_active or (found is not None and (found.store, found.shard) == (marker.store, shard)):
            write_marker(disk, marker)
