"""Compaction, verification, counting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from elasticscan.base.errors import OperatorNeeded
from elasticscan.catalog import Tx
from elasticscan.metadata import Bounds, Fragment, IndexInfo, TableInfo
from elasticscan.storage import (
    Copied,
    Destination,
    Keep,
    PageSource,
    View,
    copy_slots,
    count_rows,
    discard,
    verify_file,
)
from elasticscan.store.context import Context
from elasticscan.store.indexing import with_runs
from elasticscan.topology import Phase, SlotSet


def compact(context: Context, table: TableInfo) -> int:
    """Merge a table's fragments at each shard into one; returns how many fragments went away.

    Keeps every version that a lease or the retention period may need. Reads, writes and moves go
    on: slots that moved away meanwhile are left out of the new fragment when it is swapped in.
    """
    with context.catalog.reading() as tx:
        shards = sorted({fragment.shard for fragment in tx.fragments(table=table.id)})
    return sum(_compact_shard(context, table, shard) for shard in shards)


def _compact_shard(context: Context, table: TableInfo, shard: int) -> int:
    with context.catalog.reading() as tx:
        upto = tx.versions()[1]
        # The table as of the list of fragments, which may have values in a column that was just added.
        table = tx.table_by_id(table.id) or table
        horizon = tx.oldest_needed(table.id, context.retention_of(table))
        floor = max((n for n in tx.overwrites(table.id) if n <= horizon), default=0)
        fragments = tx.fragments(table=table.id, shard=shard)
    if not _worth_it(fragments):
        return 0
    gone = 0
    source = PageSource(table, View(fragments), context.readers.opener(table))
    slots = SlotSet.of(r for fragment in fragments for r in fragment.slots)
    to = Destination(context.writable_disk(shard), shard, context.origin("compact", fragments))
    merged: Copied | None = None
    try:
        with context.noticing_collection():
            merged = copy_slots(source, slots, Bounds(floor, upto), Keep(horizon, drop_tombstones=True), to)
            context.checkpoint("fragments merged")
            merged = _index(context, table, context.indexes(table.id), merged)
            with context.catalog.writing() as tx:
                now = tx.table_by_id(table.id)
                # A scan may have taken a lease on an older snapshot since the horizon was chosen.
                if now is not None and _still_allowed(tx, table, horizon):
                    merged = _index(context, table, tx.indexes(table.id), merged)
                    context.check_not_collected([merged.staged] if merged else [])
                    gone = _swap(tx, table, fragments, merged, slots - _being_copied(tx))
                    if horizon > now.oldest_snapshot:
                        tx.set_oldest_snapshot(table.id, horizon)
                    merged = None  # the commit refers to it, or nobody knows
    finally:
        if merged is not None:
            discard([merged.staged], context.disk_of)
    context.note_newest([shard])
    return gone


def _index(
    context: Context, table: TableInfo, indexes: Sequence[IndexInfo], merged: Copied | None
) -> Copied | None:
    """The merged fragment with the runs that it lacks."""
    if merged is None:
        return None
    (staged,) = with_runs(context, table, indexes, [merged.staged])
    return replace(merged, staged=staged)


def _worth_it(fragments: tuple[Fragment, ...]) -> bool:
    return len(fragments) > 1 or any(f.tombstones or not f.unique for f in fragments)


def _still_allowed(tx: Tx, table: TableInfo, horizon: int) -> bool:
    leased = tx.oldest_held(table.id)
    return leased is None or leased >= horizon


def _being_copied(tx: Tx) -> SlotSet:
    """The slots of tablets that a mover has begun to copy.

    It copies commit by commit: were a deletion merged away between two of its rounds, the row that
    it deleted would come back at the target.
    """
    copying = {move.tablet for move in tx.moves() if move.phase is not Phase.PLANNED}
    return SlotSet.of((t.start, t.end) for t in tx.placement().tablets if t.id in copying)


def _swap(
    tx: Tx, table: TableInfo, before: tuple[Fragment, ...], merged: Copied | None, slots: SlotSet
) -> int:
    """Put the merged fragment in for what its sources still serve; returns how many went."""
    now = {fragment.id: fragment for fragment in tx.fragments(table=table.id)}
    for fragment in before:
        current = now.get(fragment.id)
        slots -= fragment.slots - (current.slots if current else SlotSet())
    there = [now[fragment.id] for fragment in before if fragment.id in now] if slots else []
    left = {fragment.id: fragment.slots - slots for fragment in there}
    tx.set_fragment_slots(left)
    gone = sum(not some for some in left.values())
    if merged is not None and slots:
        staged = replace(merged.staged, slots=slots)
        tx.add_fragments(table.id, [staged], merged.min_commit, merged.max_commit)
        gone -= 1
    tx.bump_layout()
    return gone


def verify(context: Context) -> Iterator[OperatorNeeded]:
    """Look at the whole catalog and every root's marker, read every file and compare checksums.

    Yields what is wrong instead of raising it. In a damaged catalog no file is looked up.
    """
    context.catalog.look_afresh()
    try:
        with context.catalog.reading() as tx:
            tx.check_whole()
            shards = tx.shards()
            names = {table.id: table.name for table in tx.tables()}
            fragments = {fragment.id: fragment for fragment in tx.fragments()}
            runs = [run for table in names for run in tx.runs(table)]
            indexes = {index.id: index.name for index in tx.indexes()}
    except OperatorNeeded as error:
        yield error
        return
    for shard in shards:
        try:
            context.check_root(shard.id)
        except OperatorNeeded as error:
            yield error
    files = [(f.shard, f.path, f.seal, _label(names, f)) for f in fragments.values()]
    for run in runs:
        fragment = fragments[run.fragment]
        label = f"{_label(names, fragment)[:-1]}, index {indexes.get(run.index)!r})"
        files.append((fragment.shard, run.path, run.seal, label))
    for at, path, seal, label in files:
        try:
            verify_file(context.disk_of(at), path, seal, label)
        except OperatorNeeded as error:
            yield error


def _label(names: Mapping[int, str], fragment: Fragment) -> str:
    return f" (table {names.get(fragment.table)!r}, slots {fragment.slots})"


def rows_of(context: Context, table: TableInfo, most_merged_rows: int) -> tuple[int, bool]:
    """(rows at the newest snapshot, whether that is exact).

    Where fragments overlap, keys have to be compared to know; beyond `most_merged_rows` that is
    not done and every version counts.
    """
    newest = context.catalog.versions()[1]
    state = context.table_state(table.id, newest)
    bounds = Bounds(state.floor(newest), newest)
    total, exact = 0, True
    for shard in context.placement().shards:
        source = PageSource(table, state.view(shard), context.readers.opener(table))
        rows, is_exact = count_rows(source, bounds, most_merged_rows)
        total += rows
        exact &= is_exact
    return total, exact
