"""The owner of a shard's root: a marker file, which also has the newest versions of the catalog seen there.

The marker names store, shard and incarnation, and the newest (layout, commit) that was reported to the root.
That pair is a lower bound: if it is ahead of the catalog, the catalog is an older copy. Each write or delete
at a shard reads the marker first (`Context.writable_disk`); a commit to a bucket reads it in its transaction.
A marker is replaced as a whole and flushed, under a lock on its directory. So its versions never decrease
within an incarnation, and a late write of a former owner finds the new owner. On a file system without locks
(NFS), a slow process may overwrite a newer marker with the one that it read.
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
    """The content of a marker file.

    Attributes:
        name: name of the shard, for messages.
        layout, commit: the newest versions of the catalog that were reported to the root.
        catalog: the result of `place_of_catalog` for the owner's catalog.
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
        """Return the marker with the newer of its own versions and those of another marker."""
        return replace(self, layout=max(self.layout, known.layout), commit=max(self.commit, known.commit))


@dataclass(frozen=True, slots=True)
class Root:
    """The root of a shard, a directory or a bucket's prefix, and the disk that reads and writes it."""

    place: str
    disk: Disk

    def __str__(self) -> str:
        return shown(self.place)

    def marker(self) -> Marker | None:
        """Return the marker; None if there is none. Raises `ShardMismatch` if it is damaged."""
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
        """Replace the marker; the caller holds `alone_at`."""
        with self.disk.create(MARKER) as file:
            file.write(_pack(marker))

    def raise_marker(self, wanted: Marker, seen: Marker | None = None, touch: bool = False) -> None:
        """Write the versions of `wanted` into the stored marker, if they are newer or `touch` is given.

        `seen` is the stored marker, if it was just read from object storage. Raises as `check_owner`.
        """
        with alone_at(self.place):
            stored = check_owner(seen or self.marker(), self, wanted)
            raised = wanted.raised(stored)
            if touch or raised != stored:
                self.disk.note(MARKER, _pack(raised))


def check_owner(marker: Marker | None, root: Root, expected: Marker) -> Marker:
    """Return the marker of a root, if it names the expected store, shard and catalog.

    Raises:
        ShardUnavailable: there is no marker: the shard's disk is not mounted.
        ShardMismatch: it names another store, another shard, or another copy of the catalog.
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
    """Raise `ShardMismatch` if a root belongs to another copy of the catalog or to another place."""
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
    """Raise `ShardMismatch` if a marker is ahead of the catalog, whose versions were read after it."""
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
    """Return device, inode and path of a catalog's file, as text for markers; empty for a database.

    A rename of the file or its directory in a file system changes only the path. A copy changes all three.
    """
    if file is None:
        return ""
    try:
        status = file.stat()
    except OSError:  # opening the file raises a better error
        return ""
    return f"{status.st_dev}:{status.st_ino}:{file.resolve()}"


def is_same_catalog(one: str, two: str) -> bool:
    """Return whether two results of `place_of_catalog` have the same file or the same path."""
    if not one or not two:
        return False
    (*file, path), (*other_file, other_path) = one.split(":", 2), two.split(":", 2)
    return file == other_file or path == other_path


class Claims:
    """Claims of roots for new shards of a store. If the block raises, roots that were free are free again.

    Args:
        location, open_disk: the place of the store; returns the disk for a root.
        store, incarnation: the new owner of the roots.
        active: ids of the shards that the store has.
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
        self._claimed: list[tuple[Root, Marker]] = []  # only roots that were free

    def claim(self, shard: Shard) -> Disk:
        """Claim a root for a shard and return its disk. The root of a removed shard can be claimed again.

        Raises:
            InvalidOption: the root belongs to another store, another copy of this store, or another shard; or
                it has files of a store without a marker, which may be the only copies.
        """
        place = self._location.root(shard.root)
        root = Root(place, self._open_disk(place))
        marker = Marker(self._store, self._incarnation, shard.id, shard.name)
        with alone_at(place):
            present = root.marker()
            if present is None and not any(is_fragment_path(path) for path, _ in root.disk.list()):
                self._claimed.append((root, marker))
            elif present is None or present.owner[:2] != marker.owner[:2]:
                raise InvalidOption(
                    f"{root} holds {present or 'files without a marker'} of another store or a lost "
                    "catalog; choose another directory, or remove it if no store uses it",
                    root=str(root),
                )
            elif present.shard in self._active:
                raise InvalidOption(
                    f"{root} is the storage of {present} already; give each shard a directory of its own",
                    root=str(root),
                )
            else:
                marker = marker.raised(present)
            root.write_marker(marker)
            check_owner(root.marker(), root, marker)  # object storage has no lock: another claim may win
        self._active.add(shard.id)
        return root.disk

    def check_held(self) -> None:
        """Raise `ShardMismatch` if another process has claimed one of the roots meanwhile."""
        for root, marker in self._claimed:
            check_owner(root.marker(), root, marker)

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove the files that the block wrote to free roots, unless another process claimed the root."""
        if kind is None or issubclass(kind, CommitUnknown):  # the store may have the shards now
            return
        for root, marker in self._claimed:
            with suppress(ElasticScanError):
                present = root.marker()
                if present is not None and present.owner == marker.owner:
                    written = [path for path, _ in root.disk.list() if is_fragment_path(path)]
                    for path in (*written, MARKER):
                        root.disk.delete(path)


@contextmanager
def alone_at(root: str) -> Iterator[None]:
    """Lock the marker of a directory against other processes; without effect if locks are not supported."""
    message = f"another process has held {root} for {_LOCK_SECONDS:.0f} seconds; try again, or end it"
    with ExitStack() as lock:
        if "://" not in root:
            with suppress(OSError):  # no locks here, or the following access raises a better error
                directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                lock.enter_context(
                    locked(directory, _LOCK_SECONDS, lambda: ShardUnavailable(message, root=root))
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
