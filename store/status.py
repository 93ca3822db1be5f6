"""The state of a store as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from elasticscan.base.errors import CatalogOutdated, OperatorNeeded
from elasticscan.base.redaction import shown
from elasticscan.catalog import begun_again
from elasticscan.metadata import Fragment, IndexInfo, IndexRun, TableInfo
from elasticscan.store import verifying
from elasticscan.store.context import Context
from elasticscan.store.reading.progress import scans_in
from elasticscan.store.reading.streams import streams_in
from elasticscan.store.upkeep.amplification import steps_of, upkeep_of
from elasticscan.topology import Placement, Shard
from elasticscan.upkeep import Policy, tablet_bytes, tablet_depths

MOST_MERGED_ROWS = 5_000_000


def _rows(
    context: Context, table: TableInfo, newest: int, recount_seconds: float
) -> tuple[int | None, bool, str | None]:
    """(rows, whether exact, the error of counting): a status must not fail because a disk does."""
    now = context.clock.now()
    commit, rows, counted_at = context.row_counts.get(table.id, (0, 0, 0.0))
    if commit == newest and 0 <= now - counted_at < recount_seconds:
        return rows, True, None
    try:
        rows, exact = verifying.rows_of(context, table, MOST_MERGED_ROWS)
    except OperatorNeeded as error:
        return None, False, str(error)
    if exact and recount_seconds:
        context.row_counts[table.id] = newest, rows, now
    return rows, exact, None


def _rows_and_size(
    context: Context, table: TableInfo, newest: int, recount_seconds: float, fragments: Sequence[Fragment]
) -> dict[str, Any]:
    rows, exact, problem = _rows(context, table, newest, recount_seconds)
    return {
        "name": table.name,
        "rows": rows,
        "rows_exact": exact,
        **({"problem": problem} if problem else {}),
        "bytes": sum(fragment.serving_bytes for fragment in fragments),
        "fragments": len(fragments),
    }


def _why_outdated(context: Context) -> str | None:
    """The reason why the newest snapshot cannot be the newest; None when nothing says so."""
    try:
        context.check_newest()
    except CatalogOutdated as error:
        return str(error)
    return None


def _shard(shard: Shard, placement: Placement, fragments: Iterable[Fragment]) -> dict[str, Any]:
    return {
        "name": shard.name,
        "root": shown(shard.root),
        "draining": shard.draining,
        "tablets": sum(t.shard == shard.id for t in placement.tablets),
        "bytes": sum(f.serving_bytes for f in fragments if f.shard == shard.id),
    }


def _index(index: IndexInfo, runs: Iterable[IndexRun]) -> dict[str, Any]:
    return {
        "name": index.name,
        "kind": index.kind,
        "columns": list(index.columns),
        "include": list(index.include),
        "ready": index.ready,
        "bytes": sum(run.bytes for run in runs if run.index == index.id),
    }


@begun_again
def status_of(context: Context, recount_seconds: float = 0.0, only: str | None = None) -> dict[str, Any]:
    """Describe a store, as `Store.status` returns it: row counts apart, from one look at the catalog.

    With `only`, of its tables this one alone.
    """
    with context.catalog.reading() as tx:
        placement, shards, tables = tx.placement(), tx.shards(), tx.tables()
        fragments, moves, leases = tx.fragments(), tx.moves(), tx.leases()
        tags = {table.id: tx.tags(table.id) for table in tables}
        indexes, streams, scans = tx.indexes(), streams_in(tx), scans_in(tx)
        runs = {table.id: tx.runs(table.id) for table in tables}
        topology, snapshot = tx.newest_topology().number, tx.versions()[1]
        newest = {table.id: tx.last_commit_of(table.id) for table in tables}
        made = tx.commit_times(lease["snapshot"] for lease in leases)
        names = {shard.id: shard.name for shard in shards}
        sizes, depths = tablet_bytes(placement, fragments), tablet_depths(placement, fragments)
        upkeep, steps = upkeep_of(tx, tables, fragments, runs, Policy()), steps_of(tx, tables, names)
    described = []
    for table in (table for table in tables if only in (None, table.name)):
        own = [fragment for fragment in fragments if fragment.table == table.id]
        described.append(
            {
                **_rows_and_size(context, table, newest[table.id], recount_seconds, own),
                "retention_seconds": context.retention_of(table),
                "indexes": [_index(index, runs[table.id]) for index in indexes if index.table == table.id],
                "tags": [asdict(tag) for tag in tags[table.id]],
                "primary_key": list(table.primary_key),
                "compression": table.compression,
                "upkeep": upkeep[table.name],
            }
        )
    return {
        "store_id": context.info.store_id,
        "read_only": context.catalog.read_only,
        "slots": context.info.slots,
        "hash": context.info.hash,
        "topology": topology,
        "snapshot": snapshot,
        "outdated": _why_outdated(context),
        "shards": [_shard(shard, placement, fragments) for shard in shards],
        "tablets": [
            {
                "id": t.id,
                "slots": [t.start, t.end],
                "shard": names[t.shard],
                "epoch": t.epoch,
                "bytes": round(sizes[t.id]),
                "fragments": depths[t.id],
            }
            for t in placement.tablets
        ],
        "tables": described,
        "moves": [
            {
                "tablet": move.tablet,
                "from": names.get(move.source, str(move.source)),
                "to": names.get(move.target, str(move.target)),
                "phase": str(move.phase),
                "started_at": move.started_at,
            }
            for move in moves
        ],
        "upkeep": {"mode": context.upkeep.mode, "problem": context.upkeep.problem, **steps},
        "leases": [lease | {"snapshot_at": made.get(lease["snapshot"])} for lease in leases],
        "streams": streams,
        "scans": scans,
    }
