"""Backups: a whole store as of one moment, with all snapshots that it keeps, and a store made of one.

A backup holds the catalog as plain values and the files that it refers to. Files never change, so a later
backup to the same place copies those alone that came since, and each keeps its own list:

    elasticscan-backup          whose backups these are: JSON {"store": id, "version": 1}
    <time>-<commit>.backup      one of them: msgpack, then its xxh3-64
    <shard id>/t1/<32 hex>.arrow    files of that shard, each once, whichever backups need it

What was copied is read back and compared with the checksums that the catalog has, here as there. A list is
written last, so a backup that was interrupted does not count, and the next one goes on with its files.
"""

from __future__ import annotations

import errno
import json
import math
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

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
from elasticscan.storage import (
    Disk,
    find_seal,
    is_fragment_path,
    keep_from_group,
    newest_commit_of,
    verify_file,
)
from elasticscan.store.context import Context
from elasticscan.store.copies.making import Disks, Staging, check_no_store, staging_of, take_back_on_error
from elasticscan.store.roots import Claims, Location, Marker
from elasticscan.store.roots.aliases import check_apart
from elasticscan.store.roots.location import (
    BACKUP_MARKER,
    CATALOG_FILE,
    MARKER,
    check_outside,
    remove_directories,
)
from elasticscan.store.roots.markers import check_free, check_marker, read_marker

VERSION = 1
SUFFIX = ".backup"
_TIME = "%Y%m%dT%H%M%S%f"  # in the name of a list
_NAMED = re.compile(r"(\d{8}T\d{12}-\d+)" + re.escape(SUFFIX))
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


class _Below:
    """A part of a disk, as a disk with paths of its own."""

    def __init__(self, disk: Disk, part: str) -> None:
        self._disk, self._part = disk, part

    @property
    def is_far(self) -> bool:
        return self._disk.is_far

    @property
    def uncached(self) -> Disk:
        return _below(self._disk.uncached, self._part)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._disk, name)
        return lambda path, *rest: method(f"{self._part}/{path}", *rest)


def _below(disk: Disk, part: object) -> Disk:
    return cast("Disk", _Below(disk, str(part)))


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
    place, disk = _place(target, disks)
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
                if not _is_there(disk, file, there, copied):
                    _copy_from(context, disk, file)
                    copied[_place_of(file)] = file.seal.bytes
            context.check_newest()
            there = _listed(disk)
            _check_all_there(backup, there)
            break
        except FragmentMissing:
            # A merge replaced it, and it was collected: the catalog refers to another one by now. Or another
            # backup dropped the copy.
            if attempt == MOST_ATTEMPTS:
                raise
    name = _later_name(name, there)
    with disk.create(name + SUFFIX) as file:
        keep_from_group(file)  # it holds the store's secrets
        file.write(_pack(backup))
    removed = _drop_waste(disk, keep, name + SUFFIX)
    return BackedUp(name, backup.snapshot, len(backup.files), len(copied), sum(copied.values()), removed)


@retry_interrupted
def _look(context: Context) -> tuple[str, _Backup]:
    """Return a name for a backup of now, and what is to be in it, from one look at the catalog."""
    context.catalog.check_whole()
    dump, tx = context.catalog.dump()
    now, snapshot = tx.times.stamp, tx.versions()[1]
    fragments = {fragment.id: fragment for fragment in tx.fragments()}
    runs = tx.runs()
    names = {shard.id: shard.name for shard in tx.shards()}
    removed = tuple(shard.id for shard in tx.shards(removed=True) if shard.id not in names)
    files = [File(fragment.shard, fragment.path, fragment.seal) for fragment in fragments.values()]
    files += [File(fragments[run.fragment].shard, run.path, run.seal) for run in runs]
    backup = _Backup(context.info.store_id, snapshot, names, removed, files, dump)
    return f"{datetime.fromtimestamp(now, UTC):{_TIME}}-{snapshot}", backup


def _later_name(name: str, there: Collection[str]) -> str:
    """Return a name that sorts after all backups with fewer commits, whatever clocks said."""
    names = (match[1] for match in map(_NAMED.fullmatch, there) if match)
    last = max((other for other in names if _commit_of(other) <= _commit_of(name)), default="")
    if last < name:
        return name
    time = datetime.strptime(last.partition("-")[0], _TIME).replace(tzinfo=UTC) + timedelta(microseconds=1)
    return f"{time:{_TIME}}-{name.partition('-')[2]}"


def _commit_of(name: str) -> int:
    return int(name.partition("-")[2])


def _place_of(file: File) -> str:
    return f"{file.shard}/{file.path}"


def _is_there(disk: Disk, file: File, there: Collection[str], copied: Collection[str]) -> bool:
    """Return whether a copy is trusted: made just now, or with the length and footer that the catalog knows.

    In object storage its name is enough: an object appears whole, and each look is a request.
    """
    path = _place_of(file)
    if path not in there or path in copied or disk.is_far:
        return path in there
    try:
        return find_seal(_below(disk, file.shard), file.path)[1] == file.seal
    except FragmentDamaged:
        return False


def _check_all_there(backup: _Backup, there: Collection[str]) -> None:
    gone = [path for path in map(_place_of, backup.files) if path not in there]
    if gone:
        raise FragmentMissing(
            f"copy {gone[0]} went from the place of backups while others were made ({len(gone)} in all); "
            "back up to one place one at a time, and try again",
            path=gone[0],
        )


def _copy_from(context: Context, disk: Disk, file: File) -> None:
    try:
        _copy(context.disk_of(file.shard), _below(disk, file.shard), file)
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

    With `keep` also all but the newest backups, and the files that none of these needs. A young file that no
    list names may be of a backup that is being made. The list that was just written says what time it is at
    the place.
    """
    changed = dict(disk.list())
    young = changed.get(own, math.inf) - GC_GRACE_SECONDS
    # Names alone are no proof: files of a shard that lies in the place may have the same ones.
    others = {path.partition("/")[0] for path in changed if path.endswith((f"/{MARKER}", f"/{CATALOG_FILE}"))}
    old = [path for path, at in changed.items() if at <= young]
    unfinished = (path for path in old if path.endswith(_UNFINISHED))
    gone = {p for p in unfinished if _is_copy(p, others) or _NAMED.fullmatch(p.removesuffix(_UNFINISHED))}
    if keep is not None:
        gone |= {path for path in _no_longer_needed(disk, keep, own, changed, old) if _is_copy(path, others)}
    for path in gone:
        disk.delete(path)
    return len(gone)


def _no_longer_needed(
    disk: Disk, keep: int, own: str, paths: Collection[str], old: Collection[str]
) -> Collection[str]:
    """Drop all but the newest backups; returns the paths that none of these needs and that may go."""
    names = sorted(path for path in paths if _is_list(path))
    older = [name for name in names[:-keep] if name != own]  # others may have made newer ones meanwhile
    try:
        needed = {
            _place_of(file) for name in names if name not in older for file in _unpack(disk, name).files
        }
    except StoreDamaged as error:  # so the files that it needs are unknown
        torn = str(error.fields["what"])
        raise StoreDamaged(
            f"backup {own.removesuffix(SUFFIX)} was made, but no older one was dropped: {torn} there is not "
            "as it was written; remove that file",
            what=torn,
        ) from error
    dropped = set(old)
    for name in older:
        with suppress(StoreDamaged):
            dropped.update(map(_place_of, _unpack(disk, name).files))
    for name in older:
        disk.delete(name)
    return dropped.intersection(paths) - needed


# Making a store of one


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
    backup = _choose(_place(source, disks)[1], source, name)
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
    for place in (_root(location), *full.values()):
        # Its own directory holds no store: what was killed during this may have left a file there.
        check_outside(place, location.directory)
    for root in full.values():
        check_free(disks(root), root)
    with staging_of(location) as staging:
        _restore_at(staging, backup, _place(source, disks)[1], stored, clock, disks)


def _restore_at(
    staging: Staging, backup: _Backup, source: Disk, stored: Mapping[int, str], clock: Clock, disks: Disks
) -> None:
    """Copy a backup to where a store is made, and let it be one."""
    incarnation, claims = secrets.token_hex(16), Claims()
    new = {
        shard: _NewRoot(
            disks(staging.root(root)),
            staging.root(root),
            Marker(backup.store, incarnation, shard, backup.shards[shard]),
        )
        for shard, root in stored.items()
    }
    # Roots of removed shards are the original's alone.
    ids = sorted([*backup.shards, *backup.removed])
    all_roots = {shard: stored.get(shard, f"removed/{shard}") for shard in ids}

    def take_over(tx: Tx, home: Home | None) -> None:
        for root in new.values():
            check_marker(root.disk, root.path, root.marker)
        left = ((root.disk, path) for root in new.values() for path in root.there)
        tx.take_incarnation(incarnation, home, (0, newest_commit_of(backup.store, left)))
        staging.settle(tx)

    with take_back_on_error(staging.place, [root.path for root in new.values()]), claims.undone_on_errors():
        for root in new.values():
            claims.claim(root.disk, root.path, root.marker, ids)
            root.there = {path for path, _ in root.disk.list()}
        with _taken_back(new.values()):
            for file in backup.files:
                _copy_to(new[file.shard], _below(source, file.shard), file)
            where = shown(staging.location.uri)
            Catalog.create_from(staging.place.catalog_url, clock, where, backup.catalog, all_roots, take_over)


@dataclass(slots=True)
class _NewRoot:
    """A root of the store that is being made.

    Attributes:
        there: files that were there before.
        copied: the ones copied since.
    """

    disk: Disk
    path: str
    marker: Marker
    there: Collection[str] = ()
    copied: list[str] = field(default_factory=list)


def _copy_to(root: _NewRoot, source: Disk, file: File) -> None:
    if file.path in root.there:
        raise InvalidOption(
            f"{root.path} holds files of this store, but no marker that names it; choose another place, or "
            "remove it if no store uses it",
            option="roots",
        )
    root.copied.append(file.path)
    _copy(source, root.disk, file)


@contextmanager
def _taken_back(roots: Iterable[_NewRoot]) -> Iterator[None]:
    """Remove the copies when the block fails, unless another process has claimed the root meanwhile."""
    try:
        yield
    except BaseException:
        for root in roots:
            with suppress(ElasticScanError):
                if read_marker(root.disk, root.path) == root.marker:
                    for path in root.copied:
                        root.disk.delete(path)
                    if "://" not in root.path:
                        remove_directories({Path(root.path, path).parent for path in root.copied})
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


def _place(target: str, disks: Callable[[str], Disk]) -> tuple[Location, Disk]:
    place = Location.of_files(target)
    return place, disks(_root(place))


def _root(place: Location) -> str:
    return place.uri if place.directory is None else str(place.directory)


def _claim(disk: Disk, store: str, uri: str) -> set[str]:
    """Make a place that of a store's backups; returns the files that are there."""
    there = _listed(disk)
    owner = _owner(disk) if BACKUP_MARKER in there else None
    if owner is None and there:
        raise InvalidOption(
            f"{shown(uri)} is not empty, and holds no backups of this store; choose another place",
            option="target",
        )
    if owner not in (store, None):
        raise InvalidOption(
            f"{shown(uri)} holds backups of another store; choose another place", option="target"
        )
    if owner == store:
        return there
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


def _is_copy(path: str, others: Collection[str]) -> bool:
    """Return whether a file can be a copy that a backup made; others are not ours to remove."""
    shard, _, rest = path.partition("/")
    return shard.isdecimal() and shard not in others and is_fragment_path(rest)


def _is_list(path: str) -> bool:
    return path.endswith(SUFFIX) and "/" not in path


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
    if values["version"] != VERSION:
        raise StoreTooNew("a newer release made this backup; upgrade elasticscan", known=VERSION)
    files = [File(shard, path, Seal(*seal)) for shard, path, *seal in values["files"]]
    return _Backup(
        values["store"], values["snapshot"], values["shards"], values["removed"], files, values["catalog"]
    )
