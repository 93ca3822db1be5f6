"""The owner of a shard's root: a marker file, which also says what is known there of the catalog.

Each write or delete at a shard reads the marker first (`Context.writable_disk`), a commit to a bucket only in
its transaction. It names store, shard and incarnation, and the newest (layout, commit) that was known at the
root. That is a lower bound: a marker that is ahead of the catalog proves that the catalog is an older copy. A
marker is replaced as a whole, flushed, and under a lock on its directory, so it never goes back within an
incarnation, and a late write of an earlier owner finds that the root is another's. Where a file system has no
such locks (NFS), a process that is late may put back what it has just read there.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from elasticscan.base.errors import (
    CommitUnknown,
    ElasticScanError,
    FragmentDamaged,
    InvalidOption,
    ShardMismatch,
    ShardUnavailable,
)
from elasticscan.base.file_locks import locked
from elasticscan.base.redaction import shown
from elasticscan.storage import Disk, is_fragment_path
from elasticscan.store.roots.location import MARKER, Location
from elasticscan.topology import Shard

VERSION = 2
MOST_BYTES = 16_384
_LOCK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Marker:
    """The owner of a root, and what is known there.

    Attributes:
        name: the shard's, for people.
        layout, commit: the newest versions of the catalog that were known at the root.
        catalog: the place of the catalog's file, as `place_of_catalog` has it.
    """

    store: str
    incarnation: str
    shard: int
    name: str
    layout: int = 0
    commit: int = 0
    catalog: str = ""

    def __str__(self) -> str:
        return f"shard {self.name!r} ({self.shard}) of store {self.store}"

    @property
    def owner(self) -> tuple[str, str, int]:
        return self.store, self.incarnation, self.shard

    def raised(self, known: Marker) -> Marker:
        """Return the marker with the versions that another one knows, if these are newer."""
        return replace(self, layout=max(self.layout, known.layout), commit=max(self.commit, known.commit))


@dataclass(frozen=True, slots=True)
class Root:
    """The root of a shard, a directory or a prefix of a bucket, and the disk that reads and writes there."""

    place: str
    disk: Disk

    def __str__(self) -> str:
        return shown(self.place)

    def marker(self) -> Marker | None:
        """Return its marker; None where there is none. Raises `ShardMismatch` where it makes no sense."""
        try:
            file = self.disk.open(MARKER)
            return _unpack(bytes(file.read_at(0, min(file.size, MOST_BYTES))))
        except FragmentDamaged:  # there is no such file
            return None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ShardMismatch(
                f"the marker {MARKER} in {self} is damaged ({error}); restore it, or remove it and "
                "run `elasticscan adopt` if the files are this store's",
                root=str(self),
            ) from error

    def write_marker(self, marker: Marker) -> None:
        """Put a marker in the place of the one that is there; the caller is `alone_at` the root."""
        with self.disk.create(MARKER) as file:
            file.write(_pack(marker))

    def raise_marker(self, wanted: Marker, seen: Marker | None = None, touch: bool = False) -> None:
        """Let the root know the versions in its owner's marker, if these are newer, or with `touch` anyway.

        `seen` is the marker of a root in object storage, if it was just read. Raises as `check_owner`.
        """
        with alone_at(self.place):
            stored = check_owner(seen or self.marker(), self, wanted)
            raised = wanted.raised(stored)
            if touch or raised != stored:
                self.disk.note(MARKER, _pack(raised))


def check_owner(marker: Marker | None, root: Root, expected: Marker) -> Marker:
    """Return the marker in a root, if it is that of the shard which the catalog takes it for.

    Raises:
        ShardUnavailable: it has no marker: what is mounted there is not the shard's disk.
        ShardMismatch: it is another store's, another shard's, or that of another copy of the store.
    """
    if marker is None:
        raise ShardUnavailable(
            f"{root} is not the storage of {expected}: it holds no {MARKER}, so its disk is not "
            "mounted, or was emptied; mount or restore it and try again",
            root=str(root),
            shard=expected.name,
        )
    if (marker.store, marker.shard) != (expected.store, expected.shard):
        raise ShardMismatch(
            f"{root} should be {expected}, but it is {marker}; mount each disk where its shard is, "
            "and let no two shards name one directory",
            root=str(root),
            wanted=str(expected),
            found=str(marker),
        )
    check_same_copy(marker, root, expected)
    return marker


def check_same_copy(marker: Marker, root: Root, expected: Marker) -> None:
    """Raise `ShardMismatch` when a root belongs to another copy of the store, or to a catalog elsewhere."""
    is_elsewhere = (
        marker.catalog and expected.catalog and not is_same_catalog(marker.catalog, expected.catalog)
    )
    if marker.incarnation != expected.incarnation or is_elsewhere:
        original = marker.catalog.split(":", 2)[-1]
        raise ShardMismatch(
            f"this catalog is a copy of {original or 'another one'}, which {root} ({marker}) belongs "
            "to; use that one, or run `elasticscan adopt` to make this one the owner",
            root=str(root),
            original=original,
        )


def check_not_ahead(marker: Marker, root: Root, expected: Marker) -> None:
    """Raise `ShardMismatch` when a root knows more than the catalog, whose versions were read later."""
    if marker.layout > expected.layout or marker.commit > expected.commit:
        raise ShardMismatch(
            f"the catalog is older than its shards: {root} knows commit {marker.commit} (layout "
            f"{marker.layout}), the catalog {expected.commit} (layout {expected.layout}); put the newest "
            "back, or run `elasticscan adopt`",
            root=str(root),
            known=marker.commit,
            found=expected.commit,
        )


def place_of_catalog(file: Path | None) -> str:
    """Return the text by which markers know where a catalog's file lies; empty for one in a database.

    Renaming it, or its directory, within a file system changes the path alone; a copy has all of it changed.
    """
    if file is None:
        return ""
    try:
        status = file.stat()
    except OSError:  # using it tells what is wrong
        return ""
    return f"{status.st_dev}:{status.st_ino}:{file.resolve()}"


def is_same_catalog(one: str, two: str) -> bool:
    """Return whether two places of a catalog's file are one: the file is, or the path."""
    if not one or not two:
        return False
    (*file, path), (*other_file, other_path) = one.split(":", 2), two.split(":", 2)
    return file == other_file or path == other_path


class Claims:
    """Roots that become those of a store's new shards, unless the block raises: then they are given back.

    Args:
        location, open_disk: where the store is, and the disk for a root.
        store, incarnation: whose the roots become.
        active: the shards that the store has already.
    """

    def __init__(
        self,
        location: Location,
        open_disk: Callable[[str], Disk],
        store: str,
        incarnation: str,
        active: Iterable[int] = (),
    ) -> None:
        self._location, self._open_disk = location, open_disk
        self._store, self._incarnation, self._active = store, incarnation, {*active}
        self._taken: list[tuple[Root, Marker]] = []  # of those that were free

    def claim(self, shard: Shard) -> Disk:
        """Make a free root a shard's, and return its disk; a root of a shard that was removed is free.

        Raises:
            InvalidOption: it belongs to another store, to another copy of this one, or to another shard; or
                holds files of a store, and no marker: they may be the only copies.
        """
        place = self._location.root(shard.root)
        root = Root(place, self._open_disk(place))
        marker = Marker(self._store, self._incarnation, shard.id, shard.name)
        with alone_at(place):
            found = root.marker()
            if found is None and not any(is_fragment_path(path) for path, _ in root.disk.list()):
                self._taken.append((root, marker))
            elif found is None or found.owner[:2] != marker.owner[:2]:
                raise InvalidOption(
                    f"{root} holds {found or 'files without a marker'} of another store or a lost "
                    "catalog; choose another directory, or remove it if no store uses it",
                    root=str(root),
                )
            elif found.shard in self._active:
                raise InvalidOption(
                    f"{root} is the storage of {found} already, by another name; each needs a place of its "
                    "own",
                    root=str(root),
                )
            else:
                marker = marker.raised(found)
            root.write_marker(marker)
            check_owner(root.marker(), root, marker)  # in object storage others may have claimed it, too
        self._active.add(shard.id)
        return root.disk

    def check_held(self) -> None:
        """Raise `ShardMismatch` where another process has claimed one of the roots meanwhile."""
        for root, marker in self._taken:
            check_owner(root.marker(), root, marker)

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove what the block wrote to roots that were free, except the ones that others took meanwhile."""
        if kind is None or issubclass(kind, CommitUnknown):  # perhaps they are the shards' now
            return
        for root, marker in self._taken:
            with suppress(ElasticScanError):
                found = root.marker()
                if found is not None and found.owner == marker.owner:
                    written = [path for path, _ in root.disk.list() if is_fragment_path(path)]
                    for path in (*written, MARKER):
                        root.disk.delete(path)


@contextmanager
def alone_at(root: str) -> Iterator[None]:
    """Let no other process write the marker of a directory; where it cannot be locked, all may."""
    said = f"another process has held {root} for {_LOCK_SECONDS:.0f} seconds; try again, or end it"
    with ExitStack() as held:
        if "://" not in root:
            with suppress(OSError):  # its file system knows no locks, or using it tells what is wrong
                directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                held.enter_context(
                    locked(directory, _LOCK_SECONDS, lambda: ShardUnavailable(said, root=root))
                )
        yield


def _pack(marker: Marker) -> bytes:
    body = json.dumps({"version": VERSION, **asdict(marker)}, sort_keys=True).encode()
    return b"%s %08x\n" % (body, zlib.crc32(body))


def _unpack(content: bytes) -> Marker:
    body, _, crc = content.rstrip(b"\n").rpartition(b" ")
    if crc != b"%08x" % zlib.crc32(body):
        raise ValueError("its checksum is another one")
    fields = json.loads(body)
    if fields.pop("version") != VERSION:
        raise ValueError("it is of another version")
    return Marker(**fields)
