"""Files on their way into a record: what the record says of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from elasticscan.base.errors import LimitExceeded
from elasticscan.catalog import StoreState, Tx
from elasticscan.metadata import (
    MAX_FILES,
    AddedFragment,
    FileChanges,
    FragmentsReplaced,
)


def added(state: StoreState, copies: Iterable[AddedFragment]) -> tuple[AddedFragment, ...]:
    """Return fragments that are about to be entered, without runs of indexes that are gone."""
    live, entering = {index.id for index in state.indexes()}, list[AddedFragment]()
    for copied in copies:
        runs = tuple(run for run in copied.file.runs if run.index in live)
        entering.append(replace(copied, file=replace(copied.file, runs=runs)))
    if sum(1 + len(each.file.runs) for each in entering) > MAX_FILES:
        raise LimitExceeded(
            f"one commit brings at most {MAX_FILES:,} files; write in several calls", most=MAX_FILES
        )
    return tuple(entering)


def replace_files(tx: Tx, table: int, operation: str, files: FileChanges) -> None:
    """Enter other files with the same rows, as one record, with its name in the log.

    Raises:
        WriteConflict: a fragment is not there, or garbage collection has condemned one that is added.
    """
    tx.append(FragmentsReplaced(table, operation, files))


def replace_fragments(
    tx: Tx, table: int, slots: Mapping[int, SlotSet], copies: Iterable[AddedFragment], operation: str
) -> None:
    """Enter fragments, with runs of all indexes, in the place of others, as `replace_files`.

    `slots` are what the others serve from now on, by their ids; one without any is dropped with its runs.
    """
    replace_files(tx, table, operation, FileChanges(added(tx.state, copies), slots=tuple(slots.items())))
