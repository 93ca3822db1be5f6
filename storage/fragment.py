"""The fragment file: a sorted, immutable Arrow IPC file. Only this module reads it.

Rows are sorted by (slot, primary key, newest first). After the user's columns come system columns: `_slot`
(uint16) always, `_commit` (int64) if rows are of several commits, `_deleted` (bool) if some rows are
tombstones, and `_until` (int64) in history: versions that only older snapshots, changes and copies need.
`_until` is the first snapshot that does not need the version. A record batch has up to `BATCH_ROWS` rows and
ends between two slots if possible, so that a page of whole slots is one slice of one batch. The file is
sealed (see `sealed_file`). Its manifest also has the place and the slots of each record batch.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.base.concurrency import cached_property
from elasticscan.base.errors import FragmentDamaged, TableChanged
from elasticscan.base.key_encoding import encode_row
from elasticscan.metadata import (
    Seal,
    TableColumn,
    TableInfo,
    is_widening,
)
from elasticscan.storage.batches.reader import UNREADABLE, BatchCache, BatchReader, Fields
from elasticscan.storage.disk import Disk
from elasticscan.storage.key_filter import KeyFilter
from elasticscan.storage.sealed_file import SealedFile, read_manifest
from elasticscan.topology import SlotSet

SLOT, COMMIT, DELETED, UNTIL = "_slot", "_commit", "_deleted", "_until"
SYSTEM_COLUMNS = (SLOT, COMMIT, DELETED, UNTIL)
FOREVER = (1 << 63) - 1  # `_until` of a row that is not history
_SYSTEM_TYPES = {SLOT: pa.uint16(), COMMIT: pa.int64(), DELETED: pa.bool_(), UNTIL: pa.int64()}
_LAST_SLOT = (1 << 16) - 1
_FORMAT = {b"elasticscan.fragment": b"1"}
_PATH = re.compile(r"t[0-9]+/[0-9a-f]{32}\.arrow(\.unfinished)?")


def fragment_schema(table: pa.Schema, versioned: bool, tombstones: bool, history: bool = False) -> pa.Schema:
    """Return the schema of a fragment. With tombstones all columns are nullable: their values are null."""
    fields = [field.with_nullable(True) if tombstones else field for field in table]
    system = zip(SYSTEM_COLUMNS, (True, versioned, tombstones, history), strict=True)
    fields += [pa.field(name, _SYSTEM_TYPES[name], nullable=False) for name, has_it in system if has_it]
    return pa.schema(fields, metadata=_FORMAT)


def is_fragment_path(path: str) -> bool:
    """Return whether a path has the form of a fragment or index run, finished or not; we remove no others."""
    return _PATH.fullmatch(path) is not None


def newest_commit_of(store: str, files: Iterable[tuple[Disk, str]]) -> int:
    """Return the newest commit in the manifests of a store's files, 0 for none; skip unreadable files."""
    newest = 0
    for disk, path in files:
        if is_fragment_path(path):
            with suppress(FragmentDamaged):
                manifest = read_manifest(disk, path)
                if manifest.store == store:
                    newest = max(newest, manifest.after_commit, manifest.max_commit)
    return newest


def stored_name(columns: Mapping[str, TableColumn], name: str) -> str:
    """Return the name of a column in files. System columns, which no definition has, keep their name."""
    return columns[name].stored if name in columns else name


class FragmentReader(BatchReader):
    """Random access to a fragment by (batch, row), reading only the requested columns.

    The file may have been written by an older or a newer definition of the table. A column that the file
    may lack is null, a narrower type is cast, and all columns have their names in `table`. Only this class
    and the writer know the names of columns in files.

    Args:
        disk, path, seal, cache, label: see `BatchReader`.
        columns: the user columns to read; the file's system columns are added.
        table: the table.
        without: numbers of record batches to skip, as if the file did not have them.
        versions: also read the commits, tombstones and ends of history.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        columns: Sequence[str],
        seal: Seal,
        table: TableInfo,
        cache: BatchCache | None = None,
        label: str = "",
        without: Collection[int] = (),
        versions: bool = True,
    ) -> None:
        self._wanted, self._versions = tuple(columns), versions
        self._plain: FragmentReader | None = None
        self._table = table
        self._slot_rows: dict[int, NDArray[np.int64]] = {}  # by batch
        self._without = frozenset(without)
        self._made_of = (disk, path, columns, seal, table, cache, label, without)
        super().__init__(disk, path, seal, cache, label)
        self.primary_key = table.primary_key
        # For `overlay`: the overlays on this fragment, by `Layers`; their batches, and the keys of these.
        self.overlays: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.overlaid, self.overlaid_keys = self.cache.kept(), dict[int, list[int]]()

    def _choose(self, schema: pa.Schema) -> Fields:
        batches = self._file.more["batches"]
        if len(batches) != self._batches_in_file:
            raise ValueError("the number of its batches differs from its manifest")
        self._ends, self._is_plain = [end for *_, end in batches], self._file.manifest.compression is None
        self._numbers = [number for number in range(len(batches)) if number not in self._without]
        batches = [batches[number] for number in self._numbers]
        rows = [count for count, *_ in batches]
        self.starts: NDArray[np.int64] = np.cumsum([0, *rows])  # of each batch, then of all rows
        # The first and the last slot of each batch.
        self.slot_ranges: list[tuple[int, int]] = [(first, last) for _, first, last, _ in batches]
        self._last_slots = np.array([last for _, last in self.slot_ranges], dtype=np.int64)
        system = _system_columns(schema)
        columns = self._table.by_name() if self._table.columns else {}
        fields = {name: self._match(schema, name, columns) for name in self._wanted}
        return fields | {
            name: (name, schema.field(name)) for name in (system if self._versions else system[:1])
        }

    def _match(
        self, file: pa.Schema, name: str, columns: Mapping[str, TableColumn]
    ) -> tuple[str | None, pa.Field]:
        """Return a column's name in the file, None if the file lacks it, and the field that users see."""
        stored = stored_name(columns, name)
        at = file.get_field_index(stored)
        if at < 0:
            return None, self._missing_field(name, columns.get(name))
        field = file.field(at)
        kind = self._table.schema.field(name).type if columns else field.type
        if field.type != kind and not is_widening(field.type, kind):
            raise self._misfit(f"its column {stored!r} is {field.type} and not {kind}")
        if field.type == kind and stored == name:
            return stored, field
        return stored, pa.field(name, kind, field.nullable)

    def _missing_field(self, name: str, column: TableColumn | None) -> pa.Field:
        """Return a column that the file lacks: it is older than the column, or the column was dropped."""
        definition = self._file.manifest.definition
        if column is None or not column.may_lack(definition):
            raise self._misfit(f"it has no column {name!r}")
        field = self._table.schema.field(name)
        if not field.nullable:
            raise ValueError(f"it lacks column {name!r}, which is never null")
        return field

    def _misfit(self, why: str) -> ValueError | TableChanged:
        """Return the error for a file that does not fit its table: damage, unless its definition is newer."""
        table, definition = self._table, self._file.manifest.definition
        if definition <= table.definition:
            return ValueError(why)
        return TableChanged(
            f"the columns of table {table.name!r} were changed while its rows were copied or written; "
            "nothing was done: try again",
            table=table.name,
        )

    @property
    def plain(self) -> FragmentReader:
        """A reader without commits, tombstones and history, for readers that need every row."""
        if len(self.columns) == len(self._wanted) + 1:
            return self
        if self._plain is None:
            self._plain = FragmentReader(*self._made_of, versions=False)
        return self._plain

    @cached_property
    def key_filter(self) -> KeyFilter:
        """Return a filter of the primary keys, which must be among the reader's columns."""
        return KeyFilter(self.cache.kept(), int(self.starts[-1]))

    def rows_below(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the rows of lower slots, for each slot; only batches that may have the slot are read."""
        batches = np.searchsorted(self._last_slots, slots)
        rows = self.starts[batches]
        for index in np.unique(batches).tolist():
            if index < self.batch_count:
                in_batch = np.flatnonzero(batches == index)
                beyond_first = slots[in_batch] - self.slot_ranges[index][0]
                if beyond_first.max() > 0:
                    rows[in_batch] += self._first_rows(index)[np.maximum(beyond_first, 0)]
        return rows

    def _first_rows(self, index: int) -> NDArray[np.int64]:
        """Return the first row of each slot of a batch. In a local file, only the slot column is read."""
        known = self._slot_rows.get(index)
        if known is None:
            if self.kept.peek(index) or not self._file.is_near:
                slots = self.slots(index)
            else:
                with self._readable():
                    column = self._read(self._numbers[index], (SLOT,)).column(SLOT)
                    slots = column.to_numpy(zero_copy_only=True)
            first, last = self.slot_ranges[index]
            known = self._slot_rows[index] = slots.searchsorted(np.arange(first, last + 1, dtype=np.uint16))
        return known

    def slots(self, index: int) -> np.ndarray[Any, Any]:
        """Return the slots of a batch's rows, ascending, without a copy."""
        slots: np.ndarray[Any, Any] = self.batch(index).column(SLOT).to_numpy(zero_copy_only=True)
        return slots

    def seek(self, slot: int, low: bytes) -> tuple[int, int]:
        """Return (batch, row) of the first row that is in `slot` with a key >= `low`, or in a later slot."""

        def reaches(index: int) -> bool:
            last = self.slot_ranges[index][1]
            if last != slot or not low:
                return last >= slot
            batch = self.batch(index)
            return self.row_key(batch, batch.num_rows - 1) >= low

        index = bisect_left(range(self.batch_count), True, key=reaches)
        if index == self.batch_count:
            return index, 0
        return index, self.row_from(self.batch(index), slot, low)

    def row_from(self, batch: pa.RecordBatch, slot: int, low: bytes) -> int:
        """Return the first row of a batch that is in `slot` with a key >= `low`, or in a later slot."""
        slots = batch.column(SLOT).to_numpy(zero_copy_only=True)
        start = rows_below(slots, slot)
        if not low:
            return start
        rows = range(start, rows_below(slots, slot + 1))
        return start + bisect_left(rows, True, key=lambda row: self.row_key(batch, row) >= low)

    def first_row(self, slot: int, low: bytes) -> int:
        """Return the number of the row that `seek` finds; if there is none, the number of rows."""
        if low:
            index, row = self.seek(slot, low)
        else:
            index, row = int(np.searchsorted(self._last_slots, slot)), 0
            if index < self.batch_count and slot > self.slot_ranges[index][0]:
                row = int(self._first_rows(index)[slot - self.slot_ranges[index][0]])
        return int(self.starts[index]) + row

    def index_of(self, row: int) -> int:
        """Return the number of the batch that contains a row, by its number."""
        return int(np.searchsorted(self.starts, row, "right")) - 1

    def key_at(self, row: int) -> bytes:
        """Return the key of a row, by its number."""
        index = self.index_of(row)
        return self.row_key(self.batch(index), row - int(self.starts[index]))

    def slices(self, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows numbered [begin, end) as slices of their batches."""
        while begin < end:
            index = self.index_of(begin)
            first, beyond = int(self.starts[index]), int(self.starts[index + 1])
            yield self.batch(index).slice(begin - first, min(end, beyond) - begin)
            begin = beyond

    def row_key(self, batch: pa.RecordBatch, row: int) -> bytes:
        return encode_row([batch.column(name) for name in self.primary_key], row)


def rows_below(slots: np.ndarray[Any, Any], slot: int) -> int:
    """Count how many of the ascending slots are lower than `slot`, which may be beyond the highest slot.

    The slot is converted to uint16, because with a Python integer NumPy would convert the whole array.
    """
    return len(slots) if slot > _LAST_SLOT else int(slots.searchsorted(np.uint16(slot)))


def rows_in(slots: SlotSet, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in these slots; `rows` are sorted by slot."""
    slot_of = rows.column(SLOT).to_numpy(zero_copy_only=True)
    if any(start <= slot_of[0] and slot_of[-1] < end for start, end in slots):
        return rows
    mask = slots.mask(slot_of)
    return rows if mask.all() else rows.filter(pa.array(mask))


def described_columns(disk: Disk, path: str, seal: Seal) -> tuple[pa.Schema, tuple[TableColumn, ...]]:
    """Return the columns of a fragment's table, from its manifest alone; raises `FragmentDamaged`.

    Returns:
        The schema, and the `TableColumn`s, which are empty for a first definition.
    """
    file = SealedFile(disk, path, seal)
    manifest = file.manifest
    try:
        schema, _ = file.arrow_footer()
        by_name = {f.name: f.with_nullable(f.name not in manifest.not_null) for f in schema}
        if not manifest.columns:
            return pa.schema([field for name, field in by_name.items() if name not in SYSTEM_COLUMNS]), ()
        fields = [by_name[stored].with_name(name) for stored, name, _ in manifest.columns]
        columns = [
            TableColumn(stored, ((since, name),), ((since, by_name[stored].type),), by_name[stored].nullable)
            for stored, name, since in manifest.columns
        ]
    except UNREADABLE as error:
        raise file.damaged(error) from error
    return pa.schema(fields), tuple(columns)


def _system_columns(schema: pa.Schema) -> list[str]:
    names = [name for name in SYSTEM_COLUMNS if name in schema.names]
    if SLOT not in names or any(schema.field(name).type != _SYSTEM_TYPES[name] for name in names):
        raise ValueError("its system columns are not those of a fragment")
    return names
