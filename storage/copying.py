"""Copies of rows into new fragments, for moves, merges and the end of large writes.

History is written to a separate fragment. A version becomes history at the commit that wrote the next version
of its key, or overwrote the table. A tombstone that hides only history becomes history at its own commit, or
at the end of the history in other fragments, if that is later. Snapshots from this commit (`_until`) on do
not need the version; changes, older snapshots and copies do. A fragment of history may contain versions with
different ends, so readers of older snapshots check `_until` of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from elasticscan.base.errors import ElasticScanError, SchemaMismatch, StoreDamaged
from elasticscan.base.limits import BATCH_ROWS
from elasticscan.metadata import Bounds, StagedFragment, TableInfo
from elasticscan.storage.fragment import FOREVER, UNTIL, fragment_schema
from elasticscan.storage.fragment_writer import Contents, Destination, FragmentWriter
from elasticscan.storage.merge import Array, Piece, Versions, windows
from elasticscan.storage.pages import PageSource
from elasticscan.storage.view import shared_slots
from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class Keep:
    """The versions that a copy keeps, and which of them are history.

    Attributes:
        horizon: a copy keeps all versions of later commits, and the newest version of each key up to it.
        drop_tombstones: drop the newest version up to the horizon if it is a tombstone. This is safe only if
            every fragment that may have older versions is copied.
        floor: the newest overwrite; versions of earlier commits are history.
        complete: no other fragment has current rows that are older than those of the copy. Then a tombstone
            hides only history, and is history itself.
        until: the first snapshot that does not need the history of these slots in other fragments.
    """

    horizon: int = 0
    drop_tombstones: bool = False
    floor: int = 0
    complete: bool = False
    until: int = 0


class _Output:
    """One of the two fragments that a copy writes, if there are rows for it."""

    def __init__(self, writer: FragmentWriter) -> None:
        self._writer = writer
        self._min_commit, self._until = FOREVER, 0

    def write(self, versions: Versions, chosen: Array, until: Array) -> None:
        if not len(chosen):
            return
        columns = versions.columns(chosen) | {UNTIL: pa.array(until)}
        self._until = max(self._until, int(until.max()))
        self._min_commit = min(self._min_commit, int(versions.commits[chosen].min()))
        schema = self._writer.schema
        batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        self._writer.write(batch)

    def finish(self, max_commit: int, committed: bool, complete: bool) -> list[StagedFragment]:
        if self._min_commit == FOREVER:
            return []
        commits = (self._min_commit, max_commit) if committed else (0, 0)
        is_history = UNTIL in self._writer.schema.names
        contents = Contents(*commits, not is_history, complete, self._until if is_history else None)
        return [self._writer.finish(contents)]


def copy_slots(
    source: PageSource, slots: SlotSet, bounds: Bounds, keep: Keep, to: Destination, committed: bool = True
) -> list[StagedFragment]:
    """Copy the rows of `slots` whose commits are within `bounds`.

    History that ended by `bounds.since` is left out. `committed` is false if the rows are staged for a
    commit that was not made yet. Memory: a batch of each fragment and a few more.

    Returns:
        A fragment of current rows and one of history, each only if it has rows.

    Raises:
        SchemaMismatch: the staged rows have a key twice.
    """
    table, copies = source.table, list[StagedFragment]()
    copied = [f for f in source.view.fragments if bounds.touch(f) and f.slots & slots]
    commits = {c for f in copied for c in (f.min_commit, f.max_commit)}
    versioned, deleted = len(commits) > 1, any(f.tombstones for f in copied)
    form = partial(fragment_schema, table.schema, versioned)
    try:
        with ExitStack() as stack:
            writer = partial(FragmentWriter, stack, to, table, slots=slots)
            current = _Output(writer(form(tombstones=deleted and not keep.complete)))
            history = _Output(writer(form(tombstones=deleted, history=True)))
            inputs = source.inputs(copied, tuple(table.schema.names), slots)
            for versions, _ in windows(inputs, Piece(slots), bounds, lambda: BATCH_ROWS):
                _check_apart(versions, table, committed)
                retained, until = _retained(versions, keep, bounds), _until(versions, keep)
                for output, belongs in ((current, until == FOREVER), (history, until < FOREVER)):
                    output.write(versions, versions.order[retained & belongs], until[retained & belongs])
            newest = min(bounds.snapshot, max(commits, default=0))
            for output in (current, history):
                copies += output.finish(newest, committed, keep.complete)
    except BaseException:
        for copy in copies:  # the first may be complete
            with suppress(OSError, ElasticScanError):
                to.disk.delete(copy.path)
        raise
    return copies


def _check_apart(versions: Versions, table: TableInfo, committed: bool) -> None:
    """Raise if a key occurs twice with the same commit, because each version would end the other."""
    order, first = versions.order, versions.first
    commits = versions.commits[order]
    twice = np.flatnonzero(~first[1:] & (commits[1:] == commits[:-1]))
    if len(twice) and not committed:
        raise repeated_key(versions.rows, int(order[twice[0]]), versions.primary_key)
    if len(twice):
        raise StoreDamaged(
            f"table {table.name!r} has two rows with the same key and commit; run "
            "`elasticscan verify`, and restore a backup if it finds damage",
            table=table.name,
        )


def _retained(versions: Versions, keep: Keep, bounds: Bounds) -> Array:
    """Return a mask of the versions to keep, in sorted order."""
    order = versions.order
    old = versions.commits[order] <= keep.horizon
    newer_before = np.concatenate(([False], ~old[:-1])) if len(old) else old
    newest_old = old & (versions.first | newer_before)
    if keep.drop_tombstones:
        newest_old &= ~versions.deleted[order]
    retained: Array = ~old | newest_old
    if versions.until is not None:
        retained &= versions.until[order] > bounds.since
    return retained


def _until(versions: Versions, keep: Keep) -> Array:
    """Return `_until` of each version, in sorted order; `FOREVER` for current versions."""
    order, first = versions.order, versions.first
    commits, until = versions.commits[order], np.full(len(order), FOREVER, dtype=np.int64)
    until[1:] = np.where(first[1:], FOREVER, commits[:-1])  # the next newer version is the row before
    if keep.complete:
        gone = first & versions.deleted[order]
        until[gone] = np.maximum(commits[gone], keep.until)
    before = commits < keep.floor
    until[before] = np.minimum(until[before], keep.floor)
    if versions.until is not None:  # history stays history
        np.minimum(until, versions.until[order], out=until)
    return until


def check_keys_differ(source: PageSource) -> None:
    """Raise `SchemaMismatch` if a key occurs twice in the fragments of one write."""
    names, fragments = source.table.primary_key, source.view.fragments
    repeating = SlotSet.union(fragment.slots for fragment in fragments if not fragment.unique)
    slots = shared_slots(fragments) | repeating
    inputs = source.inputs(fragments, names, slots)
    for versions, _ in windows(inputs, Piece(slots), Bounds(0, 1 << 62), lambda: 16 * BATCH_ROWS):
        again = np.flatnonzero(~versions.first)
        if len(again):
            raise repeated_key(versions.rows, int(versions.order[again[0]]), names)


def python_rows(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows for messages; a column with values that Python lacks, as of the year 10000, is text."""

    def values(column: pa.Array) -> list[Any]:
        try:
            return list(column.to_pylist())
        except (ValueError, OverflowError):
            return list(column.cast(pa.string()).to_pylist())

    names = rows.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*map(values, rows.columns), strict=True)]


def repeated_key(rows: pa.RecordBatch, row: int, names: Sequence[str]) -> SchemaMismatch:
    key = python_rows(rows.select(list(names)).slice(row, 1))[0]
    return SchemaMismatch(
        f"the primary key {key} occurs more than once in one write; keep one row for each key (in Spark: "
        "df.dropDuplicates)",
        key=str(key),
    )
