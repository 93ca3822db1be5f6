"""Roots of an open store's shards: their disks, their owners, and the high-water marks in their markers.

The marker in each root has the newest version of the catalog that was reported there, its high-water mark. If
it is ahead of the catalog, the catalog was replaced by an older copy, and must not be written.

A store may have hundreds of shards, so a commit reports its number to few: to some of the shards where it
wrote files, and to the first shards in directories, the *witnesses*. A writer reads the witnesses. A process
reads the markers of all directories once after it has opened the store, and a change of the set of shards is
reported to all. So each process notices an older catalog, unless all witnesses are unreachable or lost, and
with them the shards that were written since. If all shards are in buckets, commits that write files, merges,
moves and gc notice it; small commits and reads do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex
from time import monotonic

from elasticscan.base.concurrency import parallel
from elasticscan.base.errors import ElasticScanError, NotFound, ShardUnavailable
from elasticscan.base.limits import SHARDS_AT_ONCE
from elasticscan.catalog import Catalog, StoreState, take_incarnation
from elasticscan.metadata import MEMORY
from elasticscan.storage import MEMORY_DISK, Disk, newest_commit_of
from elasticscan.store.roots import Claims, Location, Marker
from elasticscan.store.roots.markers import (
    Root,
    alone_at,
    check_not_ahead,
    check_owner,
    check_same_copy,
    is_same_catalog,
    place_of_catalog,
)

WITNESSES = 3
MARK_SECONDS = 1.0  # interval at which small commits read the witnesses, and write markers


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of an adoption.

    Attributes:
        incarnation: the new incarnation.
        commits: (newest in the catalog, newest that a shard has seen). Those in between are lost.
    """

    incarnation: str
    commits: tuple[int, int]


class RootMarks:
    """Access to the roots of a store's shards, removed ones included, and to their markers."""

    def __init__(self, catalog: Catalog, location: Location, open_disk: Callable[[str], Disk]) -> None:
        self._catalog, self._location, self._open_disk = catalog, location, open_disk
        self._roots: dict[int, tuple[str, Root]] = {}
        self._seen_afar: dict[int, Marker] = {}  # markers in buckets, as read before a write
        self._next_read = self._next_note = 0.0  # times at which a small commit reads, and writes, markers
        self._store, self._place = self._catalog.seen().store_id, place_of_catalog(catalog.file)
        self._noted_shards = self.local_shards()  # at the time of the last report
        self._pending: StoreState | None = None  # the last small commit, if it was not reported
        self._compared = False  # whether all markers in directories were read once

    def local_shards(self) -> tuple[int, ...]:
        """Return the active shards whose roots are directories, which are read without a network."""
        active = self._catalog.seen().shards.values()
        return tuple(sorted(shard.id for shard in active if "://" not in self._location.root(shard.root)))

    def _known(self, shard: int) -> tuple[str, Root]:
        """Return the name and the root of a shard, which may have been removed."""
        if shard not in self._roots:
            states = (read() for read in (self._catalog.seen, self._catalog.state))
            info = next((info for state in states for info in state.all_shards if info.id == shard), None)
            if info is None:
                raise NotFound(f"the store has no shard with id {shard}", shard=shard, kind="shard")
            place = self._location.root(info.root)
            self._roots[shard] = info.name, Root(place, self._open_disk(place))
        return self._roots[shard]

    def root(self, shard: int) -> Root:
        return self._known(shard)[1]

    def disk_of(self, shard: int) -> Disk:
        return MEMORY_DISK if shard == MEMORY else self.root(shard).disk

    def marker_of(self, shard: int, state: StoreState) -> Marker:
        """Return the marker that a shard's root has if the catalog is up to date."""
        name = self._known(shard)[0]
        return Marker(self._store, state.incarnation, shard, name, *state.versions, self._place)

    def claims(self) -> Claims:
        """Return claims for the roots of new shards, to be used in the transaction that adds the shards."""
        state = self._catalog.state()
        return Claims(self._location, self._open_disk, self._store, state.incarnation, state.shards)

    def check(self, shard: int, read_state: Callable[[], StoreState]) -> Disk:
        """Verify that a root is the shard's, and its marker is not ahead of the catalog; return its disk.

        Raises:
            ShardUnavailable: the shard's disk is not mounted.
            ShardMismatch: the root belongs to another shard, or the catalog is a copy or older.
        """
        root = self.root(shard)
        for _ in range(2):  # during an adoption, markers are newer than the catalog for a moment
            marker = root.marker()
            expected = self.marker_of(shard, read_state())  # read after the marker, since versions only grow
            if marker is not None and marker.owner == expected.owner:
                break
        marker = check_owner(marker, root, expected)
        check_not_ahead(marker, root, expected)
        if root.disk.is_far:
            self._seen_afar[shard] = marker
        return root.disk

    def check_all(self, shards: Collection[int], read_state: Callable[[], StoreState]) -> dict[int, Disk]:
        """Call `check` for several shards in parallel; return their disks."""
        order = sorted(shards)
        checked = parallel(lambda shard: self.check(shard, read_state), order, SHARDS_AT_ONCE)
        return dict(zip(order, checked, strict=True))

    # High-water marks

    def note_newest(self, shards: Iterable[int], touch: bool = False) -> set[int]:
        """Report the newest versions of the catalog to shards; return the shards that were reached."""
        with suppress(ElasticScanError):
            return self._note(shards, self._catalog.state(), touch)
        return set()

    def note_committed(self, committed: StoreState, files_at: frozenset[int], is_small: bool) -> None:
        """Report a commit to witnesses and to shards with new files; small commits once per `MARK_SECONDS`.

        If the set of shards changed, report to all directories; if there are no new files, to all buckets.
        """
        self._pending = committed
        if is_small and monotonic() < self._next_note:
            return
        self._next_note, self._pending = monotonic() + MARK_SECONDS, None
        with suppress(ElasticScanError):
            local, before = self.local_shards(), self._noted_shards
            self._noted_shards = local
            active = self._catalog.seen().shards.keys()
            written = files_at & active or active - set(local)
            if before == local:
                self._note_some(local, written, committed)
            else:  # report to all: an older copy of the catalog may have other witnesses
                self._note({*local, *written}, committed)

    def note_pending(self) -> None:
        """Report the last small commit to directories, if it is pending; does not read the catalog."""
        if self._pending is not None:
            with suppress(ElasticScanError):
                self._note_some(self.local_shards(), (), self._pending)

    def _note_some(self, local: tuple[int, ...], written: Collection[int], state: StoreState) -> None:
        """Write the markers of witnesses and of written shards: of a few directories and all buckets."""
        some_written = [shard for shard in local[WITNESSES:] if shard in written][:WITNESSES]
        self._note({*local[:WITNESSES], *some_written, *set(written).difference(local)}, state)

    def _note(self, shards: Iterable[int], state: StoreState, touch: bool = False) -> set[int]:
        """Write markers that are older, with `touch` all of them; return the shards that were reached."""

        def reached(shard: int) -> set[int]:
            with suppress(ElasticScanError):
                seen = None if touch else self._seen_afar.pop(shard, None)
                self.root(shard).raise_marker(self.marker_of(shard, state), seen, touch)
                return {shard}
            return set()

        return set().union(*parallel(reached, sorted(shards), SHARDS_AT_ONCE))

    def read_before_writing(self, is_small: bool) -> Callable[[StoreState], None]:
        """Return `read_markers(True)`; before small commits only once per `MARK_SECONDS`."""
        return (lambda _: None) if is_small and monotonic() < self._next_read else self.read_markers(True)

    def read_markers(self, writing: bool = False) -> Callable[[StoreState], None]:
        """Read the markers of witnesses (the first time of all directories), and return a check.

        The check compares a later state of the catalog with the markers. It raises `ShardMismatch` if the
        catalog is older, or, if `writing`, if it is another copy.
        """
        markers, read_at = dict[int, Marker](), monotonic()
        for shard in self.local_shards():
            if len(markers) == WITNESSES and self._compared:
                break
            with suppress(ElasticScanError):  # an unreachable shard: writing there raises
                marker = self.root(shard).marker()
                if marker is not None and (marker.store, marker.shard) == (self._store, shard):
                    markers[shard] = marker

        def compare(state: StoreState) -> None:
            for shard, marker in markers.items():
                root, expected = self.root(shard), self.marker_of(shard, state)
                # Another incarnation of this catalog file: an older copy has replaced the adopted one, whose
                # numbers go on. A catalog elsewhere has adopted the root: this one can still be read.
                is_same = marker.incarnation == state.incarnation
                if is_same or is_same_catalog(marker.catalog, self._place):
                    check_not_ahead(marker, root, expected)
                if writing:
                    check_same_copy(marker, root, expected)
            self._compared = True
            if writing:
                self._next_read = read_at + MARK_SECONDS

        return compare

    def check_newest(self) -> None:
        """Raise `ShardMismatch` if a shard has seen a newer commit; does nothing after the first success."""
        # A standby of a database server is behind its primary, so an older catalog proves nothing.
        if not self._compared and not self._catalog.home.is_follower:
            self.read_markers()(self._catalog.state())
        self._compared = True

    # Adoption: a copy becomes an independent store, or a store continues with an older catalog. Both begin a
    # new *incarnation*. It has other secrets, so that keys and offsets of the other copy are refused, and the
    # markers in all roots name it, so that no root belongs to two catalogs.

    def adopt(self) -> Adopted:
        """Make this catalog the owner of its shards, even if other copies of it have written to them.

        Commits that this catalog does not have are lost; their files become orphans, which stay for a while.
        The number of the next commit is higher than theirs.

        Raises:
            ShardUnavailable: a shard is unreachable, or has no marker and lacks files of the catalog.
            ShardMismatch, StoreDamaged: a root belongs to another shard, or the catalog is damaged.
        """
        seen = self._catalog.seen().versions  # may be newer than any marker
        self._compared, self._next_read = False, 0.0
        self._catalog.forget()
        self._catalog.check_whole()
        with self._catalog.leasing() as tx:
            before, active, live = tx.state, tx.state.shards, dict[int, set[str]]()
            removed = {(file.shard, file.path) for file in before.removed_files()}
            for shard, path in before.known_paths() - removed:
                live.setdefault(shard, set()).add(path)
            known = [self._known_at(shard, before, live.get(shard, set())) for shard in active]
            layout, commit = map(max, zip(seen, *known, strict=True))
            adopted = replace(before, incarnation=token_hex(16), layout=layout, commit=commit)
            for shard in active:
                self._take_over(shard, adopted, True)
            for shard in before.removed_shards:
                with suppress(ElasticScanError):  # the root of a removed shard may be gone
                    self._take_over(shard, adopted, False)
            take_incarnation(tx, adopted.incarnation, adopted.versions)
        self.note_newest(active)
        return Adopted(adopted.incarnation, (before.commit, commit))

    def _known_at(self, shard: int, state: StoreState, live: set[str]) -> tuple[int, int]:
        """Return the newest (layout, commit) in a root: in its marker, and in files that are not `live`."""
        root, expected = self.root(shard), self.marker_of(shard, state)
        marker, files = root.marker(), {path for path, _ in root.disk.list()}
        if marker is not None:  # its incarnation and catalog may be any
            same_copy = replace(expected, incarnation=marker.incarnation, catalog=marker.catalog)
            check_owner(marker, root, same_copy)
        elif not live <= files:
            lacks = f"{len(live - files)} files of {expected}"
            raise ShardUnavailable(
                f"{root} has no marker and lacks {lacks}; mount its disk", root=str(root), shard=expected.name
            )
        layout, commit = (0, 0) if marker is None else (marker.layout, marker.commit)
        unknown = ((root.disk, path) for path in files - live)
        return layout, max(commit, newest_commit_of(self._store, unknown))

    def _take_over(self, shard: int, state: StoreState, is_active: bool) -> None:
        """Write the marker of a new incarnation to a root, with versions at least as high as before."""
        root, marker = self.root(shard), self.marker_of(shard, state)
        with alone_at(root.place):
            old = root.marker()
            if is_active or (old is not None and (old.store, old.shard) == (marker.store, shard)):
                root.write_marker(marker)
