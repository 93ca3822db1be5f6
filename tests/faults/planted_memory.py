"""Faults of rows that lie in the log: small commits, what is read of them, and flushes; see `planted`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elasticscan.catalog import InlineCommit, StoreState, Tx, checkpoints
from elasticscan.metadata import FragmentsReplaced, RowsCommitted
from elasticscan.storage import Copied, Keep
from elasticscan.store.context import Context
from elasticscan.store.context.memory import Memories, TableMemory
from elasticscan.store.moves import mover
from elasticscan.store.upkeep import compaction, flushing
from elasticscan.store.writing import indexing, preconditions, staging
from elasticscan.topology import SlotSet
from tests.faults.planted import Patch, fault
from tests.faults.unchecked import files_may_lie_anywhere, unchecked

MOVES_BELOW = "test_a_tablet_that_moves_meanwhile_is_flushed_next_time"
TOMBSTONE = "test_a_tombstone_in_a_file_hides_an_older_row_in_the_log"
INDEXED = "test_what_an_index_cannot_take_is_refused_when_it_is_written_and_when_the_index_is_made"


@fault("programs", "a flush leaves alone what a mover is copying", style="compaction below movers")
def flush_between_the_rounds_of_a_move(patch: Patch) -> None:
    patch.setattr(flushing, "being_copied", lambda tx: SlotSet())


class _Altered:
    """A transaction, or its state, of which some attributes are others."""

    def __init__(self, honest: Any, **answers: Any) -> None:
        self._honest, self._answers = honest, answers

    def __getattr__(self, name: str) -> Any:
        return self._answers.get(name, getattr(self._honest, name))


def _with_state(tx: Tx, **answers: Any) -> Any:
    return _Altered(tx, state=_Altered(tx.state, **answers))


class _Everywhere:
    def at(self, shard: int) -> SlotSet:
        return SlotSet.span(0, 1 << 16)


@fault("scenarios", "flushed files serve no slot that left since they were staged", style=MOVES_BELOW)
def flush_staged_before_a_switch(patch: Patch) -> None:
    files_may_lie_anywhere(patch)
    honest = flushing._enter

    def enter(context: Context, tx: Tx, plan: Any, copies: Any) -> Any:
        return honest(context, _with_state(tx, placement=_Everywhere()), plan, copies)

    patch.setattr(flushing, "_enter", enter)


@fault("scenarios", "of two flushes the second enters nothing", style="test_of_two_flushes_one_is_first")
def rows_are_flushed_twice(patch: Patch) -> None:
    unchecked(patch, FragmentsReplaced)
    honest = flushing._enter

    def enter(context: Context, tx: Tx, plan: Any, copies: Any) -> Any:
        return honest(context, _with_state(tx, memory=lambda table: plan.memory.commits), plan, copies)

    patch.setattr(flushing, "_enter", enter)


@fault(
    "scenarios",
    "rows of a shard that could not be written to stay in the log",
    style="test_a_shard_that_is_away_keeps_its_rows_in_the_log",
)
def shards_that_are_away_count_as_flushed(patch: Patch) -> None:
    honest = flushing._copy

    def copy(context: Context, plan: Any, copies: dict[int, list[Copied]]) -> None:
        honest(context, plan, copies)
        for shard in plan.slots:
            copies.setdefault(shard, [])

    patch.setattr(flushing, "_copy", copy)


@fault(
    "scenarios",
    "a flush keeps the versions of all snapshots that are kept",
    style="test_a_flush_changes_nothing_but_where_rows_lie",
)
def flush_forgets_old_versions(patch: Patch) -> None:
    patch.setattr(flushing, "Keep", lambda horizon, **how: Keep(1 << 40, **how))


@fault("scenarios", "a merge keeps a tombstone that hides an older row in the log", style=TOMBSTONE)
def merges_forget_rows_in_the_log(patch: Patch) -> None:
    honest = compaction.keep_for
    patch.setattr(
        compaction, "keep_for", lambda some, others, _memory, *rest: honest(some, others, (), *rest)
    )


@fault("scenarios", "a move keeps a tombstone that hides an older row in the log", style=TOMBSTONE)
def moves_forget_rows_in_the_log(patch: Patch) -> None:
    honest = mover._sources

    def sources(*args: Any) -> Any:
        return [source._replace(is_complete=True) for source in honest(*args)]

    patch.setattr(mover, "_sources", sources)


@fault(
    "scenarios",
    "a condition of a write is compared with rows in the log",
    style="test_conditions_hold_for_rows_in_the_log",
)
def conditions_pass_over_rows_in_the_log(patch: Patch) -> None:
    honest = preconditions.KeyCheck._see

    def see(self: preconditions.KeyCheck, tx: Tx) -> Any:
        seen = honest(self, tx)
        return None if seen is None else replace(seen, memory=TableMemory(seen.table))

    patch.setattr(preconditions.KeyCheck, "_see", see)


@fault(
    "scenarios",
    "rows in the log have the columns of the table that they are committed to",
    style="test_rows_staged_before_the_columns_changed_become_files",
)
def small_commits_of_any_definition(patch: Patch) -> None:
    unchecked(patch, RowsCommitted)
    patch.setattr(staging.SmallCommit, "fits", lambda *_: True)


@fault("programs", "a reader has the rows of the newest commits", style="mixture of rows")
def memory_is_made_once(patch: Patch) -> None:
    honest = Memories.of

    def of(self: Memories, tx: Tx, table: Any) -> TableMemory:
        return self._tables.get(table.id) or honest(self, tx, table)

    patch.setattr(Memories, "of", of)


@fault("programs", "an index finds rows in the log", style="indexes alongside writes")
def indexes_lack_rows_in_the_log(patch: Patch) -> None:
    patch.setattr(TableMemory, "runs", lambda *_: [])


@fault("scenarios", "rows that an index cannot take are not committed", style=INDEXED)
def keys_of_indexes_are_not_looked_at(patch: Patch) -> None:
    patch.setattr(staging, "check_entries", lambda *_: None)


@fault("scenarios", "an index is not made of rows in the log that it cannot take", style=INDEXED)
def indexes_are_made_of_files_alone(patch: Patch) -> None:
    patch.setattr(indexing, "_check_rows_in_log", lambda *_: None)


@fault(
    "scenarios",
    "a table has so many rows in the log and no more",
    style="test_the_log_takes_so_much_and_no_more",
)
def the_log_has_room_for_everything(patch: Patch) -> None:
    patch.setattr(staging, "has_room", lambda *_: True)


@fault(
    "scenarios",
    "rows are dropped from the log only once they lie in files",
    style="test_what_was_flushed_is_dropped_from_the_log_and_nothing_else",
)
def rows_are_dropped_before_they_are_flushed(patch: Patch) -> None:
    honest = checkpoints.read_state

    def without_memory(*args: Any) -> Any:
        state = honest(*args)
        tables = {number: replace(table, memory=()) for number, table in state.tables.items()}
        return replace(state, tables=tables)

    patch.setattr(checkpoints, "read_state", without_memory)


@fault(
    "scenarios",
    "of a commit that was flushed in part only the rest is read from the log",
    style="test_a_shard_that_is_away_keeps_its_rows_in_the_log",
)
def flushed_slots_are_forgotten(patch: Patch) -> None:
    honest = StoreState.memory

    def memory(self: StoreState, table: int) -> tuple[InlineCommit, ...]:
        everything = SlotSet.span(0, self.placement.slot_count)
        return tuple(replace(commit, slots=everything) for commit in honest(self, table))

    patch.setattr(StoreState, "memory", memory)
