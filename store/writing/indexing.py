"""Secondary indexes: runs are built with every new fragment, and for older fragments by `create_index`.

After the transaction that adds an index, every commit of a fragment must include its runs, whether a writer,
a mover or a merge commits it. The process that creates the index builds the runs of older fragments. When no
fragment lacks runs, a transaction marks the index ready, and scans use it. If the build is killed, the index
stays unused; the next `create_index` continues the build.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from elasticscan.base.concurrency import parallel
from elasticscan.base.errors import (
    FragmentDamaged,
    InvalidOption,
    LimitExceeded,
)
from elasticscan.base.key_encoding import check_key_type
from elasticscan.base.limits import MAX_INDEXES, MAX_KEY_COLUMNS, SHARDS_AT_ONCE, check_name
from elasticscan.catalog import StoreState, Tx, retry_interrupted
from elasticscan.metadata import (
    AUTO,
    DIRECT,
    INDEX_KINDS,
    KEY,
    NONE,
    AddedRun,
    FileChanges,
    Fragment,
    FragmentsReplaced,
    IndexDefined,
    IndexInfo,
    IndexPhase,
    StagedFragment,
    StagedRun,
    TableInfo,
)
from elasticscan.storage import RUN_COLUMNS, File, build_runs, remove_files
from elasticscan.store import arguments
from elasticscan.store.context import Context, Find
from elasticscan.store.reading.scan import columns_of

BUILDERS = 2
TOGETHER = 64  # fragments at most whose runs one transaction adds

Built: TypeAlias = tuple[Fragment, Sequence[StagedRun]]


def missing_runs(indexes: Iterable[IndexInfo], staged: Iterable[StagedFragment]) -> bool:
    """Return True if a fragment lacks runs of an index, or has runs of a dropped index."""
    ids = {index.id for index in indexes}
    return any(ids != {run.index for run in fragment.runs} for fragment in staged)


def with_runs(
    context: Context, table: TableInfo, state: StoreState, staged: Iterable[StagedFragment]
) -> list[StagedFragment]:
    """Return the fragments with runs of all indexes in a state; missing runs are built now.

    After an error, the runs that were built are removed; the fragments are not.
    """
    indexes = state.indexes(table.id)
    if not missing_runs(indexes, staged := list(staged)):
        return staged
    current = state.info(table.id) or state.reserved.get(table.id)
    if current is None:
        return staged  # a table that was dropped has no indexes
    table = current  # indexes name its columns; the caller's definition may be older
    origin = context.origin("index", state=state)
    built = list[File]()

    def complete(fragment: StagedFragment) -> StagedFragment:
        disk = context.staging_disk(fragment.shard)
        complete_runs = list[StagedRun]()
        for index in indexes:
            runs = tuple(run for run in fragment.runs if run.index == index.id)
            if not runs:
                runs = build_runs(disk, table, index, fragment, origin)
                built.extend((fragment.shard, run.path) for run in runs)
            complete_runs += runs
        return replace(fragment, runs=tuple(complete_runs))

    try:
        return parallel(complete, staged, SHARDS_AT_ONCE)
    except BaseException:
        remove_files(built, context.disk_of)
        raise


def _defined(
    table: TableInfo, name: str, columns: Sequence[str], kind: str, include: Sequence[str]
) -> IndexInfo:
    """Return a checked definition without changing the store."""
    check_name("index", name)
    arguments.choice("kind", kind, INDEX_KINDS)
    columns_of(table, columns, "columns")
    columns_of(table, include or None, "include")
    if len(columns) > MAX_KEY_COLUMNS:
        raise LimitExceeded(
            f"an index has {MAX_KEY_COLUMNS} columns at most, not {len(columns)}; include the others",
            limit="columns of an index",
            most=MAX_KEY_COLUMNS,
        )
    if name in (AUTO, NONE, DIRECT, KEY):
        raise InvalidOption(
            f"an index cannot be named {name!r}, which means something else in a scan; choose another name",
            option="name",
        )
    clash = RUN_COLUMNS.intersection((*columns, *include, *table.primary_key))
    if clash:
        raise InvalidOption(
            f"column {min(clash)!r} cannot be in an index: its files have a column of that name",
            option="columns",
        )
    for column in columns:
        check_key_type(column, table.schema.field(column).type, is_index=True)
    carried = tuple(c for c in include if c not in columns and c not in table.primary_key)
    return IndexInfo(0, table.id, name, kind, tuple(columns), carried)


@retry_interrupted
def create_index(
    context: Context, find: Find, name: str, columns: Sequence[str], kind: str, include: Sequence[str]
) -> IndexInfo:
    """Create an index and build it, or continue a build of the same index that was interrupted.

    Does nothing if the index is ready, so it is safe to call again after a lost answer. Raises
    `AlreadyExists` if an index of this name has other columns or another kind.
    """
    with context.catalog.writing() as tx:
        table, indexes = find(tx)  # after this transaction, no column of the index can change
        definition = _defined(table, name, columns, kind, include)
        new = replace(definition, id=tx.state.newest_ids.get("index", 0) + 1)
        existing = (index for index in indexes if replace(new, id=index.id, phase=index.phase) == index)
        index = next(existing, new)
        if index is new:
            if len(indexes) >= MAX_INDEXES:
                raise LimitExceeded(
                    f"table {table.name!r} has {MAX_INDEXES} indexes, the most; drop one first",
                    limit="indexes",
                    most=MAX_INDEXES,
                )
            tx.append(IndexDefined(index))
    try:
        _check_rows_in_log(context, table, index)
        index, missing = _enter_runs(context, index, ())
        # A few runs in each transaction, so that an interrupted build loses little. Not one by one, since
        # each transaction reads markers at the shards.
        limit = min(TOGETHER, max(BUILDERS, len(missing) // 4))
        while missing:
            built = list[Built]()
            try:
                parallel(partial(_build, context, table, index, built), missing[:limit], BUILDERS)
            finally:
                index, missing = _enter_runs(context, index, built)
    except LimitExceeded:  # existing rows cannot be indexed, so it would never be ready
        with context.catalog.writing() as tx:
            if any(other.id == index.id and not other.ready for other in tx.state.indexes(table.id)):
                transition_index(tx, index, IndexPhase.DROPPED)
        raise
    return index


@retry_interrupted
def drop_index(context: Context, find: Find, name: str) -> None:
    """Drop an index of a table. Raises `NotFound`."""
    with context.catalog.writing() as tx:
        transition_index(tx, tx.state.index_named(find(tx)[0].id, name), IndexPhase.DROPPED)


def transition_index(tx: Tx, index: IndexInfo, phase: IndexPhase) -> IndexInfo:
    """Change the phase of an index, and return the index; a dropped index stays dropped."""
    before = next((other for other in tx.state.indexes(index.table) if other.id == index.id), None)
    if before is None:
        return replace(index, phase=IndexPhase.DROPPED)
    after = replace(before, phase=phase)
    if after != before:
        tx.append(IndexDefined(after))
    return after


def without_runs(state: StoreState, index: IndexInfo) -> list[Fragment]:
    """Return the serving fragments without runs of an index."""
    indexed = {run.fragment for run in state.runs(index.table) if run.index == index.id}
    return [fragment for fragment in state.fragments(index.table) if fragment.id not in indexed]


def _check_rows_in_log(context: Context, table: TableInfo, index: IndexInfo) -> None:
    """Check that the rows in the log can be indexed; writers check later rows themselves."""
    tx = context.catalog.newest()
    memory = context.memory(tx, tx.state.info(table.id) or table)
    for fragment in memory.fragments:
        memory.runs(fragment, index)


def _enter_runs(
    context: Context, index: IndexInfo, built: Sequence[Built]
) -> tuple[IndexInfo, list[Fragment]]:
    """Add runs that were built; return the index, and the fragments that still lack runs, largest first.

    Runs are removed instead if their fragment no longer serves slots or has runs already, or if garbage
    collection has deleted them. The index becomes ready when every fragment has its runs.
    """
    with context.catalog.writing() as tx:
        is_live = index.id in {other.id for other in tx.state.indexes(index.table)}
        unindexed = {fragment.id for fragment in without_runs(tx.state, index)} if is_live else set[int]()
        accepted = {
            part.id: runs
            for part, runs in built
            if part.id in unindexed
            and tx.state.condemned.isdisjoint((part.shard, run.path) for run in runs)
            and _exist(context, part.shard, runs)
        }
        if accepted:
            added = tuple(AddedRun(number, run) for number in sorted(accepted) for run in accepted[number])
            tx.append(FragmentsReplaced(index.table, "index", FileChanges(runs=added)))
            tx.files_at |= {part.shard for part, _ in built if part.id in accepted}
        missing = without_runs(tx.state, index)
        index = transition_index(tx, index, IndexPhase.BUILDING if missing else IndexPhase.READY)
    refused = ((part, run) for part, runs in built if part.id not in accepted for run in runs)
    remove_files(((part.shard, run.path) for part, run in refused), context.disk_of)
    missing.sort(key=lambda fragment: -fragment.rows)
    return index, missing if index.phase is IndexPhase.BUILDING else []


def _build(
    context: Context, table: TableInfo, index: IndexInfo, built: list[Built], fragment: Fragment
) -> None:
    """Build the runs of a fragment, unless it was replaced and deleted, or its shard was removed."""
    with context.unless_left(fragment.shard):
        disk = context.writable_disk(fragment.shard)
        try:
            runs = build_runs(disk, table, index, fragment, context.origin("index"))
        except FragmentDamaged:
            if any(other.id == fragment.id for other in context.state().fragments(fragment.table)):
                raise
            return
        built.append((fragment, runs))
        context.sync_point("runs built")


def _exist(context: Context, shard: int, runs: Iterable[StagedRun]) -> bool:
    """Return whether runs exist: `gc` without a grace period deletes files that no record names yet."""
    with context.unless_left(shard), suppress(FragmentDamaged):
        disk = context.writable_disk(shard)
        for run in runs:
            disk.open(run.path)
        return True
    return False
