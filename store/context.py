"""What all parts of an open store share: catalog, clock, disks, and caches of what was looked up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from elasticscan.base.clock import Clock
from elasticscan.base.errors import FragmentDamaged, ShardNotFound, TableChanged, WriteConflict
from elasticscan.catalog import Catalog, StoreInfo
from elasticscan.reader import Sealer
from elasticscan.storage import Disk, FragmentReader, Hashing, View, check_sum
from elasticscan.topology import Fragment, Placement, StagedFragment, TableInfo

OPEN_FRAGMENTS = 256


class Context:
    """Shared by the threads of one process; every cache is keyed by the layout it was read at."""

    def __init__(self, catalog: Catalog, clock: Clock, open_disk: Callable[[str], Disk]) -> None:
        self.catalog = catalog
        self.clock = clock
        with catalog.reading() as tx:
            self.info: StoreInfo = tx.info()
            self.sealer = Sealer(self.info.store_id, tx.seal_keys())
        self.hashing = Hashing(self.info.slots, self.info.hash)
        self._open_disk = open_disk
        self._disks: dict[int, Disk] = {}
        self._lock = Lock()
        self._placement: tuple[int, Placement] | None = None
        self._tables: dict[int, _TableState] = {}
        self._sound: set[tuple[int, str]] = set()
        self._readers: OrderedDict[tuple[int, str, tuple[str, ...]], FragmentReader] = OrderedDict()

    def disk_of(self, shard: int) -> Disk:
        """The disk of a shard, also of one that was removed: its files may still be read."""
        found = self._disks.get(shard)
        if found is None:
            with self.catalog.reading() as tx:
                roots = tx.shard_roots()
            if shard not in roots:
                raise ShardNotFound(f"the store has no shard with id {shard}", shard=shard)
            found = self._disks.setdefault(shard, self._open_disk(roots[shard]))
        return found

    def shard_names(self) -> dict[int, str]:
        with self.catalog.reading() as tx:
            return {shard.id: shard.name for shard in tx.shards()}

    def placement(self) -> Placement:
        """Where tablets are now; costs one small query unless something moved."""
        known = self._placement
        if known is not None and self.catalog.versions()[0] == known[0]:
            return known[1]
        with self.catalog.reading() as tx:
            known = (tx.versions()[0], tx.placement())
        self._placement = known
        return known[1]

    def table_state(self, table_id: int, snapshot: int) -> _TableState:
        """A table's fragments as they are now, and what its snapshot excludes.

        Raises:
            TableChanged: the table was dropped.
            SnapshotExpired: the snapshot is no longer kept.
        """
        layout, _ = self.catalog.versions()
        known = self._tables.get(table_id)
        if known is not None and known.layout == layout and known.serves(snapshot):
            return known
        with self.catalog.reading() as tx:
            layout, last_commit = tx.versions()
            table = tx.table_by_id(table_id)
            if table is None:
                raise TableChanged(
                    "the table was dropped, or dropped and made again, since this scan began; "
                    "start a new scan",
                    table=table_id,
                )
            tx.check_snapshot(table, snapshot)
            fragments = tx.fragments(table=table_id)
            overwrites = tx.overwrites(table_id)
        state = _TableState(layout, last_commit, table, fragments, overwrites)
        self._tables[table_id] = state
        return state

    def open_fragment(self, fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        """A reader for some columns of a fragment; opened ones are kept for a while."""
        key = (fragment.shard, fragment.path, columns)
        with self._lock:
            found = self._readers.get(key)
            if found is not None:
                self._readers.move_to_end(key)
                return found
        opened = FragmentReader(self.disk_of(fragment.shard), fragment.path, columns, fragment.bytes)
        with self._lock:
            self._readers[key] = opened
            while len(self._readers) > OPEN_FRAGMENTS:
                self._readers.popitem(last=False)
        return opened

    def check_sums(self, fragments: Iterable[Fragment]) -> None:
        """Raises `FragmentDamaged` when a file is not what was written: before it is copied.

        A copy gets a checksum of its own, so damage that was copied would never be found again.
        Files do not change, so each is read for this once in a process.
        """
        for fragment in fragments:
            key = (fragment.shard, fragment.path)
            if key not in self._sound:
                check_sum(self.disk_of(fragment.shard), fragment)
                self._sound.add(key)

    def check_not_collected(self, staged: Iterable[StagedFragment]) -> None:
        """To be asked in the transaction that refers to staged files; see `noticing_collection`."""
        for fragment in staged:
            self.disk_of(fragment.shard).open(fragment.path)

    @contextmanager
    def noticing_collection(self) -> Iterator[None]:
        """For work that may take longer than the grace period of a garbage collection.

        A file that it staged, or that was replaced while it read, may then be gone. That is no
        damage, and trying again helps.
        """
        try:
            yield
        except FragmentDamaged as error:
            path = str(error.fields.get("path"))
            with self.catalog.reading() as tx:
                if any(path.endswith(fragment.path) for fragment in tx.fragments()):
                    raise
            raise WriteConflict(
                "garbage was collected with a grace period shorter than this took, and took files that it "
                "needed; nothing was changed, try again",
                path=path,
            ) from error


class _TableState:
    """A table's fragments at one layout."""

    def __init__(
        self,
        layout: int,
        last_commit: int,
        table: TableInfo,
        fragments: tuple[Fragment, ...],
        overwrites: tuple[int, ...],
    ) -> None:
        self.layout, self.last_commit, self.table = layout, last_commit, table
        self._overwrites = overwrites
        by_shard: dict[int, list[Fragment]] = {}
        for fragment in fragments:
            by_shard.setdefault(fragment.shard, []).append(fragment)
        self._views = {shard: View(found) for shard, found in by_shard.items()}
        self._nothing = View(())

    def serves(self, snapshot: int) -> bool:
        """Whether a snapshot is known to be readable: its commits are all here and it is still kept."""
        return self.table.oldest_snapshot <= snapshot <= self.last_commit

    def view(self, shard: int) -> View:
        return self._views.get(shard, self._nothing)

    def floor(self, snapshot: int) -> int:
        """Commits before this one were overwritten at the snapshot."""
        return max((number for number in self._overwrites if number <= snapshot), default=0)
