"""Roots of an open store's shards: their disks, their owners, and the high-water marks in their markers.

A store may have hundreds of shards, and a commit touches few. So what is committed is noted at a few shards
where files were written, and at the first few shards in directories, the *witnesses*, which a writer reads.
An open store has read all directories once; where the set of shards changed, all are written. So each process
notices an older catalog as if it read all markers, unless all witnesses are away or lost, and with them the
shards that were written since. With shards in buckets alone, an older catalog is noticed by commits that
write files, merges, moves and gc, not by small commits or reads.
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
MARK_SECONDS = 1.0  # so often small commits compare markers with the catalog, and raise some


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of an adoption.

    Attributes:
        incarnation: the new one.
        commits: (the catalog's newest commit, the newest that the shards knew); commits in between are lost.
    """

    incarnation: str
    commits: tuple[int, int]


class RootMarks:
    """Access to the roots of a store's shards, removed ones included, and to their markers."""

    def __init__(self, catalog: Catalog, location: Location, open_disk: Callable[[str], Disk]) -> None:
        self._catalog, self._location, self._open_disk = catalog, location, open_disk
        self._roots: dict[int, tuple[str, Root]] = {}
        self._seen_afar: dict[int, Marker] = {}  # in object storage, before a write
        self._next_look = self._next_note = 0.0  # for small commits
        self._store, self._place = self._catalog.seen().store_id, place_of_catalog(catalog.file)
        self._noted_shards = self.local_shards()  # when a mark was left last
        self._pending: StoreState | None = None  # of small commits, not left at the roots yet
        self._compared = False  # markers with the catalog, once

    def local_shards(self) -> tuple[int, ...]:
        """Return the active shards whose roots are directories: to look at these costs no network."""
        active = self._catalog.seen().shards.values()
        return tuple(sorted(shard.id for shard in active if "://" not in self._location.root(shard.root)))

    def _known(self, shard: int) -> tuple[str, Root]:
        """Return the name and the root of a shard, also of one that was removed."""
        if shard not in self._roots:
            every = (info for find in (self._catalog.seen, self._catalog.state) for info in find().all_shards)
            info = next((info for info in every if info.id == shard), None)
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
        """Return the marker that a shard's root has where it knows no more than the catalog."""
        name = self._known(shard)[0]
        return Marker(self._store, state.incarnation, shard, name, *state.versions, self._place)

    def claims(self) -> Claims:
        """Return the claims of new shards' roots, in the transaction that enters the shards."""
        state = self._catalog.state()
        return Claims(self._location, self._open_disk, self._store, state.incarnation, state.shards)

    def check(self, shard: int, read_state: Callable[[], StoreState]) -> Disk:
        """Return a shard's disk once its root is proven, and knows no more than the catalog as read after it.

        Raises:
            ShardUnavailable: the shard's disk is not mounted.
            ShardMismatch: another shard's is, or the catalog is a copy, or older.
        """
        root = self.root(shard)
        for _ in range(2):  # an adoption writes markers first
            found = root.marker()
            expected = self.marker_of(shard, read_state())  # in this order, since versions only grow
            if found is not None and found.owner == expected.owner:
                break
        found = check_owner(found, root, expected)
        check_not_ahead(found, root, expected)
        if root.disk.is_far:
            self._seen_afar[shard] = found
        return root.disk

    def check_all(self, shards: Collection[int], read_state: Callable[[], StoreState]) -> dict[int, Disk]:
        """As `check`, for each of some shards at once."""
        order = sorted(shards)
        checked = parallel(lambda shard: self.check(shard, read_state), order, SHARDS_AT_ONCE)
        return dict(zip(order, checked, strict=True))

    # Marks: how far the catalog has got, as its roots know

    def note_newest(self, shards: Iterable[int], touch: bool = False) -> set[int]:
        """Let shards know the newest number of the catalog, if possible; return those reached."""
        with suppress(ElasticScanError):
            return self._note(shards, self._catalog.state(), touch)
        return set()

    def note_committed(self, committed: StoreState, files_at: frozenset[int], is_small: bool) -> None:
        """Let roots know what was committed, where files were entered and at witnesses; of small ones rarely.

        Where shards joined or left, at all in directories; where no files were entered, in all buckets.
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
            else:  # an older catalog may have other witnesses
                self._note({*local, *written}, committed)

    def note_pending(self) -> None:
        """Raise the markers in directories for the last small commit, if they were not; asks no catalog."""
        if self._pending is not None:
            with suppress(ElasticScanError):
                self._note_some(self.local_shards(), (), self._pending)

    def _note_some(self, local: tuple[int, ...], written: Collection[int], state: StoreState) -> None:
        """Raise the markers of witnesses and of shards that were written: a few directories, all buckets."""
        some_written = [shard for shard in local[WITNESSES:] if shard in written][:WITNESSES]
        self._note({*local[:WITNESSES], *some_written, *set(written).difference(local)}, state)

    def _note(self, shards: Iterable[int], state: StoreState, touch: bool = False) -> set[int]:
        """Raise the markers of shards, with `touch` also where nothing is new; returns the shards reached."""

        def reached(shard: int) -> set[int]:
            with suppress(ElasticScanError):
                seen = None if touch else self._seen_afar.pop(shard, None)
                self.root(shard).raise_marker(self.marker_of(shard, state), seen, touch)
                return {shard}
            return set()

        return set().union(*parallel(reached, sorted(shards), SHARDS_AT_ONCE))

    def look_before_writing(self, is_small: bool) -> Callable[[StoreState], None]:
        """As `look_at_marks`; before small commits once in a while."""
        return (lambda _: None) if is_small and monotonic() < self._next_look else self.look_at_marks(True)

    def look_at_marks(self, writing: bool = False) -> Callable[[StoreState], None]:
        """Read witnesses' markers, once of all directories; return a comparison of a later catalog with them.

        That raises `ShardMismatch`: the catalog is older, or, before `writing`, another copy.
        """
        found, looked_at = dict[int, Marker](), monotonic()
        for shard in self.local_shards():
            if len(found) == WITNESSES and self._compared:
                break
            with suppress(ElasticScanError):  # the shard is away: writing there raises
                marker = self.root(shard).marker()
                if marker is not None and (marker.store, marker.shard) == (self._store, shard):
                    found[shard] = marker

        def compare(state: StoreState) -> None:
            for shard, marker in found.items():
                root, expected = self.root(shard), self.marker_of(shard, state)
                # A later incarnation in this place, which the catalog has lost: numbers go on. One elsewhere
                # has taken the root over: then the original is only read, as far as it knows.
                is_own = marker.incarnation == state.incarnation
                if is_own or is_same_catalog(marker.catalog, self._place):
                    check_not_ahead(marker, root, expected)
                if writing:
                    check_same_copy(marker, root, expected)
            self._compared = True
            if writing:
                self._next_look = looked_at + MARK_SECONDS

        return compare

    def check_newest(self) -> None:
        """Raise `ShardMismatch` where shards know a newer commit; costs nothing once none did."""
        # A standby of a database server follows its server with a delay, which proves nothing.
        if not self._compared and not self._catalog.home.is_follower:
            self.look_at_marks()(self._catalog.state())
        self._compared = True

    # Adoption: a copy becomes a store of its own, or a store goes on from an older catalog. Both begin a new
    # *incarnation*: with other secrets, so that keys and offsets of the other copy are refused, and with
    # markers that name it in all roots, so that no root belongs to two catalogs.

    def adopt(self) -> Adopted:
        """Make this catalog the owner of its shards, whatever another copy of it did since.

        Commits that it does not know are lost; their files become orphans, which stay for a while.
        Commit numbers go on beyond them.

        Raises:
            ShardUnavailable: a shard is away, or has no marker and lacks files that the catalog refers to.
            ShardMismatch, StoreDamaged: a root is another shard's, or the catalog is not as it was written.
        """
        seen = self._catalog.seen().versions  # also beyond what the shards know
        self._compared, self._next_look = False, 0.0
        self._catalog.forget()
        self._catalog.check_whole()
        with self._catalog.leasing() as tx:
            before, active, live = tx.state, tx.state.shards, dict[int, set[str]]()
            gone = {(file.shard, file.path) for file in before.removed_files()}
            for shard, path in before.known_paths() - gone:
                live.setdefault(shard, set()).add(path)
            known = [self._known_at(shard, before, live.get(shard, set())) for shard in active]
            layout, commit = map(max, zip(seen, *known, strict=True))
            adopted = replace(before, incarnation=token_hex(16), layout=layout, commit=commit)
            for every in before.all_shards:
                with suppress(*() if every.id in active else (ElasticScanError,)):
                    self._take_over(every.id, adopted, every.id in active)
            take_incarnation(tx, adopted.incarnation, adopted.versions)
        self.note_newest(active)
        return Adopted(adopted.incarnation, (before.commit, commit))

    def _known_at(self, shard: int, state: StoreState, live: set[str]) -> tuple[int, int]:
        """Return the (layout, commit) that a root knows by its marker, and by files that are not `live`."""
        root, expected = self.root(shard), self.marker_of(shard, state)
        marker, files = root.marker(), {path for path, _ in root.disk.list()}
        if marker is not None:  # of whichever incarnation
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
        """Make a root that of an incarnation; what it knows stays known, if an adoption is cut off."""
        root, marker = self.root(shard), self.marker_of(shard, state)
        with alone_at(root.place):
            found = root.marker()
            if is_active or (found is not None and (found.store, found.shard) == (marker.store, shard)):
                root.write_marker(marker)
