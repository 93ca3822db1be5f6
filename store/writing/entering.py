"""Files on their way into a record: what the record says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from elasticscan.base.errors import LimitExceeded
from elasticscan.catalog import StoreState, Tx
from elasticscan.metadata import (
    MAX_FILES,
    AddedFragment,
    FileChanges,
    FragmentsReplaced,
    StagedFragment,
)
from elasticscan.topology import SlotSet


def added(state: StoreState, copies: Iterable[AddedFragment]) -> tuple[AddedFragment, ...]:
    """Return fragments that are about to be entered, without runs of indexes that are gone."""
    live, entering, files = {index.id for index in state.indexes()}, list[AddedFragment](), 0
    for copied in copies:
        runs = tuple(run for run in copied.file.runs if run.index in live)
        entering.append(replace(copied, file=replace(copied.file, runs=runs)))
        files += 1 + len(runs)
    if files > MAX_FILES:
        raise LimitExceeded(
            f"one commit brings at most {MAX_FILES:,} files; write in several calls", most=MAX_FILES
        )
    return tuple(entering)


def commit_of(
    state: StoreState,
    table: int,
    kind: str,
    staged: Sequence[StagedFragment],
    txn: IdempotencyKey | None = None,
    user_metadata: Mapping[str, str] | None = None,
    rows: bytes | None = None,
) -> Append:
    """Return the commit that makes staged fragments visible, all at once.

    With `rows`, these are kept in the log, and `staged` says of which slots they are, and how many.
    """
    size = sum(fragment.bytes + sum(run.bytes for run in fragment.runs) for fragment in staged)
    record = RowsCommitted(
        table,
        kind,
        state.tables[table].info.definition,
        rows=sum(fragment.rows for fragment in staged),
        bytes=size if rows is None else len(rows),
        tombstones=sum(fragment.tombstones for fragment in staged),
        overwrites=kind == "overwrite",
    )
    if rows is None:
        files = added(state, ((fragment, 0, 0) for fragment in staged))
        record = replace(record, files=FileChanges(files))
    else:
        record = replace(record, slots=SlotSet.union(fragment.slots for fragment in staged))
    said = {"content": None if txn is None else txn.content, "user": dict(user_metadata or {})}
    metadata = json.dumps(said, sort_keys=True) if any(said.values()) else None
    return Append(record, rows, None if txn is None else txn[:2], metadata)


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
    tx: Tx, table: int, slots: Mapping[int, SlotSet], copies: Iterable[AddedFragment], operation: str
) -> None:
    """Enter fragments, with runs of all indexes, in the place of others, as `replace_files`.

    `slots` are what the others serve from now on, by their ids; one without any is dropped with its runs.
    """
    replace_files(tx, table, operation, FileChanges(added(tx.state, copies), slots=tuple(slots.items())))
