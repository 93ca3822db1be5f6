"""Staging: rows become files on the shards' disks that nothing refers to yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from elasticscan.base.limits import WRITE_BUFFER_BYTES
from elasticscan.catalog import retry_interrupted
from elasticscan.metadata import StagedFragment, TableInfo
from elasticscan.storage import (
    SMALL_FRAGMENT_BYTES,
    Ingest,
    batches_of,
    check_keys_differ,
    check_keys_filled,
    conform,
    discard,
    staged_source,
)
from elasticscan.store.context import Context
from elasticscan.store.writing.indexing import with_runs
from elasticscan.store.writing.small_commits import memory_bytes


def stage(
    context: Context,
    table: TableInfo,
    batches: Iterable[pa.RecordBatch],
    kind: str = "write",
    buffer_bytes: int = WRITE_BUFFER_BYTES,
    versions: tuple[int, int] | None = None,
) -> list[StagedFragment]:
    """Stage rows of the table's schema; nothing is visible yet. Cleans up after an error.

    Few rows are staged in memory, as far as the log may keep them; more at the shards where they belong.

    Runs of indexes come with large fragments; those of small ones are built by `publish`. `versions` are
    those of the catalog at a look of just now: the transaction that commits rows decides where they belong.
    """
    versions = versions or context.versions()
    origin, placement = context.origin(kind, versions=versions), context.placement(versions[0])
    most = memory_bytes(context, table, versions[0])
    ingest = Ingest(table, placement, context.staging_disk, origin, buffer_bytes, most)
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
    """Remove files that were staged, except for those that the catalog knows: their commit went through."""
    with context.catalog.reading() as tx:
        committed = tx.state.known_paths()
    discard(
        [fragment for fragment in staged if (fragment.shard, fragment.path) not in committed], context.disk_of
    )


def check_no_key_twice(context: Context, table: TableInfo, staged: Sequence[StagedFragment]) -> None:
    """For a write that several tasks staged: raises `InvalidKey` when two of them had the same key."""
    with context.noticing_collection():
        check_keys_differ(staged_source(table, staged, context.disk_of))
