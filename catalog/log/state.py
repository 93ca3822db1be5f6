"""The state of a store: a pure fold over the records of its log.

`apply(state, entry, values)` returns the next state. Nothing here reads a clock, a file or a row of a table:
the same records give the same state in every process, and any split of a log into a checkpoint and a tail
gives it, too. Rows that lie in the log are known by number, size and slots; who reads them asks for them.

One state serves all kept snapshots. A flushed fragment carries the number of each row, so whoever knows the
flush reads it for every snapshot, and leaves out what is newer; `overwrites` are the numbers at which all
rows before are gone.

A record that does not fit the state was written by a program with a fault, or is damaged in a way that its
digest does not show: `StoreDamaged`. What a record requires is checked before it is appended, in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from elasticscan.base.errors import RESTORE, StoreDamaged
from elasticscan.catalog.believed_time import Belief, observe
from elasticscan.catalog.log.entries import ROWS, Digest, LogEntry, part_hashes
from elasticscan.catalog.log.files import (
    FRAGMENT_COLUMNS,
    RUN_COLUMNS,
    FileSet,
    fragment_row,
    run_row,
)
from elasticscan.metadata import (
    LAYOUT,
    FileChanges,
    Fragment,
    FragmentsReplaced,
    HorizonRaised,
    IndexDefined,
    IndexInfo,
    IndexRun,
    MoveSwitched,
    Record,
    RowsCommitted,
    SecretChanged,
    ShardDefined,
    StagedRun,
    StoreCreated,
    TableDefined,
    TableDropped,
    TableInfo,
    TabletsChanged,
    TagChanged,
    TimeObserved,
    file_count,
    file_id,
    moved_tablet,
)
from elasticscan.topology import Placement, Shard, SlotSet

FOLD_VERSION: Final = 1  # grows whenever the same records give another state


@dataclass(frozen=True, slots=True)
class InlineCommit:
    """A commit whose rows, or those of some slots, lie in the log: a part of the table's memory fragment.

    `digest` is the sha256 of its rows as they lie there.
    """

    number: int
    definition: int
    rows: int
    bytes: int
    tombstones: int
    slots: SlotSet
    digest: Digest


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that serves no slot any more, and may still be on its disk."""

    shard: int
    path: str
    number: int


@dataclass(frozen=True, slots=True)
class NamedSnapshot:
    """A tag of a table."""

    name: str
    snapshot: int
    made_at: int


@dataclass(frozen=True, slots=True)
class SealSecret:
    """A secret that seals keys, or offsets."""

    id: int
    purpose: str
    secret: bytes = field(repr=False)
    made_at: int


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as of a number.

    Attributes:
        newest: the number of its newest commit.
        rows, bytes: that its commits wrote, tombstones included.
        memory: its commits that lie in the log, ascending.
        overwrites: numbers of commits that replaced all rows, of those up to the horizon the newest alone.
        removed: its files that serve no slot any more, and may still be on their disks.
    """

    info: TableInfo
    newest: int = 0
    rows: int = 0
    bytes: int = 0
    indexes: tuple[IndexInfo, ...] = ()
    tags: tuple[NamedSnapshot, ...] = ()
    memory: tuple[InlineCommit, ...] = ()
    overwrites: tuple[int, ...] = ()
    removed: tuple[RemovedFile, ...] = ()
    fragments: FileSet = field(default_factory=lambda: FileSet.empty(FRAGMENT_COLUMNS))
    runs: FileSet = field(default_factory=lambda: FileSet.empty(RUN_COLUMNS))

    @property
    def memory_bytes(self) -> int:
        """The size of its rows in the log."""
        return sum(commit.bytes for commit in self.memory)

    def served_by(self, changes: FileChanges) -> int:
        """Return how many slots the fragments and commits serve that changes take rows from, in sum."""
        sources = {*changes.removed, *(file for file, _ in changes.slots)}
        fragments = self.fragments.where("id", sources) if sources else []
        commits = (commit for commit in self.memory if commit.number in changes.flushed)
        served = (*(SlotSet.parse(row["slots"]) for row in fragments), *(commit.slots for commit in commits))
        return sum(map(len, served))


@dataclass(frozen=True, slots=True)
class StoreState:
    """A store as of a number: what the records up to it say.

    Attributes:
        digest: of the log up to the number; two states with the same pair are the same.
        layout: the newest number that changed placement, shards, tables or indexes.
        time: of the newest record, in microseconds since the epoch, UTC.
        belief: the time that expiry goes by.
        dropped: the files of dropped tables, as far as they may still be on their disks.
        newest_ids: of tables, indexes, shards and tablets: ids are never used twice.
        touched: for each tablet the newest number that brought files with rows of it, or replaced some.
    """

    number: int
    digest: bytes
    layout: int
    time: int
    belief: Belief
    store_id: str
    hash: str
    retention_seconds: float
    placement: Placement
    shards: Mapping[int, Shard]
    removed_shards: Mapping[int, Shard] = field(default_factory=dict)
    tables: Mapping[int, TableState] = field(default_factory=dict)
    dropped: Mapping[int, tuple[RemovedFile, ...]] = field(default_factory=dict)
    newest_ids: Mapping[str, int] = field(default_factory=dict)
    secrets: Mapping[int, SealSecret] = field(default_factory=dict)
    touched: Mapping[int, int] = field(default_factory=dict)

    def table(self, id: int) -> TableState:  # noqa: A002
        """Return a table that a record names."""
        if id not in self.tables:
            raise _misfit(f"there is no table {id}")
        return self.tables[id]


def _misfit(why: str) -> StoreDamaged:
    return StoreDamaged(f"a record of the log does not fit what came before it: {why}; {RESTORE}")


def first_state(entry: LogEntry, record: StoreCreated) -> StoreState:
    """Return the state after the first record of a log."""
    return StoreState(
        number=entry.number,
        digest=entry.digest,
        layout=entry.number,
        time=entry.time,
        belief=Belief((entry.row.clock or entry.time) / 1e6),
        store_id=record.store_id,
        hash=record.hash,
        retention_seconds=record.retention_seconds,
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
            raise _misfit("a store is created twice")
        return first_state(entry, record)
    if state is None or entry.number != state.number + 1:
        raise _misfit(f"{entry.number} follows {0 if state is None else state.number}")
    try:
        changes = _HANDLERS[type(record)](state, entry, record)
    except (AssertionError, KeyError) as error:
        raise _misfit(str(error)) from error
    return replace(
        state,
        number=entry.number,
        digest=entry.digest,
        layout=entry.number if isinstance(record, LAYOUT) else state.layout,
        time=entry.time,
        belief=observe(state.belief, (entry.row.clock or entry.time) / 1e6),
        **changes,
    )


Changes = dict[str, Any]


def _newest(before: Mapping[str, int], kind: str, things: Iterable[Any]) -> dict[str, int]:
    """Return the newest ids after some things of a kind."""
    return {**before, kind: max([before.get(kind, 0), *(thing.id for thing in things)])}


def _with_table(state: StoreState, id: int, table: TableState) -> Changes:  # noqa: A002
    return {"tables": {**state.tables, id: table}}


def _shard(state: StoreState, entry: LogEntry, record: ShardDefined) -> Changes:
    shard, others = record.shard, {s.id: s for s in state.shards.values() if s.id != record.shard.id}
    if not record.removed:
        newest = _newest(state.newest_ids, "shard", [shard])
        return {"shards": {**others, shard.id: shard}, "newest_ids": newest}
    if state.placement.at(shard.id):
        raise _misfit(f"shard {shard.id} is removed, and serves slots")
    return {"shards": others, "removed_shards": {**state.removed_shards, shard.id: shard}}


def _table(state: StoreState, entry: LogEntry, record: TableDefined) -> Changes:
    info = record.table
    if record.made_from == 0:
        if info.id in state.tables:
            raise _misfit(f"table {info.id} is created twice")
        made = replace(info, created_commit=entry.number, oldest_snapshot=entry.number)
        newest = _newest(state.newest_ids, "table", [info])
        return _with_table(state, info.id, TableState(made, newest=entry.number)) | {"newest_ids": newest}
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
    table = _without(table, tuple(row["id"] for row in table.fragments.rows()), entry.number)
    left = {number: other for number, other in state.tables.items() if number != record.table}
    return {"tables": left, "dropped": {**state.dropped, record.table: table.removed}}


def _index(state: StoreState, entry: LogEntry, record: IndexDefined) -> Changes:
    index, table = record.index, state.table(record.index.table)
    others = tuple(each for each in table.indexes if each.id != index.id)
    if not index.is_over:
        newest = _newest(state.newest_ids, "index", [index])
        with_index = replace(table, indexes=(*others, index))
        return _with_table(state, index.table, with_index) | {"newest_ids": newest}
    gone = table.runs.where("index", {index.id})
    left = _without_runs(replace(table, indexes=others), gone, entry.number)
    return _with_table(state, index.table, left)


def _rows(state: StoreState, entry: LogEntry, record: RowsCommitted) -> Changes:
    table, number = state.table(record.table), entry.number
    if record.slots:
        sealed = part_hashes(entry).get((record.table, ROWS), b"")
        sizes = record.rows, record.bytes, record.tombstones
        inline = InlineCommit(number, record.definition, *sizes, record.slots, sealed)
        table = replace(table, memory=(*table.memory, inline))
    changed = with_files(table, record.files, number, first=0)
    changed = replace(
        changed,
        newest=number,
        rows=changed.rows + record.rows,
        bytes=changed.bytes + record.bytes,
        overwrites=(*changed.overwrites, number) if record.overwrites else changed.overwrites,
    )
    return _with_table(state, record.table, changed) | _touch(state, number, record.files)


def _replace(state: StoreState, entry: LogEntry, record: FragmentsReplaced) -> Changes:
    if record.table in state.dropped:
        left = _not_forgotten(state.dropped[record.table], record.files)
        return {"dropped": {**state.dropped, record.table: left}}
    changed = with_files(state.table(record.table), record.files, entry.number, first=0)
    return _with_table(state, record.table, changed) | _touch(state, entry.number, record.files)


def _move(state: StoreState, entry: LogEntry, record: MoveSwitched) -> Changes:
    moved = moved_tablet(record)
    tables = {number: _struck(table, record, entry.number) for number, table in state.tables.items()}
    first = 0
    for table, files in sorted(record.tables.items()):
        tables[table] = with_files(tables[table], files, entry.number, first)
        first += file_count(files)
    placement = state.placement.replaced((record.tablet,), (moved,))
    touched = {**state.touched, moved.id: entry.number}
    return {"placement": placement, "tables": tables, "touched": touched}


def _tablets(state: StoreState, entry: LogEntry, record: TabletsChanged) -> Changes:
    gone = {tablet.id for tablet in record.before}
    touched = {own: number for own, number in state.touched.items() if own not in gone}
    touched |= {tablet.id: entry.number for tablet in record.after}
    return {
        "placement": state.placement.replaced(record.before, record.after),
        "touched": touched,
        "newest_ids": _newest(state.newest_ids, "tablet", record.after),
    }


def _horizon(state: StoreState, entry: LogEntry, record: HorizonRaised) -> Changes:
    table = state.table(record.table)
    if not table.info.oldest_snapshot <= record.horizon <= entry.number:
        raise _misfit(f"the horizon of table {record.table} goes to {record.horizon}")
    past = [number for number in table.overwrites if number <= record.horizon]
    kept = tuple(number for number in table.overwrites if number not in past[:-1])
    info = replace(table.info, oldest_snapshot=record.horizon)
    return _with_table(state, record.table, replace(table, info=info, overwrites=kept))


def _tag(state: StoreState, entry: LogEntry, record: TagChanged) -> Changes:
    table = state.table(record.table)
    tags = tuple(tag for tag in table.tags if tag.name != record.name)
    if record.snapshot is not None:
        tags = (*tags, NamedSnapshot(record.name, record.snapshot, entry.time))
    return _with_table(state, record.table, replace(table, tags=tags))


def _secret(state: StoreState, entry: LogEntry, record: SecretChanged) -> Changes:
    secrets = {own.id: own for own in state.secrets.values() if own.id != record.id}
    if record.secret is not None:
        secrets[record.id] = SealSecret(record.id, record.purpose, record.secret, entry.time)
    return {"secrets": secrets}


def _time(state: StoreState, entry: LogEntry, record: TimeObserved) -> Changes:
    return {}


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
}


def with_files(table: TableState, files: FileChanges, number: int, first: int) -> TableState:
    """Return a table after changes of its files, the first of which has the ordinal `first`."""
    named = {*files.removed, *(file for file, _ in files.slots), *(each.fragment for each in files.runs)}
    missing = table.fragments.missing(named)
    if missing:
        raise _misfit(f"fragment {min(missing)} is not there")
    table = _without(table, files.removed, number)
    fragments, runs, ordinal = [], [], first
    for added in files.added:
        low, high = added.min_number or number, added.max_number or number
        fragment: Fragment = added.file.entered(file_id(number, ordinal), table.info.id, low, high)
        fragments.append(fragment_row(fragment, number))
        ordinal += 1
        for run in added.file.runs:
            runs.append(run_row(_entered(run, file_id(number, ordinal), fragment.id)))
            ordinal += 1
    for extra in files.runs:
        runs.append(run_row(_entered(extra.run, file_id(number, ordinal), extra.fragment)))
        ordinal += 1
    return replace(
        table,
        memory=_unflushed(table.memory, files),
        removed=_not_forgotten(table.removed, files),
        fragments=table.fragments.with_slots(dict(files.slots)).with_added(fragments),
        runs=table.runs.with_added(runs),
    )


def _struck(table: TableState, record: MoveSwitched, number: int) -> TableState:
    """Return a table whose fragments at the source of a move serve its slots no longer."""
    there = table.fragments.where("shard", {record.tablet.shard})
    served = {row["id"]: SlotSet.parse(row["slots"]) for row in there}
    slots = record.tablet.slots
    left = {f: own - slots for f, own in served.items() if not own.isdisjoint(slots)}
    table = replace(table, fragments=table.fragments.with_slots({f: own for f, own in left.items() if own}))
    return _without(table, tuple(f for f, own in left.items() if not own), number)


def _without(table: TableState, ids: tuple[int, ...], number: int) -> TableState:
    """Return a table without some fragments and their runs; all their files are noted as removed."""
    going = set(ids)
    if not going:
        return table
    files = (RemovedFile(row["shard"], row["path"], number) for row in table.fragments.where("id", going))
    table = replace(table, removed=(*table.removed, *files))
    table = _without_runs(table, table.runs.where("fragment", going), number)
    return replace(table, fragments=table.fragments.with_removed(going))


def _without_runs(table: TableState, runs: list[dict[str, Any]], number: int) -> TableState:
    if not runs:
        return table
    fragments = table.fragments.where("id", {row["fragment"] for row in runs})
    shards = {row["id"]: row["shard"] for row in fragments}
    files = (RemovedFile(shards[row["fragment"]], row["path"], number) for row in runs)
    left = table.runs.with_removed({row["id"] for row in runs})
    return replace(table, runs=left, removed=(*table.removed, *files))


def _entered(run: StagedRun, id: int, fragment: int) -> IndexRun:  # noqa: A002
    return IndexRun(id, run.index, fragment, run.path, run.rows, run.bytes, run.tail, run.digest)


def _not_forgotten(removed: tuple[RemovedFile, ...], files: FileChanges) -> tuple[RemovedFile, ...]:
    forgotten = set(files.forgotten)
    return tuple(file for file in removed if (file.shard, file.path) not in forgotten)


def _unflushed(memory: tuple[InlineCommit, ...], files: FileChanges) -> tuple[InlineCommit, ...]:
    """Return the commits in the log without those, or their slots, that lie in files now."""
    if not files.flushed:
        return memory
    flushed, there = set(files.flushed), {commit.number for commit in memory}
    if not flushed <= there:
        raise _misfit(f"commit {min(flushed - there)} is flushed, and its rows are not in the log")
    left = (
        replace(commit, slots=commit.slots - files.flushed_slots) if commit.number in flushed else commit
        for commit in memory
    )
    return tuple(commit for commit in left if commit.slots)


def _touch(state: StoreState, number: int, files: FileChanges) -> Changes:
    """Note the tablets whose files are others now: a move that copied them before must copy again."""
    slots = SlotSet.union([*(added.file.slots for added in files.added), *(some for _, some in files.slots)])
    if files.removed or files.flushed:
        slots |= files.flushed_slots
    if not slots:
        return {}
    touched = {tablet.id: number for tablet in state.placement.tablets if not slots.isdisjoint(tablet.slots)}
    return {"touched": {**state.touched, **touched}}
