"""Rows on their way in: checked, hashed, sorted, and staged as one fragment for each shard."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
import pyarrow as pa

from elasticscan.base.concurrency import parallel
from elasticscan.base.errors import ElasticScanError, ScanConsumed
from elasticscan.base.hashing import slots_of
from elasticscan.base.key_encoding import sort_codes
from elasticscan.base.limits import SHARDS_AT_ONCE, WRITE_BUFFER_BYTES
from elasticscan.metadata import Bounds, Fragment, Origin, StagedFragment, TableInfo
from elasticscan.storage.batches.reader import BatchCache
from elasticscan.storage.conform import check_key_bytes, check_keys_filled, check_row_bytes
from elasticscan.storage.copying import Keep, check_keys_differ, copy_slots, repeated_key
from elasticscan.storage.disk import Disk
from elasticscan.storage.fragment import DELETED, SLOT, FragmentReader, fragment_schema
from elasticscan.storage.fragment_writer import Destination, write_fragment
from elasticscan.storage.memory_fragment import StagedInMemory
from elasticscan.storage.merge import Array, first_of_keys
from elasticscan.storage.pages import PageSource
from elasticscan.storage.view import View
from elasticscan.topology import Placement, SlotSet

# What several tasks staged at one shard is merged before it is committed: fragments below this size, the
# smallest first, as many as have room in one fragment. More than that is left as it is.
SMALL_FRAGMENT_BYTES = 32 << 20
GATHERED_BYTES = 1 << 30

Range = tuple[int, int]  # [start, end)


def sort_rows(rows: pa.RecordBatch, table: TableInfo, slot_count: int) -> pa.RecordBatch:
    """Return the rows by (slot, primary key), with the columns of a fragment.

    Raises:
        InvalidKey: a key is null, too long or occurs twice.
    """
    check_keys_filled(rows, table)
    check_key_bytes(rows, table.primary_key)
    slots = slots_of(rows.select(table.shard_key).columns, slot_count)
    codes = [sort_codes(rows.column(name)) for name in table.primary_key]
    order = np.lexsort((*reversed(codes), slots))
    first = first_of_keys(order, (slots, *codes))
    if not first.all():
        raise repeated_key(rows, int(order[np.argmin(first)]), table.primary_key)
    schema = fragment_schema(table.schema, versioned=False, tombstones=DELETED in rows.schema.names)
    columns = [pa.array(slots) if name == SLOT else rows.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema).take(pa.array(order))


class Ingest:
    """Stages one write. Memory is bounded by `buffer_bytes` (times three while sorting).

    A write that is larger is sorted in parts, which are then merged into one fragment a shard. One of up to
    `memory_bytes` is staged in memory.
    Nothing is visible until the catalog commits what `finish` returns.
    """

    def __init__(
        self,
        table: TableInfo,
        placement: Placement,
        disk_of: Callable[[int], Disk],
        origin: Origin,
        buffer_bytes: int = WRITE_BUFFER_BYTES,
        memory_bytes: int = 0,
    ) -> None:
        self._table, self._placement, self._disk_of = table, placement, disk_of
        self._memory_bytes = memory_bytes
        self._origin = origin
        self._buffer_bytes = buffer_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._staged: dict[int, list[StagedFragment]] = {}
        self._process = os.getpid()  # rows come from a user's code, which may fork

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of the table's schema; with a `_deleted` column, tombstones may be among them."""
        self._check_process()
        check_row_bytes(rows)
        step = max(1, rows.num_rows * self._buffer_bytes // max(rows.nbytes, 1))
        for start in range(0, rows.num_rows, step):
            part = rows.slice(start, step)
            self._pending.append(part)
            self._pending_bytes += part.nbytes
            if self._pending_bytes >= self._buffer_bytes:
                self._flush()

    def finish(self) -> list[StagedFragment]:
        """Stage what is left; one fragment for each shard that rows belong to, or one in memory.

        Raises `ScanConsumed`, as `add` does, in a child that was forked since.
        """
        self._check_process()
        if self._pending and not self._staged and self._pending_bytes <= self._memory_bytes:
            ordered = self._sorted()
            pieces = _by_shard(ordered.column(SLOT).to_numpy(), self._placement)
            touched = SlotSet.of(tablet for tablets, _ in pieces.values() for tablet in tablets)
            return [StagedInMemory.of(self._table, ordered, touched)]
        self._flush()
        return [self._merge(shard, staged) for shard, staged in sorted(self._staged.items())]

    def abandon(self) -> None:
        """Remove the staged files, unless this is a forked child: they are its parent's, which goes on."""
        if os.getpid() == self._process:
            discard([f for staged in self._staged.values() for f in staged], self._disk_of)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ScanConsumed(
                "a forked process cannot continue its parent's write; call the write in the child itself",
                process=os.getpid(),
            )

    def _flush(self) -> None:
        if not self._pending:
            return
        ordered = self._sorted()
        slots = ordered.column(SLOT).to_numpy()
        pieces = _by_shard(slots, self._placement)

        def write(shard: int) -> None:
            touched, cuts = pieces[shard]
            slices = [ordered.slice(start, end - start) for start, end in cuts]
            to = Destination(self._disk_of(shard), shard, self._origin)
            staged = write_fragment(to, self._table, SlotSet.of(touched), slices)
            self._staged.setdefault(shard, []).append(staged)

        parallel(write, sorted(pieces), SHARDS_AT_ONCE)  # most of the time a disk is waited for

    def _sorted(self) -> pa.RecordBatch:
        """Return the rows that were added since the last time, as fragments have them."""
        rows = pa.concat_batches(self._pending) if len(self._pending) > 1 else self._pending[0]
        self._pending, self._pending_bytes = [], 0
        return sort_rows(rows, self._table, self._origin.slots)

    def _merge(self, shard: int, staged: list[StagedFragment]) -> StagedFragment:
        if len(staged) == 1:
            return staged[0]
        slots = SlotSet.union(fragment.slots for fragment in staged)
        (merged,) = _copied(self._table, staged, slots, shard, self._disk_of, self._origin)
        if not merged.unique:
            discard([merged], self._disk_of)
            check_keys_differ(staged_source(self._table, staged, self._disk_of))  # raises, and names the key
            raise AssertionError("no key is there twice in files whose merge has one twice")
        discard(staged, self._disk_of)
        self._staged[shard] = [merged]
        return merged


def _by_shard(slots: Array, placement: Placement) -> dict[int, tuple[list[Range], list[Range]]]:
    """By shard, the slots of the tablets that have rows, and where these stand, given the rows' sorted slots.

    Whole tablets keep the list of ranges short. Those without rows are not looked at: there may be many.
    """
    pieces: dict[int, tuple[list[Range], list[Range]]] = {}
    start = 0
    while start < len(slots):
        tablet = placement.tablet_of(int(slots[start]))
        end = int(np.searchsorted(slots, slots.dtype.type(tablet.end - 1), side="right"))
        touched, cuts = pieces.setdefault(tablet.shard, ([], []))
        touched.append((tablet.start, tablet.end))
        if cuts and cuts[-1][1] == start:
            cuts[-1] = (cuts[-1][0], end)
        else:
            cuts.append((start, end))
        start = end
    return pieces


def staged_source(
    table: TableInfo, staged: Sequence[StagedFragment], disk_of: Callable[[int], Disk]
) -> PageSource:
    """Return a source of staged fragments, as if they were one commit, number 1."""
    fragments = [fragment.entered(number, table.id, 1, 1) for number, fragment in enumerate(staged)]
    cache = BatchCache()

    def open_fragment(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        disk = disk_of(fragment.shard)
        return FragmentReader(disk, fragment.path, columns, fragment.seal, table, cache)

    return PageSource(table, View(fragments), lru_cache(maxsize=None)(open_fragment))


def _copied(
    table: TableInfo,
    staged: Sequence[StagedFragment],
    slots: SlotSet,
    shard: int,
    disk_of: Callable[[int], Disk],
    origin: Origin,
) -> list[StagedFragment]:
    """Copy the rows of some slots to a shard, as one staged fragment, if there are any."""
    source, to = staged_source(table, staged, disk_of), Destination(disk_of(shard), shard, origin)
    copies = copy_slots(source, slots, Bounds(0, 1), Keep(), to, committed=False)
    return [copied.staged for copied in copies]


def gather(
    table: TableInfo, staged: Sequence[StagedFragment], disk_of: Callable[[int], Disk], origin: Origin
) -> list[StagedFragment]:
    """Return the same rows in fewer fragments: small ones that many tasks staged at a shard are merged.

    Its old files stay; the commit of the result removes them. Large fragments stay as they are.
    """
    gathered, made = list[StagedFragment](), list[StagedFragment]()
    try:
        for shard in sorted({fragment.shard for fragment in staged}):
            here = sorted((f for f in staged if f.shard == shard), key=lambda f: f.bytes)
            sizes = zip(here, accumulate(f.bytes for f in here), strict=True)
            few = sum(f.bytes < SMALL_FRAGMENT_BYTES and size <= GATHERED_BYTES for f, size in sizes)
            group = here[:few] if few > 1 else []
            gathered += here[len(group) :]
            if group:
                paths = tuple(fragment.path for fragment in group)
                slots = SlotSet.union(fragment.slots for fragment in group)
                made += _copied(table, group, slots, shard, disk_of, replace(origin, replaces=paths))
    except BaseException:
        discard(made, disk_of)
        raise
    return [*gathered, *made]


def reroute(
    table: TableInfo,
    staged: Sequence[StagedFragment],
    placement: Placement,
    disk_of: Callable[[int], Disk],
    origin: Origin,
) -> list[StagedFragment]:
    """Return the same rows, staged where their slots live by `placement`.

    Only slots that left are copied, so each further attempt has less to do than the one before.
    """
    routed: list[StagedFragment] = []
    for fragment in staged:
        away = fragment.slots - placement.at(fragment.shard)
        routed.append(fragment.serving(fragment.slots - away) if away else fragment)
        for shard, part in placement.split_by_shard(away).items():
            routed += _copied(table, [fragment], part, shard, disk_of, origin)
    return [fragment for fragment in routed if fragment.slots]


def discard(staged: Iterable[StagedFragment], disk_of: Callable[[int], Disk]) -> None:
    """Remove staged files; what cannot be removed now is left to the garbage collection."""
    for fragment in staged:
        for path in (fragment.path, *(run.path for run in fragment.runs)):
            with suppress(OSError, ElasticScanError):
                disk_of(fragment.shard).delete(path)
