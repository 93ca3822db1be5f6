"""Faults in the log of a store: its checks, its fold, its chain, its checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elasticscan.catalog.log import Log, StoreState, TableState, checkpoints, checks, state, tables
from elasticscan.catalog.log import log as appending
from elasticscan.catalog.log.state import InlineCommit
from elasticscan.metadata import (
    FileChanges,
    HorizonRaised,
    IndexDefined,
    RowsCommitted,
    TableDefined,
    TableDropped,
    TimeObserved,
)
from tests.catalog.log.programs import INDEXES, TAGS
from tests.faults.planted import Patch, fault

SLEPT = "test_a_process_that_slept_while_values_were_dropped_goes_on_from_a_checkpoint"


def unchecked(patch: Patch, kind: type) -> None:
    patch.setitem(checks._CHECKS, kind, lambda *_: None)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------- checks


@fault("log", "an append is checked against the newest state")
def appends_are_not_checked(patch: Patch) -> None:
    patch.setattr(appending, "check", lambda *_: None)


@fault("log", "files are accepted only where their slots live, with runs of all indexes")
def files_are_not_checked(patch: Patch) -> None:
    patch.setattr(checks, "_check_files", lambda *_: None)


@fault("log", "a move is refused if files of its tablet came since it copied them")
def touched_tablets_are_not_noticed(patch: Patch) -> None:
    patch.setattr(state, "_touch", lambda *_: {})


@fault("log", "a flush or a compaction is refused if its sources serve other slots since")
def sources_may_have_changed(patch: Patch) -> None:
    patch.setattr(TableState, "served_by", lambda *_: 0)


@fault("log", "a fragment has one run of each index", INDEXES)
def runs_are_added_twice(patch: Patch) -> None:
    patch.setattr(checks, "_check_runs", lambda *_: None)


@fault("log", "a write that has read rows is refused if some were written since")
def rows_that_were_read_may_change(patch: Patch) -> None:
    honest = checks._check_rows
    patch.setitem(checks._CHECKS, RowsCommitted, lambda s, record: honest(s, replace(record, based_on=0)))  # type: ignore[arg-type]


@fault("log", "rows are written by the newest definition, into a table that is there")
def any_definition_will_do(patch: Patch) -> None:
    unchecked(patch, RowsCommitted)


@fault("log", "an index is ready only if all fragments have its runs", INDEXES)
def indexes_are_ready_too_early(patch: Patch) -> None:
    unchecked(patch, IndexDefined)


@fault("log", "a tag holds the horizon back", TAGS)
def tags_hold_nothing(patch: Patch) -> None:
    honest = checks._check_horizon

    def without_tags(known: StoreState, record: HorizonRaised) -> None:
        bare = {number: replace(table, tags=()) for number, table in known.tables.items()}
        honest(replace(known, tables=bare), record)

    patch.setitem(checks._CHECKS, HorizonRaised, without_tags)  # type: ignore[arg-type]


@fault("log", "a definition replaces the one that it was made from")
def definitions_replace_any(patch: Patch) -> None:
    unchecked(patch, TableDefined)


@fault("log", "an application's commit is made once")
def applications_are_not_remembered(patch: Patch) -> None:
    patch.setattr(Log, "_earlier", lambda *_: None)
    patch.setattr(tables, "CREATE", tuple(each for each in tables.CREATE if "log_by_app" not in each))


# ------------------------------------------------------------------------------------------- fold


@fault("log", "a horizon never goes back")
def horizons_go_back(patch: Patch) -> None:
    def lowered(known: StoreState, entry: Any, record: HorizonRaised) -> dict[str, Any]:
        table = known.tables[record.table]
        info = replace(table.info, oldest_snapshot=record.horizon)
        return {"tables": {**known.tables, record.table: replace(table, info=info)}}

    unchecked(patch, HorizonRaised)
    patch.setitem(state._HANDLERS, HorizonRaised, lowered)  # type: ignore[arg-type]


@fault("log", "the newest overwrite up to the horizon still counts")
def overwrites_are_trimmed_too_far(patch: Patch) -> None:
    honest = state._horizon

    def trimming(known: StoreState, entry: Any, record: HorizonRaised) -> dict[str, Any]:
        table = honest(known, entry, record)["tables"][record.table]
        kept = tuple(number for number in table.overwrites if number > record.horizon)
        return {"tables": {**known.tables, record.table: replace(table, overwrites=kept)}}

    patch.setitem(state._HANDLERS, HorizonRaised, trimming)  # type: ignore[arg-type]


@fault("log", "the source of a move serves the tablet no longer")
def sources_of_moves_are_not_struck(patch: Patch) -> None:
    patch.setattr(state, "_struck", lambda table, record, number: table)


@fault("log", "rows that were flushed are read from their files alone")
def flushed_rows_stay_in_memory(patch: Patch) -> None:
    patch.setattr(state, "_unflushed", lambda memory, files: memory)


@fault("log", "rows of slots that were not flushed stay in memory")
def rows_leave_memory_unflushed(patch: Patch) -> None:
    def unflushed(memory: tuple[InlineCommit, ...], files: FileChanges) -> tuple[InlineCommit, ...]:
        return tuple(commit for commit in memory if commit.number not in files.flushed)

    patch.setattr(state, "_unflushed", unflushed)


@fault("log", "runs go with their fragments, and can be collected")
def runs_outlive_their_fragments(patch: Patch) -> None:
    patch.setattr(state, "_without_runs", lambda table, runs, number: table)


@fault("log", "files that a dropped table leaves can be collected")
def dropped_tables_leave_no_files(patch: Patch) -> None:
    honest = state._drop_table

    def forgetting(known: StoreState, entry: Any, record: TableDropped) -> dict[str, Any]:
        return honest(known, entry, record) | {"dropped": {**known.dropped, record.table: ()}}

    patch.setitem(state._HANDLERS, TableDropped, forgetting)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------- log and checkpoints


@fault("log", "the head moves with the entry, in one transaction")
def the_head_stays(patch: Patch) -> None:
    patch.setattr(tables, "MOVE_HEAD", "SELECT 1")


@fault("log", "an append whose answer was lost is looked for by its id")
def a_lost_answer_is_a_failure(patch: Patch) -> None:
    patch.setattr(Log, "_found", lambda *_: None)


@fault("log", "times grow with the numbers")
def times_are_those_of_the_clock(patch: Patch) -> None:
    patch.setattr(appending, "max", lambda now, _: now, raising=False)


@fault("log", "a change of the placement enters the topology history in its transaction")
def topologies_are_not_kept(patch: Patch) -> None:
    patch.setattr(tables, "INSERT_TOPOLOGY", "SELECT 1")


@fault("log", "values are dropped only up to a checkpoint that was read back")
def values_are_dropped_up_to_the_head(patch: Patch) -> None:
    patch.setattr(checkpoints, "read_state", lambda home, manifest: Log(home).follow())


@fault("scenarios", "a value that is missing is loaded with a checkpoint, or is damage", SLEPT)
def a_missing_value_says_nothing(patch: Patch) -> None:
    honest = appending.record_of
    patch.setattr(tables, "TAIL", tables.TAIL.replace("p.bytes", "coalesce(p.bytes, x'')"))
    patch.setattr(appending, "record_of", lambda e, value: honest(e, value) if value else TimeObserved())


@fault("scenarios", "each entry follows the one before", "test_an_entry_that_was_altered_is_noticed")
def the_chain_is_not_checked(patch: Patch) -> None:
    patch.setattr(appending, "check_chain", lambda *_: None)


@fault("scenarios", "a checkpoint is one of this log", "test_a_checkpoint_of_another_log_is_not_used")
def checkpoints_of_any_log_are_used(patch: Patch) -> None:
    def any_state(home: Any, manifest: checkpoints.CheckpointManifest) -> StoreState:
        parts = {part.name: part for part in manifest.parts}
        read = checkpoints.read_part
        return checkpoints.state_of(manifest.number, manifest.digest, lambda name: read(home, parts[name]))

    patch.setattr(checkpoints, "read_state", any_state)


@fault(
    "scenarios",
    "an older copy is refused by a process that has seen more",
    "test_an_older_copy_is_refused_by_a_process_that_has_seen_more[False]",
)
def older_copies_are_followed(patch: Patch) -> None:
    honest = Log._fold_rest

    def trusting(log: Log, transaction: Any) -> StoreState:
        log._state = None
        return honest(log, transaction)

    patch.setattr(Log, "_fold_rest", trusting)
