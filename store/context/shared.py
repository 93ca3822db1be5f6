"""The shared parts of an open store: catalog, clock, disks, and caches of lookups."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from elasticscan.base.clock import Clock
from elasticscan.base.errors import (
    Busy,
    OperatorNeeded,
    ShardMismatch,
    ShardUnavailable,
    TableChanged,
)
from elasticscan.catalog import Catalog, StoreState, Tx, base_topology, retry_interrupted
from elasticscan.metadata import (
    MEMORY,
    Fragment,
    FragmentStatistics,
    IndexInfo,
    Origin,
    StagedFragment,
    TableInfo,
)
from elasticscan.protocol import Cluster
from elasticscan.storage import Disk, MissingFile
from elasticscan.store.context.high_water_marks import RootMarks
from elasticscan.store.context.lookups import (
    KnownTable,
    LruCache,
    check_kept,
    live_table,
    read_statistics,
)
from elasticscan.store.context.memory import TableMemory
from elasticscan.store.context.readers import Readers
from elasticscan.store.context.sealing import StoreSealer
from elasticscan.store.roots import Location
from elasticscan.topology import Placement, Topology

# Finds a table and its indexes, as a transaction sees them.
Find = Callable[[Tx], tuple[TableInfo, tuple[IndexInfo, ...]]]

# Tests set it: called with a point's name wherever another process could come in, or this one be killed.
SyncPoint = Callable[[str], None]


Answer = TypeVar("Answer")


class Upkeep:
    """Work that follows commits; by itself there is none, because keepers do all of it.

    Attributes:
        mode: "auto" or "off".
        problem: why the last of it failed, if it did.
    """

    mode: str = "off"
    problem: str | None = None

    def after_commit(self, state: StoreState | None, table: int, staged: Collection[StagedFragment]) -> None:
        """Do what a commit of fragments to a table leaves to be done, as far as it is bounded.

        `state` is as of the commit; None where that was appended without a transaction.
        """

    def after_moves(self) -> None:
        """Do the work that follows moves of tablets."""


class Context:
    """State of an open store, shared by the threads of one process, and what is derived from it: caches."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        location: Location,
        open_disk: Callable[[str], Disk],
        reopen: Callable[[], Context],
    ) -> None:
        self._of_processes, self._reopen = {os.getpid(): self}, reopen
        self.cluster: Cluster  # the layer above sets it
        self.sync_point: SyncPoint = lambda _: None
        self.catalog, self.clock = catalog, clock
        self.location, self.open_disk = location, open_disk
        self.roots = RootMarks(catalog, location, open_disk)
        self.disk_of = self.roots.disk_of  # for reading, see `writable_disk`
        self._sealer: StoreSealer | None = None
        self.looked: tuple[Placement, float] | None = None  # read last, by any thread, and when that began
        self._tables: dict[int, KnownTable] = {}
        self._memory: dict[int, TableMemory] = {}
        self.readers = Readers(self.disk_of)
        self._bases: LruCache[int, Topology] = LruCache()
        # What follows from a scan's key and a table's definition alone, for the layers above.
        self.derived: LruCache[Hashable, Any] = LruCache()
        self.upkeep = Upkeep()
        self._statistics: dict[int, tuple[KnownTable, Mapping[int, FragmentStatistics]]] = {}

    def here(self) -> Context:
        """Return the context of this process: a forked child, to which locks are of no use, opens its own."""
        here = self._of_processes.get(os.getpid())
        return here or self._of_processes.setdefault(os.getpid(), self._reopen())

    def close(self) -> None:
        """Close what this process has open: connections and files."""
        if os.getpid() in self._of_processes:
            here = self.here()
            here.roots.note_pending()
            here.catalog.close()
            here.readers.release()

    @property
    def sealer(self) -> StoreSealer:
        """The sealer of the store's secrets as they are now; an incarnation has its own."""
        state, sealer = self.state(), self._sealer
        if sealer is None or sealer.state is not state:
            sealer = self._sealer = StoreSealer(state, self.clock)
        return sealer

    @property
    def known(self) -> StoreState:
        """The newest state that was seen: enough for what never changes, or is compared with a later one."""
        return self.catalog.seen()

    def writable_disk(self, shard: int) -> Disk:
        """Return the disk of a shard for writes, moves and deletions, after its root was verified.

        Ask again for each file: a disk may be unmounted at any moment. Raises as `RootMarks.check`, and
        `ReadOnlyStore`.
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
            return self.roots.check(shard, self.catalog.seen)
        except (ShardUnavailable, ShardMismatch):
            return disk if self.is_succeeded(shard) else self.check_root(shard)

    def check_root(self, shard: int) -> Disk:
        """Return a shard's disk as `writable_disk` does, without the right to write."""
        return self.roots.check(shard, self.state)

    def is_succeeded(self, shard: int) -> bool:
        """Return whether a shard was removed and a later one got its root, where files of both may be."""
        found, own = self.roots.root(shard).marker(), self.roots.marker_of(shard, self.state())
        is_later = found is not None and found.owner[:2] == own.owner[:2] and found.shard > shard
        return is_later and self.has_left(shard)

    def has_left(self, shard: int) -> bool:
        """Return whether a shard was removed; a later one may have its root, or nothing is mounted there."""
        return shard not in self.shard_names()

    @contextmanager
    def unless_left(self, shard: int) -> Iterator[None]:
        """End a step at a shard that leaves the store meanwhile: nothing is wrong then."""
        try:
            yield
        except (OperatorNeeded, Busy):
            if not self.has_left(shard):
                raise

    def check_newest(self) -> None:
        """Check that the catalog's newest commit is the newest; raises `ShardMismatch`."""
        self.roots.check_newest()

    @retry_interrupted
    def ask(self, question: Callable[[Tx], Answer]) -> Answer:
        """Return the answer to a question to one state of the catalog."""
        return question(self.catalog.newest())

    def state(self) -> StoreState:
        """Return the store as it is now."""
        return self.catalog.state()

    def shard_names(self) -> dict[int, str]:
        return {shard.id: shard.name for shard in self.state().shards.values()}

    def placement(self) -> Placement:
        """Return where tablets are now."""
        return self.state().placement

    def table(
        self, tx: Tx, name: str, table_id: int | None = None
    ) -> tuple[TableInfo, tuple[IndexInfo, ...]]:
        """Return a table and its indexes, as a transaction sees them. Raises `NotFound`, `TableChanged`."""
        table = tx.state.table_named(name)
        if table_id not in (None, table.id):
            raise TableChanged(
                f"table {name!r} was dropped and made again; take a new handle with Store.table", table=name
            )
        return table, tx.state.indexes(table.id)

    def retention_of(self, table: TableInfo) -> float:
        """Return how long a table's snapshots stay readable without a lease, in seconds."""
        return self.known.retention_seconds if table.retention_seconds is None else table.retention_seconds

    def base_topology(self, number: int) -> Topology:
        """Return the topology to compare a scan with: published ones never change, so each is read once."""
        return self._bases.get(number, lambda: self.ask(lambda tx: base_topology(tx, number)))

    def table_state(
        self,
        table_id: int,
        snapshot: int | None = None,
        after: int | None = None,
        layout: int | None = None,
    ) -> KnownTable:
        """Return a table as it is now: its fragments, the places of its slots, what a snapshot excludes.

        Args:
            snapshot: what is to be read; the newest by default.
            after: for changes of the commits in (after, snapshot]: they are looked up, not the snapshot.
            layout: of the catalog at a check just made, which need not be repeated.

        Raises:
            TableChanged: the table was dropped.
            SnapshotExpired: what is to be read is no longer kept.
        """
        cached = None if snapshot is None else self._cached(table_id, layout, snapshot, after)
        return cached or self.ask(lambda tx: self.table_in(tx, table_id, snapshot, after))

    def _cached(
        self, table_id: int, layout: int | None, snapshot: int, after: int | None
    ) -> KnownTable | None:
        cached = self._tables.get(table_id)
        return cached if cached and cached.layout == layout and cached.serves(snapshot, after) else None

    def known_table(self, find: Find) -> KnownTable:
        """Return a table as it is now, as `table_state`, by how it is found."""
        return self.ask(lambda tx: self.table_in(tx, find(tx)[0].id))

    def table_in(
        self, tx: Tx, table_id: int, snapshot: int | None = None, after: int | None = None
    ) -> KnownTable:
        """Return a table as a transaction sees it; arguments and errors as of `table_state`."""
        # It may be newer than what is known here.
        snapshot = tx.state.commit if snapshot is None else snapshot
        cached = self._cached(table_id, tx.state.layout, snapshot, after)
        if cached is not None:
            return cached
        table = live_table(tx, table_id)
        if after is None:
            tx.state.check_snapshot(table, snapshot)
        else:
            check_kept(table, after)
            if snapshot > tx.state.commit:
                raise ShardMismatch(
                    f"the catalog knows commits up to {tx.state.commit}, this scan reads up to {snapshot}; "
                    "put the newest catalog back, or run `elasticscan adopt`",
                    known=snapshot,
                )
        state = self._tables[table_id] = KnownTable(tx.state, table_id, self.memory(tx, table))
        return state

    def memory(self, tx: Tx, table: TableInfo) -> TableMemory:
        """Return the rows of a table that lie in the log as a transaction sees it.

        Raises:
            Interrupted: a flush has moved them to files meanwhile; look again.
            StoreDamaged: they are not what was written.
        """
        commits, known = tx.state.memory(table.id), self._memory.get(table.id)
        if known is None or known.table.definition != table.definition:
            known = TableMemory(table)
        if known.commits != commits:
            # Threads may do this side by side. Which one's result stays does not matter: each has all.
            known = self._memory[table.id] = known.as_of(tx)
        return known

    def statistics(self, state: KnownTable, tx: Tx | None = None) -> Mapping[int, FragmentStatistics]:
        """Return statistics of a table's fragments, by their ids, with columns as its definition names them.

        Those read for an earlier layout are kept.
        """
        before, kept = self._statistics.get(state.table.id, (None, {}))
        if before is not state:
            is_same = before is not None and before.table.definition == state.table.definition
            kept = read_statistics(tx or self.catalog.newest(), state, kept if is_same else {})
            self._statistics[state.table.id] = state, kept
        return kept

    def origin(
        self, operation: str, replaces: Iterable[Fragment] = (), state: StoreState | None = None
    ) -> Origin:
        """Return the origin that files staged from now on carry, by a state of just now."""
        state = state or self.state()
        return Origin(
            store=state.store_id,
            store_slots=state.slots,
            store_hash=state.hash,
            operation=operation,
            write=secrets.token_hex(16),
            after_commit=state.commit,
            began_at=self.clock.now(),
            epochs=state.placement.epochs,
            replaces=tuple(fragment.path for fragment in replaces),
        )

    def check_not_collected(
        self, tx: Tx, staged: Iterable[StagedFragment], since: tuple[int, int] | None = None
    ) -> None:
        """Check, in the transaction that refers to them, staged files; see `noticing_collection`.

        They are there, and it is the shards' roots where they are. `since` are the catalog's versions before
        the first was staged, if known: while they stay nothing was condemned, so objects are still there.
        """
        fragments, now = list(staged), tx.state  # no other commits before this transaction ends
        disks = self.roots.check_all({fragment.shard for fragment in fragments}, lambda: now)
        for fragment in fragments:
            disk = disks[fragment.shard]
            if not disk.is_far or since != now.versions:
                for path in fragment.paths:
                    disk.uncached.open(path)

    @contextmanager
    def noticing_collection(self) -> Iterator[None]:
        """Raise `Busy` where a collection took files: work may outlast its `orphan_seconds`."""
        try:
            yield
        except MissingFile as error:
            path = str(error.fields["path"])
            for file in self.state().fragments():
                if path.endswith(file.path):
                    self.check_root(file.shard)  # a disk that is not mounted is no damage
                    raise
            raise Busy(
                "files of this call were collected before it ended; nothing was changed: try again with "
                "longer `gc --grace` and `--orphans`",
                path=path,
            ) from error
