"""Checks of each kind of record against the state to which it is appended.

The checks are pure. They run under the log's lock with the state as of the head. For a commit of one
statement they run with the known state, and the statement compares the layout. A write that depends on all
rows of a table names the number at which they were read (`based_on`). Whether the fragments from which a
flush, a merge or a move copied rows are still the same is compared by their callers, with the same state.

    record              requires
    RowsCommitted       its table, with the definition by which its rows were written; each fragment at the
                        shard of its slots, with runs of all indexes, and not condemned; if the commit
                        depends on rows, no commit since they were read
    FragmentsReplaced   all fragments and commits that it names; the new fragments as in RowsCommitted
    MoveSwitched        its tablet unchanged, its target not draining; the new fragments as in RowsCommitted
    TableDefined        an unused name; the definition that it replaces, unchanged
    TableDropped        its table
    IndexDefined        its table, an unused name; runs of all fragments if the index is ready
    TabletsChanged      the split or joined tablets unchanged
    ShardDefined        an unused name; no tablets at the shard if it is removed
    HorizonRaised       a higher horizon, at most the head and the oldest tag
    TagChanged          a snapshot that is still kept
    TopologyEntered     the next number in the topology history

Raised: `TableChanged` and `RowsChanged` (the caller reads again), `Busy` (the caller tries again),
`SnapshotExpired`, `AlreadyExists`, `InvalidCall`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from elasticscan.base.errors import (
    AlreadyExists,
    Busy,
    InvalidCall,
    LimitExceeded,
    RowsChanged,
    SnapshotExpired,
    TableChanged,
)
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.table_state import TableState
from elasticscan.metadata import (
    MAX_FILES,
    NO_CHANGES,
    FileChanges,
    FragmentsReplaced,
    HorizonRaised,
    IndexDefined,
    MoveSwitched,
    Record,
    RowsCommitted,
    ShardDefined,
    TableDefined,
    TableDropped,
    TabletsChanged,
    TagChanged,
    TopologyEntered,
    moved_tablet,
)
from elasticscan.topology import Placement


def check(state: StoreState, record: Record) -> None:
    """Raise unless a record may be appended to a state."""
    handler = _CHECKS.get(type(record))
    if handler is not None:
        handler(state, record)


def _existing(state: StoreState, id: int) -> TableState:  # noqa: A002
    table = state.tables.get(id)
    if table is None:
        raise TableChanged(f"table {id} was dropped meanwhile; nothing was committed", kind="table")
    return table


def _changed(table: TableState, part: str) -> Busy:
    return Busy(f"{part} of table {table.info.name!r} changed meanwhile; nothing was done, try again")


def _check_rows(state: StoreState, record: RowsCommitted) -> None:
    table = _existing(state, record.table)
    if record.definition != table.info.definition:
        raise _changed(table, "columns")
    if record.based_on and table.newest > record.based_on:
        raise RowsChanged(
            f"table {table.info.name!r} has a commit after {record.based_on}; read its rows again",
            table=table.info.name,
            newest=table.newest,
        )
    _check_files(state, table, record.files, state.placement)


def _check_replaced(state: StoreState, record: FragmentsReplaced) -> None:
    if record.table in state.dropped and replace(record.files, forgotten=()) == NO_CHANGES:
        return
    table = _existing(state, record.table)
    changes = record.files
    named = dict(changes.slots).keys() | {run.fragment for run in changes.runs}
    unflushed = {commit.number for commit in table.memory}
    if not (table.fragments.by_id.keys() >= named and unflushed.issuperset(changes.flushed)):
        raise _changed(table, "files")
    _check_runs(state, table, changes)
    _check_files(state, table, changes, state.placement)


def _check_runs(state: StoreState, table: TableState, changes: FileChanges) -> None:
    """Raise unless the new runs belong to existing indexes and to fragments without such a run."""
    indexes = {index.id for index in table.indexes}
    new = {(added.run.index, added.fragment) for added in changes.runs}
    existing = ((run.index, run.fragment) for run in table.runs.by_id.values()) if new else ()
    if not new.isdisjoint(existing) or not indexes.issuperset(index for index, _ in new):
        raise _changed(table, "indexes")
    paths = ((table.fragments.by_id[added.fragment].shard, added.run.path) for added in changes.runs)
    _check_not_condemned(state, paths)


def _check_files(state: StoreState, table: TableState, changes: FileChanges, placement: Placement) -> None:
    """Raise unless each fragment is at the shard of its slots and has exactly the runs of all indexes."""
    needed = {index.id for index in table.indexes}
    if sum(len(file.paths) for file in changes.added) > MAX_FILES:
        raise LimitExceeded(
            f"one commit adds at most {MAX_FILES:,} files; write the rows in several calls", most=MAX_FILES
        )
    for file in changes.added:
        if not file.slots <= placement.at(file.shard):
            raise _changed(table, "tablets")
        if needed != {run.index for run in file.runs}:
            raise _changed(table, "indexes")
        _check_not_condemned(state, ((file.shard, path) for path in file.paths))


def _check_not_condemned(state: StoreState, files: Iterable[tuple[int, str]]) -> None:
    condemned = state.condemned.intersection(files) if state.condemned else ()
    if condemned:
        raise Busy(
            "files of this call were collected before it ended; nothing was changed: try again with a "
            "longer `gc --orphans`",
            path=min(condemned)[1],
        )


def _check_move(state: StoreState, record: MoveSwitched) -> None:
    tablet, target = record.tablet, state.shards.get(record.target)
    if state.placement.tablet(tablet.id) != tablet:
        raise InvalidCall(f"tablet {tablet.id} was changed meanwhile; plan its move again")
    if target is None or target.draining:
        raise InvalidCall(f"shard {record.target} is draining or gone; plan the move again")
    placement = state.placement.replaced((tablet,), (moved_tablet(record),))
    for table, changes in record.tables.items():
        _check_files(state, _existing(state, table), changes, placement)


def _check_table(state: StoreState, record: TableDefined) -> None:
    info = record.table
    ids = {table.info.name: number for number, table in state.tables.items()}
    if ids.get(info.name, info.id) != info.id:
        raise AlreadyExists(f"there is a table {info.name!r} already; choose another name", table=info.name)
    if not record.made_from:
        if info.id not in state.reserved:
            _check_new(state, "table", info.id)
    elif _existing(state, info.id).info.definition != record.made_from:
        raise _changed(_existing(state, info.id), "columns")


def _check_new(state: StoreState, kind: str, id: int) -> None:  # noqa: A002
    """Raise if another writer used the id meanwhile, even if its thing was removed again."""
    if id <= state.newest_ids.get(kind, 0):
        raise Busy(f"another {kind} was made meanwhile; try again")


def _check_index(state: StoreState, record: IndexDefined) -> None:
    index, table = record.index, _existing(state, record.index.table)
    if any(other.name == index.name and other.id != index.id for other in table.indexes):
        raise AlreadyExists(
            f"table {table.info.name!r} has an index {index.name!r} of other columns or kind; drop it or "
            "choose another name",
            index=index.name,
        )
    if all(other.id != index.id for other in table.indexes):
        _check_new(state, "index", index.id)
    if index.ready:
        indexed = {run.fragment for run in table.runs.by_id.values() if run.index == index.id}
        if indexed != table.fragments.by_id.keys():
            raise _changed(table, "files")


def _check_tablets(state: StoreState, record: TabletsChanged) -> None:
    for tablet in record.before:
        if state.placement.tablet(tablet.id) != tablet:
            raise InvalidCall(f"tablet {tablet.id} was changed meanwhile; plan it again")
    before = {tablet.id for tablet in record.before}
    for tablet in record.after:
        if tablet.id not in before:
            _check_new(state, "tablet", tablet.id)


def _check_shard(state: StoreState, record: ShardDefined) -> None:
    if record.removed and state.placement.at(record.shard.id):
        raise InvalidCall(f"shard {record.shard.name!r} still serves tablets; move them first")
    others = (shard.name for shard in state.shards.values() if shard.id != record.shard.id)
    if not record.removed and record.shard.name in others:
        raise AlreadyExists(f"there is a shard {record.shard.name!r} already; choose another name")
    if record.shard.id not in {*state.shards, *state.removed_shards}:
        _check_new(state, "shard", record.shard.id)


def _check_horizon(state: StoreState, record: HorizonRaised) -> None:
    table = _existing(state, record.table)
    if not table.info.oldest_snapshot < record.horizon <= state.number:
        raise _changed(table, "the horizon")
    if any(tag.snapshot < record.horizon for tag in table.tags):
        raise _changed(table, "tags")


def _check_tag(state: StoreState, record: TagChanged) -> None:
    table = _existing(state, record.table)
    if record.snapshot is not None and record.snapshot < table.info.oldest_snapshot:
        raise SnapshotExpired(
            f"snapshot {record.snapshot} of table {table.info.name!r} is no longer kept, the oldest is "
            f"{table.info.oldest_snapshot}; name a newer one",
            oldest=table.info.oldest_snapshot,
        )


def _check_topology(state: StoreState, record: TopologyEntered) -> None:
    newest, is_published = state.topology
    if record.topology != newest + int(is_published):
        raise Busy(f"topology {newest} was entered meanwhile; try again")


_CHECKS: Final[Mapping[type, Callable[[StoreState, Any], object]]] = {
    RowsCommitted: _check_rows,
    FragmentsReplaced: _check_replaced,
    MoveSwitched: _check_move,
    TableDefined: _check_table,
    TableDropped: lambda state, record: _existing(state, record.table),
    IndexDefined: _check_index,
    TabletsChanged: _check_tablets,
    ShardDefined: _check_shard,
    HorizonRaised: _check_horizon,
    TagChanged: _check_tag,
    TopologyEntered: _check_topology,
}
