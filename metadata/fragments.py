"""Facts about fragments that need no opening: which of their rows count, by commit and slot; and tables."""

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

MEMORY: Final = 0  # the shard of fragments that lie in the memory of a process; others begin at 1


@dataclass(frozen=True, slots=True)
class FragmentFile:
    """A fragment's file.

    Attributes:
        shard: id of the shard whose disk holds it.
        path: its path below the shard's root.
        slots: the slots that it serves.
        unique: no key occurs in it twice (false once it holds several versions of a row).
        tombstones: how many of its rows say that a key was deleted.
        versioned: it has a `_commit` column; otherwise all its rows are of one commit.
        tail, digest: see `Seal`.
        superseded_at: of history: from this snapshot on none needs a row of it; None for current rows.
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
        """Return False for history that no snapshot from this one on reads."""
        return self.superseded_at is None or snapshot < self.superseded_at


@dataclass(frozen=True, slots=True)
class StagedFragment(FragmentFile):
    """A fragment that is written and flushed but that no commit refers to yet.

    Attributes:
        runs: its entries in the table's secondary indexes.
        slots_left: the number of slots that it was written for and does not serve, since they moved away.
        min_commit, max_commit: bounds of its rows' commits; 0 stands for the number of its record.
        statistics: packed `FragmentStatistics`; empty when there are none. Kept apart from the record.
    """

    runs: tuple[StagedRun, ...] = ()
    slots_left: int = 0
    min_commit: int = 0
    max_commit: int = 0
    statistics: Packed = field(default=b"", metadata={"apart": True})

    @property
    def slots_written(self) -> int:
        """The number of slots that its rows may be of."""
        return len(self.slots) + self.slots_left

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of its file and those of its runs."""
        return (self.path, *(run.path for run in self.runs))

    def serving(self, slots: SlotSet) -> StagedFragment:
        """Return the same file, serving these slots: some of its own, or others of which it has no rows."""
        return replace(self, slots=slots, slots_left=self.slots_left + len(self.slots - slots))

    def entered(self, id: int, table: int, number: int = 0) -> Fragment:  # noqa: A002
        """Return the fragment, once a record of this number has entered it."""
        file = {field.name: getattr(self, field.name) for field in fields(FragmentFile)}
        file |= {"min_commit": self.min_commit or number, "max_commit": self.max_commit or number}
        return Fragment(id=id, table=table, slots_written=self.slots_written, **file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment(FragmentFile):
    """A fragment that the catalog knows: where it is and which commits its rows belong to.

    `slots` are those it serves now, `slots_written` how many it was written for: slots that
    moved away leave their rows behind until the next compaction.
    """

    id: int
    table: int
    min_commit: int
    max_commit: int
    slots_written: int = 0

    @property
    def serving_bytes(self) -> int:
        """About how many of its bytes belong to slots that it still serves."""
        return self.bytes * len(self.slots) // max(self.slots_written, len(self.slots), 1)

    @property
    def density(self) -> float:
        """About how many rows it has of each slot."""
        return self.rows / max(self.slots_written, len(self.slots), 1)


def floor_at(overwrites: Iterable[int], snapshot: int) -> int:
    """Return the newest overwrite up to a snapshot: rows of earlier commits are not in it; 0 for none."""
    return max((number for number in overwrites if number <= snapshot), default=0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The commits that count: from `floor` (everything before was overwritten) to `snapshot`.

    `since` is the oldest snapshot that is looked at: history that only older ones need does not count.
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
    """Slots `[start, end)` that are served by the same fragments."""

    start: int
    end: int
    fragments: tuple[Fragment, ...]


def intervals_of(fragments: Iterable[Fragment]) -> tuple[SlotInterval, ...]:
    """Sorted, disjoint intervals covering every slot that some fragment serves."""
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
    `retention_seconds` is the table's own, if it has one.

    Attributes:
        definition: its number; each change of columns makes the next one.
        columns: all columns that there ever were, in the order in which they came; empty while the first
            definition stands.
        names_of: the definition whose columns `schema` names, where that is an older one.
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
        """Return the next definition."""
        definition = self.definition + 1
        return replace(self, definition=definition, columns=columns, schema=schema_at(columns, definition))

    def at(self, definition: int) -> TableInfo:
        """Return the table as a definition of it has it: its names and its types.

        Raises:
            TableChanged: there is no such definition.
        """
        if definition == self.definition:
            return self
        if not 0 < definition < self.definition:
            raise TableChanged(
                f"table {self.name!r} has no definition {definition}, the newest is {self.definition}; an "
                "older catalog was put back: start a new scan",
                table=self.name,
            )
        then = tuple(column for c in self.columns if (column := c.at(definition)) is not None)
        schema = schema_at(then, definition)
        return replace(self, definition=definition, columns=() if definition == 1 else then, schema=schema)

    def named_as(self, definition: int) -> TableInfo:
        """Return the table with the columns that a definition names, in the types of this one."""
        if definition == self.definition:
            return self
        fields = schema_at(self.columns, definition)
        by_name = self.by_name(definition)
        # A column that was dropped since is null in what came later.
        nullable = [f.nullable or by_name[f.name].until is not None for f in fields]
        named = [f.with_nullable(is_null) for f, is_null in zip(fields, nullable, strict=True)]
        return replace(self, schema=pa.schema(named), names_of=definition)

    def with_dropped(self, oldest: int) -> TableInfo:
        """Return the table including the columns that scans of this or a later snapshot may still read."""
        gone = [c for c in self.columns if c.until is not None and c.last_commit >= oldest]
        fields = [pa.field(column.dropped_name, column.type) for column in gone]
        return replace(self, schema=pa.schema([*self.schema, *fields])) if gone else self

    def by_name(self, definition: int | None = None) -> dict[str, TableColumn]:
        """Return the columns by the names that a definition, or `schema`, gives them, and dropped ones."""
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
