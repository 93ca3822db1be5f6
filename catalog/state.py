"""The state of a store: the fold over the records of its log (`fold`).

One state serves all snapshots that are kept. A flushed fragment has the commit number of each row, so a
reader uses the same fragments for every snapshot and skips newer rows. `overwrites` lists the commits that
replaced all earlier rows. Of rows that are still in the log, the state has only number, size and slots; a
reader loads their content when it needs it (`Tx.rows_of`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import TypeVar

from elasticscan.base.errors import NotFound, SnapshotExpired
from elasticscan.base.suggestions import suggest
from elasticscan.catalog.store_time import Belief
from elasticscan.catalog.table_state import DroppedTable, InlineCommit, RemovedFile, TableState
from elasticscan.metadata import Fragment, IndexInfo, IndexRun, Secret, TableInfo
from elasticscan.topology import Placement, Shard, Tablet

N = TypeVar("N", TableInfo, IndexInfo, Shard)


@dataclass(frozen=True, slots=True)
class StoreState:
    """A store after the record `number` of its log.

    Attributes:
        digest: the log's digest up to `number`; states with equal (number, digest) are equal.
        layout: the number of the newest record of any kind but `RowsCommitted`, `TopologyEntered` and
            `TimeObserved`.
        commit: the number of the newest commit: the newest snapshot. After `adopt`, perhaps a commit that
            only another copy of the store had.
        time: the time of the newest record, in microseconds since the epoch, UTC.
        belief: the accepted time, which decides expiry; see `store_time`.
        incarnation: the id of this copy of the store, see `StoreCreated`.
        reserved: tables whose first write has begun; no reader sees them yet.
        condemned: files, by shard and path, that no later record may name.
        shards, removed_shards: by id, ascending.
        topology: the newest number in the topology history, and whether it is published.
        newest_ids: the highest id so far of each kind (table, index, shard, tablet); ids are not reused.
    """

    number: int
    digest: bytes
    layout: int
    commit: int
    time: int
    belief: Belief
    store_id: str
    incarnation: str
    hash: str
    retention_seconds: float
    placement: Placement
    shards: Mapping[int, Shard]
    removed_shards: Mapping[int, Shard] = field(default_factory=dict)
    tables: Mapping[int, TableState] = field(default_factory=dict)
    reserved: Mapping[int, TableInfo] = field(default_factory=dict)
    dropped: Mapping[int, DroppedTable] = field(default_factory=dict)
    condemned: frozenset[tuple[int, str]] = frozenset()
    topology: tuple[int, bool] = (1, True)
    newest_ids: Mapping[str, int] = field(default_factory=dict)
    secrets: Mapping[int, Secret] = field(default_factory=dict)

    @property
    def versions(self) -> tuple[int, int]:
        """(layout, newest commit): anything derived from a state with the same pair is still valid."""
        return self.layout, self.commit

    @property
    def slots(self) -> int:
        """The number of slots, which never changes."""
        return self.placement.slot_count

    # Tables

    def info(self, id: int) -> TableInfo | None:  # noqa: A002
        """Return a table, or None if it was dropped."""
        return self.tables[id].info if id in self.tables else None

    def infos(self, of: Collection[int] | None = None) -> tuple[TableInfo, ...]:
        """Return the tables that are not dropped, sorted by name; only the ids `of` if given."""
        infos = (table.info for number, table in self.tables.items() if of is None or number in of)
        return tuple(sorted(infos, key=attrgetter("name")))

    def table_named(self, name: str) -> TableInfo:
        """Return a table. Raises `NotFound`, with a suggestion."""
        return _named("store", "table", self.infos(), name, "; Store.tables() lists them")

    def indexes(self, table: int | None = None) -> tuple[IndexInfo, ...]:
        """Return the indexes of one table or of all tables, by id."""
        found = chain.from_iterable(each.indexes for each in self._tables(table))
        return tuple(sorted(found, key=attrgetter("id")))

    def index_named(self, table: int, name: str) -> IndexInfo:
        """Return an index of a table. Raises `NotFound`, with a suggestion."""
        hint = "; list them by Table.indexes() or `elasticscan index list`"
        return _named("table", "index", self.indexes(table), name, hint)

    def memory(self, table: int) -> tuple[InlineCommit, ...]:
        """Return the commits that still have rows in the log, at least those of one slot; oldest first."""
        return self.tables[table].memory if table in self.tables else ()

    def overwrites(self, table: int) -> tuple[int, ...]:
        """Return the commits that replaced all rows of a table; up to its horizon only the newest one."""
        return self.tables[table].overwrites if table in self.tables else ()

    def check_snapshot(self, table: TableInfo, snapshot: int) -> None:
        """Raise `NotFound` unless the snapshot exists, and `SnapshotExpired` if it is no longer kept."""
        if not table.created_commit <= snapshot <= self.commit:
            raise NotFound(
                f"table {table.name!r} has snapshots {table.created_commit} to {self.commit}, not {snapshot}",
                table=table.name,
                snapshot=snapshot,
                kind="snapshot",
            )
        if snapshot < table.oldest_snapshot:
            raise SnapshotExpired(
                f"snapshot {snapshot} of table {table.name!r} is no longer kept, the oldest is "
                f"{table.oldest_snapshot}; read a newer snapshot, or load the DataFrame again",
                table=table.name,
                snapshot=snapshot,
                oldest=table.oldest_snapshot,
            )

    # Files

    def fragments(self, table: int | None = None, shard: int | None = None) -> tuple[Fragment, ...]:
        """Return the fragments that serve slots now, oldest first."""
        serving = chain.from_iterable(each.fragments.by_id.values() for each in self._tables(table))
        found = (fragment for fragment in serving if shard is None or fragment.shard == shard)
        return tuple(found if table is not None else sorted(found, key=attrgetter("id")))

    def runs(self, table: int | None = None) -> tuple[IndexRun, ...]:
        """Return the index runs of one table or of all tables, for fragments that serve slots now."""
        serving = chain.from_iterable(each.runs.by_id.values() for each in self._tables(table))
        return tuple(serving if table is not None else sorted(serving, key=attrgetter("id")))

    def files(self) -> list[tuple[Fragment, Fragment | IndexRun]]:
        """Return (fragment, file) for all fragments and index runs that serve slots now."""
        fragments = {fragment.id: fragment for fragment in self.fragments()}
        runs = ((fragments[run.fragment], run) for run in self.runs())
        return [*((fragment, fragment) for fragment in fragments.values()), *runs]

    def removed_files(self, table: int | None = None) -> list[RemovedFile]:
        """Return the files of one table or of all that serve no slot but may still be on their disks."""
        removed = {number: each.removed for number, each in self.tables.items()}
        removed |= {number: dropped.files for number, dropped in self.dropped.items()}
        return list(chain.from_iterable(removed.values() if table is None else [removed.get(table, ())]))

    def known_paths(self) -> frozenset[tuple[int, str]]:
        """(shard, path) of every file that the log refers to, including files that serve no slot any more.

        If a shard was added at the root of a removed shard, its files are returned under both shards.
        """
        roots = {shard.id: shard.root for shard in self.all_shards}
        shards_at: dict[str, list[int]] = {}
        for shard, root in roots.items():
            shards_at.setdefault(root, []).append(shard)
        files = [(fragment.shard, file.path) for fragment, file in self.files()]
        files += [(file.shard, file.path) for file in self.removed_files()]
        return frozenset((same, path) for shard, path in files for same in shards_at[roots[shard]])

    def _tables(self, table: int | None) -> Iterable[TableState]:
        if table is None:
            return self.tables.values()
        return [self.tables[table]] if table in self.tables else []

    # Shards

    @property
    def all_shards(self) -> tuple[Shard, ...]:
        """All shards that the store ever had, by id: files of removed shards may still be in use."""
        return tuple(sorted((*self.shards.values(), *self.removed_shards.values()), key=attrgetter("id")))

    def shard_named(self, name: str) -> Shard:
        """Return a shard. Raises `NotFound`, with a suggestion."""
        names = ", ".join(shard.name for shard in self.shards.values())
        return _named("store", "shard", self.shards.values(), name, f"; it has {names}")

    def tablet(self, id: int) -> Tablet:  # noqa: A002
        """Return a tablet as it is now. Raises `NotFound`."""
        tablet = self.placement.tablet(id)
        if tablet is None:
            raise NotFound(
                f"the store has no tablet {id}; `elasticscan status --tablets` lists them",
                tablet=id,
                kind="tablet",
            )
        return tablet


def _named(owner: str, kind: str, things: Iterable[N], name: str, hint: str) -> N:
    """Return a thing by its name. Raises `NotFound`, with a suggestion or else a hint."""
    named = {thing.name: thing for thing in things}
    if name not in named:
        why = f"the {owner} has no {kind} {name!r}{suggest(name, named) or hint}"
        raise NotFound(why, **{kind: name}, kind=kind)
    return named[name]
