"""The state of one table, and functions that apply a record's file changes to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from elasticscan.catalog.codec import Packed
from elasticscan.metadata import FileChanges, Fragment, IndexInfo, IndexRun, MoveSwitched, TableInfo
from elasticscan.topology import SlotSet

Digest = bytes


@dataclass(frozen=True, slots=True)
class InlineCommit:
    """A commit with rows in the log, of all its slots or of some: a part of the table's memory fragment.

    `digest` is the sha256 of its rows as they are stored. A partial flush reduces only `slots` and `bytes`.
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
    """A file that serves no slot any more but may still be on its disk.

    Attributes:
        fragment: the id of the fragment; for an index run, of the fragment that it indexes.
        time: when it stopped serving slots, in microseconds, no earlier than the store's time.
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
    """A dropped table, and its files that may still be on their disks."""

    name: str
    files: tuple[RemovedFile, ...]


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a snapshot of a table; the snapshot is kept until the tag is dropped."""

    name: str
    snapshot: int
    created_at: float


@dataclass(frozen=True, slots=True)
class TableState:
    """One table in a `StoreState`.

    Attributes:
        newest: the number of its newest commit.
        rows, bytes: the sums over its commits, tombstones included.
        tags: the oldest snapshot first.
        memory: its commits that have rows in the log, ascending; memory_bytes: the size of these rows.
        overwrites: the commits that replaced all rows; of those up to the horizon only the newest.
        overwritten: the value of `rows` before the newest overwrite.
        removed: its files that serve no slot any more but may still be on their disks.
        fragments, runs: the files that serve slots.
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
    fragments: Packed[Fragment] = field(default=Packed(Fragment, by_id={}))
    runs: Packed[IndexRun] = field(default=Packed(IndexRun, by_id={}))


def with_files(
    table: TableState, files: FileChanges, number: int, ids: Iterator[int], time: int
) -> TableState:
    """Return a table with a record's file changes; new files take the next ids.

    `time` is the `RemovedFile.time` of files that serve no slot afterwards.
    """
    fragments, runs = dict[int, Fragment](), dict[int, IndexRun]()
    for added in files.added:
        fragment = added.entered(next(ids), table.info.id, number)
        fragments[fragment.id] = fragment
        runs |= {(id := next(ids)): run.entered(id, fragment.id) for run in added.runs}  # noqa: A001
    runs |= {(id := next(ids)): extra.run.entered(id, extra.fragment) for extra in files.runs}  # noqa: A001
    table, memory = with_slots(table, dict(files.slots), time), _unflushed(table.memory, files)
    return replace(
        table,
        memory=memory,
        memory_bytes=sum(commit.bytes for commit in memory) if files.flushed else table.memory_bytes,
        removed=still_on_disk(table.removed, files),
        fragments=table.fragments.changed(fragments),
        runs=table.runs.changed(runs),
    )


def without_moved_slots(table: TableState, record: MoveSwitched, time: int) -> TableState:
    """Return a table whose fragments at the source of a move no longer serve the moved slots."""
    source, slots = record.tablet.shard, record.tablet.slots
    sources = (f for f in table.fragments.by_id.values() if f.shard == source)
    return with_slots(table, {f.id: f.slots - slots for f in sources if not f.slots.isdisjoint(slots)}, time)


def with_slots(table: TableState, slots: Mapping[int, SlotSet], time: int) -> TableState:
    """Return a table whose fragments serve these slots; a fragment without slots becomes a removed file."""
    files = table.fragments.by_id if slots else {}
    changed = {id: replace(files[id], slots=left) for id, left in slots.items() if left}  # noqa: A001
    gone = [files[id] for id, left in slots.items() if not left]  # noqa: A001
    removed_ids = {file.id for file in gone}
    table = without_runs(table, lambda run: run.fragment in removed_ids, time) if gone else table
    removed = (RemovedFile(table.info.id, file.id, file.shard, file.path, time) for file in gone)
    fragments = table.fragments.changed(changed, removed_ids)
    return replace(table, fragments=fragments, removed=(*table.removed, *removed))


def without_runs(table: TableState, is_gone: Callable[[IndexRun], bool], time: int) -> TableState:
    """Return a table without some of its index runs; these become removed files."""
    id, fragments = table.info.id, table.fragments.by_id  # noqa: A001
    gone = list(filter(is_gone, table.runs.by_id.values()))
    removed = (RemovedFile(id, r.fragment, fragments[r.fragment].shard, r.path, time) for r in gone)
    runs = table.runs.changed({}, [run.id for run in gone])
    return replace(table, runs=runs, removed=(*table.removed, *removed))


def still_on_disk(removed: tuple[RemovedFile, ...], files: FileChanges) -> tuple[RemovedFile, ...]:
    """Return the removed files without those that were deleted from their disks."""
    forgotten = set(files.forgotten)
    return tuple(f for f in removed if (f.shard, f.path) not in forgotten) if forgotten else removed


def _unflushed(memory: tuple[InlineCommit, ...], files: FileChanges) -> tuple[InlineCommit, ...]:
    """Return the commits in the log without the commits and slots that were flushed to files."""
    if not files.flushed:
        return memory
    left, flushed = list[InlineCommit](), set(files.flushed)
    for commit in memory:
        if commit.number in flushed:
            slots = commit.slots - files.flushed_slots
            size = commit.bytes * len(slots) // len(commit.slots)  # assuming equal sizes of all slots
            commit = replace(commit, slots=slots, bytes=size)  # noqa: PLW2901
        if commit.slots:
            left.append(commit)
    return tuple(left)
