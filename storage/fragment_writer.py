"""The writer of fragments: sorted rows become one sealed file, with statistics of its columns."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from elasticscan.base.concurrency import cached_property
from elasticscan.base.key_encoding import can_be_encoded, encode_value, successor
from elasticscan.base.limits import BATCH_ROWS
from elasticscan.metadata import (
    FRAGMENT,
    KEY_BYTES,
    Block,
    FragmentStatistics,
    Manifest,
    Origin,
    StagedFragment,
    TableInfo,
    pack_statistics,
)
from elasticscan.storage.batches.layout import THREADS_FROM_BYTES
from elasticscan.storage.disk import Disk, batch_bytes
from elasticscan.storage.fragment import COMMIT, DELETED, SLOT, SYSTEM_COLUMNS, stored_name
from elasticscan.storage.lookup import joined
from elasticscan.storage.sealed_file import SealedWriter
from elasticscan.topology import SlotSet


def _batch_end(slots: np.ndarray[Any, Any], start: int, limit: int) -> int:
    """Return the end of a batch that begins at row `start`: between two slots, unless that makes it small."""
    end = start + limit
    if end >= len(slots):
        return len(slots)
    slot_start = int(np.searchsorted(slots, slots[end], "left"))
    return slot_start if slot_start - start > limit // 2 else end


def new_path(table: int) -> str:
    return f"t{table}/{uuid.uuid4().hex}.arrow"


@dataclass(frozen=True, slots=True)
class Destination:
    """The shard that gets a fragment, and the operation that writes it."""

    disk: Disk
    shard: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Contents:
    """Properties of a new fragment that are known when all its rows were written; see `Manifest`.

    The bounds of commits are 0 if the commit was not made yet.
    """

    min_commit: int = 0
    max_commit: int = 0
    unique: bool = True
    complete: bool = False
    superseded_at: int | None = None


def write_fragment(
    to: Destination,
    table: TableInfo,
    slots: SlotSet,
    batches: Iterable[pa.RecordBatch],
    contents: Contents = Contents(),
) -> StagedFragment:
    """Write sorted batches of one schema, at least one, as a fragment of a table; flush it to the disk."""
    batches = iter(batches)
    first = next(batches)
    with ExitStack() as stack:
        writer = FragmentWriter(stack, to, table, first.schema, slots)
        for batch in chain((first,), batches):
            writer.write(batch)
        return writer.finish(contents)


class FragmentWriter:
    """Writes sorted batches of a schema, under the stored names of their columns.

    It divides the rows into record batches, and collects statistics of each. The file appears when the
    stack is closed after `finish`. Without rows, no file is written.
    """

    def __init__(
        self, stack: ExitStack, to: Destination, table: TableInfo, schema: pa.Schema, slots: SlotSet
    ) -> None:
        self._stack, self.to, self._table, self._slots = stack, to, table, slots
        self._path, self.schema = new_path(table.id), schema
        self._columns = table.by_name() if table.columns else {}
        fields = [f.with_name(stored_name(self._columns, f.name)) for f in schema]
        self._schema = pa.schema(fields, metadata=schema.metadata)
        self._batch_bytes = batch_bytes(to.disk)
        self._rows = self._tombstones = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        ordered = (f.name for f in self._schema if can_be_encoded(f.type) and f.name not in SYSTEM_COLUMNS)
        self._blocks: dict[str, list[Block]] = {name: [] for name in ordered}  # of each record batch

    @cached_property
    def _sealed(self) -> SealedWriter:
        """Return the file, created when the first rows are flushed: their size decides about threads."""
        use_threads = self._pending_bytes >= THREADS_FROM_BYTES
        options = ipc.IpcWriteOptions(compression=self._table.compression, use_threads=use_threads)
        file = self._stack.enter_context(self.to.disk.create(self._path))
        return SealedWriter(file, self._schema, options)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._columns:
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        self._rows += batch.num_rows
        if DELETED in self._schema.names:
            self._tombstones += batch.column(DELETED).true_count
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= 2 * BATCH_ROWS or self._pending_bytes >= 2 * self._batch_bytes:
            self._flush(last=False)

    def _flush(self, last: bool) -> None:
        rows = joined(self._pending)
        limit = max(1, min(BATCH_ROWS, self._batch_bytes * self._pending_rows // max(self._pending_bytes, 1)))
        slots = rows.column(SLOT).to_numpy(zero_copy_only=True)
        start = 0
        while rows.num_rows - start >= (1 if last else limit + 1):
            end = _batch_end(slots, start, limit)
            batch = rows.slice(start, end - start)
            self._sealed.write(batch, int(slots[start]), int(slots[end - 1]))
            for name, blocks in self._blocks.items():
                blocks.append(block_of(batch.column(name)))
            start = end
        rest = rows.slice(start)
        self._pending = [rest]
        self._pending_rows, self._pending_bytes = rest.num_rows, rest.nbytes

    def finish(self, contents: Contents) -> StagedFragment:
        """Write the rest of the file, and return it. It is complete when the stack is closed."""
        self._flush(last=True)
        marks = {column.stored: column.mark for column in self._columns.values()}
        statistics = FragmentStatistics(
            tuple(rows for rows, *_ in self._sealed.batches),
            {marks.get(name, name): tuple(blocks) for name, blocks in self._blocks.items()},
        )
        values: dict[str, Any] = {"shard": self.to.shard, "path": self._path, "slots": self._slots}
        values |= {"rows": self._rows, "tombstones": self._tombstones, **asdict(contents)}
        seal = self._sealed.seal(manifest_of(self._table, self.to.origin, kind=FRAGMENT, **values))
        del values["complete"]
        return StagedFragment(
            **values,
            **asdict(seal),
            versioned=COMMIT in self._schema.names,
            statistics=pack_statistics(statistics),
        )


def manifest_of(table: TableInfo, origin: Origin, **contents: Any) -> Manifest:
    """Return the manifest of a new file: its table, the operation that stages it, and its contents."""
    columns = table.by_name() if table.columns else {}
    named = [(c.stored, name, c.since) for name, c in columns.items() if c.until is None]
    staged_by = {field.name: getattr(origin, field.name) for field in fields(Origin)}
    staged_by["epochs"] = origin.epochs_of(contents["slots"])
    return Manifest(
        table=table.id,
        table_name=table.name,
        primary_key=table.primary_key,
        shard_key=table.shard_key,
        compression=table.compression,
        definition=table.definition,
        columns=tuple(named),
        not_null=tuple(stored_name(columns, field.name) for field in table.schema if not field.nullable),
        **staged_by,
        **contents,
    )


# ------------------------------------------------------------------------------------ statistics


def block_of(values: pa.Array) -> Block:
    """Return the bounds of a column of a batch; its type must have value keys.

    Tombstones count like other rows: their values are nulls, and their keys are within the bounds.
    """
    nulls = values.null_count
    if nulls == len(values):
        return Block(b"", b"", nulls)
    low, high = map(encode_value, _extremes(values.drop_null() if nulls else values))
    return Block(
        low[:KEY_BYTES], high + b"\0" if len(high) <= KEY_BYTES else successor(high[:KEY_BYTES]), nulls
    )


def _extremes(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the lowest and the highest value of a column that has values and no nulls.

    NaN counts as the highest number; Arrow would ignore it.
    """
    if not pa.types.is_floating(values.type):
        low, high = pc.min_max(values).values()
        return low, high
    numbers = values.to_numpy(zero_copy_only=False)
    low, high = numbers.min(), numbers.max()  # both are NaN if one value is
    if np.isnan(high):
        finite = numbers[~np.isnan(numbers)]  # not `fmin`, which returns NaN for a signalling NaN
        low = finite.min() if len(finite) else high
    return pa.scalar(float(low), values.type), pa.scalar(float(high), values.type)
