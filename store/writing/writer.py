"""Writes: staged on the shards' disks, then committed in one catalog transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import (
    ChangesExpired,
    CommitUnknown,
    ElasticScanError,
    KeysExist,
    RowsChanged,
    TableChanged,
)
from elasticscan.base.limits import WRITE_BUFFER_BYTES
from elasticscan.catalog import IdempotencyKey, ask_for_commit, begun_again
from elasticscan.metadata import IndexInfo, StagedFragment, TableInfo
from elasticscan.storage import (
    SMALL_FRAGMENT_BYTES,
    Ingest,
    batches_of,
    check_keys_differ,
    check_keys_filled,
    conform,
    discard,
    gather,
    reroute,
    staged_source,
)
from elasticscan.store.context import Context
from elasticscan.store.context.following import Claim
from elasticscan.store.rows.keys import conform_keys, tombstones_of
from elasticscan.store.writing.indexing import missing_runs, with_runs
from elasticscan.store.writing.preconditions import Precondition
from elasticscan.topology import Placement

# After so many commits that found some tablet elsewhere, the rows that moved are staged again
# while the catalog's write lock is held, so a write cannot starve beside endless moves.
ATTEMPTS_WITHOUT_LOCK = 5


def stage(
    context: Context,
    table: TableInfo,
    batches: Iterable[pa.RecordBatch],
    kind: str = "write",
    buffer_bytes: int = WRITE_BUFFER_BYTES,
    versions: tuple[int, int] | None = None,
) -> list[StagedFragment]:
    """Stage rows of the table's schema; nothing is visible yet. Cleans up after an error.

    Runs of indexes come with large fragments; those of small ones are built by `publish`. `versions` are
    those of the catalog at a look of just now: the transaction that commits rows decides where they belong.
    """
    versions = versions or context.versions()
    origin, placement = context.origin(kind, versions=versions), context.placement(versions[0])
    ingest = Ingest(table, context.hashing, placement, context.staging_disk, origin, buffer_bytes)
    try:
        with context.noticing_collection():
            for batch in batches:
                ingest.add(batch)
            staged = ingest.finish()
            # Small ones get theirs when they are published, perhaps together with those of other tasks.
            large = [fragment for fragment in staged if fragment.bytes >= SMALL_FRAGMENT_BYTES]
            small = [fragment for fragment in staged if fragment not in large]
            indexes = context.indexes(table.id, versions[0]) if large else ()
            return [*small, *with_runs(context, table, indexes, large)]
    except BaseException:
        ingest.abandon()
        raise


@begun_again
def remove_staged(context: Context, staged: Sequence[StagedFragment]) -> None:
    """Remove files that were staged, except for those that the catalog knows: their commit went through."""
    with context.catalog.reading() as tx:
        committed = tx.known_paths()
    discard(
        [fragment for fragment in staged if (fragment.shard, fragment.path) not in committed], context.disk_of
    )


@begun_again
def is_committed(context: Context, table_id: int, txn: IdempotencyKey) -> bool:
    """True if a write with this pair of names was committed before."""
    with context.catalog.reading() as tx:
        return tx.commit_of_txn(table_id, txn) is not None


@begun_again
def has_forerunner(context: Context, table: TableInfo, application: str) -> bool:
    """True if an application wrote to a table that was dropped before this one got its name."""
    with context.catalog.reading() as tx:
        return tx.has_forerunner(table, application)


@begun_again
def table_to_write(context: Context, table_id: int) -> TableInfo | None:
    """A table, also one that is reserved for its first write; None when it was dropped."""
    with context.catalog.reading() as tx:
        return tx.table_by_id(table_id) or tx.reserved_table(table_id)


def publish(
    context: Context,
    table: TableInfo,
    staged: Sequence[StagedFragment],
    kind: str = "write",
    txn: IdempotencyKey | None = None,
    check: Precondition | None = None,
    user_metadata: Mapping[str, str] | None = None,
    versions: tuple[int, int] | None = None,
    keep: Collection[str] = (),
) -> int:
    """Make staged fragments one commit; returns its number.

    What several tasks staged at a shard is merged first, as far as it is small: a commit leaves few files.
    The commit requires that each fragment lies where its slots live and has runs of all indexes.
    If some moved meanwhile, their rows are staged again at the new place, and the commit is tried
    again; so it is when an index was made meanwhile. A table that was only reserved is entered with it.
    `check` says what the commit requires of its keys; when that does not hold, what was staged is removed,
    but for the paths to `keep`.
    `versions` as for `stage`, from before anything was staged.

    Raises:
        RowsChanged, KeysExist, ChangesExpired: as `check` says.
        InvalidOffset: `txn` was committed before with other content.
        TableChanged: the table was dropped.
        WriteConflict: another table took the name of one that was reserved.
    """
    context.checkpoint("rows staged")
    with context.upkeep.follow() as claim:
        return _publish_prepared(
            context, table, staged, kind, txn, check, user_metadata, claim, versions, keep
        )


def _publish_prepared(
    context: Context,
    table: TableInfo,
    staged: Sequence[StagedFragment],
    kind: str,
    txn: IdempotencyKey | None,
    check: Precondition | None,
    user_metadata: Mapping[str, str] | None,
    claim: Claim,
    versions: tuple[int, int] | None,
    keep: Collection[str],
) -> int:
    fragments = list(staged)
    try:
        with context.noticing_collection():
            if txn is None or not is_committed(context, table.id, txn):
                fragments = _prepare(context, table, staged, kind, versions or context.versions())
            number, committed = _publish(
                context, table, fragments, kind, txn, check, user_metadata, claim, versions
            )
    except (RowsChanged, KeysExist, ChangesExpired):
        remove_staged(context, [f for f in (*staged, *fragments) if f.path not in keep])
        raise
    except CommitUnknown:
        raise
    except BaseException:
        with suppress(ElasticScanError):  # then they are garbage
            remove_staged(context, _made(fragments, staged))
        raise
    context.note_newest_afar({fragment.shard for fragment in committed})
    paths = {fragment.path for fragment in committed}
    discard([f for f in (*staged, *fragments) if f.path not in paths], context.disk_of)
    return number


def _prepare(
    context: Context,
    table: TableInfo,
    staged: Sequence[StagedFragment],
    kind: str,
    versions: tuple[int, int],
) -> list[StagedFragment]:
    """As `_complete`; where that fails, what was staged is removed."""
    try:
        return _complete(context, table, staged, kind, versions)
    except BaseException:
        with suppress(ElasticScanError):  # then it is garbage
            remove_staged(context, staged)
        raise


def _complete(
    context: Context,
    table: TableInfo,
    staged: Sequence[StagedFragment],
    kind: str,
    versions: tuple[int, int],
) -> list[StagedFragment]:
    """Few fragments with the rows of those that were staged, and with all their runs."""
    counts = Counter(fragment.shard for fragment in staged)
    active = context.placement(versions[0]).shards
    crowded = [f for f in staged if counts[f.shard] > 1 and f.shard in active]
    fragments = [fragment for fragment in staged if fragment not in crowded]
    made: list[StagedFragment] = []
    if crowded:
        made = gather(table, crowded, context.staging_disk, context.origin(kind, versions=versions))
        fragments += made
    try:
        return with_runs(context, table, context.indexes(table.id, versions[0]), fragments, versions)
    except BaseException:
        discard(_made(made, staged), context.disk_of)
        raise


def _made(fragments: Sequence[StagedFragment], staged: Sequence[StagedFragment]) -> list[StagedFragment]:
    """The fragments that were made of those that the caller staged."""
    paths = {fragment.path for fragment in staged}
    return [fragment for fragment in fragments if fragment.path not in paths]


@begun_again
def _publish(
    context: Context,
    table: TableInfo,
    fragments: list[StagedFragment],
    kind: str,
    txn: IdempotencyKey | None,
    check: Precondition | None,
    user_metadata: Mapping[str, str] | None,
    claim: Claim,
    since: tuple[int, int] | None,
) -> tuple[int, list[StagedFragment]]:
    """The commit's number, and those of the fragments that it refers to."""

    def settle(placement: Placement, indexes: Sequence[IndexInfo]) -> list[StagedFragment]:
        moved = reroute(table, fragments, placement, context.staging_disk, context.origin(kind))
        return with_runs(context, table, indexes, moved)

    for attempt in count():
        at_last = attempt >= ATTEMPTS_WITHOUT_LOCK
        if check is not None:
            check.look(fragments)
            context.checkpoint("keys compared")
        with context.catalog.writing(partial(ask_for_commit, table.id, tuple(fragments))) as tx:
            earlier = None if txn is None else tx.commit_of_txn(table.id, txn)
            if earlier is not None:
                # The very same fragments may be handed in again; then the commit refers to them.
                paths = tx.known_paths()
                mine = [fragment for fragment in fragments if (fragment.shard, fragment.path) in paths]
                discard([fragment for fragment in fragments if fragment not in mine], context.disk_of)
                return earlier, mine
            is_there = context.is_entered(tx, table)
            if not is_there and tx.reserved_table(table.id) is None:
                raise TableChanged(
                    f"table {table.name!r} was dropped while rows were written to it; nothing was committed",
                    table=table.name,
                )
            if at_last:  # nothing can change now, so this one is the last
                fragments = settle(tx.placement(), tx.indexes(table.id))
            in_place = _in_place(context.placement_in(tx), fragments) and not missing_runs(
                context.indexes_in(tx, table.id), fragments
            )
            if in_place and (check is None or check.holds(tx, fragments, at_last)):
                context.check_not_collected(tx, fragments, since)
                if not is_there:
                    tx.enter_reserved(table.id)
                kind = _kind_of(kind, fragments)
                number = tx.add_commit(table.id, kind, fragments, txn, user_metadata)
                claim(tx, table.id, fragments)
                return number, fragments
        fragments = settle(context.placement(), context.indexes(table.id))
    raise AssertionError("unreachable")


def _kind_of(kind: str, staged: Sequence[StagedFragment]) -> str:
    """The name of a commit in the table's history: rows of a write may delete, too."""
    deletes = sum(fragment.tombstones for fragment in staged)
    if kind != "write" or not deletes:
        return kind
    return "delete" if deletes == sum(fragment.rows for fragment in staged) else "merge"


def _in_place(placement: Placement, staged: Sequence[StagedFragment]) -> bool:
    return all(fragment.slots <= placement.at(fragment.shard) for fragment in staged)


def write(
    context: Context,
    table: TableInfo,
    data: Any,
    kind: str = "write",
    txn: IdempotencyKey | None = None,
    buffer_bytes: int = WRITE_BUFFER_BYTES,
    check: Precondition | None = None,
    user_metadata: Mapping[str, str] | None = None,
) -> int:
    """Upsert rows by primary key, all or nothing; returns the commit number."""
    batches = (_conform(batch, table) for batch in batches_of(data))
    versions = context.seen  # by whoever looked the table up
    staged = stage(context, table, batches, kind, buffer_bytes, versions)
    return publish(context, table, staged, kind, txn, check, user_metadata, versions)


def _conform(batch: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    check_keys_filled(batch, table)
    return conform(batch, table.schema)


def delete(
    context: Context,
    table: TableInfo,
    keys: Any,
    txn: IdempotencyKey | None = None,
    check: Precondition | None = None,
    user_metadata: Mapping[str, str] | None = None,
) -> int:
    """Delete by primary key, all or nothing; keys that are not there are no error."""
    tombstones = (tombstones_of(batch, table) for batch in conform_keys(keys, table))
    versions = context.seen  # by whoever looked the table up
    staged = stage(context, table, tombstones, "delete", versions=versions)
    return publish(context, table, staged, "delete", txn, check, user_metadata, versions)


def check_no_key_twice(context: Context, table: TableInfo, staged: Sequence[StagedFragment]) -> None:
    """For a write that several tasks staged: raises `InvalidKey` when two of them had the same key."""
    with context.noticing_collection():
        check_keys_differ(staged_source(table, staged, context.disk_of))
