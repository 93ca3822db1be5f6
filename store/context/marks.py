"""The roots of an open store's shards: their disks, whose they are, and what they know of the catalog.

The caller passes in how far the catalog has got.

A store may have hundreds of shards, and a commit touches few. So what is committed is noted where files were
written, and at a few *witnesses*, the same few for all that reach the same roots: a writer reads
these first. An open store has read all once, and where the set of shards changed, all are written. So an
older catalog is noticed by each process as if it read all marks, unless all witnesses of what was done since
are away or lost; against that the marks of all others are brought up in turn, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TypeVar

from elasticscan.base.clock import Clock
from elasticscan.base.concurrency import parallel
from elasticscan.base.errors import (
    ElasticScanError,
    NotFound,
    ShardUnavailable,
    WrongRoot,
)
from elasticscan.base.limits import SHARDS_AT_ONCE
from elasticscan.catalog import Catalog, Home, Identity, retry_interrupted
from elasticscan.metadata import MEMORY
from elasticscan.storage import MEMORY_DISK, Disk
from elasticscan.store.roots import Claims, Location, Mark, Marker
from elasticscan.store.roots.markers import advance_mark, check_mark, check_marker, read_mark, read_marker
from elasticscan.topology import Shard

WITNESSES = 8
MARK_SECONDS = 1.0  # so often small commits compare marks with the catalog, and leave some
Done = TypeVar("Done")
_IN_TURN = 2  # of the others, for each commit


def next_incarnation(identity: Identity, here: Home | None) -> str | None:
    """Return the incarnation that a copy begins with its first write; None for a catalog that is no copy.

    It is the same when that begins again after an end during it: roots name it before the catalog does.
    Another copy, and the same one at another commit, begins another.
    """
    if here is None or identity.home is None or here.is_place_of(identity.home):
        return None
    of = (identity.store_id, identity.incarnation, identity.layout, identity.last_commit, here.pack())
    return hashlib.blake2b("\n".join(map(str, of)).encode(), digest_size=16).hexdigest()


def mark_of(catalog: Identity) -> Mark:
    """Return the mark that says how far a catalog has got."""
    return Mark(catalog.incarnation, catalog.layout, catalog.last_commit)


def witnesses_first(shards: Iterable[int]) -> list[int]:
    """Shards in the order in which they are witnesses.

    It scatters them, for neighbours may lie on one disk, and it stays as it is when others come or go.
    """
    return sorted(shards, key=lambda shard: (shard * 2_654_435_761 % 2**32, shard))


def next_in_turn(order: Sequence[int], versions: int) -> list[int]:
    """Return some shards beyond the witnesses; all of them come in turn, as the catalog's versions grow."""
    others = order[WITNESSES:]
    return [others[(versions * _IN_TURN + n) % len(others)] for n in range(_IN_TURN) if others]


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
        self,
        catalog: Catalog,
        clock: Clock,
        location: Location,
        open_disk: Callable[[str], Disk],
        store: str,
    ) -> None:
        self._catalog, self._clock, self._store = catalog, clock, store
        self._location, self._open_disk = location, open_disk
        self._shards: dict[int, Shard] = {}  # also ones whose disks were not opened yet
        self._disks: dict[int, tuple[Shard, Disk]] = {}
        # For shards in object storage: the incarnation that they are of, and the last mark.
        self._seen_afar: dict[int, tuple[str, Mark]] = {}
        self.looking, self.noting = RateLimit(), RateLimit()
        self._place: str | None = None  # of the catalog; what is open is found again by its file

    @retry_interrupted
    def _shard_and_disk(self, shard: int) -> tuple[Shard, Disk]:
        opened = self._disks.get(shard)
        if opened is None:
            if shard not in self._shards:  # one look tells of all, however many they are
                with self._catalog.reading() as tx:
                    self._shards = {info.id: info for info in tx.shards(removed=True)}
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

    def marker_of(self, shard: int, incarnation: str) -> Marker:
        """Return the marker that a shard's root must have."""
        return Marker(self._store, incarnation, shard, self._shard_and_disk(shard)[0].name)

    def claim(self, claims: Claims, added: Shard, incarnation: str, taken: Collection[int]) -> None:
        """Make a new shard's root its own; in the transaction that enters the shard."""
        root = self._location.root(added.root)
        marker = Marker(self._store, incarnation, added.id, added.name)
        claims.claim(self._open_disk(root), root, marker, taken)

    def is_taken_over(self, shard: int, incarnation: str) -> bool:
        """Return whether a shard of this copy of the store that was made later has the root."""
        found = read_marker(self.disk_of(shard), self.root_of(shard))
        return self.marker_of(shard, incarnation).precedes(found)

    def check(self, shard: int, now: Callable[[], Mark]) -> Disk:
        """Return a shard's disk once its root is proven, and knows no more than the catalog does `now`.

        Or which a copy had begun to make its own: what writes has made sure before that it is no copy.

        Raises:
            ShardUnavailable: the shard's disk is not mounted.
            WrongRoot: another shard's is.
            CatalogOutdated: the catalog is an older copy.
        """
        disk, root = self.disk_of(shard), self.root_of(shard)
        mark, known = read_mark(disk), now()  # in this order, since both only grow
        marker = self.marker_of(shard, known.incarnation)
        if mark is None or not disk.is_far or not mark.is_of(marker):
            try:
                check_marker(disk, root, marker)
            except WrongRoot:
                if self._catalog.home is None or not self._was_begun(shard):
                    raise
        self._check_mark(mark, root, known.incarnation, (known.layout, known.commit))
        if disk.is_far and mark is not None and mark.is_of(marker):
            self._seen_afar[shard] = marker.incarnation, mark
        return disk

    def check_all(self, shards: Iterable[int], now: Callable[[], Mark]) -> dict[int, Disk]:
        """As `check`, for each of some shards."""
        return self._each(lambda shard: self.check(shard, now), sorted(shards))

    def _each(self, work: Callable[[int], Done], shards: Iterable[int]) -> dict[int, Done]:
        """Do some work for each shard: for directories one by one, then for object storage in parallel."""
        far = list[int]()
        done = dict[int, Done]()
        for shard in shards:
            if self._is_far(shard):
                far.append(shard)
            else:
                done[shard] = work(shard)
        done |= zip(far, parallel(work, far, SHARDS_AT_ONCE), strict=True)
        return done

    def _is_far(self, shard: int) -> bool:
        """Return whether a shard is in object storage, as far as known."""
        with suppress(ElasticScanError):
            return self.disk_of(shard).is_far
        return False

    @retry_interrupted
    def _was_begun(self, shard: int) -> bool:
        """Return whether a copy whose first write was cut off owns a root before the catalog says so.

        Raises `CatalogOutdated` where that was done in full: then the catalog is an older one, put back.
        """
        with self._catalog.reading() as tx:
            identity = tx.identity()
        incarnation = next_incarnation(identity, self._catalog.home)
        if incarnation is None:
            return False
        disk, root = self.disk_of(shard), self.root_of(shard)
        if read_marker(disk, root) != self.marker_of(shard, incarnation):
            return False
        check_mark(read_mark(disk), root, incarnation, (identity.layout, identity.last_commit))
        return True

    def _check_mark(self, mark: Mark | None, root: str, incarnation: str, versions: tuple[int, int]) -> None:
        check_mark(mark, root, incarnation, versions)

    def note(self, shards: Iterable[int], mark: Mark, again: bool = False) -> None:
        """Leave a mark at shards, as well as may be; `again` as in `advance_mark`."""
        away = list[int]()  # behind a bucket that is away no other is waited for, perhaps a minute each

        def note_if_there(shard: int) -> None:
            try:
                if not (away and self._is_far(shard)):
                    self._note(shard, mark, again)
            except ShardUnavailable:
                if self._is_far(shard):
                    away.append(shard)
            except ElasticScanError:
                return

        self._each(note_if_there, shards)

    def note_committed(self, local: Collection[int], written: Collection[int], mark: Mark) -> None:
        """Leave a mark at those of some directories that were written, and at witnesses among them."""
        order, reached = witnesses_first(local), set[int]()
        for shard in order:
            if len(reached) == WITNESSES:
                break
            with suppress(ElasticScanError):  # it is away: another one takes its place
                self._note(shard, mark)
                reached.add(shard)
        others = {*next_in_turn(order, mark.layout + mark.commit), *(set(written) & set(local))}
        self.note(others - reached, mark)

    def _note(self, shard: int, mark: Mark, again: bool = False) -> None:
        disk, root = self.disk_of(shard), self.root_of(shard)
        marker, mark = self.marker_of(shard, mark.incarnation), replace(mark, catalog=self._catalog_place())
        seen = None if again else self._seen_afar.pop(shard, None)
        stored = seen[1] if seen and seen[0] == mark.incarnation else read_mark(disk)
        noted = advance_mark(disk, root, marker, mark, self._clock.now(), stored, again)
        if disk.is_far:
            self._seen_afar[shard] = marker.incarnation, noted

    def look(self, shards: Collection[int], at_all: bool) -> Callable[[Identity], None]:
        """Read what the shards that can be reached know; what is returned compares a later catalog with it.

        Only witnesses among them are read, unless it is to be looked at all. That raises `CatalogOutdated`.
        """
        marks, reached = list[tuple[int, Mark]](), 0
        for shard in witnesses_first(shards):
            if reached == WITNESSES and not at_all:
                break
            with suppress(ElasticScanError):  # the shard is away: writing there raises
                mark = read_mark(self.disk_of(shard))
                reached += 1
                if mark is not None:
                    marks.append((shard, mark))

        def check(catalog: Identity) -> None:
            for shard, mark in marks:
                incarnation = catalog.incarnation
                if mark.incarnation != incarnation and self._is_of_this_catalog(shard, mark):
                    incarnation = mark.incarnation  # a later one, which the catalog has lost: numbers go on
                versions = catalog.layout, catalog.last_commit
                self._check_mark(mark, self.root_of(shard), incarnation, versions)

        return check

    def _is_of_this_catalog(self, shard: int, mark: Mark) -> bool:
        """Return whether a mark of another incarnation was left by what lay in the catalog's own place.

        By no other where the root is copied with the catalog. To other roots a copy may lead, which has
        taken them over: then the original is read as far as it knows.
        """
        if not self._location.is_inside(self._shard_and_disk(shard)[0].root):
            place = self._catalog_place()
            if not place or mark.catalog != place:
                return False
        marker = None
        with suppress(ElasticScanError):  # it is another's: readers of its files get the error
            marker = read_marker(self.disk_of(shard), self.root_of(shard))
        return marker == self.marker_of(shard, mark.incarnation)

    def _catalog_place(self) -> str:
        """Return a digest of the place of the catalog's file; empty for one in a database."""
        if self._place is None:
            home = self._catalog.home
            self._place = (
                "" if home is None else hashlib.blake2b(home.path.encode(), digest_size=8).hexdigest()
            )
        return self._place
