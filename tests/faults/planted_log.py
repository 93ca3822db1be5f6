"""Faults in the log of a store: its checks, its fold, its chain, its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from elasticscan.catalog import (
    Catalog,
    Tx,
    checkpoints,
    checks,
    fold,
    table_state,
    tables,
    transaction,
)
from elasticscan.catalog.codec import unpack_value
from elasticscan.catalog.state import StoreState
from elasticscan.metadata import (
    FilesCondemned,
    HorizonRaised,
    IndexDefined,
    RowsCommitted,
    ShardDefined,
    TableDefined,
    TableDropped,
    TabletsChanged,
    TagChanged,
    TimeObserved,
    TopologyEntered,
)
from tests.catalog.programs import DEFINITIONS, GARBAGE, INDEXES, SHARDS, STORE, TAGS
from tests.faults.planted import Finder, Patch, fault, follow_any_copy, replacing
from tests.faults.unchecked import (
    condemned_files_may_come,
    horizons_may_pass_tags,
    unchecked,
)

# ----------------------------------------------------------------------------------------- checks


@fault("log", "rows are written by the newest definition, into a table that is there", DEFINITIONS)
@replacing(checks._CHECKS, RowsCommitted)
def any_definition_will_do(honest: Any, known: StoreState, record: RowsCommitted) -> None:
    if record.table in known.tables:
        honest(known, replace(record, definition=known.tables[record.table].info.definition))


@fault("log", "a definition replaces the one that it was made from", DEFINITIONS)
@replacing(checks._CHECKS, TableDefined)
def definitions_replace_any(honest: Any, known: StoreState, record: TableDefined) -> None:
    there = known.tables.get(record.table.id)
    is_new = there is None or not record.made_from
    honest(known, record if is_new else replace(record, made_from=there.info.definition))


@fault("log", "a table has a name of its own", DEFINITIONS)
@replacing(checks._CHECKS, TableDefined)
def names_are_taken_twice(honest: Any, known: StoreState, record: TableDefined) -> None:
    honest(known, replace(record, table=replace(record.table, name="another")))


# ------------------------------------------------------------------------------------------- fold


def _folding(patch: Patch, kind: type, change: Callable[[Any], Any]) -> None:
    """Fold records of one kind as if they were others."""
    honest = fold._HANDLERS[kind]
    patch.setitem(fold._HANDLERS, kind, lambda known, entry, record: honest(known, entry, change(record)))


@fault("log", "a horizon never goes back")
def horizons_go_back(patch: Patch) -> None:
    def lowered(known: StoreState, entry: Any, record: HorizonRaised) -> dict[str, Any]:
        table = known.tables[record.table]
        info = replace(table.info, oldest_snapshot=record.horizon)
        return {"tables": {**known.tables, record.table: replace(table, info=info)}}

    unchecked(patch, HorizonRaised)
    patch.setitem(fold._HANDLERS, HorizonRaised, lowered)


@fault("log", "the newest overwrite up to the horizon still counts")
@replacing(fold._HANDLERS, HorizonRaised)
def overwrites_are_trimmed_too_far(
    honest: Any, known: StoreState, entry: Any, record: HorizonRaised
) -> dict[str, Any]:
    table = honest(known, entry, record)["tables"][record.table]
    kept = tuple(number for number in table.overwrites if number > record.horizon)
    return {"tables": {**known.tables, record.table: replace(table, overwrites=kept)}}


@fault("log", "files that a dropped table leaves can be collected")
@replacing(fold._HANDLERS, TableDropped)
def dropped_tables_leave_no_files(
    honest: Any, known: StoreState, entry: Any, record: TableDropped
) -> dict[str, Any]:
    dropped = honest(known, entry, record)["dropped"]
    left = replace(dropped[record.table], files=())
    return honest(known, entry, record) | {"dropped": {**dropped, record.table: left}}


# -------------------------------------------------------------------------------- log and checkpoints


@fault("log", "whatever was appended is folded, by whichever process")
def rows_of_others_are_not_followed(patch: Patch) -> None:
    class OfALayout(tuple[Any, ...]):
        def __eq__(self, head: object) -> bool:
            return isinstance(head, tuple) and self[-1] == head[-1]

        __hash__ = tuple.__hash__

    honest = checkpoints.head_of
    patch.setattr(checkpoints, "head_of", lambda known: OfALayout(honest(known)))


@fault("log", "values are dropped only up to a checkpoint that was read back")
@replacing(Catalog, "drop_payloads")
def values_are_dropped_up_to_the_head(honest: Any, self: Catalog, older_than: float) -> Any:
    newest = self.follow()
    with pytest.MonkeyPatch.context() as within:
        within.setattr(checkpoints, "read_state", lambda *_: newest)
        return honest(self, older_than)


@fault("damaged log", "a value that is missing is loaded with a checkpoint, or is damage", "lost_row")
def a_missing_value_says_nothing(patch: Patch) -> None:
    honest = checkpoints.record_of
    patch.setattr(tables, "TAIL", tables.TAIL.replace("p.bytes", "coalesce(p.bytes, x'')"))
    patch.setattr(
        checkpoints, "record_of", lambda entry, value: honest(entry, value) if value else TimeObserved()
    )


@fault("damaged log", "a checkpoint is one of this log", "checkpoints_of_another_log")
@replacing(checkpoints, "read_state")
def checkpoints_of_any_log_are_used(_: Any, home: Any, found: checkpoints.Checkpoint) -> StoreState:
    ((_, content),) = home.execute(tables.CHECKPOINT, {"number": found.number})
    return unpack_value(StoreState, content)


# Rules that one function keeps, and the replacement of that function.
in_log = Finder("log")
in_log.rule("an append is checked against the newest state").gives(transaction, "check")
in_log.rule("files are accepted only where their slots live, with runs of all indexes").gives(
    checks, "_check_files"
)
in_log.rule("an id that is chosen was never used").gives(checks, "_check_new")
in_log.rule("tablets are cut and joined as they are").plants(unchecked, TabletsChanged)
in_log.rule("a reserved table is not seen").plants(
    _folding, TableDefined, lambda record: replace(record, reserved=False)
)
in_log.rule("what was condemned stays so until it is lifted").plants(
    _folding, FilesCondemned, lambda record: replace(record, files=record.files[1:])
)
in_log.rule("the source of a move serves the tablet no longer").sets(
    fold, "without_moved_slots", lambda table, record, since: table
)
in_log.rule("rows that were flushed are read from their files alone").sets(
    table_state, "_unflushed", lambda memory, files: memory
)
in_log.rule("runs go with their fragments, and can be collected").sets(
    table_state, "without_runs", lambda table, runs, since: table
)
in_log.rule("a checkpoint has all of its state").alters(
    checkpoints, "pack_value", lambda honest, known: honest(replace(known, condemned=frozenset()))
)
in_log.rule("the head moves with the entry, in one transaction").sets(tables, "MOVE_HEAD", "SELECT 1")
in_log.rule("an append whose answer was lost is looked for by its id").gives(Tx, "was_committed", False)
in_log.rule("a small commit whose answer was lost is looked for by its id").gives(Catalog, "_found")
in_log.rule("times grow with the numbers").sets(transaction, "time_after", lambda _, clock: clock)
in_log.rule("a change of the placement enters the topology history in its transaction").sets(
    tables, "PUT_TOPOLOGY", "SELECT 1"
)
in_log.rule("a write that has read rows is refused if some were written since").alters(
    checks._CHECKS, RowsCommitted, lambda honest, known, record: honest(known, replace(record, based_on=0))
)
in_log.rule("what an overwrite hides stays hidden").plants(
    _folding, RowsCommitted, lambda record: replace(record, overwrites=False)
)
in_log.rule("a file that serves no slot is known until it is gone from its disk").alters(
    table_state,
    "with_slots",
    lambda honest, table, *rest: replace(honest(table, *rest), removed=table.removed),
)
in_log.rule("a file that is gone from its disk is forgotten").alters(
    (table_state, fold), "still_on_disk", lambda _, removed, files: removed
)
in_log.rule("rows of slots that were not flushed stay in memory").sets(
    table_state,
    "_unflushed",
    lambda memory, files: tuple(each for each in memory if each.number not in files.flushed),
)
of_indexes = Finder("log", INDEXES)
of_indexes.rule("a fragment has one run of each index").gives(checks, "_check_runs")
of_indexes.rule("an index is of a table that is there").plants(unchecked, IndexDefined)
of_tags = Finder("log", TAGS)
of_tags.rule("a tag holds the horizon back").plants(horizons_may_pass_tags)
of_tags.rule("a tag names a snapshot that is kept").plants(unchecked, TagChanged)
of_tags.rule("a tag that was dropped is gone").alters(
    fold._HANDLERS,
    TagChanged,
    lambda honest, known, entry, record: {} if record.snapshot is None else honest(known, entry, record),
)
Finder("log", GARBAGE).rule("a condemned file comes with no record").plants(condemned_files_may_come)
Finder("log", SHARDS).rule("a shard is removed once it serves nothing").plants(unchecked, ShardDefined)
Finder("log", STORE).rule("a topology follows the newest one").plants(unchecked, TopologyEntered)
Finder("damaged log", "altered_value").rule("each entry follows the one before").gives(
    checkpoints, "check_chain"
)
Finder("damaged log", "older_copy").rule("an older copy is refused by a process that has seen more").plants(
    follow_any_copy
)
