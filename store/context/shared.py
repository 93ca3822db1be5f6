"""`Context`: the parts of an open store that its operations share: catalog, clock, disks and caches."""

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

# Finds a table and its indexes in the state of a transaction.
Find = Callable[[Tx], tuple[TableInfo, tuple[IndexInfo, ...]]]

# Set by tests. Called with a name at each point where another process may act, or this one may be killed.
SyncPoint = Callable[[str], None]


Answer = TypeVar("Answer")


class Upkeep:
    """Upkeep after commits. This base class does none, for stores whose keepers do it.

    Attributes:
        mode: "auto" or "off".
        problem: the error of the last upkeep, or None.
    """

    mode: str = "off"
    problem: str | None = None

    def after_commit(self, state: StoreState | None, table: int, staged: Collection[StagedFragment]) -> None:
        """Do a bounded part of the upkeep that is pending after a commit of fragments to a table.

        `state` is that of the commit; None if the commit was appended without a transaction.
        """

    def after_moves(self) -> None:
        """Do the upkeep that is pending after moves of tablets."""


class Context:
    """State of an open store that all threads of a process share, and caches of values derived from it."""

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
        self.disk_of = self.roots.disk_of  # for reads; writes use `writable_disk`
        self._sealer: StoreSealer | None = None
        self.looked: tuple[Placement, float] | None = None  # the last placement, and when its read began
        self._tables: dict[int, KnownTable] = {}
        self._memory: dict[int, TableMemory] = {}
        self.readers = Readers(self.disk_of)
        self._bases: LruCache[int, Topology] = LruCache()
        # Values that depend only on a scan's key and a table's definition, for the layers above.
        self.derived: LruCache[Hashable, Any] = LruCache()
        self.upkeep = Upkeep()
        self._statistics: dict[int, tuple[KnownTable, Mapping[int, FragmentStatistics]]] = {}

    def here(self) -> Context:
        """Return the context of this process. A forked child opens its own, with connections and locks."""
        context = self._of_processes.get(os.getpid())
        return context or self._of_processes.setdefault(os.getpid(), self._reopen())

    def close(self) -> None:
        """Close the connections and files of this process."""
        if os.getpid() in self._of_processes:
            context = self.here()
            context.roots.note_pending()
            context.catalog.close()
            context.readers.release()

    @property
    def sealer(self) -> StoreSealer:
        """The sealer with the present secrets of the store; a new incarnation has new ones."""
        state, sealer = self.state(), self._sealer
        if sealer is None or sealer.state is not state:
            sealer = self._sealer = StoreSealer(state, self.clock)
        return sealer

    @property
    def known(self) -> StoreState:
        """The newest state that this process has read; for constants, and where an older state is safe."""
        return self.catalog.seen()

    def writable_disk(self, shard: int) -> Disk:
        """Verify the root of a shard, and return its disk for writes, moves and deletions.

        Call it for each file: a disk may be unmounted meanwhile. Raises `ReadOnlyStore`, or as `check_root`.
        """
        self.catalog.check_writable()
        return self.check_root(shard)

    def staging_disk(self, shard: int) -> Disk:
        """Return a shard's disk for staged files, which a transaction checks again before it refers to them.

        Cheaper than `writable_disk`: the catalog is read only if the marker does not match the last state.
        The marker in a bucket is not read: nothing else can be mounted there.
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
        """Verify the root of a shard, and return its disk. Raises as `RootMarks.check`."""
        return self.roots.check(shard, self.state)

    def is_succeeded(self, shard: int) -> bool:
        """Return whether a shard was removed and a later one has its root, which may have files of both."""
        marker, expected = self.roots.root(shard).marker(), self.roots.marker_of(shard, self.state())
        is_later = marker is not None and marker.owner[:2] == expected.owner[:2] and marker.shard > shard
        return is_later and self.has_left(shard)

    def has_left(self, shard: int) -> bool:
        """Return whether a shard was removed; its root may belong to a later shard, or be unmounted."""
        return shard not in self.shard_names()

    @contextmanager
    def unless_left(self, shard: int) -> Iterator[None]:
        """Suppress errors of the block if the shard was removed meanwhile, because they are expected then."""
        try:
            yield
        except (OperatorNeeded, Busy):
            if not self.has_left(shard):
                raise

    def check_newest(self) -> None:
        """Raise `ShardMismatch` if a shard has seen a newer commit than the catalog has."""
        self.roots.check_newest()

    @retry_interrupted
    def ask(self, question: Callable[[Tx], Answer]) -> Answer:
        """Return the result of a function of one state of the catalog."""
        return question(self.catalog.newest())

    def state(self) -> StoreState:
        """Read and return the newest state of the store."""
        return self.catalog.state()

    def shard_names(self) -> dict[int, str]:
        return {shard.id: shard.name for shard in self.state().shards.values()}

    def placement(self) -> Placement:
        """Read and return the newest placement."""
        return self.state().placement

    def table(
        self, tx: Tx, name: str, table_id: int | None = None
    ) -> tuple[TableInfo, tuple[IndexInfo, ...]]:
        """Find a table and its indexes in the state of a transaction. Raises `NotFound`, `TableChanged`."""
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
        """Return a published topology. It never changes, so it is read once and cached."""
        return self._bases.get(number, lambda: self.ask(lambda tx: base_topology(tx, number)))

    def table_state(
        self,
        table_id: int,
        snapshot: int | None = None,
        after: int | None = None,
        layout: int | None = None,
    ) -> KnownTable:
        """Return a table in the newest state: its fragments, its placement, and its overwrites.

        Args:
            snapshot: the snapshot to read; the newest by default.
            after: to read the changes of the commits in (after, snapshot] instead.
            layout: the layout of the catalog if it was just read, which saves another read.

        Raises:
            TableChanged: the table was dropped.
            SnapshotExpired: the snapshot or the changes are no longer kept.
        """
        cached = None if snapshot is None else self._cached(table_id, layout, snapshot, after)
        return cached or self.ask(lambda tx: self.table_in(tx, table_id, snapshot, after))

    def _cached(
        self, table_id: int, layout: int | None, snapshot: int, after: int | None
    ) -> KnownTable | None:
        cached = self._tables.get(table_id)
        return cached if cached and cached.layout == layout and cached.serves(snapshot, after) else None

    def known_table(self, find: Find) -> KnownTable:
        """Find a table and return it in the same state, as `table_state`."""
        return self.ask(lambda tx: self.table_in(tx, find(tx)[0].id))

    def table_in(
        self, tx: Tx, table_id: int, snapshot: int | None = None, after: int | None = None
    ) -> KnownTable:
        """Return a table in the state of a transaction; arguments and errors as for `table_state`."""
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
        """Return the rows of a table that are in the log, in the state of a transaction.

        Raises:
            Interrupted: a flush has moved the rows to files meanwhile; retry with a newer state.
            StoreDamaged: the rows are damaged.
        """
        commits, known = tx.state.memory(table.id), self._memory.get(table.id)
        if known is None or known.table.definition != table.definition:
            known = TableMemory(table)
        if known.commits != commits:
            # Several threads may do this at once. Each result is complete, so any may stay.
            known = self._memory[table.id] = known.as_of(tx)
        return known

    def statistics(self, state: KnownTable, tx: Tx | None = None) -> Mapping[int, FragmentStatistics]:
        """Return statistics of a table's fragments, by fragment id, with the column names of its definition.

        Statistics that were read for an earlier layout are reused.
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
        """Return the origin for the manifests of newly staged files, from `state` or the newest one."""
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
        """Check, in the transaction that will refer to staged files, that they exist in their shards' roots.

        `since` are the catalog's versions before the first file was staged, if known: if they are unchanged,
        no file was condemned, so objects in buckets exist. See `noticing_collection` for the error.
        """
        fragments, state = list(staged), tx.state  # the newest one: the transaction has the catalog's lock
        disks = self.roots.check_all({fragment.shard for fragment in fragments}, lambda: state)
        for fragment in fragments:
            disk = disks[fragment.shard]
            if not disk.is_far or since != state.versions:
                for path in fragment.paths:
                    disk.uncached.open(path)

    @contextmanager
    def noticing_collection(self) -> Iterator[None]:
        """Raise `Busy` if a staged file was collected: the block may outlast `orphan_seconds`."""
        try:
            yield
        except MissingFile as error:
            path = str(error.fields["path"])
            for file in self.state().fragments():
                if path.endswith(file.path):
                    self.check_root(file.shard)  # raises if the disk is not mounted
                    raise
            raise Busy(
                "files of this call were collected before it ended; nothing was changed: try again with "
                "longer `gc --grace` and `--orphans`",
                path=path,
            ) from error
