"""The fold: `apply(state, entry, record)` returns the state after one more record. Pure.

Nothing here reads a clock, a file or a row of a table. So the same records give the same state in every
process, and a checkpoint with the records after it gives the same state as the whole log.

`checks` verifies a record's requirements before it is appended, and the digests prove its place in the log.
A record that does not fit the state was therefore written by a faulty program: `StoreDamaged`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from elasticscan.catalog.entries import ROWS, LogEntry, damaged_log, part_hashes
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.store_time import Belief, observe
from elasticscan.catalog.table_state import (
    DroppedTable,
    InlineCommit,
    TableState,
    Tag,
    still_on_disk,
    with_files,
    with_slots,
    without_moved_slots,
    without_runs,
)
from elasticscan.metadata import (
    LAYOUT,
    NO_SLOTS,
    FilesCondemned,
    FragmentsReplaced,
    HorizonRaised,
    IndexDefined,
    MoveSwitched,
    Record,
    RowsCommitted,
    SecretChanged,
    ShardDefined,
    StoreAdopted,
    StoreCreated,
    TableDefined,
    TableDropped,
    TabletsChanged,
    TagChanged,
    TimeObserved,
    TopologyEntered,
    file_ids,
    moved_tablet,
)
from elasticscan.topology import Placement

FOLD_VERSION: Final = 1  # incremented whenever the same records give another state


def first_state(entry: LogEntry, record: StoreCreated) -> StoreState:
    """Return the state after the first record of a log."""
    return StoreState(
        number=entry.number,
        digest=entry.digest,
        layout=entry.number,
        commit=0,
        time=entry.time,
        belief=Belief((entry.row.clock or entry.time) / 1e6),
        store_id=record.store_id,
        incarnation=record.incarnation,
        hash=record.hash,
        retention_seconds=record.retention_seconds,
        secrets={secret.id: secret for secret in record.secrets},
        placement=Placement.of(record.tablets),
        shards={shard.id: shard for shard in record.shards},
        newest_ids=_newest({}, "shard", record.shards) | _newest({}, "tablet", record.tablets),
    )


def apply(state: StoreState | None, entry: LogEntry, record: Record) -> StoreState:
    """Return the state after one more record. Raises `StoreDamaged` if the record does not fit the state."""
    if isinstance(record, StoreCreated):
        return first_state(entry, record)
    try:
        assert state is not None, "the first record creates the store"
        changes = _HANDLERS[type(record)](state, entry, record)
    except (AssertionError, KeyError) as error:
        raise damaged_log(f"record {entry.number} does not fit what came before it: {error}") from error
    return replace(
        state,
        number=entry.number,
        digest=entry.digest,
        layout=entry.number if isinstance(record, LAYOUT) else state.layout,
        commit=_newest_commit(state, entry, record),
        time=entry.time,
        belief=observe(state.belief, (entry.row.clock or entry.time) / 1e6),
        **changes,
    )


Changes = dict[str, Any]


def is_commit(record: Record) -> bool:
    """Return True if a record is a commit: it belongs to its table's history and begins a snapshot."""
    return isinstance(record, RowsCommitted) or (
        isinstance(record, TableDefined) and record.operation is not None
    )


def _newest_commit(state: StoreState, entry: LogEntry, record: Record) -> int:
    if isinstance(record, StoreAdopted):
        return max(state.commit, record.commit)
    return entry.number if is_commit(record) else state.commit


def _newest(before: Mapping[str, int], kind: str, things: Iterable[Any]) -> dict[str, int]:
    """Return the highest ids of all kinds after things of one kind were added."""
    return {**before, kind: max([before.get(kind, 0), *(thing.id for thing in things)])}


def _with_table(state: StoreState, id: int, table: TableState) -> Changes:  # noqa: A002
    return {"tables": {**state.tables, id: table}}


def _shard(state: StoreState, entry: LogEntry, record: ShardDefined) -> Changes:
    shard, others = record.shard, {s.id: s for s in state.shards.values() if s.id != record.shard.id}
    if record.removed:
        assert not state.placement.at(shard.id), "a shard that is removed serves slots"
        return {"shards": others, "removed_shards": {**state.removed_shards, shard.id: shard}}
    newest = _newest(state.newest_ids, "shard", [shard])
    return {"shards": dict(sorted({**others, shard.id: shard}.items())), "newest_ids": newest}


def _table(state: StoreState, entry: LogEntry, record: TableDefined) -> Changes:
    info, number, newest = record.table, entry.number, _newest(state.newest_ids, "table", [record.table])
    if record.reserved:
        return {"reserved": {**state.reserved, info.id: info}, "newest_ids": newest}
    reserved = {key: table for key, table in state.reserved.items() if key != info.id}
    new = TableState(replace(info, created_commit=number, oldest_snapshot=number), newest=number)
    table = state.tables.get(info.id, new)
    # Only `HorizonRaised` changes the horizon, and it never goes back.
    created, oldest = table.info.created_commit, table.info.oldest_snapshot
    table = replace(table, info=replace(info, created_commit=created, oldest_snapshot=oldest))
    return _with_table(state, info.id, table) | {"newest_ids": newest, "reserved": reserved}


def _drop_table(state: StoreState, entry: LogEntry, record: TableDropped) -> Changes:
    table = state.tables[record.table]
    table = with_slots(table, dict.fromkeys(table.fragments.by_id, NO_SLOTS), _since(state, entry))
    left = {number: other for number, other in state.tables.items() if number != record.table}
    dropped = DroppedTable(table.info.name, table.removed)
    return {"tables": left, "dropped": {**state.dropped, record.table: dropped}}


def _index(state: StoreState, entry: LogEntry, record: IndexDefined) -> Changes:
    index, table = record.index, state.tables[record.index.table]
    others = tuple(each for each in table.indexes if each.id != index.id)
    if not index.is_over:
        newest = _newest(state.newest_ids, "index", [index])
        with_index = replace(table, indexes=(*others, index))
        return _with_table(state, index.table, with_index) | {"newest_ids": newest}
    table = replace(table, indexes=others)
    left = without_runs(table, lambda run: run.index == index.id, _since(state, entry))
    return _with_table(state, index.table, left)


def _rows(state: StoreState, entry: LogEntry, record: RowsCommitted) -> Changes:
    table, number = state.tables[record.table], entry.number
    if record.slots:
        sealed = part_hashes(entry).get(ROWS, b"")
        sizes = record.rows, record.bytes, record.tombstones
        inline = InlineCommit(number, record.definition, *sizes, record.slots, sealed)
        size = table.memory_bytes + record.bytes
        table = replace(table, memory=(*table.memory, inline), memory_bytes=size)
    changed = with_files(table, record.files, number, file_ids(number), _since(state, entry))
    changed = replace(
        changed,
        newest=number,
        rows=changed.rows + record.rows,
        bytes=changed.bytes + record.bytes,
        overwrites=(*changed.overwrites, number) if record.overwrites else changed.overwrites,
        overwritten=changed.rows if record.overwrites else changed.overwritten,
    )
    return _with_table(state, record.table, changed)


def _replace(state: StoreState, entry: LogEntry, record: FragmentsReplaced) -> Changes:
    if record.table in state.dropped:
        dropped = state.dropped[record.table]
        left = replace(dropped, files=still_on_disk(dropped.files, record.files))
        return {"dropped": {**state.dropped, record.table: left}}
    table, number = state.tables[record.table], entry.number
    changed = with_files(table, record.files, number, file_ids(number), _since(state, entry))
    return _with_table(state, record.table, changed)


def _move(state: StoreState, entry: LogEntry, record: MoveSwitched) -> Changes:
    moved = moved_tablet(record)
    time, ids = _since(state, entry), file_ids(entry.number)
    tables = {number: without_moved_slots(table, record, time) for number, table in state.tables.items()}
    for table, files in sorted(record.tables.items()):
        tables[table] = with_files(tables[table], files, entry.number, ids, time)
    placement = state.placement.replaced((record.tablet,), (moved,))
    return {"placement": placement, "tables": tables}


def _tablets(state: StoreState, entry: LogEntry, record: TabletsChanged) -> Changes:
    before = {tablet.id for tablet in record.before}
    left = (tablet for tablet in state.placement.tablets if tablet.id not in before)
    return {
        "placement": Placement.of((*left, *record.after)),
        "newest_ids": _newest(state.newest_ids, "tablet", record.after),
    }


def _horizon(state: StoreState, entry: LogEntry, record: HorizonRaised) -> Changes:
    table = state.tables[record.table]
    past = [number for number in table.overwrites if number <= record.horizon]
    kept = tuple(number for number in table.overwrites if number not in past[:-1])
    info = replace(table.info, oldest_snapshot=record.horizon)
    return _with_table(state, record.table, replace(table, info=info, overwrites=kept))


def _tag(state: StoreState, entry: LogEntry, record: TagChanged) -> Changes:
    table = state.tables[record.table]
    tags = tuple(tag for tag in table.tags if tag.name != record.name)
    if record.snapshot is not None:
        tags = (*tags, Tag(record.name, record.snapshot, entry.time / 1e6))
        tags = tuple(sorted(tags, key=attrgetter("snapshot", "name")))
    return _with_table(state, record.table, replace(table, tags=tags))


def _secret(state: StoreState, entry: LogEntry, record: SecretChanged) -> Changes:
    secrets = {secret.id: secret for secret in state.secrets.values() if secret.id != record.id}
    if record.secret is not None:
        secrets[record.id] = record.secret
    return {"secrets": secrets}


def _condemn(state: StoreState, entry: LogEntry, record: FilesCondemned) -> Changes:
    files = set(record.files)
    return {"condemned": state.condemned - files if record.lifted else state.condemned | files}


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
    TimeObserved: lambda state, entry, record: {},
    TopologyEntered: lambda state, entry, record: {"topology": (record.topology, record.published)},
    FilesCondemned: _condemn,
    StoreAdopted: lambda state, entry, record: {"incarnation": record.incarnation},
}


def _since(state: StoreState, entry: LogEntry) -> int:
    """Return the `RemovedFile.time` of files that an entry removes."""
    # Not the entry's time: that never goes back, so after one clock was ahead, files would stay too long.
    clock = (entry.row.clock or entry.time) / 1e6
    return round(1e6 * max(clock, observe(state.belief, clock).accepted_at))
