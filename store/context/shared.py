"""The shared parts of an open store: catalog, clock, disks, and caches of lookups."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from elasticscan.base.clock import Clock
from elasticscan.base.errors import (
    CatalogOutdated,
    ElasticScanError,
    FragmentMissing,
    OperatorNeeded,
    ShardUnavailable,
    TableChanged,
    WriteConflict,
    WrongRoot,
)
from elasticscan.catalog import (
    Catalog,
    Identity,
    Reached,
    StoreInfo,
    Tx,
    retry_interrupted,
)
from elasticscan.metadata import MEMORY, Fragment, IndexInfo, Origin, StagedFragment, TableInfo
from elasticscan.protocol import Cluster, ContinuationKey
from elasticscan.storage import Disk
from elasticscan.store.context.following import NoUpkeep, Upkeep
from elasticscan.store.context.lookups import (
    NO_STATISTICS,
    CurrentTable,
    KnownTable,
    Lasting,
    LruCache,
    TableStatistics,
    check_kept,
    check_reached,
    read_statistics,
)
from elasticscan.store.context.marks import RootMarks, mark_of
from elasticscan.store.context.memory import Memories
from elasticscan.store.context.processes import PerProcess
from elasticscan.store.context.readers import Readers
from elasticscan.store.context.sealing import StoreSealer
from elasticscan.store.roots import Claims, Location, Mark, Marker
from elasticscan.topology import Placement, Shard, Topology

# Finds a table and its indexes, as a transaction sees them.
Find = Callable[[Tx], tuple[TableInfo, tuple[IndexInfo, ...]]]

# For tests: called with a point's name wherever another process could come in, or this one be killed.
Checkpoint = Callable[[str], None]


class Context:
    """Shared by the threads of one process; every cache is keyed by the layout at which it was last true."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        location: Location,
        open_disk: Callable[[str], Disk],
        cluster: Callable[[Context], Cluster],
        checkpoint: Checkpoint,
        reopen: Callable[[], Context],
    ) -> None:
        self.per_process = PerProcess(self, reopen)
        self.cluster, self.checkpoint = cluster(self), checkpoint
        self.catalog = catalog
        self.location = location
        self.clock = clock
        with catalog.reading() as tx:
            self.info: StoreInfo = tx.info()
            self._identity = tx.identity()
        self._sealer = StoreSealer(catalog, clock, self.info.store_id)
        self._roots = RootMarks(catalog, clock, location, open_disk, self.info.store_id)
        self._active = Lasting[None, tuple[tuple[int, ...], tuple[int, ...]]]()  # at directories, and others
        # The versions at the last check: enough for what a later transaction compares with its own.
        self.seen = self._identity.layout, self._identity.last_commit
        self._known_newest = False
        self._placement = Lasting[None, Placement]()
        self.looked: tuple[Placement, float] | None = None  # last look, by any thread, and when it began
        self._tables: dict[int, KnownTable] = {}
        self.memories = Memories()
        self._definitions = Lasting[int, TableInfo]()
        self.readers = Readers(self.disk_of)
        self._bases: LruCache[int, Topology] = LruCache()
        # What follows from a scan's key and a table's definition alone, for the layers above.
        self.derived: LruCache[Hashable, Any] = LruCache()
        self.upkeep: Upkeep = NoUpkeep()
        self._statistics: dict[int, tuple[KnownTable | None, TableStatistics]] = {}
        self._by_name = Lasting[str, tuple[TableInfo, tuple[IndexInfo, ...]]]()
        self._indexes = Lasting[int, tuple[IndexInfo, ...]]()
        self._topology: Topology | None = None

    def disk_of(self, shard: int) -> Disk:
        """Return the disk of a shard for reading, also of one that was removed; see `writable_disk`."""
        return self._roots.disk_of(shard)

    def root_of(self, shard: int) -> str:
        return self._roots.root_of(shard)

    def marker_of(self, shard: int) -> Marker:
        """Return the marker that a shard's root must have now."""
        return self._roots.marker_of(shard, self.incarnation())

    def claim(self, claims: Claims, added: Shard, taken: Collection[int]) -> None:
        """Make a new shard's root its own; in the transaction that enters the shard."""
        self._roots.claim(claims, added, self.incarnation(), taken)

    @property
    def sealer(self) -> StoreSealer:
        """The sealer of the store's secrets as they are now; an incarnation has its own."""
        self.incarnation()
        return self._sealer

    def seal(self, key: ContinuationKey) -> str:
        """Raise `LimitExceeded`."""
        return self.per_process.get().sealer.seal(key)

    @retry_interrupted
    def incarnation(self) -> str:
        """Return the id of this copy of the store; costs one small query unless something moved."""
        if self.versions()[0] != self._identity.layout:
            with self.catalog.reading() as tx:
                now, before = tx.identity(), self._identity
            self._identity = now
            if now.incarnation != before.incarnation:
                self._sealer.forget()
        return self._identity.incarnation

    def writable_disk(self, shard: int) -> Disk:
        """Return the disk of a shard for whoever writes, moves or deletes there: its root proves what it is.

        Ask again for each file: a disk may be unmounted at any moment.

        Raises:
            ShardUnavailable: the shard's disk is not mounted.
            WrongRoot: another shard's is.
            CatalogOutdated: the catalog is an older copy.
            WrongRoot: the catalog is a copy, and the shard the original's.
        """
        self.catalog.settle()
        return self.check_root(shard)

    def staging_disk(self, shard: int) -> Disk:
        """As `writable_disk`, for files that nothing refers to before a transaction has checked them.

        The catalog is asked only where the root does not fit what was seen of it last; `check_not_collected`
        asks again. A bucket's prefix is not looked at: nothing else can be mounted in its place.
        """
        self.catalog.settle()
        disk = self.disk_of(shard)
        if disk.is_far or shard == MEMORY:
            return disk
        try:
            return self._roots.check(shard, lambda: Mark(self._identity.incarnation, *self.seen))
        except (ShardUnavailable, WrongRoot, CatalogOutdated):
            return disk if self.is_succeeded(shard) else self.check_root(shard)

    def is_succeeded(self, shard: int) -> bool:
        """Return whether a shard was removed and a later one got its root, where files of both may be."""
        return self._roots.is_taken_over(shard, self.incarnation()) and self.has_left(shard)

    def has_left(self, shard: int) -> bool:
        """Return whether a shard was removed; a later one may have its root, or nothing is mounted there."""
        return shard not in self.shard_names()

    @contextmanager
    def unless_left(self, shard: int) -> Iterator[None]:
        """For a step at a shard: if that leaves the store meanwhile, the step ends, and nothing is wrong."""
        try:
            yield
        except (OperatorNeeded, WriteConflict):
            if not self.has_left(shard):
                raise

    def check_root(self, shard: int) -> Disk:
        """Return a shard's disk as `writable_disk` does, without the right to write."""
        return self._roots.check(shard, self._progress)

    def _progress(self) -> Mark:
        return Mark(self.incarnation(), *self.versions())

    def note_newest(self, shards: Iterable[int], again: bool = False) -> None:
        """Leave a mark at shards of how far the catalog has got: after a commit, as well as may be."""
        with suppress(ElasticScanError):
            self._roots.note(shards, self._progress(), again)

    def note_committed(self, committed: Identity, files_at: frozenset[int], is_small: bool) -> None:
        """Leave a mark of what was committed where files were entered and at witnesses, or at all new shards.

        Of small commits, once in a while.

        Where files were entered, only at directories: the writer knows which of the others it wrote to.
        """
        self.note_seen((committed.layout, committed.last_commit))
        if is_small and not self._roots.noting.is_due():
            return
        with suppress(ElasticScanError):
            before, mark = self.local_shards(), mark_of(committed)
            local, afar = self._active_shards(committed.layout)
            self._roots.note_committed(local, files_at if local == before else local, mark)
            if not files_at:
                self._roots.note(afar, mark)

    def _carry_over(self, now: Reached) -> None:
        """Keep what was read at earlier layouts that differ from the one of now in nothing but fragments.

        `now` is committed: a layout that a transaction has only begun may become another one.
        """
        if self._identity.incarnation != now.incarnation:
            return
        if now.stable_since <= self._identity.layout < now.layout:
            self._identity = replace(self._identity, layout=now.layout)
        for lasting in (self._active, self._placement, self._definitions, self._by_name, self._indexes):
            lasting.carry_over(now)

    def _layout_in(self, tx: Tx) -> int:
        """Return the layout as a transaction sees it; what is still true at it is kept."""
        layout = tx.versions()[0]
        if tx.looked is not None and tx.looked.layout == layout:  # not one of its own making
            self._carry_over(tx.looked)
        return layout

    def note_newest_afar(self, shards: Iterable[int]) -> None:
        """As `note_newest`; directories were noted by the transaction that changed something."""
        with suppress(ElasticScanError):
            afar = frozenset(shards).difference(self.local_shards())
            if afar:
                self.note_newest(afar)

    def local_shards(self, layout: int | None = None) -> tuple[int, ...]:
        """Active shards whose roots are directories: to look at these costs no network.

        They are those of a layout; for None, the last seen.
        """
        return self._active_shards(layout)[0]

    @retry_interrupted
    def _active_shards(self, layout: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """As `local_shards`, and those whose roots are elsewhere."""
        cached = self._active.newest(None)
        if cached is not None and layout in (None, cached[0]):
            return cached[1]
        with self.catalog.reading() as tx:
            layout, active = tx.versions()[0], tx.shards()
        afar = tuple(shard.id for shard in active if "://" in self.location.root(shard.root))
        local = tuple(shard.id for shard in active if shard.id not in afar)
        return self._active.put(layout, None, (local, afar))

    def look_before_writing(self, is_small: bool) -> Callable[[Identity], None]:
        """As `look_at_marks`; before small commits once in a while."""
        is_due = not (is_small and self._known_newest) or self._roots.looking.is_due()
        return self.look_at_marks() if is_due else lambda _: None

    def look_at_marks(self, at_all: bool = False) -> Callable[[Identity], None]:
        """Read what witnesses know, once all shards; what is returned compares a later catalog with it.

        That raises `CatalogOutdated`.
        """
        check = self._roots.look(self.local_shards(), at_all or not self._known_newest)

        def check_and_know(catalog: Identity) -> None:
            check(catalog)
            self._known_newest = True

        return check_and_know

    def check_newest(self) -> None:
        """Check that the catalog's newest commit is the newest; costs nothing once that was found true.

        Raises:
            CatalogOutdated: shards know a newer one.
        """
        if not self._known_newest:
            self.compare_with_shards()
            self._known_newest = True  # or a standby's, of which nothing is proved

    def compare_with_shards(self) -> None:
        """As `check_newest`, whatever was found before.

        Raises:
            CatalogOutdated: shards know a newer one.
        """
        # A standby of a database server follows its server with a delay, which proves nothing.
        if self.catalog.follows_progress:
            check = self.look_at_marks(at_all=True)
            self.incarnation()
            layout, newest = self.versions()
            check(replace(self._identity, layout=layout, last_commit=newest))

    def take_any_catalog(self) -> None:
        """Go on with the catalog that is there, also an older one; shards are asked again what they know."""
        self._known_newest = False
        self.catalog.forget_progress()

    def versions(self) -> tuple[int, int]:
        """(layout, newest commit): while these are the same, so is everything that readers see."""
        return self.note_seen(self.catalog.versions())

    def note_seen(self, versions: tuple[int, int]) -> tuple[int, int]:
        """Remember the result of a catalog check, and return it."""
        if versions > self.seen and self.catalog.progress is not None:
            self._carry_over(self.catalog.progress)
        self.seen = max(self.seen, versions)  # another thread may have looked since
        return versions

    @retry_interrupted
    def commit_before(self, timestamp: float) -> int:
        """Return the newest commit made at or before a time, in seconds since 1970; 0 when there is none."""
        with self.catalog.reading() as tx:
            return tx.commit_before(timestamp)

    @retry_interrupted
    def commit_at(self, timestamp: float) -> int:
        """As `commit_before`, of a time that must not be still to come."""
        with self.catalog.reading() as tx:
            return tx.commit_at(timestamp)

    @retry_interrupted
    def tables(self) -> tuple[tuple[TableInfo, ...], int]:
        """All tables, and the newest commit, from one look at the catalog."""
        with self.catalog.reading() as tx:
            return tx.tables(), tx.versions()[1]

    @retry_interrupted
    def shard_names(self) -> dict[int, str]:
        with self.catalog.reading() as tx:
            return {shard.id: shard.name for shard in tx.shards()}

    @retry_interrupted
    def placement(self, layout: int | None = None) -> Placement:
        """Return where tablets are now; costs one small query unless something moved.

        `layout` is that of a check just made, which need not be repeated.
        """
        cached = self._placement.at(self.versions()[0] if layout is None else layout, None)
        if cached is not None:
            return cached
        with self.catalog.reading() as tx:
            return self.placement_in(tx)

    def placement_in(self, tx: Tx) -> Placement:
        """Return where tablets are as a transaction sees it that has not changed anything."""
        layout = self._layout_in(tx)
        cached = self._placement.at(layout, None)
        return self._placement.put(layout, None, tx.placement()) if cached is None else cached

    def layout_of(self, placement: Placement) -> int | None:
        """Return the layout at which a placement was read, if it is the one that was read last."""
        cached = self._placement.newest(None)
        return None if cached is None or cached[1] is not placement else cached[0]

    def note_placement(self, layout: int, placement: Placement, topology: Topology | None = None) -> None:
        """Remember where tablets are, and the topology that says so, since a committed transaction."""
        self._placement.put(layout, None, placement)
        self._topology = topology or self._topology

    def table(self, tx: Tx, name: str) -> tuple[TableInfo, tuple[IndexInfo, ...]]:
        """Return a table and its indexes, as a transaction sees them; raises `NotFound`."""
        layout = self._layout_in(tx)
        cached = self._by_name.at(layout, name)
        if cached is None:
            table = tx.table(name)
            cached = self._by_name.put(layout, name, (table, self.indexes_in(tx, table.id)))
        return cached

    def is_entered(self, tx: Tx, table: TableInfo) -> bool:
        """Return True for a table that everybody sees; false for one that is reserved, or was dropped."""
        cached = self._by_name.at(self._layout_in(tx), table.name)
        if cached is not None and cached[0].id == table.id:
            return True  # to drop it is a change of the layout
        return tx.table_by_id(table.id) is not None

    @retry_interrupted
    def table_now(self, name: str) -> TableInfo:
        """Return a table as it is now, in a transaction only if something changed; raises `NotFound`."""
        cached = self._by_name.at(self.versions()[0], name)
        if cached is not None:
            return cached[0]
        with self.catalog.reading() as tx:
            self.note_seen(tx.versions())
            self.placement_in(tx)  # it is needed next, so both take one round trip
            return self.table(tx, name)[0]

    def fragments_in(self, tx: Tx, table: TableInfo) -> tuple[Fragment, ...]:
        """Return the fragments of a table as a transaction sees them, those in memory, too."""
        return (*tx.fragments(table=table.id), *self.memories.of(tx, table).fragments)

    def retention_of(self, table: TableInfo) -> float:
        """Return how long a table's snapshots stay readable without a lease, in seconds."""
        return self.info.retention_seconds if table.retention_seconds is None else table.retention_seconds

    def newest_topology(self, tx: Tx) -> Topology:
        """Return the newest published topology as a transaction sees it, read from the history each time.

        Raises:
            StoreDamaged: the history is empty or damaged.
        """
        self._topology = tx.newest_topology(self._topology)
        return self._topology

    @retry_interrupted
    def base_topology(self, number: int) -> Topology:
        """Return the topology to compare a scan with: published ones never change, so each is read once."""

        def read() -> Topology:
            with self.catalog.reading() as tx:
                return tx.base_topology(number)

        return self._bases.get(number, read)

    @retry_interrupted
    def look(self, table_id: int) -> CurrentTable:
        """One look at the catalog: a table and where slots are; costs one small query unless they changed.

        Raises `TableChanged`.
        """
        layout, newest = self.versions()
        state, placed = self._tables.get(table_id), self._placement.at(layout, None)
        if state and placed and state.layout == layout and state.serves(newest):
            return CurrentTable(layout, newest, state, placed)
        with self.catalog.reading() as tx:
            layout, newest = tx.versions()
            return CurrentTable(
                layout, newest, self._table_state_in(tx, table_id, newest), self.placement_in(tx)
            )

    @retry_interrupted
    def table_state(
        self, table_id: int, snapshot: int, after: int | None = None, layout: int | None = None
    ) -> KnownTable:
        """Return a table's fragments as they are now, and what its snapshot excludes.

        Args:
            table_id: the table.
            snapshot: what is to be read.
            after: for changes of the commits in (after, snapshot]: they are looked up, not the snapshot.
            layout: of the catalog at a check just made, which need not be repeated.

        Raises:
            TableChanged: the table was dropped.
            SnapshotExpired: what is to be read is no longer kept.
        """
        layout = self.versions()[0] if layout is None else layout
        cached = self._tables.get(table_id)
        if cached is not None and cached.layout == layout and cached.serves(snapshot, after):
            return cached
        with self.catalog.reading() as tx:
            return self._table_state_in(tx, table_id, snapshot, after)

    def follow(self, tx: Tx, table_id: int, snapshot: int, with_statistics: bool) -> None:
        """Look a table up in the transaction that begins a scan, if it was before and commits came since."""
        cached = self._tables.get(table_id)
        if cached is not None and cached.layout == tx.versions()[0] and not cached.serves(snapshot):
            state = self._table_state_in(tx, table_id, snapshot)
            if with_statistics:
                self.statistics_in(tx, state)

    def _table_state_in(self, tx: Tx, table_id: int, snapshot: int, after: int | None = None) -> KnownTable:
        layout, last_commit = tx.versions()
        table = tx.table_by_id(table_id)
        if table is None:
            raise TableChanged(
                "the table was dropped, or dropped and made again, since this scan began; start a new scan",
                table=table_id,
            )
        if after is None:
            tx.check_snapshot(table, snapshot)
        else:
            check_kept(table, after)
            check_reached(last_commit, snapshot)
        indexes = self.indexes_in(tx, table_id)
        state = KnownTable(
            layout,
            last_commit,
            table,
            tx.fragments(table=table_id),
            tx.overwrites(table_id),
            indexes,
            tx.runs(table_id) if indexes else (),
            self.memories.of(tx, table),
            self.placement_in(tx),
        )
        self._tables[table_id] = state
        return state

    @retry_interrupted
    def newest_definition(self, table_id: int, layout: int | None = None) -> TableInfo | None:
        """Return a table as it is now, also one that is reserved; None when it was dropped."""
        layout = self.versions()[0] if layout is None else layout
        cached = self._definitions.at(layout, table_id)
        if cached is not None:
            return cached
        with self.catalog.reading() as tx:
            return self.definition_in(tx, table_id)

    def definition_in(self, tx: Tx, table_id: int) -> TableInfo | None:
        table = tx.table_by_id(table_id) or tx.reserved_table(table_id)
        if table is not None:
            self._definitions.put(tx.versions()[0], table_id, table)
        return table

    @retry_interrupted
    def indexes(self, table_id: int, layout: int | None = None) -> tuple[IndexInfo, ...]:
        """Return a table's indexes as they are now, also those that are still being built.

        Costs one small query unless the layout has changed; `layout` as for `placement`.
        """
        cached = self._indexes.at(self.versions()[0] if layout is None else layout, table_id)
        if cached is not None:
            return cached
        with self.catalog.reading() as tx:
            return self.indexes_in(tx, table_id)

    def indexes_in(self, tx: Tx, table_id: int) -> tuple[IndexInfo, ...]:
        """As `indexes`, as a transaction sees them that has not changed anything."""
        layout = self._layout_in(tx)
        cached = self._indexes.at(layout, table_id)
        return self._indexes.put(layout, table_id, tx.indexes(table_id)) if cached is None else cached

    @retry_interrupted
    def statistics(self, state: KnownTable) -> TableStatistics:
        """Statistics of a table's fragments and runs; the ones read for an earlier layout are kept."""
        before, kept = self._statistics.get(state.table.id, (None, None))
        if before is state and kept is not None:
            return kept
        with self.catalog.reading() as tx:
            return self.statistics_in(tx, state)

    def statistics_in(self, tx: Tx, state: KnownTable) -> TableStatistics:
        """As `statistics`, read in a transaction."""
        _, kept = self._statistics.get(state.table.id, (None, NO_STATISTICS))
        statistics = read_statistics(tx, state, kept)
        self._statistics[state.table.id] = state, statistics
        return statistics

    def origin(
        self,
        operation: str,
        replaces: Iterable[Fragment] = (),
        versions: tuple[int, int] | None = None,
    ) -> Origin:
        """Return the origin that files staged from now on carry; `versions` of a check just made."""
        layout, newest = versions or self.versions()
        placement = self.placement(layout)
        return Origin(
            store=self.info.store_id,
            slots=self.info.slots,
            hash=self.info.hash,
            operation=operation,
            write=secrets.token_hex(16),
            after_commit=newest,
            began_at=self.clock.now(),
            epochs=placement.epochs,
            replaces=tuple(fragment.path for fragment in replaces),
        )

    def check_not_collected(
        self, tx: Tx, staged: Iterable[StagedFragment], since: tuple[int, int] | None = None
    ) -> None:
        """Check, in the transaction that refers to them, staged files; see `noticing_collection`.

        They are there, and it is the shards' roots where they are. `since` are the catalog's versions before
        the first was staged, if known: while they stay nothing was condemned, so objects are still there.
        """
        fragments, now = list(staged), tx.identity()  # no other commits before this transaction ends
        self.catalog.settle()
        disks = self._roots.check_all({fragment.shard for fragment in fragments}, lambda: mark_of(now))
        nothing_went = since == (now.layout, now.last_commit)
        for fragment in fragments:
            disk = disks[fragment.shard]
            if not (disk.is_far and nothing_went):
                for path in (fragment.path, *(run.path for run in fragment.runs)):
                    disk.uncached.open(path)

    @contextmanager
    def noticing_collection(self) -> Iterator[None]:
        """For work that may outlast a collection's grace period: a file that goes then means to try again."""
        try:
            yield
        except FragmentMissing as error:
            path = str(error.fields["path"])
            with self.catalog.reading() as tx:
                shard = next((file.shard for file in tx.fragments() if path.endswith(file.path)), None)
            if shard is not None:
                self.check_root(shard)  # a disk that is not mounted is no damage
                raise
            raise WriteConflict(
                "garbage was collected with a grace period shorter than this call; nothing was changed: "
                "try again with a longer grace",
                path=path,
            ) from error
