"""Memory fragments: rows of the log, as fragment files in memory.

The log stores the rows of each small commit as one sorted record batch. A process that reads the table merges
these batches, adds its commit number to each row, and writes the result as a fragment into its memory.
So pages, lookups, counts, changes, index runs and copies read rows of the log with the code that reads files.
A flush copies them to the disk of a shard. Rows that are staged for a small commit become a memory fragment
when they are read.

A memory fragment belongs to the shard `MEMORY`, whose disk is the memory of this process. Its file is freed
with the last fragment or reader that refers to it.

A batch has the columns of the table's definition at its commit; commits of two definitions make two
fragments. The values of a tombstone are null, as in files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from io import BytesIO
from typing import BinaryIO, Final
from weakref import WeakValueDictionary

import pyarrow as pa

from elasticscan.base.errors import RESTORE, StoreDamaged
from elasticscan.metadata import MEMORY, Fragment, IndexInfo, IndexRun, Origin, StagedFragment, TableInfo
from elasticscan.storage.disk import Disk, MemoryFile
from elasticscan.storage.disk.errors import missing_file
from elasticscan.storage.fragment import COMMIT, DELETED, SLOT, fragment_schema
from elasticscan.storage.fragment_writer import Contents, Destination, new_path, write_fragment
from elasticscan.storage.indexes.run import build_runs
from elasticscan.storage.merge import key_order
from elasticscan.topology import SlotSet


def pack_rows(rows: pa.RecordBatch) -> bytes:
    """Return the sorted rows of a commit as bytes for the log: a record batch message without a schema."""
    packed: bytes = rows.serialize().to_pybytes()
    return packed


def schema_in_log(table: TableInfo, tombstones: bool) -> pa.Schema:
    """Return the schema of rows in the log, given the definition by which they were written."""
    return fragment_schema(table.schema, versioned=False, tombstones=tombstones)


def unpack_rows(name: str, schema: pa.Schema, packed: bytes) -> pa.RecordBatch:
    """Return the rows of a commit from the log, whose digest was checked; `schema` is from `schema_in_log`.

    Raises `StoreDamaged` if the bytes are not rows of this schema; `name` is that of the table.
    """
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(packed), schema)
        rows.validate(full=True)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise StoreDamaged(
            f"rows of table {name!r} in the log cannot be read ({error}); {RESTORE}"
        ) from error
    return rows


_FILES: Final = WeakValueDictionary[str, MemoryFile]()


class _HeldFiles(Disk):
    """The disk of memory fragments: a file exists while it is referenced. `new` lists the files made here."""

    def __init__(self) -> None:
        self.new: list[MemoryFile] = []

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        content = BytesIO()
        yield content
        file = _FILES[path] = MemoryFile(content.getvalue())
        self.new.append(file)

    def open(self, path: str) -> MemoryFile:
        file = _FILES.get(path)
        if file is None:
            raise missing_file(path)
        return file

    def delete(self, path: str) -> None:
        """Do nothing: a file is freed with its last reference."""

    def note(self, path: str, content: bytes) -> None:
        raise NotImplementedError("there are no markers in memory")

    def list(self) -> list[tuple[str, float]]:
        return []


MEMORY_DISK: Final = _HeldFiles()
_ORIGIN: Final = Origin("", 0, "", "memory", "", 0, 0.0, ())  # of a file that no other process sees


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFragment(Fragment):
    """A fragment of committed rows in memory, with its file, rows and packed statistics."""

    statistics: bytes = field(compare=False, repr=False)
    file: MemoryFile = field(compare=False, repr=False)
    content: pa.RecordBatch = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedInMemory(StagedFragment):
    """Staged rows in memory, sorted by (slot, primary key), with the columns of one definition.

    Their Arrow file is made, in memory, when the rows are first read as a fragment.
    """

    table: TableInfo = field(compare=False, repr=False)
    content: pa.RecordBatch = field(compare=False, repr=False)

    @classmethod
    def of(cls, table: TableInfo, rows: pa.RecordBatch, slots: SlotSet) -> StagedInMemory:
        """Stage sorted rows with a `_slot` column, and a `_deleted` column if some may be tombstones."""
        tombstones = rows.column(DELETED).true_count if DELETED in rows.schema.names else 0
        rows = _completed(rows, schema_in_log(table, tombstones > 0))
        return cls(
            shard=MEMORY,
            path=new_path(table.id),
            slots=slots,
            rows=rows.num_rows,
            bytes=rows.nbytes,
            unique=True,
            tombstones=tombstones,
            versioned=False,
            tail=0,
            digest=0,
            table=table,
            content=rows,
        )

    def entered(self, id: int, table: int, number: int = 0) -> MemoryFragment:  # noqa: A002
        """Return the rows as a memory fragment with this commit number."""
        contents = Contents(min_commit=number, max_commit=number)
        return _in_memory(self.table, self.content, self.slots, contents, id)


def joined(staged: Sequence[StagedInMemory]) -> StagedInMemory:
    """Merge the parts of one write, which have no key in common."""
    table, tombstones = staged[0].table, any(part.tombstones for part in staged)
    schema = schema_in_log(table, tombstones)
    rows = pa.concat_batches([_completed(part.content, schema) for part in staged])
    order, _ = key_order(rows, table.primary_key, rows.column(SLOT).to_numpy())
    ordered = rows.take(pa.array(order))
    return StagedInMemory.of(table, ordered, SlotSet.union(part.slots for part in staged))


def memory_runs(
    table: TableInfo, index: IndexInfo, fragment: MemoryFragment
) -> tuple[list[IndexRun], list[MemoryFile]]:
    """Return the runs of an index for a memory fragment, and their files.

    The caller must keep the files alive, because the registry of files has only weak references.

    Raises:
        LimitExceeded: an entry's key is too long.
    """
    disk = _HeldFiles()
    staged = build_runs(disk, table, index, fragment, _ORIGIN)
    runs = [run.entered(number, fragment.id) for number, run in enumerate(staged)]
    return runs, disk.new


def _in_memory(
    table: TableInfo, rows: pa.RecordBatch, slots: SlotSet, contents: Contents, number: int
) -> MemoryFragment:
    disk = _HeldFiles()
    to = Destination(disk, MEMORY, _ORIGIN)
    staged = write_fragment(to, replace(table, compression=None), slots, [rows], contents)
    plain = staged.entered(number, table.id)
    values = {each.name: getattr(plain, each.name) for each in fields(Fragment)}
    return MemoryFragment(**values, statistics=staged.statistics, file=disk.new[0], content=rows)


def numbered(rows: pa.RecordBatch, commit: int) -> pa.RecordBatch:
    """Return rows with a column of their commit's number."""
    numbers = pa.repeat(pa.scalar(commit, pa.int64()), rows.num_rows)
    return rows.append_column(pa.field(COMMIT, pa.int64(), nullable=False), numbers)


def memory_fragment(
    table: TableInfo, parts: Sequence[pa.RecordBatch], number: int, slots: SlotSet
) -> MemoryFragment:
    """Merge `numbered` rows of the table's definition, at least one, into a fragment that serves `slots`."""
    tombstones = any(DELETED in rows.schema.names for rows in parts)
    schema = fragment_schema(table.schema, versioned=True, tombstones=tombstones)
    rows = pa.concat_batches([_completed(rows, schema) for rows in parts])
    row_slots, commits = (rows.column(name).to_numpy() for name in (SLOT, COMMIT))
    order, first = key_order(rows, table.primary_key, row_slots, -commits)
    contents = Contents(int(commits.min()), int(commits.max()), unique=bool(first.all()))
    return _in_memory(table, rows.take(pa.array(order)), slots, contents, number)


def _completed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows in the columns of a schema; `_deleted` is added as false, or left out, as needed."""
    columns = {name: rows.column(name) for name in rows.schema.names}
    columns.setdefault(DELETED, pa.repeat(pa.scalar(False), rows.num_rows))
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
