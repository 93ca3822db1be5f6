"""Staging: rows become files on the shards' disks that nothing refers to yet.

Few rows are staged in memory. They become a small commit: the log itself keeps them, and no file is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from elasticscan.base import limits
from elasticscan.base.limits import MEMORY_STORE_BYTES, MEMORY_TABLE_BYTES, WRITE_BUFFER_BYTES
from elasticscan.catalog import Tx, retry_interrupted
from elasticscan.metadata import IndexInfo, StagedFragment, TableInfo
from elasticscan.storage import (
    SMALL_FRAGMENT_BYTES,
    Ingest,
    StagedInMemory,
    batches_of,
    check_entries,
    check_keys_differ,
    check_keys_filled,
    conform,
    discard,
    joined,
    pack_rows,
    staged_source,
)
from elasticscan.store.context import Context
from elasticscan.store.writing.indexing import with_runs


@dataclass(slots=True)
class SmallCommit:
    """The rows of a commit that the log is to keep.

    Attributes:
        staged: these rows in memory.
        rows: as the log keeps them.
    """

    staged: StagedInMemory
    rows: bytes
    _checked: set[int] = field(default_factory=set)  # indexes that can take the rows

    def check_indexes(self, indexes: Iterable[IndexInfo]) -> bool:
        """Check that indexes can take the rows: after the commit, a flush could not refuse them.

        Returns whether there were any that were not checked before.

        Raises:
            InvalidKey: a row's key is too long for an index.
        """
        # One may name columns that this definition lacks; then `fits` sends the rows to files.
        names = set(self.staged.table.schema.names)
        unchecked = [
            index
            for index in indexes
            if index.id not in self._checked and names.issuperset((*index.columns, *index.include))
        ]
        for index in unchecked:
            check_entries(self.staged.table, index, self.staged.content)
            self._checked.add(index.id)
        return bool(unchecked)

    def fits(self, tx: Tx, table: TableInfo, indexes: Iterable[IndexInfo]) -> bool:
        """Return whether a transaction may put the rows into the log."""
        now = tx.state.info(table.id) or table
        if now.definition != self.staged.table.definition or not has_room(tx, table.id, len(self.rows)):
            return False
        return all(index.id in self._checked for index in indexes)


def has_room(tx: Tx, table: int, more: int) -> bool:
    """Return whether a table, and the store, may have so many more bytes of rows in the log."""
    size = {number: table.memory_bytes for number, table in tx.state.tables.items()}
    fits = size.get(table, 0) + more <= MEMORY_TABLE_BYTES
    return fits and sum(size.values()) + more <= MEMORY_STORE_BYTES


@retry_interrupted
def memory_bytes(context: Context, table: TableInfo, layout: int) -> int:
    """Return how large a write may be to be staged in memory; 0 if the log has no room.

    `layout` need only be recent, since the commit checks again.
    """
    return limits.INLINE_BYTES if has_room(context.catalog.at(layout), table.id, 0) else 0


def joined_in_memory(staged: Sequence[StagedFragment]) -> list[StagedFragment]:
    """Return what was staged, with parts in memory that have the same columns as one."""
    files = [part for part in staged if not isinstance(part, StagedInMemory)]
    of_definitions: dict[int, list[StagedInMemory]] = {}
    for part in staged:
        if isinstance(part, StagedInMemory):
            of_definitions.setdefault(part.table.definition, []).append(part)
    return [*files, *(some[0] if len(some) == 1 else joined(some) for some in of_definitions.values())]


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
    versions: tuple[int, int] | None = None,
) -> list[StagedFragment]:
    """Stage rows of the table's schema; nothing is visible yet. Cleans up after an error.

    Few rows are staged in memory, as far as the log may keep them; more at the shards where they belong.

    Runs of indexes come with large fragments; those of small ones are built by `publish`. `versions` are
    the catalog's, read just before; the transaction that commits rows decides where they belong.
    """
    versions = versions or context.versions()
    origin, placement = context.origin(kind, versions=versions), context.placement(versions[0])
    most = memory_bytes(context, table, versions[0])
    ingest = Ingest(table, placement, context.staging_disk, origin, WRITE_BUFFER_BYTES, most)
    try:
        with context.noticing_collection():
            for batch in batches:
                ingest.add(batch)
            staged = ingest.finish()
            # Small ones get theirs when they are published, perhaps together with those of other tasks.
            large = [fragment for fragment in staged if fragment.bytes >= SMALL_FRAGMENT_BYTES]
            small = [fragment for fragment in staged if fragment not in large]
            indexes = context.state(versions[0]).indexes(table.id) if large else ()
            return [*small, *with_runs(context, table, indexes, large)]
    except BaseException:
        ingest.abandon()
        raise


def conformed_rows(rows: Any, table: TableInfo) -> Iterator[pa.RecordBatch]:
    """Yield rows in a table's schema. Raises `InvalidKey` where a key column has a null."""
    for batch in batches_of(rows):
        check_keys_filled(batch, table)
        yield conform(batch, table.schema)


@retry_interrupted
def remove_staged(context: Context, staged: Sequence[StagedFragment]) -> None:
    """Remove files that were staged, except files in the log: their commit went through."""
    with context.catalog.reading() as tx:
        committed = tx.state.known_paths()
    discard(
        [fragment for fragment in staged if (fragment.shard, fragment.path) not in committed], context.disk_of
    )


def check_no_key_twice(context: Context, table: TableInfo, staged: Sequence[StagedFragment]) -> None:
    """For a write that several tasks staged: raises `InvalidKey` when two of them had the same key."""
    with context.noticing_collection():
        check_keys_differ(staged_source(table, staged, context.disk_of))
