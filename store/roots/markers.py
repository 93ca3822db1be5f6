"""The owner of a shard's root: a marker in the root names store, shard and incarnation.

What a root *is* counts, never where it was found: a mount may be missing, or be another one's; two
names may lead to one directory; a catalog may be a copy. So each write or delete at a shard reads
the marker first (`Context.writable_disk`). Next to it is a mark of how far the catalog had got at the
last commit here. It is only a note: one that is lost or torn says nothing, one that is ahead of
the catalog proves that the catalog is an older copy.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from elasticscan.base.errors import (
    CatalogOutdated,
    ElasticScanError,
    FragmentDamaged,
    InvalidOption,
    ShardUnavailable,
    WrongRoot,
)
from elasticscan.storage import Disk
from elasticscan.store.roots.aliases import place_of
from elasticscan.store.roots.location import BACKUP_MARKER, MARKER

MARK = "elasticscan-newest"
VERSION = 1
MOST_BYTES = 4_096
_CLAIM_SECONDS, _CLAIM_LOOKS = 10.0, 500


@dataclass(frozen=True, slots=True)
class Marker:
    """The owner of a root. `name` is the shard's, for people."""

    store: str
    incarnation: str
    shard: int
    name: str

    def __str__(self) -> str:
        return f"shard {self.name!r} ({self.shard}) of store {self.store}"

    def precedes(self, found: Marker | None) -> bool:
        """Return whether the marker found is of a shard that this copy of the store made later."""
        return (
            found is not None
            and (found.store, found.incarnation) == (self.store, self.incarnation)
            and found.shard > self.shard
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """The least progress of a store's catalog.

    Attributes:
        missed: when it was found missing; 0.0 for a mark that was kept since the root was
            claimed. What was known before may be lost.
        shard: whose root it lies in.
        catalog: a digest of the place of the catalog's file; empty where it is in a database.
    """

    incarnation: str
    layout: int
    commit: int
    missed: float = 0.0
    shard: int = -1
    catalog: str = ""

    def is_of(self, marker: Marker) -> bool:
        """Return whether it was written next to a marker, in a bucket, where nothing else can be mounted."""
        return (self.incarnation, self.shard) == (marker.incarnation, marker.shard)


def read_marker(disk: Disk, root: str) -> Marker | None:
    """Return the marker in a root; None where there is none.

    Raises:
        WrongRoot: there is one that cannot be read.
        ShardUnavailable: the root cannot be read.
    """
    content = _content(disk, MARKER)
    if content is None:
        return None
    try:
        return Marker(**_unpack(content))
    except (ValueError, TypeError) as error:
        raise WrongRoot(
            f"the marker {MARKER} in {place_of(root)} is damaged ({error}); restore it, or remove it and "
            "run `elasticscan adopt` if the files are this store's",
            root=str(place_of(root)),
        ) from error


def write_marker(disk: Disk, marker: Marker) -> None:
    with disk.create(MARKER) as file:
        file.write(_pack(asdict(marker)))


def read_mark(disk: Disk) -> Mark | None:
    """Return the mark in a root; None where there is none, or a torn one."""
    content = _content(disk, MARK)
    with suppress(ValueError, TypeError):
        return None if content is None else Mark(**_unpack(content))
    return None


def write_mark(disk: Disk, mark: Mark) -> None:
    disk.note(MARK, _pack(asdict(mark)))


def advance_mark(
    disk: Disk, root: str, marker: Marker, mark: Mark, now: float, stored: Mark | None, again: bool = False
) -> Mark:
    """Write a mark, which never goes back within an incarnation, after `stored`, which was read there.

    `again` writes it also when it says nothing new. Returns what stands there now.

    Raises:
        ShardUnavailable, WrongRoot: the root is not the shard's.
    """
    if stored is None or not stored.is_of(marker):
        check_marker(disk, root, marker)  # no mark belongs below a mount point, or on another's disk
    if stored is None or stored.incarnation != mark.incarnation:
        wanted_mark = replace(mark, missed=now if stored is None else stored.missed, shard=marker.shard)
    else:
        layout, commit = max(mark.layout, stored.layout), max(mark.commit, stored.commit)
        wanted_mark = replace(stored, layout=layout, commit=commit, shard=marker.shard, catalog=mark.catalog)
    if again or wanted_mark != stored:
        write_mark(disk, wanted_mark)
    return wanted_mark


def check_marker(disk: Disk, root: str, expected: Marker) -> None:
    """Raise unless a root is the one that the catalog takes it for.

    Raises:
        ShardUnavailable: it has no marker: what is mounted there is not the shard's disk.
        WrongRoot: it is another store's, another shard's, or that of another copy of the store.
    """
    place = str(place_of(root))
    marker = read_marker(disk, root)
    if marker is None:
        raise ShardUnavailable(
            f"{place} is not the storage of {expected}: it holds no {MARKER}, so its disk is not mounted, or "
            "was emptied; mount or restore it and try again",
            root=place,
            shard=expected.name,
        )
    if (marker.store, marker.shard) != (expected.store, expected.shard):
        raise WrongRoot(
            f"{place} should be {expected}, but it is {marker}; mount each disk where its shard is, and let "
            "no two shards name one directory",
            root=place,
            wanted=str(expected),
            found=str(marker),
        )
    if marker.incarnation != expected.incarnation:
        raise WrongRoot(
            f"{place} is {marker}, but belongs to another copy of the store (incarnation "
            f"{marker.incarnation}, not {expected.incarnation}); use that copy, or run `elasticscan adopt` "
            "to make this one the owner",
            root=place,
            wanted=expected.incarnation,
            found=marker.incarnation,
        )


def check_mark(mark: Mark | None, root: str, incarnation: str, versions: tuple[int, int]) -> None:
    """Raise `CatalogOutdated` when a root knows more than the catalog, whose versions were read later."""
    if mark is None or mark.incarnation != incarnation:
        return
    if mark.layout > versions[0] or mark.commit > versions[1]:
        raise CatalogOutdated(
            f"the catalog is older than its shards: {place_of(root)} knows commit {mark.commit} (layout "
            f"{mark.layout}), the catalog {versions[1]} (layout {versions[0]}); put the newest back, or run "
            "`elasticscan adopt`",
            root=str(place_of(root)),
            known=mark.commit,
            found=versions[1],
        )


def check_free(disk: Disk, root: str, mine: Marker | None = None, taken: Collection[int] = ()) -> bool:
    """Return whether a root has no owner yet; `mine` and files of shards that were removed do not matter.

    Args:
        mine: what shall be its marker, if it is known.
        taken: ids of the store's other shards.

    Raises:
        InvalidOption: it belongs to another store, to another copy of this one, to another shard, or holds
            backups.
    """
    try:
        marker = read_marker(disk, root)
    except ShardUnavailable:  # no such directory, or no such prefix in a bucket yet
        return True
    place = place_of(root)
    if marker is None and _content(disk, BACKUP_MARKER) is not None:
        raise InvalidOption(f"{place} holds backups; choose another directory", root=str(place))
    if marker is None:
        return True
    if mine is None or marker.store != mine.store or marker.incarnation != mine.incarnation:
        raise InvalidOption(
            f"{place} holds a shard of another store ({marker}) or of a lost catalog; choose another "
            "directory, or remove it if no store uses it",
            root=str(place),
        )
    if marker.shard in taken and marker.shard != mine.shard:
        raise InvalidOption(
            f"{place} is the storage of {marker} already, by another name; each needs a place of its own",
            root=str(place),
        )
    return False


class Claims:
    """Roots that become a new shard's. All of them are given back when the shard is not entered after all."""

    def __init__(self) -> None:
        self._taken: list[tuple[Disk, str, Marker]] = []

    def claim(self, disk: Disk, root: str, marker: Marker, taken: Collection[int]) -> None:
        """Make a free root a shard's; raises as `check_free`, `DiskFull`, `ShardUnavailable`."""
        with _alone_at(root):
            if check_free(disk, root, marker, taken):
                self._taken.append((disk, root, marker))
            write_marker(disk, marker)
            check_marker(disk, root, marker)  # in object storage others may have claimed it, too
            if read_mark(disk) is None:
                write_mark(disk, Mark(marker.incarnation, 0, 0, shard=marker.shard))

    @contextmanager
    def undone_on_errors(self) -> Iterator[None]:
        """Give claimed roots back when the block raises, except the ones that others took meanwhile."""
        try:
            yield
        except BaseException:
            for disk, root, marker in self._taken:
                with suppress(ElasticScanError):
                    if read_marker(disk, root) == marker:
                        disk.delete(MARKER)
                        disk.delete(MARK)
            raise


@contextmanager
def _alone_at(root: str) -> Iterator[None]:
    """Let no other process that claims a directory come in; where it cannot be locked, all may.

    Raises:
        InvalidOption: another process holds it for long.
    """
    try:
        directory = None if "://" in root else os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # claiming it tells what is wrong
        directory = None
    if directory is None:
        yield
        return
    try:
        for _ in range(_CLAIM_LOOKS):
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_CLAIM_SECONDS / _CLAIM_LOOKS)
                continue
            except OSError:  # its file system knows no locks
                break
            break
        else:
            raise InvalidOption(f"another process is claiming {root}; choose another directory", root=root)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
        os.close(directory)


def _content(disk: Disk, path: str) -> bytes | None:
    try:
        file = disk.open(path)
        return bytes(file.read_at(0, min(file.size, MOST_BYTES)))
    except FragmentDamaged:  # there is no such file
        return None


def _pack(fields: Mapping[str, Any]) -> bytes:
    body = json.dumps({"version": VERSION, **fields}, sort_keys=True).encode()
    return b"%s %08x\n" % (body, zlib.crc32(body))


def _unpack(content: bytes) -> dict[str, Any]:
    body, _, crc = content.rstrip(b"\n").rpartition(b" ")
    if crc != b"%08x" % zlib.crc32(body):
        raise ValueError("its checksum is another one")
    fields = json.loads(body)
    if not isinstance(fields, dict) or fields.pop("version", None) != VERSION:
        raise ValueError("it is of another version")
    return fields
