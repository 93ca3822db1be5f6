"""The state of one table, and the fold of what a record changes of its files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from elasticscan.catalog.entries import Digest, damaged_log
from elasticscan.catalog.files import FileSet
from elasticscan.metadata import (
    FileChanges,
    Fragment,
    IndexInfo,
    IndexRun,
    MoveSwitched,
    TableInfo,
    file_id,
)
from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class InlineCommit:
    """A commit whose rows, or those of some slots, lie in the log: a part of the table's memory fragment.

    `digest` is the sha256 of its rows as they lie there.
    """

    number: int
    definition: int
    rows: int
    bytes: int
    tombstones: int
    slots: SlotSet
    digest: Digest


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that serves no slot any more, and may still be on its disk.

    Attributes:
        table: whose it was.
        fragment: the id of its fragment, which it is itself unless it is a run of an index.
        time: since when it serves none, no earlier than the store's time, in microseconds.
    """

    table: int
    fragment: int
    shard: int
    path: str
    time: int

    @property
    def dropped_at(self) -> float:
        """`time` in seconds."""
        return self.time / 1e6


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table that is gone, and its files that may still be on their disks."""

    name: str
    files: tuple[RemovedFile, ...]


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a snapshot of a table, which keeps it."""

    name: str
    snapshot: int
    created_at: float


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as of a number.

    Attributes:
        newest: the number of its newest commit.
        rows, bytes: that its commits wrote, tombstones included.
        tags: the oldest snapshot first.
        memory: its commits that lie in the log, ascending; memory_bytes: the size of their rows.
        overwrites: numbers of commits that replaced all rows, of those up to the horizon the newest alone.
        overwritten: rows that the commits before the newest of these wrote.
        removed: its files that serve no slot any more, and may still be on their disks.
    """

    info: TableInfo
    newest: int = 0
    rows: int = 0
    bytes: int = 0
    indexes: tuple[IndexInfo, ...] = ()
    tags: tuple[Tag, ...] = ()
    memory: tuple[InlineCommit, ...] = ()
    memory_bytes: int = 0
    overwrites: tuple[int, ...] = ()
    overwritten: int = 0
    removed: tuple[RemovedFile, ...] = ()
    fragments: FileSet[Fragment] = field(default=FileSet.empty(Fragment), metadata={"apart": True})
    runs: FileSet[IndexRun] = field(default=FileSet.empty(IndexRun), metadata={"apart": True})

    def served_by(self, changes: FileChanges) -> int:
        """Return how many slots the fragments and commits serve that changes take rows from, in sum."""
        sources = {*changes.removed, *(file for file, _ in changes.slots)}
        fragments = self.fragments.where("id", sources) if sources else []
        served = [fragment.slots for fragment in fragments]
        served += [commit.slots for commit in self.memory if commit.number in changes.flushed]
        return sum(map(len, served))


def with_files(table: TableState, files: FileChanges, number: int, time: int, first: int = 0) -> TableState:
    """Return a table after a record's changes of its files, the first of which has the ordinal `first`.

    `time` is that of files that go, as `RemovedFile` has it.
    """
    named = {*files.removed, *(file for file, _ in files.slots), *(each.fragment for each in files.runs)}
    missing = table.fragments.missing(named)
    if missing:
        raise damaged_log(f"fragment {min(missing)} is not there")
    table = without(table, files.removed, time)
    fragments, runs, ordinal = list[Fragment](), list[IndexRun](), first
    for added in files.added:
        low, high = added.min_number or number, added.max_number or number
        fragment = added.file.entered(file_id(number, ordinal), table.info.id, low, high)
        fragments.append(fragment)
        ordinal += 1
        for run in added.file.runs:
            runs.append(run.entered(file_id(number, ordinal), fragment.id))
            ordinal += 1
    for extra in files.runs:
        runs.append(extra.run.entered(file_id(number, ordinal), extra.fragment))
        ordinal += 1
    memory = _unflushed(table.memory, files)
    return replace(
        table,
        memory=memory,
        memory_bytes=sum(commit.bytes for commit in memory) if files.flushed else table.memory_bytes,
        removed=not_forgotten(table.removed, files),
        fragments=table.fragments.with_slots(dict(files.slots)).with_added(fragments),
        runs=table.runs.with_added(runs),
    )


def struck(table: TableState, record: MoveSwitched, time: int) -> TableState:
    """Return a table whose fragments at the source of a move serve its slots no longer."""
    there, slots = table.fragments.where("shard", {record.tablet.shard}), record.tablet.slots
    left = {f.id: f.slots - slots for f in there if not f.slots.isdisjoint(slots)}
    table = replace(table, fragments=table.fragments.with_slots({f: own for f, own in left.items() if own}))
    return without(table, [f for f, own in left.items() if not own], time)


def without(table: TableState, ids: Collection[int], time: int) -> TableState:
    """Return a table without some fragments and their runs; all their files are noted as removed."""
    if not ids:
        return table
    going = set(ids)
    files = (
        RemovedFile(table.info.id, fragment.id, fragment.shard, fragment.path, time)
        for fragment in table.fragments.where("id", going)
    )
    table = replace(table, removed=(*table.removed, *files))
    table = without_runs(table, table.runs.where("fragment", going), time)
    return replace(table, fragments=table.fragments.with_removed(going))


def without_runs(table: TableState, runs: Sequence[IndexRun], time: int) -> TableState:
    """Return a table without some runs of its indexes, whose files are noted as removed."""
    if not runs:
        return table
    shards = {own.id: own.shard for own in table.fragments.where("id", {run.fragment for run in runs})}
    files = (RemovedFile(table.info.id, run.fragment, shards[run.fragment], run.path, time) for run in runs)
    left = table.runs.with_removed({run.id for run in runs})
    return replace(table, runs=left, removed=(*table.removed, *files))


def not_forgotten(removed: tuple[RemovedFile, ...], files: FileChanges) -> tuple[RemovedFile, ...]:
    """Return the removed files that may still be on their disks."""
    if not files.forgotten:
        return removed
    forgotten = set(files.forgotten)
    return tuple(file for file in removed if (file.shard, file.path) not in forgotten)


def _unflushed(memory: tuple[InlineCommit, ...], files: FileChanges) -> tuple[InlineCommit, ...]:
    """Return the commits in the log without those, or their slots, that lie in files now."""
    if not files.flushed:
        return memory
    flushed, there = set(files.flushed), {commit.number for commit in memory}
    if not flushed <= there:
        raise damaged_log(f"commit {min(flushed - there)} is flushed, and its rows are not in the log")
    left = (
        _part_of(commit, commit.slots - files.flushed_slots) if commit.number in flushed else commit
        for commit in memory
    )
    return tuple(commit for commit in left if commit.slots)


def _part_of(commit: InlineCommit, slots: SlotSet) -> InlineCommit:
    """Return what is left of a commit in the log; its bytes, as if all slots had the same."""
    return replace(commit, slots=slots, bytes=commit.bytes * len(slots) // len(commit.slots))
