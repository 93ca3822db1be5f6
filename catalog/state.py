"""The state of a store: a pure fold over the records of its log.

`apply(state, entry, values)` returns the next state. Nothing here reads a clock, a file or a row of a table:
the same records give the same state in every process, and any split of a log into a checkpoint and a tail
gives it, too. Rows that lie in the log are known by number, size and slots; who reads them asks for them.

One state serves all kept snapshots. A flushed fragment carries the number of each row, so a reader that knows
the flush uses it for every snapshot, and leaves out newer rows; `overwrites` are the numbers at which all
rows before are gone.

A record that does not fit the state was written by a program with a fault, or is damaged in a way that its
digest does not show: `StoreDamaged`. What a record requires is checked before it is appended, in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from elasticscan.base.errors import NotFound, SnapshotExpired
from elasticscan.base.suggestions import suggest
from elasticscan.catalog.entries import ROWS, LogEntry, damaged_log, part_hashes
from elasticscan.catalog.store_time import Belief, observe
from elasticscan.catalog.table_state import (
    DroppedTable,
    InlineCommit,
    RemovedFile,
    Since,
    TableState,
    Tag,
    misfit,
    not_forgotten,
    struck,
    with_files,
    without,
    without_runs,
)
from elasticscan.metadata import (
    LAYOUT,
    FileChanges,
    FilesCondemned,
    Fragment,
    FragmentsReplaced,
    HorizonRaised,
    IndexDefined,
    IndexInfo,
    IndexRun,
    MoveSwitched,
    Record,
    RowsCommitted,
    Secret,
    SecretChanged,
    ShardDefined,
    StoreAdopted,
    StoreCreated,
    TableDefined,
    TableDropped,
    TableInfo,
    TabletsChanged,
    TagChanged,
    TimeObserved,
    TopologyEntered,
    file_count,
    moved_tablet,
)
from elasticscan.topology import Placement, Shard, SlotSet, Tablet

FOLD_VERSION: Final = 1  # grows whenever the same records give another state


@dataclass(frozen=True, slots=True)
class StoreState:
    """A store as of a number: what the records up to it say.

    Attributes:
        digest: of the log up to the number; two states with the same pair are the same.
        layout: the newest number that changed anything but rows.
        commit: the number of the newest commit, which makes the newest snapshot; or of one that was lost.
        commit_time: when that was made; as `time`.
        time: of the newest record, in microseconds since the epoch, UTC.
        belief: the time that expiry goes by.
        incarnation: of the copy of the store, as `StoreCreated` has it.
        reserved: tables that are not seen yet.
        dropped: tables that are gone.
        condemned: files, by shard and path, to which no record may refer.
        shards, removed_shards: by id, ascending.
        topology: the newest number in the topology history, and whether it is published.
        newest_ids: of tables, indexes, shards and tablets: ids are never used twice.
        touched: for each tablet the newest number that brought files with rows of it, or replaced some.
    """

    number: int
    digest: bytes
    layout: int
    commit: int
    commit_time: int
    time: int
    belief: Belief
    store_id: str
    incarnation: str
    hash: str
    retention_seconds: float
    created_at: float
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
    touched: Mapping[int, int] = field(default_factory=dict)

    @property
    def versions(self) -> tuple[int, int]:
        """(layout, newest commit): whatever was made of an equal pair is still true."""
        return self.layout, self.commit

    # Tables

    def table(self, id: int) -> TableState:  # noqa: A002
        """Return a table that a record names."""
        if id not in self.tables:
            raise misfit(f"there is no table {id}")
        return self.tables[id]

    def info(self, id: int) -> TableInfo | None:  # noqa: A002
        """Return a table that is not dropped, else None."""
        return self.tables[id].info if id in self.tables else None

    def infos(self, of: Collection[int] | None = None) -> tuple[TableInfo, ...]:
        """Return the tables that are not dropped, by name; `of` some ids alone."""
        every = (table.info for number, table in self.tables.items() if of is None or number in of)
        return tuple(sorted(every, key=attrgetter("name")))

    def table_named(self, name: str) -> TableInfo:
        """Return a table. Raises `NotFound`, with a suggestion."""
        named = {info.name: info for info in self.infos()}
        if name not in named:
            hint = suggest(name, named) or "; Store.tables() lists them"
            raise NotFound(f"the store has no table {name!r}{hint}", table=name, kind="table")
        return named[name]

    def indexes(self, table: int | None = None) -> tuple[IndexInfo, ...]:
        """Return the indexes of a table, or of all, that were not dropped."""
        every = chain.from_iterable(own.indexes for own in self._tables(table))
        return tuple(sorted(every, key=attrgetter("id")))

    def index_named(self, table: int, name: str) -> IndexInfo:
        """Return an index of a table. Raises `NotFound`, with a suggestion."""
        named = {index.name: index for index in self.indexes(table)}
        if name not in named:
            hint = suggest(name, named) or "; list them by Table.indexes() or `elasticscan index list`"
            raise NotFound(f"the table has no index {name!r}{hint}", index=name, kind="index")
        return named[name]

    def memory(self, table: int) -> tuple[InlineCommit, ...]:
        """Return the commits of which rows of at least one slot lie in the log alone; oldest first."""
        return self.tables[table].memory if table in self.tables else ()

    def overwrites(self, table: int) -> tuple[int, ...]:
        """Return the commits that replaced all rows of a table, up to its horizon the newest alone."""
        return self.tables[table].overwrites if table in self.tables else ()

    def check_snapshot(self, table: TableInfo, snapshot: int) -> None:
        """Raise unless the snapshot exists and is still kept."""
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
        every = chain.from_iterable(own.fragments.by_id().values() for own in self._tables(table))
        found = (fragment for fragment in every if shard is None or fragment.shard == shard)
        return tuple(found if table is not None else sorted(found, key=attrgetter("id")))

    def runs(self, table: int | None = None) -> tuple[IndexRun, ...]:
        """Return the runs of a table's fragments that serve slots now, or of all."""
        every = chain.from_iterable(own.runs.by_id().values() for own in self._tables(table))
        return tuple(every if table is not None else sorted(every, key=attrgetter("id")))

    def removed_files(self, table: int | None = None) -> list[RemovedFile]:
        """Return the files of a table, or of all, that serve no slot, and may still be on their disks."""
        removed = {number: own.removed for number, own in self.tables.items()}
        removed |= {number: gone.files for number, gone in self.dropped.items()}
        return list(chain.from_iterable(removed.values() if table is None else [removed.get(table, ())]))

    def known_paths(self) -> frozenset[tuple[int, str]]:
        """(shard, path) of every file that the log refers to, removed ones included.

        A shard that was added again where a removed one had been shares its files: they are known under both.
        """
        roots = {shard.id: shard.root for shard in self.all_shards}
        shards_at: dict[str, list[int]] = {}
        for shard, root in roots.items():
            shards_at.setdefault(root, []).append(shard)
        fragments = {fragment.id: fragment for fragment in self.fragments()}
        files = [(fragment.shard, fragment.path) for fragment in fragments.values()]
        files += [(fragments[run.fragment].shard, run.path) for run in self.runs()]
        files += [(file.shard, file.path) for file in self.removed_files()]
        for shard, path in files:
            if shard not in roots:
                raise damaged_log(f"file {path} is at shard {shard}, which there never was")
        return frozenset((same, path) for shard, path in files for same in shards_at[roots[shard]])

    def _tables(self, table: int | None) -> Iterable[TableState]:
        if table is None:
            return self.tables.values()
        return [self.tables[table]] if table in self.tables else []

    # Shards

    @property
    def all_shards(self) -> tuple[Shard, ...]:
        """All shards that there ever were, by id: files of removed ones may be in use."""
        return tuple(sorted((*self.shards.values(), *self.removed_shards.values()), key=attrgetter("id")))

    def shard_named(self, name: str) -> Shard:
        """Return a shard. Raises `NotFound`, with a suggestion."""
        named = {shard.name: shard for shard in self.shards.values()}
        if name not in named:
            hint = suggest(name, named) or f"; it has {', '.join(named)}"
            raise NotFound(f"the store has no shard {name!r}{hint}", shard=name, kind="shard")
        return named[name]

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


def first_state(entry: LogEntry, record: StoreCreated) -> StoreState:
    """Return the state after the first record of a log."""
    return StoreState(
        number=entry.number,
        digest=entry.digest,
        layout=entry.number,
        commit=0,
        commit_time=0,
        time=entry.time,
        belief=Belief((entry.row.clock or entry.time) / 1e6),
        store_id=record.store_id,
        incarnation=record.incarnation,
        hash=record.hash,
        retention_seconds=record.retention_seconds,
        created_at=record.created_at,
        secrets={secret.id: secret for secret in record.secrets},
        placement=Placement.of(record.tablets),
        shards={shard.id: shard for shard in record.shards},
        newest_ids=_newest({}, "shard", record.shards) | _newest({}, "tablet", record.tablets),
    )


def apply(state: StoreState | None, entry: LogEntry, record: Record) -> StoreState:
    """Return the state after one more record.

    Raises:
        StoreDamaged: it is not the next one, or does not fit.
    """
    if isinstance(record, StoreCreated):
        if state is not None:
            raise misfit("a store is created twice")
        return first_state(entry, record)
    if state is None or not _is_next(state, entry, record):
        raise misfit(f"{entry.number} follows {None if state is None else state.number}")
    try:
        changes = _HANDLERS[type(record)](state, entry, record)
    except (AssertionError, KeyError) as error:
        raise misfit(str(error)) from error
    return replace(
        state,
        number=entry.number,
        digest=entry.digest,
        layout=entry.number if isinstance(record, LAYOUT) else state.layout,
        commit=_newest_commit(state, entry, record),
        commit_time=entry.time if is_commit(record) else state.commit_time,
        time=entry.time,
        belief=observe(state.belief, (entry.row.clock or entry.time) / 1e6),
        **changes,
    )


Changes = dict[str, Any]


def is_commit(record: Record) -> bool:
    """Return True if a record is a commit of its table's history: a snapshot begins with it."""
    return isinstance(record, RowsCommitted) or (
        isinstance(record, TableDefined) and record.operation is not None
    )


def _newest_commit(state: StoreState, entry: LogEntry, record: Record) -> int:
    if isinstance(record, StoreAdopted):
        return max(state.commit, record.commit)
    return entry.number if is_commit(record) else state.commit


def _is_next(state: StoreState, entry: LogEntry, record: Record) -> bool:
    if isinstance(record, StoreAdopted):  # the numbers in between were used in a log that was lost
        return entry.number > state.number
    return entry.number == state.number + 1


def _newest(before: Mapping[str, int], kind: str, things: Iterable[Any]) -> dict[str, int]:
    """Return the newest ids after some things of a kind."""
    return {**before, kind: max([before.get(kind, 0), *(thing.id for thing in things)])}


def _with_table(state: StoreState, id: int, table: TableState) -> Changes:  # noqa: A002
    return {"tables": {**state.tables, id: table}}


def _shard(state: StoreState, entry: LogEntry, record: ShardDefined) -> Changes:
    shard, others = record.shard, {s.id: s for s in state.shards.values() if s.id != record.shard.id}
    if not record.removed:
        newest = _newest(state.newest_ids, "shard", [shard])
        return {"shards": dict(sorted({**others, shard.id: shard}.items())), "newest_ids": newest}
    if state.placement.at(shard.id):
        raise misfit(f"shard {shard.id} is removed, and serves slots")
    return {"shards": others, "removed_shards": {**state.removed_shards, shard.id: shard}}


def _table(state: StoreState, entry: LogEntry, record: TableDefined) -> Changes:
    info = record.table
    if record.reserved:
        newest = _newest(state.newest_ids, "table", [info])
        return {"reserved": {**state.reserved, info.id: info}, "newest_ids": newest}
    if record.made_from == 0:
        if info.id in state.tables:
            raise misfit(f"table {info.id} is created twice")
        made = replace(info, created_commit=entry.number, oldest_snapshot=entry.number)
        newest = _newest(state.newest_ids, "table", [info])
        reserved = {number: table for number, table in state.reserved.items() if number != info.id}
        changes = {"newest_ids": newest, "reserved": reserved}
        return _with_table(state, info.id, TableState(made, newest=entry.number)) | changes
    before = state.table(info.id)
    # The horizon is the store's to raise, and never goes back.
    kept = replace(
        info,
        created_commit=before.info.created_commit,
        oldest_snapshot=before.info.oldest_snapshot,
    )
    return _with_table(state, info.id, replace(before, info=kept))


def _drop_table(state: StoreState, entry: LogEntry, record: TableDropped) -> Changes:
    table = state.table(record.table)
    table = without(table, table.fragments.by_id().keys(), _since(state, entry))
    left = {number: other for number, other in state.tables.items() if number != record.table}
    dropped = DroppedTable(table.info.name, table.removed)
    return {"tables": left, "dropped": {**state.dropped, record.table: dropped}}


def _index(state: StoreState, entry: LogEntry, record: IndexDefined) -> Changes:
    index, table = record.index, state.table(record.index.table)
    others = tuple(each for each in table.indexes if each.id != index.id)
    if not index.is_over:
        newest = _newest(state.newest_ids, "index", [index])
        with_index = replace(table, indexes=(*others, index))
        return _with_table(state, index.table, with_index) | {"newest_ids": newest}
    gone = table.runs.where("index", {index.id})
    left = without_runs(replace(table, indexes=others), gone, _since(state, entry))
    return _with_table(state, index.table, left)


def _rows(state: StoreState, entry: LogEntry, record: RowsCommitted) -> Changes:
    table, number = state.table(record.table), entry.number
    if record.slots:
        sealed = part_hashes(entry).get((record.table, ROWS), b"")
        sizes = record.rows, record.bytes, record.tombstones
        inline = InlineCommit(number, record.definition, *sizes, record.slots, sealed)
        size = table.memory_bytes + record.bytes
        table = replace(table, memory=(*table.memory, inline), memory_bytes=size)
    changed = with_files(table, record.files, _since(state, entry))
    changed = replace(
        changed,
        newest=number,
        rows=changed.rows + record.rows,
        bytes=changed.bytes + record.bytes,
        overwrites=(*changed.overwrites, number) if record.overwrites else changed.overwrites,
        overwritten=changed.rows if record.overwrites else changed.overwritten,
    )
    return _with_table(state, record.table, changed) | _touch(state, number, record.files)


def _replace(state: StoreState, entry: LogEntry, record: FragmentsReplaced) -> Changes:
    if record.table in state.dropped:
        table = state.dropped[record.table]
        left = replace(table, files=not_forgotten(table.files, record.files))
        return {"dropped": {**state.dropped, record.table: left}}
    changed = with_files(state.table(record.table), record.files, _since(state, entry))
    return _with_table(state, record.table, changed) | _touch(state, entry.number, record.files)


def _move(state: StoreState, entry: LogEntry, record: MoveSwitched) -> Changes:
    moved = moved_tablet(record)
    since, first = _since(state, entry), 0
    tables = {number: struck(table, record, since) for number, table in state.tables.items()}
    for table, files in sorted(record.tables.items()):
        tables[table] = with_files(tables[table], files, since, first)
        first += file_count(files)
    placement = state.placement.replaced((record.tablet,), (moved,))
    touched = {**state.touched, moved.id: entry.number}
    return {"placement": placement, "tables": tables, "touched": touched}


def _tablets(state: StoreState, entry: LogEntry, record: TabletsChanged) -> Changes:
    gone = {tablet.id for tablet in record.before}
    touched = {own: number for own, number in state.touched.items() if own not in gone}
    touched |= {tablet.id: entry.number for tablet in record.after}
    left = (tablet for tablet in state.placement.tablets if tablet.id not in gone)
    return {
        "placement": Placement.of((*left, *record.after)),
        "touched": touched,
        "newest_ids": _newest(state.newest_ids, "tablet", record.after),
    }


def _horizon(state: StoreState, entry: LogEntry, record: HorizonRaised) -> Changes:
    table = state.table(record.table)
    if not table.info.oldest_snapshot <= record.horizon <= entry.number:
        raise misfit(f"the horizon of table {record.table} goes to {record.horizon}")
    past = [number for number in table.overwrites if number <= record.horizon]
    kept = tuple(number for number in table.overwrites if number not in past[:-1])
    info = replace(table.info, oldest_snapshot=record.horizon)
    return _with_table(state, record.table, replace(table, info=info, overwrites=kept))


def _tag(state: StoreState, entry: LogEntry, record: TagChanged) -> Changes:
    table = state.table(record.table)
    tags = tuple(tag for tag in table.tags if tag.name != record.name)
    if record.snapshot is not None:
        tags = (*tags, Tag(record.name, record.snapshot, entry.time / 1e6))
        tags = tuple(sorted(tags, key=attrgetter("snapshot", "name")))
    return _with_table(state, record.table, replace(table, tags=tags))


def _secret(state: StoreState, entry: LogEntry, record: SecretChanged) -> Changes:
    secrets = {own.id: own for own in state.secrets.values() if own.id != record.id}
    if record.secret is not None:
        secrets[record.id] = record.secret
    return {"secrets": secrets}


def _time(state: StoreState, entry: LogEntry, record: TimeObserved) -> Changes:
    return {}


def _topology(state: StoreState, entry: LogEntry, record: TopologyEntered) -> Changes:
    return {"topology": (record.topology, record.published)}


def _condemn(state: StoreState, entry: LogEntry, record: FilesCondemned) -> Changes:
    files = set(record.files)
    return {"condemned": state.condemned - files if record.lifted else state.condemned | files}


def _adopt(state: StoreState, entry: LogEntry, record: StoreAdopted) -> Changes:
    return {"incarnation": record.incarnation}


_HANDLERS: Final[Mapping[type, Callable[[StoreState, LogEntry, Any], Changes]]] = {
    ShardDefined: _shard,
    TableDefined: _table,
    TableDropped: _drop_table,
    IndexDefined: _index,
    RowsCommitted: _rows,
    FragmentsReplaced: _replace,
    MoveSwitched: _move,
    TabletsChanged: _tablets,
    HorizonRaised: _horizon,
    TagChanged: _tag,
    SecretChanged: _secret,
    TimeObserved: _time,
    TopologyEntered: _topology,
    FilesCondemned: _condemn,
    StoreAdopted: _adopt,
}


def _since(state: StoreState, entry: LogEntry) -> Since:
    # The times of entries never go back, so one clock that was ahead would keep all files from then on.
    clock = (entry.row.clock or entry.time) / 1e6
    return Since(entry.number, round(1e6 * max(clock, observe(state.belief, clock).accepted_at)))


def _touch(state: StoreState, number: int, files: FileChanges) -> Changes:
    """Note the tablets whose files are others now: a move that copied them before must copy again."""
    slots = SlotSet.union([*(added.file.slots for added in files.added), *(some for _, some in files.slots)])
    if files.removed or files.flushed:
        slots |= files.flushed_slots
    if not slots:
        return {}
    return {"touched": {**state.touched, **dict.fromkeys(_tablets_with(slots, state.placement), number)}}


def _tablets_with(slots: SlotSet, placement: Placement) -> Iterator[int]:
    """Yield the tablets that hold some of the slots; both are walked once, in order."""
    ranges = iter(slots.ranges)
    start, end = next(ranges)
    for tablet in placement.tablets:
        while end <= tablet.start:
            start, end = next(ranges, (placement.slot_count, placement.slot_count + 1))
        if start < tablet.end:
            yield tablet.id
