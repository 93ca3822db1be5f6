"""The shared parts of an open store: catalog, clock, disks, and caches of lookups."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from elasticscan.base.clock import Clock
from elasticscan.base.errors import (
    CatalogOutdated,
    ElasticScanError,
    FragmentMissing,
    OperatorNeeded,
    ShardUnavailable,
    WriteConflict,
    WrongRoot,
)
from elasticscan.catalog import (
    Catalog,
    Identity,
    StoreInfo,
    StoreState,
    Tx,
    base_topology,
    retry_interrupted,
)
from elasticscan.metadata import MEMORY, Fragment, IndexInfo, Origin, StagedFragment, TableInfo
from elasticscan.protocol import Cluster, ContinuationKey
from elasticscan.storage import Disk
from elasticscan.store.context.following import Upkeep
from elasticscan.store.context.lookups import (
    NO_STATISTICS,
    KnownTable,
    LruCache,
    TableStatistics,
    check_kept,
    check_reached,
    live_table,
    read_statistics,
)
from elasticscan.store.context.marks import RootMarks, mark_of
from elasticscan.store.context.memory import Memories
from elasticscan.store.context.readers import Readers
from elasticscan.store.context.sealing import StoreSealer
from elasticscan.store.roots import Claims, Location, Mark, Marker
from elasticscan.topology import Placement, Shard, Topology

# Finds a table and its indexes, as a transaction sees them.
Find = Callable[[Tx], tuple[TableInfo, tuple[IndexInfo, ...]]]

# For tests: called with a point's name wherever another process could come in, or this one be killed.
Checkpoint = Callable[[str], None]


Answer = TypeVar("Answer")


class Context:
    """Shared by the threads of one process.

    Tables, indexes, shards and the placement are parts of the log's state. What is made of them is kept:
    tables with their fragments, and statistics, by the layout at which they were last true.
    """

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        location: Location,
        open_disk: Callable[[str], Disk],
        checkpoint: Checkpoint,
        reopen: Callable[[], Context],
    ) -> None:
        self._of_processes, self._reopen = {os.getpid(): self}, reopen
        self.cluster: Cluster  # the layer above sets it
        self.checkpoint = checkpoint
        self.catalog = catalog
        self.location = location
        self.clock = clock
        with catalog.reading() as tx:
            self.info: StoreInfo = tx.info()
            now = tx.identity()
        self._incarnation = now.incarnation
        self._sealer = StoreSealer(catalog, clock, self.info.store_id)
        self._roots = RootMarks(catalog, location, open_disk, self.info.store_id)
        self._active: tuple[Mapping[int, Shard], tuple[int, ...], tuple[int, ...]] | None = None
        # The versions at the last check: enough for what a later transaction compares with its own.
        self.seen = now.layout, now.last_commit
        self._known_newest = False
        self._known_owner = False  # it is no copy, which may be read
        self.looked: tuple[Placement, float] | None = None  # last look, by any thread, and when it began
        self._tables: dict[int, KnownTable] = {}
        self.memories = Memories()
        self.readers = Readers(self.disk_of)
        self._bases: LruCache[int, Topology] = LruCache()
        # What follows from a scan's key and a table's definition alone, for the layers above.
        self.derived: LruCache[Hashable, Any] = LruCache()
        self.upkeep = Upkeep()
        self._statistics: dict[int, tuple[KnownTable | None, TableStatistics]] = {}

    def here(self) -> Context:
        """Return the context of this process: a forked child, to which locks are of no use, opens its own."""
        return self.here_if_open() or self._of_processes.setdefault(os.getpid(), self._reopen())

    def here_if_open(self) -> Context | None:
        return self._of_processes.get(os.getpid())

    def disk_of(self, shard: int) -> Disk:
        """Return the disk of a shard for reading, also of one that was removed; see `writable_disk`."""
        return self._roots.disk_of(shard)

    def root_of(self, shard: int) -> str:
        return self._roots.root_of(shard)

    def marker_of(self, shard: int, mark: Mark | None = None) -> Marker:
        """Return the marker that a shard's root should have now, or at a mark."""
        return self._roots.marker_of(shard, mark or self._progress())

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
        return self.here().sealer.seal(key)

    def incarnation(self) -> str:
        """Return the id of this copy of the store; costs one small query unless something moved."""
        now = self.state().incarnation
        if now != self._incarnation:
            self._incarnation = now
            self._sealer.forget()
        return now

    def _look(self, layout: int | None = None) -> Tx:
        """Return a transaction that reads, and note what it sees; `layout` as for `Catalog.at`."""
        tx = self.catalog.at(layout)
        self.note_seen(tx.state.versions)
        return tx

    def writable_disk(self, shard: int) -> Disk:
        """Return the disk of a shard for whoever writes, moves or deletes there: its root proves what it is.

        Ask again for each file: a disk may be unmounted at any moment.

        Raises:
            ShardUnavailable: the shard's disk is not mounted.
            WrongRoot: another shard's is, or the catalog is a copy.
            CatalogOutdated: the catalog is an older copy.
            ReadOnlyStore: it cannot be written.
        """
        self.catalog.check_writable()
        return self.check_root(shard)

    def staging_disk(self, shard: int) -> Disk:
        """As `writable_disk`, for files that nothing refers to before a transaction has checked them.

        The catalog is asked only where the root does not fit what was seen of it last; `check_not_collected`
        asks again. A bucket's prefix is not looked at: nothing else can be mounted in its place.
        """
        self.catalog.check_writable()
        disk = self.disk_of(shard)
        if disk.is_far or shard == MEMORY:
            return disk
        try:
            return self._roots.check(shard, lambda: Mark(self._incarnation, *self.seen))
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

    def note_newest(self, shards: Iterable[int], again: bool = False) -> set[int]:
        """Let shards know how far the catalog has got, as well as may be; returns those that were reached."""
        with suppress(ElasticScanError):
            return self._roots.note(shards, self._progress(), again)
        return set()

    def note_committed(self, committed: Identity, files_at: frozenset[int], is_small: bool) -> None:
        """Let roots know what was committed, where files were entered and at witnesses; of small ones rarely.

        Where shards joined or left, at all in directories; where no files were entered, in all buckets.
        """
        self.note_seen((committed.layout, committed.last_commit))
        if is_small and not self._roots.noting.allows():
            return
        with suppress(ElasticScanError):
            before, mark = self._active, mark_of(committed)
            active, local, afar = self._active_shards()
            is_same = before is not None and before[1] == local
            written = files_at & active.keys() or frozenset(afar)
            self._roots.note_committed(local, written, mark, at_all=not is_same)

    def note_pending(self) -> None:
        """Leave the mark that was left out for the last small commit, without asking the catalog."""
        if self._roots.noting.refused_last:
            with suppress(ElasticScanError):
                self._roots.note_committed(self.local_shards(), (), Mark(self._incarnation, *self.seen))

    def local_shards(self) -> tuple[int, ...]:
        """Active shards whose roots are directories: to look at these costs no network."""
        return self._active_shards()[1]

    def _active_shards(self) -> tuple[Mapping[int, Shard], tuple[int, ...], tuple[int, ...]]:
        """Return the active shards, those whose roots are directories, and the others."""
        active = (self.catalog.known or self._look().state).shards
        if self._active is None or self._active[0] is not active:
            afar = {shard.id for shard in active.values() if "://" in self.location.root(shard.root)}
            self._active = active, tuple(sorted(active.keys() - afar)), tuple(sorted(afar))
        return self._active

    def look_before_writing(self, is_small: bool) -> Callable[[Identity], None]:
        """As `look_at_marks`; before small commits once in a while."""
        is_due = not (is_small and self._known_owner) or self._roots.looking.allows()
        return self.look_at_marks(writing=True) if is_due else lambda _: None

    def look_at_marks(self, at_all: bool = False, writing: bool = False) -> Callable[[Identity], None]:
        """Read what witnesses know, once all shards; what is returned compares a later catalog with it.

        That raises `CatalogOutdated`, and before `writing` also `WrongRoot`.
        """
        check = self._roots.look(self.local_shards(), at_all or not self._known_newest, writing)

        def check_and_know(catalog: Identity) -> None:
            check(catalog)
            self._known_newest = True
            self._known_owner |= writing

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
            check(self._look().identity())

    def take_any_catalog(self) -> None:
        """Go on with the catalog that is there, also an older one; shards are asked again what they know."""
        self._known_newest = self._known_owner = False
        self.catalog.forget_progress()

    def versions(self) -> tuple[int, int]:
        """(layout, newest commit): while these are the same, so is everything that readers see."""
        return self.note_seen(self.catalog.versions())

    def note_seen(self, versions: tuple[int, int]) -> tuple[int, int]:
        """Remember the result of a catalog check, and return it."""
        self.seen = max(self.seen, versions)  # another thread may have looked since
        return versions

    @retry_interrupted
    def ask(self, question: Callable[[Tx], Answer]) -> Answer:
        """Return the answer to a question to one state of the catalog."""
        with self.catalog.reading() as tx:
            return question(tx)

    @retry_interrupted
    def state(self, layout: int | None = None) -> StoreState:
        """Return the store as it is now; `layout` as for `Catalog.at`."""
        return self._look(layout).state

    def shard_names(self) -> dict[int, str]:
        return {shard.id: shard.name for shard in self.state().shards.values()}

    def placement(self, layout: int | None = None) -> Placement:
        """Return where tablets are now; `layout` as for `Catalog.at`."""
        return self.state(layout).placement

    def layout_of(self, placement: Placement) -> int | None:
        """Return the newest known layout, if a placement is still that of it."""
        known = self.catalog.known
        return None if known is None or known.placement is not placement else known.layout

    def table(self, tx: Tx, name: str) -> tuple[TableInfo, tuple[IndexInfo, ...]]:
        """Return a table and its indexes, as a transaction sees them; raises `NotFound`."""
        table = tx.state.table_named(name)
        return table, tx.state.indexes(table.id)

    @retry_interrupted
    def table_now(self, name: str) -> TableInfo:
        """Return a table as it is now; raises `NotFound`."""
        with self.catalog.reading() as tx:
            self.note_seen(tx.state.versions)
            return tx.state.table_named(name)

    def fragments_in(self, tx: Tx, table: TableInfo) -> tuple[Fragment, ...]:
        """Return the fragments of a table as a transaction sees them, those in memory, too."""
        return (*tx.state.fragments(table=table.id), *self.memories.of(tx, table).fragments)

    def retention_of(self, table: TableInfo) -> float:
        """Return how long a table's snapshots stay readable without a lease, in seconds."""
        return self.info.retention_seconds if table.retention_seconds is None else table.retention_seconds

    def base_topology(self, number: int) -> Topology:
        """Return the topology to compare a scan with: published ones never change, so each is read once."""
        return self._bases.get(number, lambda: self.ask(lambda tx: base_topology(tx, number)))

    @retry_interrupted
    def look(self, table_id: int) -> KnownTable:
        """One look at the catalog: a table as it is now, and where slots are. Raises `TableChanged`."""
        tx = self._look()
        state = self._tables.get(table_id)
        if state is None or state.layout != tx.state.layout or not state.serves(tx.state.commit):
            state = self._table_state_in(tx, table_id, tx.state.commit)
        return state

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
        if cached is not None and cached.layout == tx.state.layout and not cached.serves(snapshot):
            state = self._table_state_in(tx, table_id, snapshot)
            if with_statistics:
                self.statistics_in(tx, state)

    def _table_state_in(self, tx: Tx, table_id: int, snapshot: int, after: int | None = None) -> KnownTable:
        table = live_table(tx, table_id)
        if after is None:
            tx.state.check_snapshot(table, snapshot)
        else:
            check_kept(table, after)
            check_reached(tx.state.commit, snapshot)
        state = self._tables[table_id] = KnownTable(tx.state, table_id, self.memories.of(tx, table))
        return state

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
                shard = next((file.shard for file in tx.state.fragments() if path.endswith(file.path)), None)
            if shard is not None:
                self.check_root(shard)  # a disk that is not mounted is no damage
                raise
            raise WriteConflict(
                "garbage was collected with a grace period shorter than this call; nothing was changed: "
                "try again with a longer grace",
                path=path,
            ) from error
