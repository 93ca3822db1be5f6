"""All versions of keys in a range of commits, from several fragments, key by key. All vectorised.

Only what is of the range is looked at closely: of a fragment that also holds versions of other
commits nothing but its commits is read through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.concurrency import cached_property
from elasticscan.base.order_keys import encode_row, sort_codes
from elasticscan.metadata import Bounds, SlotInterval, TableInfo
from elasticscan.storage.fragment import COMMIT, DELETED, SLOT, UNTIL, FragmentReader
from elasticscan.storage.lookup import Mask, Places, Rows, fetch_by_group, integers, rows_at
from elasticscan.storage.merge import MergeInput, first_of_keys

LEAST_ROWS = 1024  # what a step takes of each fragment, if it has so many
_ROW = "_row"
_BEFORE_ALL = -1  # as a commit: sorts before all versions of its key


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Rows of the fragments of an interval: which fragment, and which row of it."""

    owners: NDArray[np.intp]
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, chosen: NDArray[np.int64] | slice) -> RowPlaces:
        return RowPlaces(self.owners[chosen], self.rows[chosen])


@dataclass(frozen=True)
class Histories:
    """All versions in some bounds of some keys, sorted by (slot, primary key), the oldest first."""

    places: RowPlaces
    slots: NDArray[np.uint16]
    commits: NDArray[np.int64]
    deleted: Mask
    keys: pa.RecordBatch
    first: Mask  # whether it is the oldest of its key

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def last(self) -> Mask:
        """Return whether a version is the newest of its key."""
        return np.append(self.first[1:], [True])[: len(self)]

    def key_at(self, version: int) -> bytes:
        return encode_row(self.keys.columns, version)


@dataclass(frozen=True, slots=True)
class OpenInterval:
    """The fragments of an interval, opened when they are needed."""

    table: TableInfo
    interval: SlotInterval
    open: Callable[[int], FragmentReader]

    def input(self, owner: int) -> MergeInput:
        return MergeInput(self.interval.fragments[owner], self.open(owner))

    def fetch(self, places: RowPlaces, columns: Sequence[str]) -> list[pa.Array]:
        """Values of rows, in the order asked; `columns` are of the table, at least one."""
        kinds = [self.table.schema.field(name).type for name in columns]
        if not len(places):
            return [pa.array([], kind) for kind in kinds]
        schema = pa.schema(list(zip(columns, kinds, strict=True)))

        def fetch(owner: int, at: Places) -> pa.RecordBatch:
            rows = rows_at(self.input(owner).reader, places.rows[at], columns)
            return pa.RecordBatch.from_arrays(rows.columns, schema=schema)

        return list(fetch_by_group(places.owners, fetch).columns)


class HistoryIterator:
    """Walks slots `[start, end)` of an interval, some keys at a time.

    Args:
        opened: the fragments.
        owners: the participants, at least one.
        key: begin beyond this key in the first slot.
        bounds: which commits count.
    """

    def __init__(
        self, opened: OpenInterval, owners: Sequence[int], key: bytes | None, bounds: Bounds
    ) -> None:
        self._names = opened.table.primary_key
        self._strands = [_Strand(opened, owner, key, bounds) for owner in owners]
        self._least = 1

    @property
    def finished(self) -> bool:
        return all(strand.finished and not strand.held.num_rows for strand in self._strands)

    @property
    def scanned(self) -> int:
        """Count how many versions were looked at so far, those of other commits included."""
        return sum(strand.scanned for strand in self._strands)

    def step(self, count: int) -> Histories:
        """Return the next keys, of about `count` versions together; there may be none in one step."""
        share = max(count // len(self._strands), LEAST_ROWS, self._least)
        for strand in self._strands:
            strand.load(share)
        histories = self._complete([strand.last_seen() for strand in self._strands if not strand.finished])
        self._least = 1 if len(histories) else 2 * share  # one key may have more versions than that
        for strand in self._strands:
            strand.drop(int(np.count_nonzero(histories.places.owners == strand.owner)))
        return histories

    def _complete(self, frontiers: Sequence[pa.RecordBatch]) -> Histories:
        """Return the versions of keys below the lowest key up to which an unfinished fragment was read."""
        held = [strand.held for strand in self._strands]
        count = sum(batch.num_rows for batch in held)
        rows = pa.concat_batches([*held, *frontiers])
        codes = [sort_codes(rows.column(name)) for name in self._names]
        slots, commits = rows.column(SLOT).to_numpy(), rows.column(COMMIT).to_numpy()
        order = np.lexsort((commits, *reversed(codes), slots))
        if frontiers:
            order = order[: int(np.argmax(order >= count))]
        owners = np.repeat([strand.owner for strand in self._strands], [b.num_rows for b in held])
        return Histories(
            RowPlaces(owners[order], rows.column(_ROW).to_numpy()[order]),
            slots[order],
            commits[order],
            rows.column(DELETED).to_numpy(zero_copy_only=False)[order],
            rows.select(self._names).take(pa.array(order)),
            first_of_keys(order, (slots, *codes)),
        )


class _Strand:
    """The versions of one fragment that count, in its order; `held` are those not yet given out."""

    def __init__(self, opened: OpenInterval, owner: int, key: bytes | None, bounds: Bounds) -> None:
        source, interval = opened.input(owner), opened.interval
        self.owner, self._input, self._bounds = owner, source, bounds
        self._names = opened.table.primary_key
        fields = [opened.table.schema.field(name) for name in self._names]
        fields += [pa.field(_ROW, pa.int64()), pa.field(SLOT, pa.uint16())]
        self._schema = pa.schema([*fields, pa.field(COMMIT, pa.int64()), pa.field(DELETED, pa.bool_())])
        empty = [pa.array([], field.type) for field in self._schema]
        self.held = pa.RecordBatch.from_arrays(empty, schema=self._schema)
        self.scanned = 0
        reader = source.reader
        beyond = len(reader.slot_starts) - 1
        self._end = int(reader.slot_starts[min(interval.end, beyond)])
        self._at = int(reader.slot_starts[min(interval.start, beyond)])
        if key is not None:
            index, row = reader.seek(interval.start, key, self._names)
            self._at = int(reader.starts[index]) + row

    @property
    def finished(self) -> bool:
        return self._at >= self._end

    def load(self, count: int) -> None:
        """Hold `count` versions, if there are so many."""
        parts = [self.held]
        missing = count - self.held.num_rows
        while missing > 0 and not self.finished:
            rows = self._next(missing)
            missing -= len(rows)
            if len(rows):
                parts.append(self._versions(rows))
        self.held = pa.concat_batches(parts) if len(parts) > 1 else parts[0]

    def drop(self, count: int) -> None:
        self.held = self.held.slice(count)

    def last_seen(self) -> pa.RecordBatch:
        """Return the last row that was looked at, as a version before all others of its key."""
        last = self._versions(np.array([self._at - 1], dtype=np.int64))
        columns = [*last.columns[:-2], pa.array([_BEFORE_ALL], pa.int64()), last.columns[-1]]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _next(self, most: int) -> Rows:
        """Return the next rows that count, `most` of them, within one batch; perhaps none."""
        reader, at = self._input.reader, self._at
        index = int(np.searchsorted(reader.starts, at, "right")) - 1
        stop = min(self._end, int(reader.starts[index + 1]))
        if COMMIT in reader.columns and not self._bounds.wholly_hold(self._input.fragment):
            base = int(reader.starts[index])
            commits = integers(reader, reader.batch(index).column(COMMIT))[at - base : stop - base]
            counts = (commits >= self._bounds.floor) & (commits <= self._bounds.snapshot)
            rows = at + np.flatnonzero(counts)
            if len(rows) > most:
                rows = rows[:most]
                stop = int(rows[-1]) + 1
        else:
            stop = min(stop, at + most)
            rows = np.arange(at, stop)
        self.scanned += stop - at
        self._at = stop
        return rows

    def _versions(self, rows: Rows) -> pa.RecordBatch:
        names = (*self._names, SLOT)
        batch, commits, deleted = versions_at(self._input, rows, names, self._bounds.since)
        *keys, slots = batch.columns
        columns = [*keys, pa.array(rows), slots, pa.array(commits), pa.array(deleted)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def versions_at(
    source: MergeInput, rows: Rows, columns: Sequence[str], since: int
) -> tuple[pa.RecordBatch, NDArray[np.int64], Mask]:
    """Return some columns of rows, their commits, and which are gone; no column may hold a null.

    Tombstones are, and what was history by `since`: there its key has another version, or none.
    """
    reader = source.reader
    commits = np.full(len(rows), source.fragment.min_commit, dtype=np.int64)
    deleted = np.zeros(len(rows), dtype=bool)
    system = [name for name in (COMMIT, DELETED, UNTIL) if name in reader.columns]
    if not columns and not system:
        return pa.RecordBatch.from_arrays([], names=[]), commits, deleted
    batch = rows_at(reader, rows, (*columns, *system))
    if any(column.null_count for column in batch.columns):
        raise reader.damaged("its rows are not those of a fragment")
    if COMMIT in system:
        commits = batch.column(COMMIT).to_numpy()
    if DELETED in system:
        deleted = batch.column(DELETED).to_numpy(zero_copy_only=False)
    if UNTIL in system:
        deleted = deleted | (batch.column(UNTIL).to_numpy() <= since)
    return batch.select(list(columns)), commits, deleted
