"""Memory fragments: rows of small commits that lie in the log of a store, and in no file yet.

The log keeps the rows of such a commit as one record batch, sorted as in a fragment. Whoever reads the table
brings those of all its commits into one order, each row with the number of its commit, and writes them as a
fragment to a disk in memory. So pages, lookups, counts, changes, index runs and copies read them by the one
way to rows that there is. A flush writes the same rows to the disk of a shard instead.

The file's form stays the same, so a tombstone has one form, too. A batch has the columns of the definition
by which it was written; commits of two definitions make two fragments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from elasticscan.base.errors import RESTORE, StoreDamaged
from elasticscan.base.order_keys import sort_codes
from elasticscan.metadata import AddedFragment, Origin, TableInfo
from elasticscan.storage.disk import Disk
from elasticscan.storage.fragment import (
    COMMIT,
    DELETED,
    SLOT,
    Contents,
    FragmentTarget,
    fragment_schema,
    write_fragment,
)
from elasticscan.storage.merge import first_of_keys
from elasticscan.topology import SlotSet


def pack_rows(rows: pa.RecordBatch) -> bytes:
    """Return the sorted rows of a commit as the log keeps them: a record batch message without its schema."""
    packed: bytes = rows.serialize().to_pybytes()
    return packed


def unpack_rows(table: TableInfo, packed: bytes, tombstones: bool) -> pa.RecordBatch:
    """Return the rows of a commit, whose digest was checked, by the definition they were written by.

    Raises:
        StoreDamaged: they are no rows of that definition.
    """
    schema = fragment_schema(table.schema, versioned=False, tombstones=tombstones)
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(packed), schema)
        rows.validate(full=True)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise StoreDamaged(
            f"rows of table {table.name!r} in the log cannot be read ({error}); {RESTORE}"
        ) from error
    return rows


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """Rows of several commits, by (slot, primary key, newest first), each with its commit's number."""

    table: TableInfo
    rows: pa.RecordBatch
    unique: bool

    @classmethod
    def of(cls, table: TableInfo, commits: Mapping[int, pa.RecordBatch]) -> CommittedRows:
        """Merge the rows of commits, by their numbers; all are of the table's definition."""
        tombstones = any(DELETED in rows.schema.names for rows in commits.values())
        schema = fragment_schema(table.schema, versioned=True, tombstones=tombstones)
        parts = [_with_number(rows, number, schema) for number, rows in sorted(commits.items())]
        rows = pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], schema=schema)
        slots = rows.column(SLOT).to_numpy()
        codes = [sort_codes(rows.column(name)) for name in table.primary_key]
        order = np.lexsort((-rows.column(COMMIT).to_numpy(), *reversed(codes), slots))
        unique = bool(first_of_keys(order, (slots, *codes)).all())
        return cls(table, rows.take(pa.array(order)), unique)

    def within(self, slots: SlotSet) -> CommittedRows:
        """Return the rows of some slots."""
        mask = slots.mask(self.rows.column(SLOT).to_numpy())
        return (
            self if mask.all() else CommittedRows(self.table, self.rows.filter(pa.array(mask)), self.unique)
        )

    def write(self, disk: Disk, shard: int, slots: SlotSet, origin: Origin) -> AddedFragment:
        """Write them, at least one, as a fragment that serves `slots`: to memory, or to a shard's disk."""
        assert self.rows.num_rows, "a fragment without rows is never written"
        target = FragmentTarget(disk, shard, self.table, self.rows.schema, origin)
        numbers = self.rows.column(COMMIT).to_numpy()
        low, high = int(numbers.min()), int(numbers.max())
        contents = Contents(min_commit=low, max_commit=high, unique=self.unique)
        return AddedFragment(write_fragment(target, slots, [self.rows], contents), low, high)


def _with_number(rows: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of one commit with all system columns of a schema."""
    count = rows.num_rows
    columns = {name: rows.column(name) for name in rows.schema.names}
    columns[COMMIT] = pa.repeat(pa.scalar(number, pa.int64()), count)
    columns.setdefault(DELETED, pa.repeat(pa.scalar(False), count))
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
