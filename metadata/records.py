"""The records of a store's log, as frozen values.

A record changes the files of a table by `FileChanges`. The format of a kind of record never changes: if its
fields change, it gets a new number in `FORMATS`, and the code that reads the old format stays. A program
that does not know the kind or format of a record stops with `StoreTooNew`.

Ids of files are derived from the number of the record that adds them (`file_ids`), so there is no counter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from elasticscan.metadata.fragments import StagedFragment, TableInfo
from elasticscan.metadata.indexes import IndexInfo, StagedRun
from elasticscan.topology import Shard, SlotSet, Tablet

MAX_FILES: Final = 1 << 16  # files that one record can add
NO_SLOTS: Final = SlotSet()


def file_ids(number: int) -> Iterator[int]:
    """Return the ids of files that a record adds: fragments, each followed by its runs, then other runs."""
    return iter(range(number * MAX_FILES, (number + 1) * MAX_FILES))


@dataclass(frozen=True, slots=True)
class AddedRun:
    """An index run that a record adds to an existing fragment."""

    fragment: int
    run: StagedRun


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Changes of the files of one table.

    Attributes:
        added: new fragments, with their index runs.
        runs: new index runs of existing fragments.
        slots: (fragment id, slots that it serves from now on); a fragment without slots is removed.
        flushed: numbers of the commits whose rows of `flushed_slots` are now in the added files.
        forgotten: (shard, path) of removed files that were deleted from their disks.
    """

    added: tuple[StagedFragment, ...] = ()
    runs: tuple[AddedRun, ...] = ()
    slots: tuple[tuple[int, SlotSet], ...] = ()
    flushed: tuple[int, ...] = ()
    flushed_slots: SlotSet = NO_SLOTS
    forgotten: tuple[tuple[int, str], ...] = ()


NO_CHANGES: Final = FileChanges()


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that seals keys or signs offsets; `made_at` is in seconds since 1970."""

    id: int
    purpose: str
    secret: bytes = field(repr=False)
    made_at: float


class Record:
    """The content of an entry of the log: one of the values below."""


@dataclass(frozen=True)
class StoreCreated(Record):
    """The store was created; record number 0.

    Attributes:
        incarnation: the id of this copy of the store.
        created_at: the time in seconds since 1970.
    """

    store_id: str
    hash: str
    retention_seconds: float
    shards: tuple[Shard, ...]
    tablets: tuple[Tablet, ...]
    incarnation: str = ""
    created_at: float = 0.0
    secrets: tuple[Secret, ...] = ()


@dataclass(frozen=True)
class StoreAdopted(Record):
    """The store became another copy. The number of this record may leave a gap after the one before.

    `commit` is the newest commit that any copy is known to have, so new commits get higher numbers.
    """

    incarnation: str
    commit: int = 0


@dataclass(frozen=True)
class ShardDefined(Record):
    """A shard was added, is draining, or was removed."""

    shard: Shard
    removed: bool = False


@dataclass(frozen=True)
class TableDefined(Record):
    """A table was created, or its definition was changed.

    Attributes:
        made_from: the definition that it replaces; 0 for a new table.
        operation: "create" if the table's history begins with this record.
        reserved: readers do not see the table yet, but files may be staged for it.
    """

    table: TableInfo
    made_from: int
    operation: str | None = None
    reserved: bool = False


@dataclass(frozen=True)
class TableDropped(Record):
    """A table was dropped."""

    table: int


@dataclass(frozen=True)
class IndexDefined(Record):
    """An index was added, or its phase changed."""

    index: IndexInfo


@dataclass(frozen=True)
class RowsCommitted(Record):
    """A write of rows.

    Attributes:
        operation: its name in the table's history: write, delete, overwrite, …
        definition: the number of the table's definition by which its rows are written.
        rows, tombstones: the number of rows, tombstones included, and of tombstones.
        bytes: the size of the rows, in the log or in files.
        slots: the slots of its rows in the log; empty if the rows are in files.
        overwrites: it removes all rows of earlier commits.
        based_on: the number of the state whose rows the write has read; 0 if it has read none.
    """

    table: int
    operation: str
    definition: int
    rows: int
    bytes: int
    tombstones: int = 0
    slots: SlotSet = NO_SLOTS
    overwrites: bool = False
    based_on: int = 0
    files: FileChanges = NO_CHANGES


@dataclass(frozen=True)
class FragmentsReplaced(Record):
    """Files were replaced by files with the same rows: a flush, a merge, or an index build."""

    table: int
    operation: str
    files: FileChanges


@dataclass(frozen=True)
class MoveSwitched(Record):
    """A move switched: another shard serves a tablet from now on.

    Attributes:
        tablet: the tablet before the move.
        target: the shard that serves it from now on, with the next epoch.
        tables: the changed files of each table.
    """

    tablet: Tablet
    target: int
    tables: Mapping[int, FileChanges] = field(default_factory=dict)


@dataclass(frozen=True)
class TabletsChanged(Record):
    """Tablets were split or joined."""

    before: tuple[Tablet, ...]
    after: tuple[Tablet, ...]


@dataclass(frozen=True)
class HorizonRaised(Record):
    """The snapshots of a table before `horizon` can no longer be read."""

    table: int
    horizon: int


@dataclass(frozen=True)
class TagChanged(Record):
    """A tag of a table was set, or dropped if `snapshot` is None."""

    table: int
    name: str
    snapshot: int | None


@dataclass(frozen=True)
class SecretChanged(Record):
    """A secret was made, or dropped if `secret` is None."""

    id: int
    secret: Secret | None


@dataclass(frozen=True)
class TimeObserved(Record):
    """A record without content: only its time counts."""


@dataclass(frozen=True)
class TopologyEntered(Record):
    """The current placement was added to the topology history, in place of an unpublished last topology."""

    topology: int
    published: bool


@dataclass(frozen=True)
class FilesCondemned(Record):
    """Files (shard, path) that no later record may refer to; `lifted` ends this when they are deleted."""

    files: tuple[tuple[int, str], ...]
    lifted: bool = False


FORMATS: Final[Mapping[str, tuple[type[Record], int]]] = {
    kind.__name__: (kind, 1) for kind in Record.__subclasses__()
}

# `LAYOUT`: the records that change more than rows. The placement check reads the newest number of these.
_OF_ROWS: Final = (RowsCommitted, TimeObserved, TopologyEntered)
LAYOUT: Final = tuple(kind for kind, _ in FORMATS.values() if kind not in _OF_ROWS)


def table_of(record: Record) -> int:
    """Return the id of the table that a record changes; 0 for the store. Ids begin at 1."""
    if isinstance(record, TableDefined):
        return record.table.id
    if isinstance(record, IndexDefined):
        return record.index.table
    return getattr(record, "table", 0)


def moved_tablet(record: MoveSwitched) -> Tablet:
    """Return the tablet after its move."""
    return replace(record.tablet, shard=record.target, epoch=record.tablet.epoch + 1)


def file_changes(record: Record) -> dict[int, FileChanges]:
    """Return the file changes of a record, by table id, ascending."""
    if isinstance(record, MoveSwitched):
        return dict(sorted(record.tables.items()))
    return {record.table: record.files} if isinstance(record, (RowsCommitted, FragmentsReplaced)) else {}


def file_statistics(record: Record) -> dict[int, bytes]:
    """Return the statistics of the files that a record adds, by their ordinals in `file_ids`.

    They are stored apart from the record: every process reads records, but only plans need statistics.
    """
    statistics, ordinal = dict[int, bytes](), 0
    for changes in file_changes(record).values():
        for added in changes.added:
            statistics[ordinal] = added.statistics
            ordinal += 1 + len(added.runs)
        ordinal += len(changes.runs)
    return {number: packed for number, packed in statistics.items() if packed}
