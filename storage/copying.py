"""Rows of some slots copied into one new fragment: moves, compaction and the end of large writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from elasticscan.base.errors import InvalidKey
from elasticscan.base.limits import BATCH_ROWS
from elasticscan.metadata import Bounds, Fragment, Origin, SlotInterval, StagedFragment
from elasticscan.storage.disk import Disk
from elasticscan.storage.fragment import (
    COMMIT,
    DELETED,
    SLOT,
    FragmentTarget,
    fragment_schema,
    write_fragment,
)
from elasticscan.storage.merge import Array, MergeInput, Versions, windows
from elasticscan.storage.pages import PageSource
from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class Keep:
    """The versions that a copy keeps.

    All of commits after `horizon`, and of each key the newest up to it. `drop_tombstones`: a key
    whose newest version up to the horizon says that it was deleted needs none; only right when
    every fragment that may hold older versions takes part.
    """

    horizon: int = 0
    drop_tombstones: bool = False


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy: the new fragment, and bounds of the commits that its rows belong to."""

    staged: StagedFragment
    min_commit: int
    max_commit: int


@dataclass(frozen=True, slots=True)
class Destination:
    """The shard that a copy is for, and who copies."""

    disk: Disk
    shard: int
    origin: Origin


class _Copy:
    """One copy under way; notes whether a key was kept twice."""

    def __init__(self, source: PageSource, slots: SlotSet, bounds: Bounds, keep: Keep) -> None:
        self.source, self.slots, self.bounds, self.keep = source, slots, bounds, keep
        taking_part = [f for f in source.view.fragments if bounds.touch(f) and f.slots & slots]
        commits = {c for f in taking_part for c in (f.min_commit, f.max_commit)}
        self.schema = fragment_schema(
            source.table.schema,
            versioned=len(commits) > 1,
            tombstones=any(f.tombstones for f in taking_part),
        )
        self.min_commit = max(bounds.floor, min(commits, default=0))
        self.max_commit = min(bounds.snapshot, max(commits, default=0))
        self.unique = True

    def batches(self) -> Iterator[pa.RecordBatch]:
        columns = tuple(self.source.table.schema.names)
        for start, end in self.slots:
            for interval in self.source.view.between(start, end, self.bounds):
                inputs = [MergeInput(f, self.source.open(f, columns)) for f in interval.fragments]
                if len(inputs) == 1 and self._whole(inputs[0].fragment):
                    yield from self._slices(inputs[0], interval)
                else:
                    yield from self._merge(inputs, interval)

    def _whole(self, fragment: Fragment) -> bool:
        """True if every row of a fragment is kept, so that no rows have to be compared."""
        tombstones = fragment.tombstones and self.keep.drop_tombstones
        return fragment.unique and not tombstones and self.bounds.wholly_hold(fragment)

    def _slices(self, only: MergeInput, interval: SlotInterval) -> Iterator[pa.RecordBatch]:
        index, row = only.reader.seek(interval.start, None, ())
        while index < only.reader.batch_count:
            slots = only.reader.slots(index)
            end = int(np.searchsorted(slots, interval.end))
            if end > row:
                yield self._with_system_columns(only.rows(index, row, end - row), only.fragment)
            if end < len(slots):
                return
            index, row = index + 1, 0

    def _with_system_columns(self, rows: pa.RecordBatch, fragment: Fragment) -> pa.RecordBatch:
        count = rows.num_rows
        names = rows.schema.names
        columns = []
        for name in self.schema.names:
            if name in names:
                columns.append(rows.column(name))
            elif name == COMMIT:
                columns.append(pa.array(np.full(count, fragment.min_commit, dtype=np.int64)))
            else:
                assert name == DELETED
                columns.append(pa.array(np.zeros(count, dtype=bool)))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _merge(self, inputs: Sequence[MergeInput], interval: SlotInterval) -> Iterator[pa.RecordBatch]:
        span = (interval.start, interval.end)
        key_columns = self.source.table.primary_key
        for window in windows(inputs, span, None, key_columns, self.bounds, lambda: BATCH_ROWS):
            chosen = self._choose(window.versions)
            if len(chosen):
                yield self._gather(window.versions, chosen)

    def _choose(self, versions: Versions) -> Array:
        order, first = versions.order[: versions.usable], versions.first[: versions.usable]
        commits = versions.commits[order]
        old = commits <= self.keep.horizon
        newer_before = np.concatenate(([False], ~old[:-1])) if len(old) else old
        newest_old = old & (first | newer_before)
        if self.keep.drop_tombstones:
            newest_old &= ~versions.deleted[order]
        retained = ~old | newest_old
        # A kept row that is not its key's first has a kept or a dropped tombstone before it; only
        # a kept one makes the fragment hold the key twice. Saying "not unique" needlessly is safe.
        if bool((retained & ~first).any()):
            self.unique = False
        chosen: Array = order[retained]
        return chosen

    def _gather(self, versions: Versions, chosen: Array) -> pa.RecordBatch:
        rows = versions.rows.take(pa.array(chosen))
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns[SLOT] = pa.array(versions.slots[chosen])
        if COMMIT in self.schema.names:
            columns[COMMIT] = pa.array(versions.commits[chosen])
        if DELETED in self.schema.names:
            columns[DELETED] = pa.array(versions.deleted[chosen])
        return pa.RecordBatch.from_arrays([columns[n] for n in self.schema.names], schema=self.schema)


def copy_slots(
    source: PageSource, slots: SlotSet, bounds: Bounds, keep: Keep, to: Destination, committed: bool = True
) -> Copied | None:
    """Copy the rows of `slots` that are of commits within `bounds` into one fragment.

    Memory: a batch of each fragment and a few more, whatever the number of rows. `committed` is false for
    what is staged for one commit that was not made yet. Returns None when there was nothing.
    """
    copy = _Copy(source, slots, bounds, keep)
    target = FragmentTarget(to.disk, to.shard, source.table, copy.schema, to.origin)
    batches = copy.batches()
    first = next(batches, None)
    if first is None:
        return None

    def all_batches() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    commits = (copy.min_commit, copy.max_commit) if committed else (0, 0)
    staged = write_fragment(target, slots, all_batches(), commits, lambda: copy.unique)
    return Copied(staged, copy.min_commit, copy.max_commit)


def check_keys_differ(source: PageSource) -> None:
    """Raises `InvalidKey` when one key occurs in two fragments of one write, or twice in one."""
    names = source.table.primary_key
    everything = Bounds(0, 1 << 62)
    for interval in source.view.between(0, 1 << 16, everything):
        if len(interval.fragments) == 1 and interval.fragments[0].unique:
            continue
        inputs = [MergeInput(f, source.open(f, names)) for f in interval.fragments]
        span = (interval.start, interval.end)
        for window in windows(inputs, span, None, names, everything, lambda: 16 * BATCH_ROWS):
            versions = window.versions
            again = np.flatnonzero(~versions.first[: versions.usable])
            if len(again):
                raise repeated_key(versions.rows, int(versions.order[again[0]]), names)


def repeated_key(rows: pa.RecordBatch, row: int, names: Sequence[str]) -> InvalidKey:
    key = {name: rows.column(name)[row].as_py() for name in names}
    return InvalidKey(
        f"the primary key {key} occurs more than once in one write; keep one row for each key "
        "(in Spark: df.dropDuplicates) and write again",
        key=str(key),
    )
