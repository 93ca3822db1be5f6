"""The owner of a shard's root: a marker file, which also says what is known there of the catalog.

Each write or delete at a shard reads the marker first (`Context.writable_disk`). It names store, shard and
incarnation, and the newest (layout, commit) that was known at the root. That is a lower bound: a marker that
is ahead of the catalog proves that the catalog is an older copy. A marker is replaced as a whole, flushed,
and under a lock on its directory, so it never goes back within an incarnation, and what an owner of before
wants to write late finds that the root is another's. Where a file system has no such locks (NFS), a process
that is late may put back what it has just read there.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from elasticscan.base.errors import (
    CatalogOutdated,
    CommitUnknown,
    ElasticScanError,
    FragmentDamaged,
    InvalidOption,
    ShardUnavailable,
    WrongRoot,
)
from elasticscan.base.file_locks import locked
from elasticscan.base.redaction import shown
from elasticscan.storage import Disk, is_fragment_path
from elasticscan.store.roots.location import MARKER

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


def read_marker(disk: Disk, root: str) -> Marker | None:
    """Return the marker in a root; None where there is none. Raises `WrongRoot` where it makes no sense."""
    try:
        file = disk.open(MARKER)
        return _unpack(bytes(file.read_at(0, min(file.size, MOST_BYTES))))
    except FragmentDamaged:  # there is no such file
        return None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WrongRoot(
            f"the marker {MARKER} in {shown(root)} is damaged ({error}); restore it, or remove it and "
            "run `elasticscan adopt` if the files are this store's",
            root=shown(root),
        ) from error


def write_marker(disk: Disk, marker: Marker) -> None:
    """Put a marker in the place of the one that is there; the caller is `alone_at` the root."""
    with disk.create(MARKER) as file:
        file.write(_pack(marker))


def raise_marker(
    disk: Disk, root: str, wanted: Marker, seen: Marker | None = None, again: bool = False
) -> None:
    """Let a root know the versions in its owner's marker, if these are newer, or write it `again`.

    `seen` is the marker of a root in object storage, if it was just read. Raises as `check_owner`.
    """
    with alone_at(root):
        stored = check_owner(seen or read_marker(disk, root), root, wanted)
        raised = wanted.raised(stored)
        if again or raised != stored:
            disk.note(MARKER, _pack(raised))


def check_owner(marker: Marker | None, root: str, expected: Marker) -> Marker:
    """Return the marker in a root, if it is that of the shard which the catalog takes it for.

    Raises:
        ShardUnavailable: it has no marker: what is mounted there is not the shard's disk.
        WrongRoot: it is another store's, another shard's, or that of another copy of the store.
    """
    if marker is None:
        raise ShardUnavailable(
            f"{shown(root)} is not the storage of {expected}: it holds no {MARKER}, so its disk is not "
            "mounted, or was emptied; mount or restore it and try again",
            root=shown(root),
            shard=expected.name,
        )
    if (marker.store, marker.shard) != (expected.store, expected.shard):
        raise WrongRoot(
            f"{shown(root)} should be {expected}, but it is {marker}; mount each disk where its shard is, "
            "and let no two shards name one directory",
            root=shown(root),
            wanted=str(expected),
            found=str(marker),
        )
    check_same_copy(marker, root, expected)
    return marker


def check_same_copy(marker: Marker, root: str, expected: Marker) -> None:
    """Raise `WrongRoot` when a root belongs to another copy of the store, or to a catalog elsewhere."""
    is_elsewhere = (
        marker.catalog and expected.catalog and not is_same_catalog(marker.catalog, expected.catalog)
    )
    if marker.incarnation != expected.incarnation or is_elsewhere:
        original = marker.catalog.split(":", 2)[-1]
        raise WrongRoot(
            f"this catalog is a copy of {original or 'another one'}, which {shown(root)} ({marker}) belongs "
            "to; use that one, or run `elasticscan adopt` to make this one the owner",
            root=shown(root),
            original=original,
        )


def check_not_ahead(marker: Marker, root: str, expected: Marker) -> None:
    """Raise `CatalogOutdated` when a root knows more than the catalog, whose versions were read later."""
    if marker.layout > expected.layout or marker.commit > expected.commit:
        raise CatalogOutdated(
            f"the catalog is older than its shards: {shown(root)} knows commit {marker.commit} (layout "
            f"{marker.layout}), the catalog {expected.commit} (layout {expected.layout}); put the newest "
            "back, or run `elasticscan adopt`",
            root=shown(root),
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
    """Roots that become a new shard's. All of them are given back when the shard is not entered after all."""

    def __init__(self) -> None:
        self._taken: list[tuple[Disk, str, Marker]] = []

    def claim(self, disk: Disk, root: str, marker: Marker, taken: Collection[int]) -> None:
        """Make a free root a shard's; that of a shard which was removed, and is not in `taken`, is free.

        Raises:
            InvalidOption: it belongs to another store, to another copy of this one, or to another shard; or
                holds files of a store, and no marker: they may be the only copies.
        """
        with alone_at(root):
            found = read_marker(disk, root)
            if found is None and not any(is_fragment_path(path) for path, _ in disk.list()):
                self._taken.append((disk, root, marker))
            elif found is None or found.owner[:2] != marker.owner[:2]:
                raise InvalidOption(
                    f"{shown(root)} holds {found or 'files without a marker'} of another store or a lost "
                    "catalog; choose another directory, or remove it if no store uses it",
                    root=shown(root),
                )
            elif found.shard in taken and found.shard != marker.shard:
                raise InvalidOption(
                    f"{shown(root)} is the storage of {found} already, by another name; each needs a place "
                    "of its own",
                    root=shown(root),
                )
            else:
                marker = marker.raised(found)
            write_marker(disk, marker)
            # In object storage others may have claimed it, too.
            check_owner(read_marker(disk, root), root, marker)

    def check_held(self) -> None:
        """Raise `WrongRoot` where another process has claimed one of the roots meanwhile."""
        for disk, root, marker in self._taken:
            check_owner(read_marker(disk, root), root, marker)

    @contextmanager
    def undone_on_errors(self) -> Iterator[None]:
        """Give claimed roots back when the block raises, except the ones that others took meanwhile.

        What was written there since, by the block alone, is removed: no file of a store was there before.
        """
        try:
            yield
        except CommitUnknown:  # perhaps they are the shard's now
            raise
        except BaseException:
            for disk, root, marker in self._taken:
                with suppress(ElasticScanError):
                    found = read_marker(disk, root)
                    if found is not None and found.owner == marker.owner:
                        written = [path for path, _ in disk.list() if is_fragment_path(path)]
                        for path in (*written, MARKER):
                            disk.delete(path)
            raise


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
