"""The records of a store's log, as frozen values.

    record               what it says
    StoreCreated         a store with its shards and tablets
    ShardDefined         a shard was added, is draining, or was removed
    TableDefined         a table was created, or its columns or policy changed
    TableDropped         a table is gone
    IndexDefined         an index was entered, or its phase changed
    RowsCommitted        a write: rows in the log itself, or files
    FragmentsReplaced    other files, or files in place of rows in the log: flush, compaction, index build
    MoveSwitched         a tablet is served by another shard, with the files that it has there
    TabletsChanged       tablets were split or joined
    HorizonRaised        snapshots of a table before a number can no longer be read
    TagChanged           a name for a snapshot was given or dropped
    SecretChanged        a secret that seals continuation keys was made or dropped
    TimeObserved         nothing but the time
    TopologyEntered      a placement entered the topology history
    FilesCondemned       files that no record names are about to be removed
    StoreAdopted         the store goes on as another copy, perhaps beyond numbers that were lost

What a record says of the files of a table is the table's `FileChanges`. A record is immutable, and so is its
form: one whose fields change gets another number in `FORMATS`, and what reads the old form stays. A program
that does not know a record's kind or format reads no further (`StoreTooNew`).

Ids of files are made of the number of the record that brought them (`file_id`), so no counter is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from elasticscan.metadata.fragments import StagedFragment, TableInfo
from elasticscan.metadata.indexes import IndexInfo, StagedRun
from elasticscan.topology import Shard, SlotSet, Tablet

STORE: Final = 0  # the number under which a record's value for the store is kept; tables begin at 1
MAX_FILES: Final = 1 << 16  # that one record can bring
NO_SLOTS: Final = SlotSet()


def file_id(number: int, ordinal: int) -> int:
    """Return the id of the file that a record brought at a place in its list."""
    assert 0 <= ordinal < MAX_FILES, f"a record brings at most {MAX_FILES} files"
    return number * MAX_FILES + ordinal


@dataclass(frozen=True, slots=True)
class AddedFragment:
    """A fragment that a record brings.

    `min_number` and `max_number` bound the numbers of its rows' commits; 0 stands for the record's own.
    """

    file: StagedFragment
    min_number: int = 0
    max_number: int = 0


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

    added: tuple[AddedFragment, ...] = ()
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
    """What an entry of the log says: one of the values below."""


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
    table: int


@dataclass(frozen=True)
class IndexDefined(Record):
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
    """Other files with the same rows.

    Attributes:
        horizon: the one by which versions were left out.
        served: how many slots its sources, fragments and commits in the log, served in sum when their rows
            were copied. What each serves only shrinks: the same sum says that none was moved or replaced.
    """

    table: int
    operation: str
    horizon: int
    files: FileChanges
    served: int = 0


@dataclass(frozen=True)
class MoveSwitched(Record):
    """A tablet is served by another shard from now on.

    Attributes:
        tablet: as it was.
        target: the shard that serves it from now on, with the next epoch.
        copied_to: the number of the state up to which its rows were copied.
        tables: the changed files of each table.
    """

    tablet: Tablet
    target: int
    copied_to: int
    tables: Mapping[int, FileChanges] = field(default_factory=dict)


@dataclass(frozen=True)
class TabletsChanged(Record):
    before: tuple[Tablet, ...]
    after: tuple[Tablet, ...]


@dataclass(frozen=True)
class HorizonRaised(Record):
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
    pass


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
    """Return the table that a record is about; `STORE` for the others."""
    if isinstance(record, TableDefined):
        return record.table.id
    if isinstance(record, IndexDefined):
        return record.index.table
    return getattr(record, "table", STORE)


def moved_tablet(record: MoveSwitched) -> Tablet:
    """Return the tablet as it is after its move."""
    return replace(record.tablet, shard=record.target, epoch=record.tablet.epoch + 1)


def file_count(files: FileChanges) -> int:
    """Return how many ids the files take that a record brings to a table."""
    return len(files.added) + sum(len(each.file.runs) for each in files.added) + len(files.runs)


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
        for each in changes.added:
            statistics[ordinal] = each.file.statistics
            ordinal += 1 + len(each.file.runs)
        ordinal += len(changes.runs)
    return {number: packed for number, packed in statistics.items() if packed}
