"""Faults of rows in the log: small commits, their reads, and flushes; see `planted`."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from elasticscan.catalog import InlineCommit, StoreState, Tx, checkpoints
from elasticscan.metadata import FragmentsReplaced, RowsCommitted
from elasticscan.storage import Keep
from elasticscan.store.context import Context
from elasticscan.store.context.memory import TableMemory
from elasticscan.store.moves.mover import Mover
from elasticscan.store.upkeep import compaction
from elasticscan.store.writing import indexing, preconditions, publishing
from elasticscan.topology import SlotSet
from tests.faults.planted import Finder, fault, found_by, replacing
from tests.faults.unchecked import Anywhere, files_may_lie_anywhere, unchecked

STORIES = "test_a_store_answers_as_the_transcript_says"
MOVES_BELOW = f"{STORIES}[flush_alongside_a_move]"
TOMBSTONE = "test_a_tombstone_in_a_file_hides_an_older_row_in_the_log"
INDEXED = "test_what_an_index_cannot_take_is_refused_when_it_is_written_and_when_the_index_is_made"


class _Altered:
    """A transaction, or its state, with some replaced attributes."""

    def __init__(self, honest: Any, **answers: Any) -> None:
        self._honest, self._answers = honest, answers

    def __getattr__(self, name: str) -> Any:
        return self._answers.get(name, getattr(self._honest, name))


def _with_state(tx: Tx, **answers: Any) -> Any:
    return _Altered(tx, state=_Altered(tx.state, **answers))


@fault("scenarios", "flushed files serve no slot that left since they were staged", style=MOVES_BELOW)
@replacing(compaction.Merging, "_enter", let=files_may_lie_anywhere)
def flush_staged_before_a_switch(honest: Any, self: compaction.Merging, tx: Tx, copies: Any) -> Any:
    return honest(self, _with_state(tx, placement=Anywhere()) if self.commits else tx, copies)


@fault("scenarios", "of two flushes the second enters nothing", style=MOVES_BELOW)
@replacing(compaction.Merging, "_enter", let=lambda patch: unchecked(patch, FragmentsReplaced))
def rows_are_flushed_twice(honest: Any, self: compaction.Merging, tx: Tx, copies: Any) -> Any:
    return honest(self, _with_state(tx, memory=lambda table: self.commits) if self.commits else tx, copies)


@fault("scenarios", "rows of a shard that could not be written to stay in the log")
@found_by(f"{STORIES}[flush_while_a_shard_is_away]")
@replacing(compaction.Merging, "_stage")
def shards_that_are_away_count_as_flushed(honest: Any, self: compaction.Merging, copies: Any) -> None:
    honest(self, copies)
    for shard in self.targets:
        copies.setdefault(shard, [])


@fault("scenarios", "a condition of a write is compared with rows in the log")
@found_by(f"{STORIES}[write_small_commits]")
@replacing(preconditions.KeyCheck, "_known_table")
def conditions_pass_over_rows_in_the_log(honest: Any, self: preconditions.KeyCheck, tx: Tx) -> Any:
    seen = copy(honest(self, tx))
    seen.memory, seen.fragments = TableMemory(seen.table), tx.state.fragments(seen.table.id)
    return seen


@fault("scenarios", "rows are dropped from the log only once they lie in files")
@found_by("test_what_was_flushed_is_dropped_from_the_log_and_nothing_else")
@replacing(checkpoints, "read_state")
def rows_are_dropped_before_they_are_flushed(honest: Any, *args: Any) -> Any:
    state = honest(*args)
    tables = {number: replace(table, memory=()) for number, table in state.tables.items()}
    return replace(state, tables=tables)


@fault("scenarios", "of a commit that was flushed in part only the rest is read from the log")
@found_by(f"{STORIES}[flush_while_a_shard_is_away]")
@replacing(StoreState, "memory")
def flushed_slots_are_forgotten(honest: Any, self: StoreState, table: int) -> tuple[InlineCommit, ...]:
    everything = SlotSet.span(0, self.placement.slot_count)
    return tuple(replace(commit, slots=everything) for commit in honest(self, table))


# Rules that one function keeps, and the replacement of that function.
Finder("scenarios", f"{STORIES}[flush]").rule(
    "a flush keeps the versions of all snapshots that are kept"
).sets(compaction, "Keep", lambda horizon, *most, **how: Keep(horizon if most else 1 << 40, *most, **how))
tombstones = Finder("scenarios", TOMBSTONE)
tombstones.rule("a merge keeps a tombstone that hides an older row in the log").alters(
    compaction, "keep_for", lambda honest, some, others, _memory, *rest: honest(some, others, (), *rest)
)
tombstones.rule("a move keeps a tombstone that hides an older row in the log").alters(
    Mover,
    "_sources",
    lambda honest, self, tx: [
        (rows, bounds, replace(keep, complete=not self.copied_to)) for rows, bounds, keep in honest(self, tx)
    ],
)
Finder("programs", "mixture of rows").rule("a reader has the rows of the newest commits").alters(
    Context, "memory", lambda honest, self, tx, table: self._memory.get(table.id) or honest(self, tx, table)
)
Finder("programs", "indexes alongside writes").rule("an index finds rows in the log").gives(
    TableMemory, "runs", []
)
indexed = Finder("scenarios", INDEXED)
indexed.rule("rows that an index cannot take are not committed").gives(publishing, "check_entries")
indexed.rule("an index is not made of rows in the log that it cannot take").gives(
    indexing, "_check_rows_in_log"
)
Finder("scenarios", "test_the_log_takes_so_much_and_no_more").rule(
    "a table has so many rows in the log and no more"
).gives(publishing, "has_room", True)
Finder("scenarios", f"{STORIES}[write_by_tasks_in_the_log]").rule(
    "rows in the log have the columns of the table that they are committed to"
).gives(publishing, "fits_in_log", True, let=lambda patch: unchecked(patch, RowsCommitted))
