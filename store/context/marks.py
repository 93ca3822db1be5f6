"""The roots of an open store's shards: their disks, whose they are, and what they know of the catalog.

The caller passes in how far the catalog has got.

A store may have hundreds of shards, and a commit touches few. So what is committed is noted at a few shards
where files were written, and at a few *witnesses*, the same few for all that reach the same roots: a writer
reads these first. An open store has read all once, and where the set of shards changed, all are written. So
an older catalog is noticed by each process as if it read all markers, unless all witnesses are away or lost,
and with them the shards that were written since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from time import monotonic

from elasticscan.base.concurrency import parallel
from elasticscan.base.errors import ElasticScanError, NotFound, ShardUnavailable
from elasticscan.base.limits import SHARDS_AT_ONCE
from elasticscan.catalog import Catalog, Identity, retry_interrupted
from elasticscan.metadata import MEMORY
from elasticscan.storage import MEMORY_DISK, Disk
from elasticscan.store.roots import Claims, Location, Mark, Marker
from elasticscan.store.roots.markers import (
    check_not_ahead,
    check_owner,
    check_same_catalog,
    is_same_catalog,
    place_of_catalog,
    raise_marker,
    read_marker,
)
from elasticscan.topology import Shard

WITNESSES = 3
MARK_SECONDS = 1.0  # so often small commits compare markers with the catalog, and raise some


def mark_of(catalog: Identity) -> Mark:
    """Return the mark that says how far a catalog has got."""
    return Mark(catalog.incarnation, catalog.layout, catalog.last_commit)


def witnesses_first(shards: Iterable[int]) -> list[int]:
    """Shards in the order in which they are witnesses.

    It scatters them, for neighbours may lie on one disk, and it stays as it is when others come or go.
    """
    return sorted(shards, key=lambda shard: (shard * 2_654_435_761 % 2**32, shard))


class RateLimit:
    """Limits what small commits do at the roots to once in `MARK_SECONDS`; other commits do it each time.

    Attributes:
        refused_last: the last time that it was asked, it did not allow it.
    """

    def __init__(self) -> None:
        self._last, self.refused_last = -MARK_SECONDS, False

    def allows(self) -> bool:
        now = monotonic()
        self.refused_last = now - self._last < MARK_SECONDS
        self._last = self._last if self.refused_last else now
        return not self.refused_last


class RootMarks:
    """Access to the roots of a store's shards, removed ones included, and to their markers."""

    def __init__(
        self, catalog: Catalog, location: Location, open_disk: Callable[[str], Disk], store: str
    ) -> None:
        self._catalog, self._store = catalog, store
        self._location, self._open_disk = location, open_disk
        self._shards: dict[int, Shard] = {}  # also ones whose disks were not opened yet
        self._disks: dict[int, tuple[Shard, Disk]] = {}
        self._seen_afar: dict[int, Marker] = {}  # in object storage, by whoever is about to write there
        self.looking, self.noting = RateLimit(), RateLimit()
        self._place: str | None = None  # of the catalog; what is open is found again by its file

    @retry_interrupted
    def _shard_and_disk(self, shard: int) -> tuple[Shard, Disk]:
        opened = self._disks.get(shard)
        if opened is None:
            if shard not in self._shards:  # one look tells of all, however many they are
                with self._catalog.reading() as tx:
                    self._shards = {info.id: info for info in tx.state.all_shards}
            info = self._shards.get(shard)
            if info is None:
                raise NotFound(f"the store has no shard with id {shard}", shard=shard, kind="shard")
            disk = self._open_disk(self._location.root(info.root))
            opened = self._disks.setdefault(shard, (info, disk))
        return opened

    def disk_of(self, shard: int) -> Disk:
        if shard == MEMORY:
            return MEMORY_DISK
        return self._shard_and_disk(shard)[1]

    def root_of(self, shard: int) -> str:
        return self._location.root(self._shard_and_disk(shard)[0].root)

    def marker_of(self, shard: int, mark: Mark) -> Marker:
        """Return the marker that a shard's root has where it knows no more than the catalog."""
        name = self._shard_and_disk(shard)[0].name
        return Marker(
            self._store, mark.incarnation, shard, name, mark.layout, mark.commit, self._catalog_place()
        )

    def claim(self, claims: Claims, added: Shard, incarnation: str, taken: Collection[int]) -> None:
        """Make a new shard's root its own; in the transaction that enters the shard."""
        root = self._location.root(added.root)
        marker = Marker(self._store, incarnation, added.id, added.name)
        claims.claim(self._open_disk(root), root, marker, taken)

    def is_taken_over(self, shard: int, incarnation: str) -> bool:
        """Return whether a shard of this copy of the store that was made later has the root."""
        found = read_marker(self.disk_of(shard), self.root_of(shard))
        return self.marker_of(shard, Mark(incarnation, 0, 0)).precedes(found)

    def check(self, shard: int, now: Callable[[], Mark]) -> Disk:
        """Return a shard's disk once its root is proven, and knows no more than the catalog does `now`.

        Raises:
            ShardUnavailable: the shard's disk is not mounted.
            WrongRoot: another shard's is.
            CatalogOutdated: the catalog is an older copy.
        """
        disk, root = self.disk_of(shard), self.root_of(shard)
        for _ in range(2):  # an adoption writes markers first
            found, known = read_marker(disk, root), now()  # in this order, since versions only grow
            expected = self.marker_of(shard, known)
            if found is not None and found.owner == expected.owner:
                break
        found = check_owner(found, root, expected)
        check_not_ahead(found, root, (known.layout, known.commit))
        if disk.is_far:
            self._seen_afar[shard] = found
        return disk

    def check_all(self, shards: Collection[int], now: Callable[[], Mark]) -> dict[int, Disk]:
        """As `check`, for each of some shards; those in object storage at once."""
        order = sorted(shards)
        if not any(map(self._is_far, order)):
            return {shard: self.check(shard, now) for shard in order}
        checked = parallel(lambda shard: self.check(shard, now), order, SHARDS_AT_ONCE)
        return dict(zip(order, checked, strict=True))

    def _is_far(self, shard: int) -> bool:
        """Return whether a shard is in object storage, as far as known."""
        with suppress(ElasticScanError):
            return self.disk_of(shard).is_far
        return False

    def note(self, shards: Iterable[int], mark: Mark, again: bool = False) -> set[int]:
        """Let roots know how far the catalog has got, as well as may be; returns the shards reached.

        `again` writes also what says nothing new.
        """
        away = list[int]()  # behind a bucket that is away no other is waited for, perhaps a minute each

        def reached(shard: int) -> bool:
            is_far = self._is_far(shard)
            if is_far and away:
                return False
            try:
                seen = None if again else self._seen_afar.pop(shard, None)
                disk, root = self.disk_of(shard), self.root_of(shard)
                raise_marker(disk, root, self.marker_of(shard, mark), seen, again)
            except ElasticScanError as error:
                if is_far and isinstance(error, ShardUnavailable):
                    away.append(shard)
                return False
            return True

        order = sorted(shards)
        return {
            shard for shard, was in zip(order, parallel(reached, order, SHARDS_AT_ONCE), strict=True) if was
        }

    def note_committed(
        self, local: Collection[int], written: Collection[int], mark: Mark, at_all: bool = False
    ) -> None:
        """Let witnesses know in directories, and shards that were written: a few there, and all in buckets.

        Or `at_all`, for an older catalog may have other witnesses.
        """
        if at_all:
            self.note({*local, *written}, mark)
            return
        order = witnesses_first(local)
        told = [shard for shard in order[WITNESSES:] if shard in written][:WITNESSES]
        self.note({*order[:WITNESSES], *told, *set(written).difference(local)}, mark)

    def look(self, shards: Collection[int], at_all: bool, writing: bool) -> Callable[[Identity], None]:
        """Read what the shards that can be reached know; what is returned compares a later catalog with it.

        Only witnesses among them are read, unless it is to be looked at all. That raises `CatalogOutdated`,
        and before `writing` also `WrongRoot` where the catalog is a copy.
        """
        found = dict[int, Marker]()
        for shard in witnesses_first(shards):
            if len(found) == WITNESSES and not at_all:
                break
            with suppress(ElasticScanError):  # the shard is away: writing there raises
                marker = read_marker(self.disk_of(shard), self.root_of(shard))
                if marker is not None and (marker.store, marker.shard) == (self._store, shard):
                    found[shard] = marker

        def check(catalog: Identity) -> None:
            place = self._catalog_place()
            for shard, marker in found.items():
                is_own = marker.incarnation == catalog.incarnation
                if writing and is_own:
                    check_same_catalog(marker, self.root_of(shard), place)
                # A later incarnation in this place, which the catalog has lost: numbers go on. One elsewhere
                # has taken the root over: then the original is read as far as it knows.
                if is_own or is_same_catalog(marker.catalog, place):
                    check_not_ahead(marker, self.root_of(shard), (catalog.layout, catalog.last_commit))

        return check

    def _catalog_place(self) -> str:
        if self._place is None:
            self._place = place_of_catalog(self._catalog.file)
        return self._place
