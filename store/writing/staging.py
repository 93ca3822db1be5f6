"""Staging: rows become files on the shards' disks that nothing refers to yet.

Few rows are staged in memory. They become a small commit: the log itself keeps them, and no file is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress

import pyarrow as pa

from elasticscan.base import limits
from elasticscan.base.errors import CommitUnknown, ElasticScanError
from elasticscan.base.limits import MEMORY_STORE_BYTES, MEMORY_TABLE_BYTES, WRITE_BUFFER_BYTES
from elasticscan.catalog import StoreState
from elasticscan.metadata import StagedFragment, TableInfo
from elasticscan.storage import (
    SMALL_FRAGMENT_BYTES,
    File,
    StagedInMemory,
    check_entries,
    check_keys_differ,
    files_of,
    remove_files,
    stage_rows,
    staged_source,
)
from elasticscan.store.context import Context
from elasticscan.store.writing.indexing import with_runs


def fits_in_log(state: StoreState, table: TableInfo, rows: StagedInMemory, size: int) -> bool:
    """Return whether rows of a commit, of so many bytes, may be put into the log of a store in this state.

    Raises:
        InvalidKey: a row's key is too long for an index; after the commit, a flush could not refuse it.
    """
    now = state.info(table.id) or table
    if now.definition != rows.table.definition or not has_room(state, table.id, size):
        return False
    for index in state.indexes(table.id):
        check_entries(rows.table, index, rows.content)
    return True


def has_room(state: StoreState, table: int, more: int) -> bool:
    """Return whether a table, and the store, may have so many more bytes of rows in the log."""
    size = {number: table.memory_bytes for number, table in state.tables.items()}
    fits = size.get(table, 0) + more <= MEMORY_TABLE_BYTES
    return fits and sum(size.values()) + more <= MEMORY_STORE_BYTES


def stage(
    context: Context,
    table: TableInfo,
    batches: Iterable[pa.RecordBatch],
    kind: str = "write",
    state: StoreState | None = None,
) -> list[StagedFragment]:
    """Stage rows of the table's schema; nothing is visible yet. Cleans up after an error.

    Few rows are staged in memory, as far as the log may keep them; more at the shards where they belong,
    large fragments with their runs of indexes. `state` is the store's, read just before.
    """
    state = state or context.state()
    origin, disk_of = context.origin(kind, state=state), context.staging_disk
    most = limits.INLINE_BYTES if has_room(state, table.id, 0) else 0  # the commit checks again
    with context.noticing_collection():
        staged = stage_rows(table, batches, state.placement, disk_of, origin, WRITE_BUFFER_BYTES, most)
        # Small ones get their runs when they are published, perhaps together with those of other tasks.
        small = [fragment for fragment in staged if fragment.bytes < SMALL_FRAGMENT_BYTES]
        large = [fragment for fragment in staged if fragment.bytes >= SMALL_FRAGMENT_BYTES]
        with removed_on_error(context, files_of(staged)):
            return [*small, *with_runs(context, table, state.indexes(table.id), large)]


@contextmanager
def removed_on_error(context: Context, files: Set[File]) -> Iterator[None]:
    """Remove staged files if the block fails, except where it is not known whether they were committed.

    An interrupt leaves them, too: it may come before the answer of the catalog.
    """
    try:
        yield
    except CommitUnknown:
        raise
    except Exception:
        with suppress(ElasticScanError):  # then they are garbage
            _remove(context, files)
        raise


def remove_staged(context: Context, staged: Sequence[StagedFragment]) -> None:
    """Remove files that were staged, except files in the log: their commit went through."""
    _remove(context, files_of(staged))


def _remove(context: Context, files: Set[File]) -> None:
    remove_files(files - context.state().known_paths(), context.disk_of)


def check_no_key_twice(context: Context, table: TableInfo, staged: Sequence[StagedFragment]) -> None:
    """For a write that several tasks staged: raises `InvalidKey` when two of them had the same key."""
    with context.noticing_collection():
        check_keys_differ(staged_source(table, staged, context.disk_of))
