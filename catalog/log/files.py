"""The files of a table as a value: one Arrow table and the few changes since it was made.

A store can have a hundred thousand fragments, and every process that opens it holds them. As columns each
takes some 200 bytes, and those of a checkpoint are used as they were read; as objects they would take four
times that, and a hundred times as long to make. A change copies the changes before it, never the table; once
they are an eighth of it, the next table is made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.metadata import Fragment, IndexRun
from elasticscan.topology import SlotSet

_FEW_CHANGES = 64  # are never merged into the table

FRAGMENT_COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("slots", pa.string(), nullable=False),
        pa.field("slots_written", pa.int32(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("unique", pa.bool_(), nullable=False),
        pa.field("tombstones", pa.int64(), nullable=False),
        pa.field("versioned", pa.bool_(), nullable=False),
        pa.field("tail", pa.int64(), nullable=False),
        pa.field("digest", pa.int64(), nullable=False),
        pa.field("superseded_at", pa.int64()),
        pa.field("min_commit", pa.int64(), nullable=False),
        pa.field("max_commit", pa.int64(), nullable=False),
        pa.field("added", pa.int64(), nullable=False),
    ]
)
RUN_COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("fragment", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("tail", pa.int64(), nullable=False),
        pa.field("digest", pa.int64(), nullable=False),
    ]
)


def fragment_row(fragment: Fragment, added: int) -> dict[str, Any]:
    """Return a fragment as a row; `added` is the number of the record that brought it."""
    row = {name: getattr(fragment, name) for name in FRAGMENT_COLUMNS.names if name != "added"}
    return row | {"slots": str(fragment.slots), "added": added}


def fragment_of(row: Mapping[str, Any], table: int) -> Fragment:
    values = {name: row[name] for name in FRAGMENT_COLUMNS.names if name != "added"}
    return Fragment(**values | {"slots": SlotSet.parse(row["slots"])}, table=table)


def run_row(run: IndexRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in RUN_COLUMNS.names}


def run_of(row: Mapping[str, Any]) -> IndexRun:
    return IndexRun(**{name: row[name] for name in RUN_COLUMNS.names})


@dataclass(frozen=True, slots=True)
class FileSet:
    """Rows about files, each with an id of its own.

    Attributes:
        base: the rows as they were at the newest merge.
        added: rows that came since, by id.
        slots: of rows of `base`, the slots that they serve now.
        removed: ids of rows of `base` that are gone.
    """

    base: pa.Table
    added: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    slots: Mapping[int, str] = field(default_factory=dict)
    removed: frozenset[int] = frozenset()

    @classmethod
    def empty(cls, schema: pa.Schema) -> FileSet:
        return cls(schema.empty_table())

    def __len__(self) -> int:
        return int(self.base.num_rows) - len(self.removed) + len(self.added)

    def with_added(self, rows: Iterable[Mapping[str, Any]]) -> FileSet:
        new = {row["id"]: row for row in rows}
        return replace(self, added={**self.added, **new})._merged() if new else self

    def with_removed(self, ids: Collection[int]) -> FileSet:
        """Return the set without some rows; the caller has checked that they are there."""
        if not ids:
            return self
        added = {file: row for file, row in self.added.items() if file not in ids}
        slots = {file: text for file, text in self.slots.items() if file not in ids}
        removed = self.removed.union(file for file in ids if file not in self.added)
        return FileSet(self.base, added, slots, removed)._merged()

    def with_slots(self, slots: Mapping[int, SlotSet]) -> FileSet:
        """Return the set with other slots of some rows."""
        if not slots:
            return self
        texts = {file: str(some) for file, some in slots.items()}
        added = {
            file: {**row, "slots": texts[file]} if file in texts else row for file, row in self.added.items()
        }
        own = {file: text for file, text in texts.items() if file not in self.added}
        return replace(self, added=added, slots={**self.slots, **own})._merged()

    def missing(self, ids: Collection[int]) -> set[int]:
        """Return those of some ids that are not in the set."""
        asked = set(ids) - self.added.keys()
        if not asked:
            return set()
        there = pc.filter(self.base["id"], pc.is_in(self.base["id"], pa.array(sorted(asked), pa.int64())))
        return asked - (set(there.to_pylist()) - self.removed)

    def merged(self) -> pa.Table:
        """Return all rows as one table, ascending by file."""
        kept = self.base
        if self.removed:
            gone = pc.is_in(kept["id"], pa.array(sorted(self.removed), pa.int64()))
            kept = kept.filter(pc.invert(gone))
        if self.slots:
            at = np.flatnonzero(np.isin(kept["id"].to_numpy(), list(self.slots)))
            texts = [self.slots[file] for file in kept["id"].take(pa.array(at)).to_pylist()]
            mask = np.zeros(kept.num_rows, np.bool_)
            mask[at] = True
            column = pc.replace_with_mask(kept["slots"], pa.array(mask), pa.array(texts, pa.string()))
            kept = kept.set_column(kept.schema.get_field_index("slots"), kept.schema.field("slots"), column)
        if self.added:
            rows = [self.added[file] for file in sorted(self.added)]
            kept = pa.concat_tables([kept, pa.Table.from_pylist(rows, schema=kept.schema)])
        return kept.combine_chunks()

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows one by one, ascending by file."""
        rows: list[dict[str, Any]] = self.merged().to_pylist()
        return rows

    def where(self, column: str, values: Collection[int]) -> list[dict[str, Any]]:
        """Return the rows whose column has one of some values."""
        asked = pa.array(sorted(values), self.base.schema.field(column).type)
        some = self.base.filter(pc.is_in(self.base[column], asked))
        rows: list[dict[str, Any]] = [
            {**row, "slots": self.slots[row["id"]]} if row["id"] in self.slots else row
            for row in some.to_pylist()
            if row["id"] not in self.removed
        ]
        return rows + [dict(row) for row in self.added.values() if row[column] in values]

    def _merged(self) -> FileSet:
        """Return the same set, with its changes merged if they are many."""
        changes = len(self.added) + len(self.slots) + len(self.removed)
        if changes <= max(_FEW_CHANGES, self.base.num_rows // 8):
            return self
        return FileSet(self.merged())
