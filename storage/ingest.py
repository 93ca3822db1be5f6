"""Rows of a write: checked, hashed, sorted, and staged, as one fragment for each shard or in memory.

Before a commit, `arrange` copies slots that have moved, and merges small fragments of several tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa

from elasticscan.base.concurrency import parallel
from elasticscan.base.errors import ElasticScanError, InvalidCall
from elasticscan.base.hashing import slots_of
from elasticscan.base.limits import SHARDS_AT_ONCE, WRITE_BUFFER_BYTES
from elasticscan.metadata import Bounds, Fragment, Origin, StagedFragment, TableInfo
from elasticscan.storage.batches.reader import BatchCache
from elasticscan.storage.conform import check_key_bytes, parts_of
from elasticscan.storage.copying import Keep, copy_slots, repeated_key
from elasticscan.storage.disk import Disk
from elasticscan.storage.fragment import DELETED, SLOT, FragmentReader, fragment_schema
from elasticscan.storage.fragment_writer import Destination, write_fragment
from elasticscan.storage.memory_fragment import StagedInMemory
from elasticscan.storage.merge import Array, key_order
from elasticscan.storage.pages import PageSource
from elasticscan.storage.view import View
from elasticscan.topology import Placement, SlotSet

# Fragments that several tasks staged at one shard are merged before the commit: those smaller than the first
# size, smallest first, up to the second size in total.
SMALL_FRAGMENT_BYTES = 32 << 20
GATHERED_BYTES = 1 << 30

Range = tuple[int, int]  # [start, end)
File = tuple[int, str]  # the shard, and the path there
TabletRows = tuple[list[Range], list[Range]]  # the slots of tablets, and the ranges of their rows


def sort_rows(rows: pa.RecordBatch, table: TableInfo, slot_count: int) -> pa.RecordBatch:
    """Return the rows sorted by (slot, primary key), in a fragment's columns; raises `SchemaMismatch`."""
    check_key_bytes(rows, table.primary_key)
    slots = slots_of(rows.select(table.shard_key).columns, slot_count)
    order, first = key_order(rows, table.primary_key, slots)
    if not first.all():
        raise repeated_key(rows, int(order[np.argmin(first)]), table.primary_key)
    schema = fragment_schema(table.schema, versioned=False, tombstones=DELETED in rows.schema.names)
    columns = [pa.array(slots) if name == SLOT else rows.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema).take(pa.array(order))


def stage_rows(
    table: TableInfo,
    batches: Iterable[pa.RecordBatch],
    placement: Placement,
    disk_of: Callable[[int], Disk],
    origin: Origin,
    buffer_bytes: int = WRITE_BUFFER_BYTES,
    memory_bytes: int = 0,
) -> list[StagedFragment]:
    """Stage one write: one fragment for each shard that gets rows. After an error, no file is left.

    A write larger than `buffer_bytes` is sorted in parts, which are then merged; sorting takes three times as
    much memory. A write of up to `memory_bytes` is staged in memory. Batches have the table's schema, and a
    `_deleted` column if some rows may be tombstones.

    Raises:
        InvalidCall: the process was forked after the call, and this is the child.
    """
    staged, process = dict[int, list[StagedFragment]](), os.getpid()

    def check_process() -> None:  # rows come from a user's code, which may fork
        if os.getpid() != process:
            raise InvalidCall(
                "a forked process cannot continue its parent's write; call the write in the child itself",
                process=os.getpid(),
            )

    def write(rows: pa.RecordBatch, by_shard: dict[int, TabletRows], shard: int) -> None:
        touched, cuts = by_shard[shard]
        slices = [rows.slice(start, end - start) for start, end in cuts]
        fragment = write_fragment(
            Destination(disk_of(shard), shard, origin), table, SlotSet.of(touched), slices
        )
        staged.setdefault(shard, []).append(fragment)

    try:
        for part in parts_of(batches, buffer_bytes):
            check_process()
            rows = sort_rows(part, table, origin.store_slots)
            by_shard = _by_shard(rows.column(SLOT).to_numpy(), placement)
            if not staged and part.nbytes <= memory_bytes < buffer_bytes:  # then it is the only part
                touched = SlotSet.of(tablet for tablets, _ in by_shard.values() for tablet in tablets)
                return [StagedInMemory.of(table, rows, touched)]
            # In parallel, because most of the time is spent waiting for disks.
            parallel(partial(write, rows, by_shard), sorted(by_shard), SHARDS_AT_ONCE)
        check_process()
        for shard, parts in staged.items():
            if len(parts) > 1:
                slots, source = SlotSet.union(f.slots for f in parts), staged_source(table, parts, disk_of)
                staged[shard] = [next(_copied(source, slots, shard, disk_of, origin))]
                discard(parts, disk_of)
        return [merged for _, (merged,) in sorted(staged.items())]
    except BaseException:
        if os.getpid() == process:  # otherwise the parent still needs the files
            discard([fragment for parts in staged.values() for fragment in parts], disk_of)
        raise


def _by_shard(slots: Array, placement: Placement) -> dict[int, TabletRows]:
    """Return, by shard, the slots of the tablets that get rows, and the ranges of these rows.

    `slots` are the sorted slots of the rows. Whole tablets keep the list of ranges short. Tablets without
    rows are skipped: there may be many.
    """
    by_shard: dict[int, TabletRows] = {}
    start = 0
    while start < len(slots):
        tablet = placement.tablet_of(int(slots[start]))
        end = int(np.searchsorted(slots, slots.dtype.type(tablet.end - 1), side="right"))
        touched, cuts = by_shard.setdefault(tablet.shard, ([], []))
        touched.append((tablet.start, tablet.end))
        if cuts and cuts[-1][1] == start:
            cuts[-1] = (cuts[-1][0], end)
        else:
            cuts.append((start, end))
        start = end
    return by_shard


def staged_source(
    table: TableInfo, staged: Sequence[StagedFragment], disk_of: Callable[[int], Disk]
) -> PageSource:
    """Return a page source of staged fragments, as if they were committed as number 1."""
    fragments = [fragment.entered(number, table.id, 1) for number, fragment in enumerate(staged)]
    cache = BatchCache()

    def open_fragment(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        disk = disk_of(fragment.shard)
        return FragmentReader(disk, fragment.path, columns, fragment.seal, table, cache)

    return PageSource(table, View(fragments), lru_cache(maxsize=None)(open_fragment))


def _copied(
    source: PageSource, slots: SlotSet, shard: int, disk_of: Callable[[int], Disk], origin: Origin
) -> Iterator[StagedFragment]:
    """Copy the rows of these slots to a shard, as one staged fragment if there are rows."""
    to = Destination(disk_of(shard), shard, origin)
    yield from copy_slots(source, slots, Bounds(0, 1), Keep(), to, committed=False)


def arrange(
    table: TableInfo,
    staged: Sequence[StagedFragment],
    placement: Placement,
    disk_of: Callable[[int], Disk],
    origin: Origin,
) -> Iterator[StagedFragment]:
    """Yield the same rows, staged where their slots live by `placement`, in few fragments.

    It copies slots that have moved, so that a further attempt has less to copy. It merges fragments below
    `SMALL_FRAGMENT_BYTES`, smallest first, if a shard has several. It does not change larger fragments,
    and removes no file: the commit of the result removes the files that are no longer needed.
    """
    groups: dict[int, list[tuple[StagedFragment, SlotSet]]] = {}
    room = GATHERED_BYTES
    for fragment in sorted(staged, key=lambda staged: staged.bytes):
        for shard, slots in placement.split_by_shard(fragment.slots).items():
            has_stayed = shard == fragment.shard
            if has_stayed and (fragment.bytes >= SMALL_FRAGMENT_BYTES or fragment.bytes > room):
                yield fragment.serving(slots)
            else:
                room -= fragment.bytes if has_stayed else 0
                groups.setdefault(shard, []).append((fragment, slots))
    for shard, group in sorted(groups.items()):
        fragments, slots = [fragment for fragment, _ in group], SlotSet.union(slots for _, slots in group)
        if len(fragments) == 1 and fragments[0].shard == shard:
            yield fragments[0].serving(slots)
        else:
            replaced = replace(origin, replaces=tuple(fragment.path for fragment in fragments))
            source = staged_source(table, fragments, disk_of)
            yield from _copied(source, slots, shard, disk_of, replaced)


def files_of(staged: Iterable[StagedFragment]) -> set[File]:
    """Return the files of fragments and of their index runs."""
    return {(fragment.shard, path) for fragment in staged for path in fragment.paths}


def remove_files(files: Iterable[File], disk_of: Callable[[int], Disk]) -> None:
    """Remove files. If a file cannot be removed, garbage collection removes it later."""
    for shard, path in files:
        with suppress(OSError, ElasticScanError):
            disk_of(shard).delete(path)


def discard(staged: Iterable[StagedFragment], disk_of: Callable[[int], Disk]) -> None:
    """Remove the files of staged fragments like `remove_files`."""
    remove_files(files_of(staged), disk_of)
