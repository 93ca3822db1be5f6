"""Backups: copies of a whole store with all its snapshots, and stores made from them.

A backup is a directory, or a prefix of a bucket, with these files:

    t1/<32 hex>.arrow           the files that the catalog refers to, with the same paths as at the shards
    elasticscan-backup          the catalog and the list of the files: msgpack, then its xxh3-64

Each copy is read back and compared with the checksum in the catalog, also when a store is made from it. The
list is written last, so an interrupted backup has none: a person removes it and makes another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import NamedTuple

import msgpack
import xxhash

from elasticscan.base.clock import Clock
from elasticscan.base.errors import (
    FragmentDamaged,
    InvalidOption,
    NotFound,
    ShardUnavailable,
    StoreDamaged,
    StoreTooNew,
)
from elasticscan.base.redaction import shown
from elasticscan.catalog import Dump, Tx, copy_catalog, retry_interrupted, take_incarnation
from elasticscan.metadata import Seal
from elasticscan.storage import Disk, MissingFile, keep_from_group, verify_file
from elasticscan.store.context import Context
from elasticscan.store.copies.creation import Disks, place_for_store
from elasticscan.store.roots import Claims, Location
from elasticscan.topology import Shard

VERSION = 3
BACKUP_FILE = "elasticscan-backup"
COPY_BYTES = 8 << 20
MOST_ATTEMPTS = 3


class File(NamedTuple):
    """A file of a backup, with its size and checksum from the catalog."""

    shard: int
    path: str
    seal: Seal


@dataclass(frozen=True, slots=True)
class BackedUp:
    """The result of a backup.

    Attributes:
        snapshot: the store's newest commit at the time.
        files, bytes: number of copied files, and their total size.
    """

    snapshot: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Backup:
    """The contents of one backup."""

    store: str
    snapshot: int
    shards: Mapping[int, str]  # names of active shards by id
    removed: Sequence[int]  # ids of removed shards
    files: Sequence[File]
    catalog: Dump


def back_up(context: Context, target: str) -> BackedUp:
    """Copy a store to an empty place. Damaged statistics are left out.

    Raises, in addition to the errors of `Store.backup`:
        ShardMismatch: the catalog is older than its shards: the backup would lack the newest commits.
        MissingFile: in each attempt files were collected before they were copied; try again.
        ShardUnavailable, ShardMismatch: a shard's disk is not mounted, or another disk is mounted there.
    """
    context.check_newest()
    place, copied = Location.of(target), set[str]()
    disk = context.open_disk(place.uri)
    with place.with_directories():
        if disk.list():
            raise InvalidOption(
                f"{shown(place.uri)} is not empty; give each backup a place of its own, and remove one that "
                "was interrupted",
                option="target",
            )
    for attempt in range(1, MOST_ATTEMPTS + 1):
        backup = _contents(context)
        context.sync_point("backup begun")
        try:
            for file in backup.files:
                if file.path not in copied:
                    _copy(context.disk_of(file.shard), disk, file)
                    copied.add(file.path)
            break
        except MissingFile:
            with context.unless_left(file.shard):
                context.check_root(file.shard)  # a disk that is not mounted is no damage
            # A merge replaced the file, and it was collected: the next attempt reads a newer state.
            if attempt == MOST_ATTEMPTS:
                raise
    with disk.create(BACKUP_FILE) as out:
        keep_from_group(out)  # the catalog has the store's secrets
        out.write(_pack(backup))
    return BackedUp(backup.snapshot, len(backup.files), sum(seal.bytes for _, _, seal in backup.files))


@retry_interrupted
def _contents(context: Context) -> _Backup:
    """Return the contents of a backup, from one state of the catalog."""
    context.catalog.check_whole()
    dump, tx = context.catalog.dump()
    names = {shard.id: shard.name for shard in tx.state.shards.values()}
    files = [File(fragment.shard, file.path, file.seal) for fragment, file in tx.state.files()]
    return _Backup(tx.state.store_id, tx.state.commit, names, [*tx.state.removed_shards], files, dump)


def _copy(source: Disk, target: Disk, file: File) -> None:
    """Copy a file, read the copy back and verify its checksum."""
    content = source.open(file.path)
    with target.create(file.path) as out:
        for at in range(0, content.size, COPY_BYTES):
            out.write(content.read_at(at, min(COPY_BYTES, content.size - at)))
    try:
        verify_file(target, file.path, file.seal, " (as it was copied)")
    except FragmentDamaged:
        target.delete(file.path)
        raise


# Stores from backups


def restore_backup(source: str, uri: str, roots: Mapping[str, str], clock: Clock, disks: Disks) -> None:
    """Make a store from a backup: markers, then files, then the catalog. A failure leaves nothing behind.

    The new incarnation makes it independent of the original: keys, offsets and roots of one are refused by
    the other. Arguments and errors are those of `Store.from_backup`.
    """
    place = disks(Location.of(source).uri)
    backup = _unpack(place, source)
    location = Location.of(uri)
    unknown = roots.keys() - set(backup.shards.values())
    if unknown:
        raise InvalidOption(
            f"the backup has no shard {min(unknown)!r}; it has {', '.join(backup.shards.values())}",
            option="roots",
        )
    incarnation = secrets.token_hex(16)
    claims = Claims(location, disks, backup.store, incarnation)
    stored = {shard: location.stored_root(name, roots.get(name)) for shard, name in backup.shards.items()}

    def begin_incarnation(tx: Tx) -> None:
        claims.check_held()
        take_incarnation(tx, incarnation, (0, 0))

    with place_for_store(location, [*stored.values()]), claims:
        targets = {shard: claims.claim(Shard(shard, backup.shards[shard], stored[shard])) for shard in stored}
        for file in backup.files:
            _copy(place, targets[file.shard], file)
        # Removed shards have files at the original only: their roots here never exist.
        all_roots = stored | {shard: f"removed/{shard}" for shard in backup.removed}
        copy_catalog(location.catalog_url, clock, backup.catalog, all_roots, begin_incarnation)


# The list of a backup, as bytes


def _pack(backup: _Backup) -> bytes:
    values = {field.name: getattr(backup, field.name) for field in fields(backup)}
    body: bytes = msgpack.packb({"version": VERSION} | values, default=astuple)  # a seal becomes a tuple
    return body + xxhash.xxh3_64_digest(body)


def _unpack(disk: Disk, source: str) -> _Backup:
    """Read and verify the list of a backup. Raises `NotFound`, `StoreDamaged`, `StoreTooNew`."""
    try:
        file = disk.open(BACKUP_FILE)
    except (MissingFile, ShardUnavailable) as error:
        raise NotFound(
            f"{shown(source)} holds no whole backup: {BACKUP_FILE} is missing; name the place of another one",
            uri=shown(source),
            kind="store",
        ) from error
    content = file.read_at(0, file.size).to_pybytes()
    body, digest = content[:-8], content[-8:]
    if xxhash.xxh3_64_digest(body) != digest:
        raise StoreDamaged(
            f"the backup in {shown(source)} is not as it was written; use another one", what=BACKUP_FILE
        )
    values = msgpack.unpackb(body, strict_map_key=False)
    if values.pop("version") != VERSION:
        raise StoreTooNew("another release made this backup; use that one", known=VERSION)
    values["files"] = [File(shard, path, Seal(*seal)) for shard, path, seal in values["files"]]
    return _Backup(**values)
