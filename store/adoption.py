"""Adoption: a copy becomes a store of its own, or a store goes on from an older catalog.

Both begin a new *incarnation*: with another secret, so that keys and offsets of the other copy are
refused, and with markers that name it in all roots, so that no root belongs to two catalogs.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from elasticscan.base.errors import ElasticScanError, ShardUnavailable
from elasticscan.catalog import Identity, take_incarnation
from elasticscan.storage import newest_commit_of
from elasticscan.store.context import Context
from elasticscan.store.roots import Marker
from elasticscan.store.roots.location import place_of
from elasticscan.store.roots.markers import alone_at, check_owner, read_marker, write_marker
from elasticscan.topology import Shard


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of an adoption.

    Attributes:
        incarnation: the new one.
        commits: (the catalog's newest commit, the newest that the shards knew); commits in between are lost.
        missing: (shard, path) of files that the catalog refers to and that are not in their places.
    """

    incarnation: str
    commits: tuple[int, int]
    missing: tuple[tuple[str, str], ...]


def adopt(context: Context) -> Adopted:
    """Make this catalog the owner of its shards, whatever another copy of it did since.

    Commits that it does not know are lost; their files become orphans, which stay for a while.
    Commit numbers go on beyond them.

    Raises:
        ShardUnavailable: a shard is away, or has no marker and lacks files that the catalog refers to.
        WrongRoot: a root is another store's, or another shard's.
        StoreDamaged: the catalog is not as it was written.
    """
    layout, commit = context.seen  # also beyond what the shards know
    context.roots.take_any_catalog()
    context.catalog.check_whole()
    with context.catalog.leasing() as tx:
        identity, active, every = tx.identity(), tx.state.shards.values(), tx.state.all_shards
        referred = tx.state.known_paths()
        gone = {(file.shard, file.path) for file in tx.state.removed_files()}
        missing: list[tuple[str, str]] = []
        for shard in active:
            live = {path for at, path in referred - gone if at == shard.id}
            lost, reached = _inspect(context, shard, live)
            missing += [(shard.name, path) for path in lost]
            layout, commit = max(layout, reached[0]), max(commit, reached[1])
        incarnation = secrets.token_hex(16)
        mark = Identity(identity.store_id, incarnation, layout, commit)
        _take_over(context, every, {shard.id for shard in active}, mark)
        take_incarnation(tx, incarnation, (layout, commit))
    context.roots.note_newest(shard.id for shard in active)
    return Adopted(incarnation, (identity.last_commit, commit), tuple(missing))


def _inspect(context: Context, shard: Shard, live: set[str]) -> tuple[list[str], tuple[int, int]]:
    """Return the files that a root lacks, and the (layout, commit) that is known there."""
    disk, root = context.disk_of(shard.id), context.roots.root_of(shard.id)
    marker, expected = read_marker(disk, root), Marker(context.info.store_id, "", shard.id, shard.name)
    files = {path for path, _ in disk.list()}
    lost = sorted(live - files)
    layout = commit = 0
    if marker is not None:  # of whichever incarnation
        check_owner(marker, root, replace(expected, incarnation=marker.incarnation, catalog=marker.catalog))
        layout, commit = marker.layout, marker.commit
    elif lost:
        raise ShardUnavailable(
            f"{place_of(root)} has no marker and lacks {len(lost)} files of {expected}; mount its disk",
            root=str(place_of(root)),
            shard=shard.name,
        )
    commit = max(commit, newest_commit_of(expected.store, ((disk, path) for path in files - live)))
    return lost, (layout, commit)


def _take_over(context: Context, shards: Sequence[Shard], active: Collection[int], mark: Identity) -> None:
    """Make the roots of shards those of an incarnation; of removed ones, as far as they can be reached.

    What they know stays known, so that nothing is lost where this is cut off.
    """
    for shard in shards:
        disk, root = context.disk_of(shard.id), context.roots.root_of(shard.id)
        marker = context.roots.marker_of(shard.id, mark)
        if shard.id in active:
            with alone_at(root):
                write_marker(disk, marker)
            continue
        with suppress(ElasticScanError), alone_at(root):
            present = read_marker(disk, root)
            if present is not None and (present.store, present.shard) == (marker.store, marker.shard):
                write_marker(disk, marker)
