"""Cached reads of the catalog, valid for one layout: fragments and statistics of tables."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Generic, TypeVar

from elasticscan.base.errors import SnapshotExpired, TableChanged
from elasticscan.catalog import StoreState, Tx
from elasticscan.metadata import (
    Bounds,
    Fragment,
    FragmentStatistics,
    IndexInfo,
    IndexRun,
    TableInfo,
    floor_at,
    unpack_statistics,
)
from elasticscan.storage import MemoryFragment, View
from elasticscan.store.context.memory import TableMemory

MOST_CACHED = 256  # topologies, or access paths, each with a filter of at most 64 KB

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Cache with a bound on the total weight of its values; drops the least recently used first."""

    def __init__(self, most: int = MOST_CACHED) -> None:
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._most, self._weight = most, 0
        self._lock = Lock()

    def get(self, key: Key, make: Callable[[], Value], weight: int = 1) -> Value:
        with self._lock:
            cached = self._values.get(key)
            if cached is not None:
                self._values.move_to_end(key)
                return cached[0]
        made = make()
        with self._lock:
            _, before = self._values.pop(key, (None, 0))  # another thread may have added it
            self._values[key] = made, weight
            self._weight += weight - before
            while self._weight > self._most:
                _, (_, dropped) = self._values.popitem(last=False)
                self._weight -= dropped
        return made


def by_shard(fragments: Iterable[Fragment]) -> dict[int, list[Fragment]]:
    """Group fragments by their shards."""
    groups: dict[int, list[Fragment]] = {}
    for fragment in fragments:
        groups.setdefault(fragment.shard, []).append(fragment)
    return groups


class KnownTable:
    """A table in one state of the catalog: its fragments by shard, with rows of the log, and their runs."""

    def __init__(self, state: StoreState, table: int, memory: TableMemory) -> None:
        known, self.placement, self.memory = state.tables[table], state.placement, memory
        (self.layout, self.last_commit), self.table = state.versions, known.info
        fragments = tuple(known.fragments.by_id.values())
        self.fragments = (*fragments, *memory.fragments)
        self._overwrites = known.overwrites
        self.indexes: tuple[IndexInfo, ...] = known.indexes
        self._runs: dict[tuple[int, int], list[IndexRun]] = {}
        for run in known.runs.by_id.values():
            self._runs.setdefault((run.fragment, run.index), []).append(run)
        at_shards = by_shard(fragments)
        for fragment in memory.fragments:  # each shard serves the rows in the log of its own slots
            for shard, slots in state.placement.split_by_shard(fragment.slots).items():
                at_shards.setdefault(shard, []).append(replace(fragment, slots=slots))
        self._views = {shard: View(at_shard) for shard, at_shard in at_shards.items()}
        self._nothing = View(())

    def serves(self, snapshot: int, after: int | None = None) -> bool:
        """Return whether this state has a snapshot, or the changes in (after, snapshot], and keeps them."""
        oldest = snapshot if after is None else max(after, self.table.created_commit)
        return self.table.oldest_snapshot <= oldest and snapshot <= self.last_commit

    def view(self, shard: int) -> View:
        return self._views.get(shard, self._nothing)

    def index(self, index_id: int) -> IndexInfo:
        """Return an index by its id. Raises `TableChanged` if it was dropped."""
        for index in self.indexes:
            if index.id == index_id:
                return index
        raise TableChanged(
            "the index that this scan reads was dropped, or dropped and made again, since it began; start a "
            "new scan",
            index=index_id,
            kind="index",
        )

    def runs(self, fragment: Fragment, index: IndexInfo) -> list[IndexRun]:
        """Return the runs of a fragment in an index; every fragment has one when the index is ready."""
        if isinstance(fragment, MemoryFragment):
            return self.memory.runs(fragment, index)
        return self._runs[fragment.id, index.id]

    def runs_at(self, snapshot: int, index: IndexInfo) -> list[tuple[Fragment, IndexRun]]:
        """Return the runs that a scan of a snapshot through an index reads."""
        return [(f, run) for f in self.fragments_at(snapshot) for run in self.runs(f, index)]

    def fragments_at(self, snapshot: int) -> list[Fragment]:
        """Return the fragments that a scan of a snapshot reads."""
        bounds = self.bounds(snapshot)
        return [fragment for fragment in self.fragments if bounds.touch(fragment)]

    @property
    def shards(self) -> int:
        """Count the shards that have fragments of the table."""
        return len(self._views)

    def bounds(self, snapshot: int) -> Bounds:
        """Return the range of commits whose rows are in a snapshot."""
        return Bounds(self.floor(snapshot), snapshot, since=snapshot)

    def floor(self, snapshot: int) -> int:
        """Return the newest overwrite up to a snapshot, or 0: rows of earlier commits are not in it."""
        return floor_at(self._overwrites, snapshot)


def read_statistics(
    tx: Tx, state: KnownTable, kept: Mapping[int, FragmentStatistics]
) -> dict[int, FragmentStatistics]:
    """Return statistics of a table's fragments, by fragment id; reads only what `kept` lacks."""
    fragments = {fragment.id for fragment in state.fragments}
    known = {of: kept[of] for of in fragments & kept.keys()}
    new = {of: body for of, body in state.memory.statistics().items() if of not in known}
    packed = tx.statistics(state.table.id, fragments - known.keys() - new.keys())
    new |= {of: unpack_statistics(body) for of, body in packed.items()}
    if state.table.columns:
        names = {column.mark: name for name, column in state.table.by_name().items()}
        new = {of: body.renamed(names) for of, body in new.items()}
    return known | new


def live_table(tx: Tx, table: int) -> TableInfo:
    """Return a table in the state of a transaction. Raises `TableChanged` if it was dropped."""
    info = tx.state.info(table)
    if info is None:
        raise TableChanged(
            "the table was dropped, or dropped and made again, since this began; begin again, a stream "
            "with a new checkpoint",
            table=table,
        )
    return info


def oldest_kept(table: TableInfo) -> int:
    """Return the commit after which every change is still kept; 0 if no change was ever dropped."""
    return 0 if table.oldest_snapshot <= table.created_commit else table.oldest_snapshot


def check_kept(table: TableInfo, after: int) -> None:
    """Raise `SnapshotExpired`, with the missing range, unless every change after a commit is still kept."""
    oldest = table.oldest_snapshot
    after = max(after, table.created_commit)  # there are no earlier changes
    if after < oldest:
        raise SnapshotExpired(
            f"changes of table {table.name!r} after commit {after} are no longer kept: {after + 1} to "
            f"{oldest} are gone; start from a snapshot, or keep changes longer",
            table=table.name,
            after=after,
            oldest=oldest,
            kind="changes",
        )
