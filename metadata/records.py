"""The records of a store's log, as frozen values.

What a record says of the files of a table is the table's `FileChanges`. A record is immutable, and so is its
form: one whose fields change gets another number in `FORMATS`, and what reads the old form stays. A program
that does not know a record's kind or format reads no further (`StoreTooNew`).

Ids of files are made of the number of the record that brought them (`file_ids`), so no counter is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from elasticscan.metadata.fragments import StagedFragment, TableInfo
from elasticscan.metadata.indexes import IndexInfo, StagedRun
from elasticscan.topology import Shard, SlotSet, Tablet

MAX_FILES: Final = 1 << 16  # that one record can bring
NO_SLOTS: Final = SlotSet()


def file_ids(number: int) -> Iterator[int]:
    """Return the ids of files that a record brings: fragments, each followed by its runs, then other runs."""
    return iter(range(number * MAX_FILES, (number + 1) * MAX_FILES))


@dataclass(frozen=True, slots=True)
class AddedRun:
    """A run of an index that a record brings to a fragment that was there before."""

    fragment: int
    run: StagedRun


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Changes of the files of one table.

    Attributes:
        added: fragments, with the runs of their indexes.
        runs: runs of fragments that were there before.
        slots: the slots that fragments serve from now on, by the fragments' ids; none of those that go.
        flushed: numbers of commits whose rows of `flushed_slots` lie in the added files from now on.
        forgotten: paths, by shard, of removed files that are gone from their disks.
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
    """A secret that seals keys, or signs offsets; `made_at` is in seconds since 1970."""

    id: int
    purpose: str
    secret: bytes = field(repr=False)
    made_at: float


class Record:
    """The content of an entry of the log: one of the values below."""


@dataclass(frozen=True)
class StoreCreated(Record):
    """A store begins, as number 0.

    Attributes:
        incarnation: the id of this copy of it.
        created_at: in seconds since 1970.
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
    """The store is another copy from now on; its own number may be any beyond the one before.

    `commit` is the newest commit that any copy was known to have: a lower number names no other one.
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
    """A table as it is from now on.

    Attributes:
        made_from: the definition that it replaces; 0 for a table that was not there.
        operation: "create" where the table's history begins with this.
        reserved: it is not seen yet: files may be staged for it.
    """

    table: TableInfo
    made_from: int
    operation: str | None = None
    reserved: bool = False


@dataclass(frozen=True)
class TableDropped(Record):
    """A table is gone."""

    table: int


@dataclass(frozen=True)
class IndexDefined(Record):
    """An index was entered, or its phase changed."""

    index: IndexInfo


@dataclass(frozen=True)
class RowsCommitted(Record):
    """A write of rows.

    Attributes:
        operation: its name in the table's history: write, delete, overwrite, …
        definition: the number of the table's definition by which its rows are written.
        rows: how many rows it writes, tombstones included; `tombstones` says how many these are.
        bytes: their size, in the log or in files.
        slots: those of its rows in the log; empty if they are in files.
        overwrites: all rows of earlier commits are gone with it.
        based_on: the number of the state whose rows the write has read; 0 where it has read none.
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
    """Other files with the same rows."""

    table: int
    operation: str
    files: FileChanges


@dataclass(frozen=True)
class MoveSwitched(Record):
    """A tablet is served by another shard from now on.

    Attributes:
        tablet: as it was.
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
    """Snapshots of a table before a number can no longer be read."""

    table: int
    horizon: int


@dataclass(frozen=True)
class TagChanged(Record):
    """A tag of a table; `snapshot` is None where it was dropped."""

    table: int
    name: str
    snapshot: int | None


@dataclass(frozen=True)
class SecretChanged(Record):
    """A secret was made, or dropped, which `secret` is None for."""

    id: int
    secret: Secret | None


@dataclass(frozen=True)
class TimeObserved(Record):
    """Nothing but the time."""


@dataclass(frozen=True)
class TopologyEntered(Record):
    """A placement has a number in the topology history; the last one that is not published is replaced."""

    topology: int
    published: bool


@dataclass(frozen=True)
class FilesCondemned(Record):
    """Files, by shard and path, to which no record may refer any more; or may again, once they are gone."""

    files: tuple[tuple[int, str], ...]
    lifted: bool = False


FORMATS: Final[Mapping[str, tuple[type[Record], int]]] = {
    kind.__name__: (kind, 1) for kind in Record.__subclasses__()
}

# The records that change anything but rows: a placement check asks for the newest number of these.
_OF_ROWS: Final = (RowsCommitted, TimeObserved, TopologyEntered)
LAYOUT: Final = tuple(kind for kind, _ in FORMATS.values() if kind not in _OF_ROWS)


def table_of(record: Record) -> int:
    """Return the table that a record is about; 0 for the store: tables begin at 1."""
    if isinstance(record, TableDefined):
        return record.table.id
    if isinstance(record, IndexDefined):
        return record.index.table
    return getattr(record, "table", 0)


def moved_tablet(record: MoveSwitched) -> Tablet:
    """Return the tablet as it is after its move."""
    return replace(record.tablet, shard=record.target, epoch=record.tablet.epoch + 1)


def file_changes(record: Record) -> dict[int, FileChanges]:
    """Return the changes of files that a record makes, by table, ascending."""
    if isinstance(record, MoveSwitched):
        return dict(sorted(record.tables.items()))
    return {record.table: record.files} if isinstance(record, (RowsCommitted, FragmentsReplaced)) else {}


def file_statistics(record: Record) -> dict[int, bytes]:
    """Return what a record says of the values in its files, by the files' ordinals.

    It is no part of the record's value: every process reads values, and plans alone ask for statistics.
    """
    statistics, ordinal = dict[int, bytes](), 0
    for changes in file_changes(record).values():
        for added in changes.added:
            statistics[ordinal] = added.statistics
            ordinal += 1 + len(added.runs)
        ordinal += len(changes.runs)
    return {number: packed for number, packed in statistics.items() if packed}
