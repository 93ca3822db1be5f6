"""Staging: rows become files on the shards' disks that nothing refers to yet.

Few rows are staged in memory. They become a small commit: the log itself keeps them, and no file is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from elasticscan.base import limits
from elasticscan.base.errors import CommitUnknown, ElasticScanError
from elasticscan.base.limits import MEMORY_STORE_BYTES, MEMORY_TABLE_BYTES, WRITE_BUFFER_BYTES
from elasticscan.catalog import StoreState
from elasticscan.metadata import StagedFragment, TableInfo
from elasticscan.storage import (
    SMALL_FRAGMENT_BYTES,
    Ingest,
    StagedInMemory,
    check_entries,
    check_keys_differ,
    discard,
    joined,
    pack_rows,
    staged_source,
)
from elasticscan.store.context import Context
from elasticscan.store.writing.indexing import with_runs


@dataclass(frozen=True, slots=True)
class SmallCommit:
    """The rows of a commit that the log is to keep.

    Attributes:
        staged: these rows in memory.
        rows: as the log keeps them.
    """

    staged: StagedInMemory
    rows: bytes

    def fits(self, state: StoreState, table: TableInfo) -> bool:
        """Return whether the rows may be put into the log of a store in this state.

        Raises:
            InvalidKey: a row's key is too long for an index; after the commit, a flush could not refuse it.
        """
        now = state.info(table.id) or table
        if now.definition != self.staged.table.definition or not has_room(state, table.id, len(self.rows)):
            return False
        for index in state.indexes(table.id):
            check_entries(self.staged.table, index, self.staged.content)
        return True


def has_room(state: StoreState, table: int, more: int) -> bool:
    """Return whether a table, and the store, may have so many more bytes of rows in the log."""
    size = {number: table.memory_bytes for number, table in state.tables.items()}
    fits = size.get(table, 0) + more <= MEMORY_TABLE_BYTES
    return fits and sum(size.values()) + more <= MEMORY_STORE_BYTES


def joined_in_memory(staged: Sequence[StagedFragment]) -> list[StagedFragment]:
    """Return what was staged, with its parts in memory as one if they have the same columns."""
    parts = [part for part in staged if isinstance(part, StagedInMemory)]
    if len(parts) < 2 or len({part.table.definition for part in parts}) > 1:
        return list(staged)
    return [*(part for part in staged if not isinstance(part, StagedInMemory)), joined(parts)]


def small_commit(staged: Sequence[StagedFragment]) -> SmallCommit | None:
    """Return what was staged as a small commit; None if it has to be written to files."""
    match staged:
        case [StagedInMemory() as one] if len(rows := pack_rows(one.content)) <= limits.INLINE_BYTES:
            return SmallCommit(one, rows)
    return None


def stage(
    context: Context,
    table: TableInfo,
    batches: Iterable[pa.RecordBatch],
    kind: str = "write",
    state: StoreState | None = None,
) -> list[StagedFragment]:
    """Stage rows of the table's schema; nothing is visible yet. Cleans up after an error.

    Few rows are staged in memory, as far as the log may keep them; more at the shards where they belong.

    Runs of indexes come with large fragments; those of small ones are built by `publish`. `state` is
    the store's, read just before; the transaction that commits rows decides where they belong.
    """
    state = state or context.state()
    origin = context.origin(kind, state=state)
    most = limits.INLINE_BYTES if has_room(state, table.id, 0) else 0  # the commit checks again
    ingest = Ingest(table, state.placement, context.staging_disk, origin, WRITE_BUFFER_BYTES, most)
    try:
        with context.noticing_collection():
            for batch in batches:
                ingest.add(batch)
            staged = ingest.finish()
            # Small ones get theirs when they are published, perhaps together with those of other tasks.
            large = [fragment for fragment in staged if fragment.bytes >= SMALL_FRAGMENT_BYTES]
            small = [fragment for fragment in staged if fragment not in large]
            return [*small, *with_runs(context, table, state, large)]
    except BaseException:
        ingest.abandon()
        raise


@contextmanager
def removed_on_error(context: Context, staged: Sequence[StagedFragment]) -> Iterator[None]:
    """Remove staged files if the block fails, except where it is not known whether they were committed.

    An interrupt leaves them, too: it may come before the answer of the catalog.
    """
    try:
        yield
    except CommitUnknown:
        raise
    except Exception:
        with suppress(ElasticScanError):  # then they are garbage
            remove_staged(context, staged)
        raise


def remove_staged(context: Context, staged: Sequence[StagedFragment]) -> None:
    """Remove files that were staged, except files in the log: their commit went through."""
    committed = context.state().known_paths()
    discard(
        [fragment for fragment in staged if (fragment.shard, fragment.path) not in committed], context.disk_of
    )


def check_no_key_twice(context: Context, table: TableInfo, staged: Sequence[StagedFragment]) -> None:
    """For a write that several tasks staged: raises `InvalidKey` when two of them had the same key."""
    with context.noticing_collection():
        check_keys_differ(staged_source(table, staged, context.disk_of))
