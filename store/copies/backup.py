"""Backups: a whole store as of one moment, with all snapshots that it keeps, and a store made of one.

A backup holds the catalog as plain values and the files that it refers to. Files never change, and no path is
ever given twice, so a later backup to the same place copies only the files that came since:

    elasticscan-backup          whose backups these are: JSON {"store": id, "version": 1}
    <commit>-<time>.backup      one of them: msgpack, then its xxh3-64
    t1/<32 hex>.arrow           files, under their paths at the shards, whichever backups need them

What was copied is read back and compared with the checksums that the catalog has, here as there. A list is
written last, so a backup that was interrupted does not count, and the next one goes on with its files.
"""

from __future__ import annotations

import errno
import json
import math
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgpack
import xxhash

from elasticscan.base.clock import Clock
from elasticscan.base.errors import (
    ElasticScanError,
    FragmentDamaged,
    FragmentMissing,
    InvalidOption,
    ShardUnavailable,
    StoreDamaged,
    StoreNotFound,
    StoreTooNew,
)
from elasticscan.base.limits import GC_GRACE_SECONDS
from elasticscan.base.redaction import shown
from elasticscan.catalog import Catalog, Dump, Home, Tx, retry_interrupted
from elasticscan.metadata import Seal
from elasticscan.storage import Disk, find_seal, is_fragment_path, keep_from_group, verify_file
from elasticscan.store.context import Context
from elasticscan.store.copies.making import Disks, Staging, check_no_store, staging_of, take_back_on_error
from elasticscan.store.roots import Claims, Location, Marker
from elasticscan.store.roots.aliases import check_apart
from elasticscan.store.roots.location import BACKUP_MARKER, check_outside, remove_directories
from elasticscan.store.roots.markers import check_free, check_owner, is_owner, read_marker

VERSION = 1
SUFFIX = ".backup"
_UNFINISHED = ".unfinished"  # what the disk calls a file that is being written
COPY_BYTES = 8 << 20
MOST_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class File:
    """A file of a backup, as its catalog knows it."""

    shard: int
    path: str
    seal: Seal


@dataclass(frozen=True, slots=True)
class BackedUp:
    """The result of a backup.

    Attributes:
        name: its own, by which a store is made of it when it is not the newest.
        snapshot: the store's newest commit then.
        files: how many it refers to.
        copied, copied_bytes: those of them that were not there yet.
        removed: files that no backup needs any more, after older ones were dropped, and unfinished files.
    """

    name: str
    snapshot: int
    files: int
    copied: int
    copied_bytes: int
    removed: int


@dataclass(frozen=True, slots=True)
class _Backup:
    """A list: what one backup holds."""

    store: str
    snapshot: int
    shards: Mapping[int, str]  # names of the active ones
    removed: Sequence[int]  # ids of those that are gone
    files: Sequence[File]
    catalog: Dump


# Taking one


def back_up(context: Context, target: str, disks: Disks, keep: int | None) -> BackedUp:
    """Copy a store to a place of backups; only what is not there yet.

    Args:
        target: a directory, or `s3://BUCKET/PREFIX`.
        keep: how many backups stay there, this one included; None for all.

    Raises:
        InvalidOption: the place is another store's, within a store, or something else.
        FragmentDamaged, StoreDamaged: the store is not whole; there is no new backup. Statistics that are
            damaged are left out of it instead: no row depends on them.
        CatalogOutdated: the catalog is older than its shards: a backup of it would lack what is there.
        FragmentMissing: copies went again and again while others were made; try again later.
        ShardUnavailable, WrongRoot: a shard's disk is not mounted, or another's is in its place.
    """
    place = Location.of_files(target)
    disk = disks(_root(place))
    with context.catalog.reading() as tx:
        roots = [(shard.name, context.root_of(shard.id)) for shard in tx.shards()]
    check_apart([*roots, ("of the backup", _root(place))])
    check_outside(_root(place))
    place.make()
    there = _claim(disk, context.info.store_id, place.uri)
    copied: dict[str, int] = {}
    for attempt in count(1):
        name, backup = _look(context)
        context.checkpoint("backup begun")
        try:
            for file in backup.files:
                if not _is_there(disk, file, there):
                    _copy_from(context, disk, file)
                    there.add(file.path)
                    copied[file.path] = file.seal.bytes
            context.check_newest()
            there = _listed(disk)
            _check_all_there(backup, there)
            break
        except FragmentMissing:
            # A merge replaced it, and it was collected: the catalog refers to another one by now. Or another
            # backup dropped the copy.
            if attempt == MOST_ATTEMPTS:
                raise
    with disk.create(name + SUFFIX) as out:
        keep_from_group(out)  # it holds the store's secrets
        out.write(_pack(backup))
    removed = _drop_waste(disk, keep, name + SUFFIX)
    return BackedUp(name, backup.snapshot, len(backup.files), len(copied), sum(copied.values()), removed)


@retry_interrupted
def _look(context: Context) -> tuple[str, _Backup]:
    """Return a name for a backup of now, and what is to be in it, from one look at the catalog.

    Names sort by commits, whatever clocks say.
    """
    context.catalog.check_whole()
    dump, tx = context.catalog.dump()
    now, snapshot = datetime.fromtimestamp(tx.times.stamp, UTC), tx.versions()[1]
    fragments = {fragment.id: fragment for fragment in tx.fragments()}
    names = {shard.id: shard.name for shard in tx.shards()}
    removed = tuple(shard.id for shard in tx.shards(removed=True) if shard.id not in names)
    files = [File(fragment.shard, fragment.path, fragment.seal) for fragment in fragments.values()]
    files += [File(fragments[run.fragment].shard, run.path, run.seal) for run in tx.runs()]
    backup = _Backup(context.info.store_id, snapshot, names, removed, files, dump)
    return f"{snapshot:012}-{now:%Y%m%dT%H%M%S%f}", backup


def _is_there(disk: Disk, file: File, there: Collection[str]) -> bool:
    """Return whether there is a copy with the length and footer that the catalog knows.

    In object storage its name is enough: an object appears whole, and each look is a request.
    """
    if file.path not in there or disk.is_far:
        return file.path in there
    try:
        return find_seal(disk, file.path)[1] == file.seal
    except FragmentDamaged:
        return False


def _check_all_there(backup: _Backup, there: Collection[str]) -> None:
    gone = [file.path for file in backup.files if file.path not in there]
    if gone:
        raise FragmentMissing(
            f"copy {gone[0]} went from the place of backups while others were made ({len(gone)} in all); "
            "back up to one place one at a time, and try again",
            path=gone[0],
        )


def _copy_from(context: Context, disk: Disk, file: File) -> None:
    try:
        _copy(context.disk_of(file.shard), disk, file)
    except FragmentMissing:
        with context.unless_left(file.shard):
            context.check_root(file.shard)  # a disk that is not mounted is no damage
        raise


def _copy(source: Disk, target: Disk, file: File) -> None:
    """Copy a file, read it back, and compare."""
    content = source.open(file.path)
    with target.create(file.path) as out:
        for at in range(0, content.size, COPY_BYTES):
            out.write(content.read_at(at, min(COPY_BYTES, content.size - at)))
    try:
        verify_file(target, file.path, file.seal, " (as it was copied)")
    except FragmentDamaged:
        target.delete(file.path)
        raise


def _drop_waste(disk: Disk, keep: int | None, own: str) -> int:
    """Drop what a process that died left half-written; returns how many files.

    With `keep` also all but the newest backups, and the copies that none of these needs. A young file may be
    of a backup that is being made. The list that was just written says what time it is at the place.
    """
    changed = dict(disk.list())
    young = changed.get(own, math.inf) - GC_GRACE_SECONDS
    old = {path for path, at in changed.items() if at <= young and _is_ours(path)}
    gone = {path for path in old if path.endswith(_UNFINISHED)}
    if keep is not None:
        lists = sorted(filter(_is_list, changed))
        older = {name for name in lists[:-keep] if name != own}  # others may have made newer ones meanwhile
        needed = _needed(disk, own, [name for name in lists if name not in older])
        gone |= older | {path for path in old if is_fragment_path(path) and path not in needed}
    for path in sorted(gone, key=_is_list, reverse=True):  # a list never outlives its files
        disk.delete(path)
    return sum(not _is_list(path) for path in gone)


def _needed(disk: Disk, own: str, lists: Sequence[str]) -> set[str]:
    """Return the paths that backups need."""
    try:
        return {file.path for name in lists for file in _unpack(disk, name).files}
    except StoreDamaged as error:  # so the files that it needs are unknown
        torn = str(error.fields["what"])
        raise StoreDamaged(
            f"backup {own.removesuffix(SUFFIX)} was made, but no older one was dropped: {torn} there is not "
            "as it was written; remove that file",
            what=torn,
        ) from error


# Making a store of one


class _NewRoot(NamedTuple):
    """A root of the store that is being made."""

    disk: Disk
    path: str
    marker: Marker


def restore_backup(
    source: str,
    uri: str,
    roots: Mapping[str, str],
    name: str | None,
    clock: Clock,
    disks: Disks,
) -> None:
    """Make a store of a backup: its files, its markers, its catalog; nothing is left where that fails.

    It is a copy of its own from its first moment: no key, offset or root is both its and the original's.

    Args:
        source: a place of backups.
        uri: the new store's directory, or the URL of a database for its catalog.
        roots: of shards, by their names; those left out lie in the store's directory.
        name: which backup; the newest by default.

    Raises:
        StoreNotFound: there is no such backup.
        AlreadyExists, InvalidOption: the new place is taken, or within a store.
        FragmentDamaged, StoreDamaged: the backup is not as it was written.
    """
    place = disks(_root(Location.of_files(source)))
    backup = _choose(place, source, name)
    location = Location.of(uri)
    unknown = roots.keys() - set(backup.shards.values())
    if unknown:
        raise InvalidOption(
            f"the backup has no shard {min(unknown)!r}; it has {', '.join(backup.shards.values())}",
            option="roots",
        )
    check_no_store(location)
    stored = {shard: location.stored_root(of, roots.get(of)) for shard, of in backup.shards.items()}
    full = {shard: location.root(root) for shard, root in stored.items()}
    check_apart([(backup.shards[shard], root) for shard, root in full.items()])
    for root in (_root(location), *full.values()):
        # Its own directory holds no store: what was killed during this may have left a file there.
        check_outside(root, location.directory)
    for root in full.values():
        check_free(disks(root), root)
    with staging_of(location) as staging:
        _restore_at(staging, backup, place, stored, clock, disks)


def _restore_at(
    staging: Staging, backup: _Backup, source: Disk, stored: Mapping[int, str], clock: Clock, disks: Disks
) -> None:
    """Copy a backup to where a store is made, and let it be one."""
    incarnation, claims = secrets.token_hex(16), Claims()
    new = {
        shard: _NewRoot(disks(root), root, Marker(backup.store, incarnation, shard, backup.shards[shard]))
        for shard, root in ((shard, staging.root(root)) for shard, root in stored.items())
    }
    ids = sorted([*backup.shards, *backup.removed])
    # Roots of removed shards are the original's alone.
    all_roots = {shard: stored.get(shard, f"removed/{shard}") for shard in ids}

    def take_over(tx: Tx, home: Home | None) -> None:
        for root in new.values():
            check_owner(read_marker(root.disk, root.path), root.path, root.marker)
        tx.take_incarnation(incarnation, home, (0, 0))
        staging.settle(tx)

    with take_back_on_error(staging.place, [root.path for root in new.values()]), claims.undone_on_errors():
        for root in new.values():
            claims.claim(*root, ids)
            _check_no_files(root)
        with _taken_back(new.values()):
            for file in backup.files:
                _copy(source, new[file.shard].disk, file)
            where = shown(staging.location.uri)
            Catalog.create_from(staging.place.catalog_url, clock, where, backup.catalog, all_roots, take_over)


def _check_no_files(root: _NewRoot) -> None:
    """Raise `InvalidOption` if a root without an owner holds files: it may have the only copies of them."""
    if any(is_fragment_path(path) for path, _ in root.disk.list()):
        raise InvalidOption(
            f"{root.path} holds files of a store, but no marker that names it; choose another place, or "
            "remove it if no store uses it",
            option="roots",
        )


@contextmanager
def _taken_back(roots: Collection[_NewRoot]) -> Iterator[None]:
    """Remove the copies when the block fails, from the roots that no other process has claimed meanwhile."""
    try:
        yield
    except BaseException:
        for root in roots:
            with suppress(ElasticScanError):
                if is_owner(root.disk, root.path, root.marker):
                    copies = [path for path, _ in root.disk.list() if is_fragment_path(path)]
                    for path in copies:
                        root.disk.delete(path)
                    if "://" not in root.path:
                        remove_directories({Path(root.path, path).parent for path in copies})
        raise


def _choose(disk: Disk, source: str, name: str | None) -> _Backup:
    try:
        names = sorted(path.removesuffix(SUFFIX) for path, _ in disk.list() if _is_list(path))
    except ShardUnavailable as error:
        if error.fields.get("errno") not in (None, errno.ENOENT, errno.ENOTDIR):
            raise  # a place that cannot be looked into may hold some
        names = []
    if not names or (name is not None and name not in names):
        older = "there are none; to go back to an older snapshot of a table: restore-table (Table.restore)"
        there = f"it has {', '.join(names)}" if names else older
        asked = "a backup" if name is None else f"backup {name!r}"
        raise StoreNotFound(f"{shown(source)} does not hold {asked}; {there}", uri=shown(source))
    return _unpack(disk, (name or names[-1]) + SUFFIX)


# The place


def _root(place: Location) -> str:
    return place.uri if place.directory is None else str(place.directory)


def _claim(disk: Disk, store: str, uri: str) -> set[str]:
    """Make a place that of a store's backups; returns the files that are there."""
    there = _listed(disk)
    owner = _owner(disk) if BACKUP_MARKER in there else None
    if owner == store:
        return there
    if there:
        what = "is not empty, and holds no backups" if owner is None else "holds backups, but none"
        raise InvalidOption(f"{shown(uri)} {what} of this store; choose another place", option="target")
    with disk.create(BACKUP_MARKER) as file:
        file.write(json.dumps({"version": VERSION, "store": store}, sort_keys=True).encode() + b"\n")
    return there


def _owner(disk: Disk) -> str | None:
    content = disk.open(BACKUP_MARKER)
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(content.read_at(0, content.size).to_pybytes())["store"])
    return None


def _listed(disk: Disk) -> set[str]:
    try:
        return {path for path, _ in disk.list()}
    except ShardUnavailable:  # no such prefix in a bucket yet
        return set()


def _is_list(path: str) -> bool:
    return path.endswith(SUFFIX) and "/" not in path


def _is_ours(path: str) -> bool:
    """Return whether a backup can have written a file, finished or not; others are not ours to remove."""
    return is_fragment_path(path) or _is_list(path.removesuffix(_UNFINISHED))


# The list, in bytes


def _pack(backup: _Backup) -> bytes:
    files = [[file.shard, file.path, *astuple(file.seal)] for file in backup.files]
    facts = {"version": VERSION, "store": backup.store, "snapshot": backup.snapshot}
    body: bytes = msgpack.packb(
        facts
        | {"shards": dict(backup.shards), "removed": list(backup.removed)}
        | {"files": files, "catalog": backup.catalog}
    )
    return body + xxhash.xxh3_64_digest(body)


def _unpack(disk: Disk, name: str) -> _Backup:
    """Raise `StoreDamaged` unless a list is as it was written."""
    file = disk.open(name)
    content = file.read_at(0, file.size).to_pybytes()
    body, digest = content[:-8], content[-8:]
    if xxhash.xxh3_64_digest(body) != digest:
        raise StoreDamaged(
            f"backup {name.removesuffix(SUFFIX)} is not as it was written; use another one of this place",
            what=name,
        )
    values = msgpack.unpackb(body, strict_map_key=False)
    if values.pop("version") != VERSION:
        raise StoreTooNew("a newer release made this backup; upgrade elasticscan", known=VERSION)
    values["files"] = [File(shard, path, Seal(*seal)) for shard, path, *seal in values["files"]]
    return _Backup(**values)
