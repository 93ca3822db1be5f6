"""Files on their way into a record: what the record says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from elasticscan.base.errors import LimitExceeded
from elasticscan.catalog import StoreState, Tx
from elasticscan.metadata import (
    MAX_FILES,
    FileChanges,
    FragmentsReplaced,
    StagedFragment,
)
from elasticscan.topology import SlotSet


def added(state: StoreState, staged: Iterable[StagedFragment]) -> tuple[StagedFragment, ...]:
    """Return fragments that are about to be entered, without runs of indexes that are gone."""
    live = {index.id for index in state.indexes()}
    entering = [replace(f, runs=tuple(run for run in f.runs if run.index in live)) for f in staged]
    if sum(1 + len(fragment.runs) for fragment in entering) > MAX_FILES:
        raise LimitExceeded(
            f"one commit brings at most {MAX_FILES:,} files; write in several calls", most=MAX_FILES
        )
    return tuple(entering)


def replace_files(tx: Tx, table: int, operation: str, files: FileChanges) -> None:
    """Enter other files with the same rows, as one record, with its name in the log.

    Raises:
        WriteConflict: a fragment is not there, or garbage collection has condemned one that is added.
    """
    before = tx.state.tables.get(table)
    if before is None:  # it was dropped, and its files are forgotten
        tx.append(FragmentsReplaced(table, operation, 0, files))
    else:
        horizon, served = before.info.oldest_snapshot, before.served_by(files)
        tx.append(FragmentsReplaced(table, operation, horizon, files, served))


def replace_fragments(
    tx: Tx, table: int, slots: Mapping[int, SlotSet], copies: Iterable[StagedFragment], operation: str
) -> None:
    """Enter fragments, with runs of all indexes, in the place of others, as `replace_files`.

    `slots` are what the others serve from now on, by their ids; one without any is dropped with its runs.
    """
    replace_files(tx, table, operation, FileChanges(added(tx.state, copies), slots=tuple(slots.items())))
