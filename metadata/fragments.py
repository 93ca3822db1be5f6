"""Tables, and the metadata of fragments: which of their rows to read, by commit and slot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Final

import pyarrow as pa

from elasticscan.base.errors import NotFound, TableChanged
from elasticscan.base.suggestions import suggest
from elasticscan.metadata.columns import TableColumn, columns_of_schema, schema_at
from elasticscan.metadata.indexes import StagedRun
from elasticscan.metadata.manifest import Seal
from elasticscan.metadata.statistics import Packed
from elasticscan.topology import SlotSet

MEMORY: Final = 0  # the shard of fragments in the memory of a process; ids of real shards begin at 1


@dataclass(frozen=True, slots=True)
class FragmentFile:
    """A fragment's file.

    Attributes:
        shard: the id of the shard that stores it.
        path: its path below the shard's root.
        slots: the slots that it serves.
        unique: no key occurs twice in it; False if it contains several versions of a row.
        tombstones: the number of its rows that are tombstones.
        versioned: it has a `_commit` column; otherwise all its rows are of one commit.
        tail, digest: see `Seal`.
        superseded_at: for history, the first snapshot that needs none of its rows; None for current rows.
    """

    shard: int
    path: str
    slots: SlotSet
    rows: int
    bytes: int
    unique: bool
    tombstones: int
    versioned: bool
    tail: int
    digest: int
    superseded_at: int | None = None

    @property
    def seal(self) -> Seal:
        return Seal(self.bytes, self.tail, self.digest)

    def is_needed_at(self, snapshot: int) -> bool:
        """Return False for history that neither this snapshot nor a later one needs."""
        return self.superseded_at is None or snapshot < self.superseded_at


@dataclass(frozen=True, slots=True)
class StagedFragment(FragmentFile):
    """A fragment that is written and flushed, but that no commit refers to yet.

    Attributes:
        runs: its runs of the table's secondary indexes.
        slots_left: the number of slots that it was written for but does not serve, because they moved away.
        min_commit, max_commit: bounds of its rows' commits; 0 stands for the number of its record.
        statistics: packed `FragmentStatistics`, or empty; stored separately from the record.
    """

    runs: tuple[StagedRun, ...] = ()
    slots_left: int = 0
    min_commit: int = 0
    max_commit: int = 0
    statistics: Packed = field(default=b"", metadata={"apart": True})

    @property
    def slots_written(self) -> int:
        """The number of slots that it was written for."""
        return len(self.slots) + self.slots_left

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of its file and of its runs."""
        return (self.path, *(run.path for run in self.runs))

    def serving(self, slots: SlotSet) -> StagedFragment:
        """Return the same file, serving these slots: a part of its slots, or slots without rows in it."""
        return replace(self, slots=slots, slots_left=self.slots_left + len(self.slots - slots))

    def entered(self, id: int, table: int, number: int = 0) -> Fragment:  # noqa: A002
        """Return the fragment as the log has it after the record with this number."""
        file = {field.name: getattr(self, field.name) for field in fields(FragmentFile)}
        file |= {"min_commit": self.min_commit or number, "max_commit": self.max_commit or number}
        return Fragment(id=id, table=table, slots_written=self.slots_written, **file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment(FragmentFile):
    """A fragment that the catalog knows: its location, and bounds of its rows' commits.

    `slots` are the slots that it serves now, `slots_written` is the number of slots that it was written for:
    the rows of slots that moved away stay in the file until the next compaction.
    """

    id: int
    table: int
    min_commit: int
    max_commit: int
    slots_written: int = 0

    @property
    def serving_bytes(self) -> int:
        """The estimated bytes of the slots that it still serves."""
        return self.bytes * len(self.slots) // max(self.slots_written, len(self.slots), 1)

    @property
    def density(self) -> float:
        """The estimated number of rows of each slot."""
        return self.rows / max(self.slots_written, len(self.slots), 1)


def floor_at(overwrites: Iterable[int], snapshot: int) -> int:
    """Return the newest overwrite up to a snapshot, which has no rows of earlier commits; 0 for none."""
    return max((number for number in overwrites if number <= snapshot), default=0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The commits to read: from `floor` (an overwrite removed all rows before it) to `snapshot`.

    `since` is the oldest snapshot that the reader needs: history that only older ones need is skipped.
    """

    floor: int
    snapshot: int
    since: int = 0

    def wholly_hold(self, fragment: Fragment) -> bool:
        return self.floor <= fragment.min_commit and fragment.max_commit <= self.snapshot

    def touch(self, fragment: Fragment) -> bool:
        within = self.floor <= fragment.max_commit and fragment.min_commit <= self.snapshot
        return within and fragment.is_needed_at(self.since)


@dataclass(frozen=True, slots=True)
class SlotInterval:
    """A range of slots `[start, end)` that the same fragments serve."""

    start: int
    end: int
    fragments: tuple[Fragment, ...]


def intervals_of(fragments: Iterable[Fragment]) -> tuple[SlotInterval, ...]:
    """Return sorted, disjoint intervals of all slots that the fragments serve."""
    begins, ends = defaultdict[int, list[Fragment]](list), defaultdict[int, list[Fragment]](list)
    for fragment in {fragment.id: fragment for fragment in fragments}.values():
        for start, end in fragment.slots:
            begins[start].append(fragment)
            ends[end].append(fragment)
    intervals: list[SlotInterval] = []
    active: dict[int, Fragment] = {}
    previous = 0
    for at in sorted({*begins, *ends}):
        if active:
            intervals.append(SlotInterval(previous, at, tuple(active.values())))
        for fragment in ends[at]:
            del active[fragment.id]
        active |= {fragment.id: fragment for fragment in begins[at]}
        previous = at
    return tuple(intervals)


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table's definition.

    `shard_key` is a prefix of `primary_key`. Snapshots before `oldest_snapshot` cannot be read.
    `retention_seconds` is None if the table uses the store's retention.

    Attributes:
        definition: the number of this definition; each change of columns makes the next one.
        columns: all columns that the table ever had, in the order in which they were added; empty in the
            first definition.
        names_of: the older definition whose column names `schema` has; None if it is this definition.
    """

    id: int
    name: str
    schema: pa.Schema
    primary_key: tuple[str, ...]
    shard_key: tuple[str, ...]
    compression: str | None
    created_commit: int
    oldest_snapshot: int
    retention_seconds: float | None = None
    definition: int = 1
    columns: tuple[TableColumn, ...] = ()
    names_of: int | None = None

    @property
    def all_columns(self) -> tuple[TableColumn, ...]:
        return self.columns or columns_of_schema(self.schema)

    def redefined(self, columns: tuple[TableColumn, ...]) -> TableInfo:
        """Return the next definition, with these columns."""
        definition = self.definition + 1
        return replace(self, definition=definition, columns=columns, schema=schema_at(columns, definition))

    def at(self, definition: int) -> TableInfo:
        """Return the table with the names and types of a definition.

        Raises:
            TableChanged: the definition does not exist.
        """
        if definition == self.definition:
            return self
        if not 0 < definition < self.definition:
            raise TableChanged(
                f"table {self.name!r} has no definition {definition}, the newest is {self.definition}; an "
                "older catalog was restored: start a new scan",
                table=self.name,
            )
        then = tuple(column for c in self.columns if (column := c.at(definition)) is not None)
        schema = schema_at(then, definition)
        return replace(self, definition=definition, columns=() if definition == 1 else then, schema=schema)

    def named_as(self, definition: int) -> TableInfo:
        """Return the table with the columns and names of an older definition, in the types of this one."""
        if definition == self.definition:
            return self
        fields = schema_at(self.columns, definition)
        by_name = self.by_name(definition)
        # A column that was dropped later is null in files that were written after that.
        nullable = [f.nullable or by_name[f.name].until is not None for f in fields]
        named = [f.with_nullable(is_null) for f, is_null in zip(fields, nullable, strict=True)]
        return replace(self, schema=pa.schema(named), names_of=definition)

    def with_dropped(self, oldest: int) -> TableInfo:
        """Return the table with the dropped columns that scans of snapshots from `oldest` on may read."""
        dropped = [c for c in self.columns if c.until is not None and c.last_commit >= oldest]
        fields = [pa.field(column.dropped_name, column.type) for column in dropped]
        return replace(self, schema=pa.schema([*self.schema, *fields])) if dropped else self

    def by_name(self, definition: int | None = None) -> dict[str, TableColumn]:
        """Return all columns by name: that in a definition, or in `schema`, or `dropped_name`."""
        at = definition or self.names_of or self.definition
        named = {column.dropped_name: column for column in self.columns if column.until is not None}
        return named | {name: c for c in self.all_columns if (name := c.name_at(at)) is not None}


# The columns that a change feed adds to a table's own.
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
CHANGE_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)

# The columns that a read in Spark adds with `includeMetadata`, and the prefix of columns that SQL adds.
SHARD_COLUMN, SLOT_COLUMN, QUERY_PREFIX = "_shard", "_slot", "_elasticscan_"


def no_such_column(table: str, column: str, columns: Iterable[str]) -> NotFound:
    """Return the error about a column that a table does not have, with a suggestion."""
    names = list(columns)
    hint = suggest(column, names) or f"; it has {', '.join(names)}"
    return NotFound(f"table {table!r} has no column {column!r}{hint}", column=column, kind="column")
