"""The state of one table, and the fold of what a record changes of its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from elasticscan.catalog.entries import Digest
from elasticscan.catalog.files import FileSet
from elasticscan.metadata import FileChanges, Fragment, IndexInfo, IndexRun, MoveSwitched, TableInfo
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
        served = [fragment.slots for fragment in self.fragments.where("id", dict(changes.slots))]
        served += [commit.slots for commit in self.memory if commit.number in changes.flushed]
        return sum(map(len, served))


def with_files(
    table: TableState, files: FileChanges, number: int, ids: Iterator[int], time: int
) -> TableState:
    """Return a table after a record's changes of its files, which take the next ids.

    `time` is that of files that go, as `RemovedFile` has it.
    """
    fragments, runs = list[Fragment](), list[IndexRun]()
    for added in files.added:
        fragment = added.entered(next(ids), table.info.id, number)
        fragments.append(fragment)
        runs += [run.entered(next(ids), fragment.id) for run in added.runs]
    runs += [extra.run.entered(next(ids), extra.fragment) for extra in files.runs]
    table, memory = with_slots(table, dict(files.slots), time), _unflushed(table.memory, files)
    return replace(
        table,
        memory=memory,
        memory_bytes=sum(commit.bytes for commit in memory) if files.flushed else table.memory_bytes,
        removed=not_forgotten(table.removed, files),
        fragments=table.fragments.with_added(fragments),
        runs=table.runs.with_added(runs),
    )


def struck(table: TableState, record: MoveSwitched, time: int) -> TableState:
    """Return a table whose fragments at the source of a move serve its slots no longer."""
    there, slots = table.fragments.where("shard", {record.tablet.shard}), record.tablet.slots
    return with_slots(table, {f.id: f.slots - slots for f in there if not f.slots.isdisjoint(slots)}, time)


def with_slots(table: TableState, slots: Mapping[int, SlotSet], time: int) -> TableState:
    """Return a table whose fragments serve these slots; of one without any all files are noted as removed."""
    if not slots:
        return table
    there = table.fragments.where("id", slots.keys())
    going = {fragment.id: fragment for fragment in there if not slots[fragment.id]}
    table = without_runs(table, table.runs.where("fragment", going.keys()), time) if going else table
    changed = [replace(fragment, slots=slots[fragment.id]) for fragment in there if fragment.id not in going]
    gone = (RemovedFile(table.info.id, f.id, f.shard, f.path, time) for f in going.values())
    fragments = table.fragments.with_removed(going).with_added(changed)
    return replace(table, fragments=fragments, removed=(*table.removed, *gone))


def without_runs(table: TableState, runs: Sequence[IndexRun], time: int) -> TableState:
    """Return a table without some runs of its indexes, whose files are noted as removed."""
    shards = {own.id: own.shard for own in table.fragments.where("id", {run.fragment for run in runs})}
    files = (RemovedFile(table.info.id, run.fragment, shards[run.fragment], run.path, time) for run in runs)
    left = table.runs.with_removed(run.id for run in runs)
    return replace(table, runs=left, removed=(*table.removed, *files))


def not_forgotten(removed: tuple[RemovedFile, ...], files: FileChanges) -> tuple[RemovedFile, ...]:
    """Return the removed files that may still be on their disks."""
    forgotten = set(files.forgotten)
    return tuple(f for f in removed if (f.shard, f.path) not in forgotten) if forgotten else removed


def _unflushed(memory: tuple[InlineCommit, ...], files: FileChanges) -> tuple[InlineCommit, ...]:
    """Return the commits in the log without those, or their slots, that lie in files now."""
    if not files.flushed:
        return memory
    left, flushed = list[InlineCommit](), set(files.flushed)
    for commit in memory:
        if commit.number in flushed:
            slots = commit.slots - files.flushed_slots
            size = commit.bytes * len(slots) // len(commit.slots)  # as if all slots had the same
            commit = replace(commit, slots=slots, bytes=size)  # noqa: PLW2901
        if commit.slots:
            left.append(commit)
    return tuple(left)
