"""The state of a store as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from elasticscan.base.errors import CatalogOutdated
from elasticscan.base.redaction import shown
from elasticscan.catalog import Tx, begun_again
from elasticscan.metadata import Bounds, Fragment, IndexInfo, IndexRun, TableInfo
from elasticscan.storage import View, most_rows
from elasticscan.store.context import Context
from elasticscan.store.reading.progress import scans_in
from elasticscan.store.reading.streams import streams_in
from elasticscan.store.upkeep.amplification import steps_of, upkeep_of
from elasticscan.topology import Placement, Shard
from elasticscan.upkeep import Policy, tablet_bytes, tablet_depths


def _size(tx: Tx, table: TableInfo, newest: int, fragments: Sequence[Fragment]) -> dict[str, Any]:
    """The size of a table by the catalog alone: the most rows that it can have, and whether just so many.

    Two bounds: what its files hold, where a row may have several versions, and rows of slots that moved away
    are left; and what its commits wrote since the last overwrite.
    """
    by_shard: dict[int, list[Fragment]] = {}
    for fragment in fragments:
        by_shard.setdefault(fragment.shard, []).append(fragment)
    floor = max(tx.overwrites(table.id), default=0)
    bounds = Bounds(floor, newest, since=newest)
    held = [most_rows(View(own), bounds) for own in by_shard.values()]
    most, exact = sum(rows for rows, _ in held), all(exact for _, exact in held)
    return {
        "rows": most if exact else min(most, tx.rows_written(table.id, floor)),
        "rows_exact": exact,
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
def status_of(context: Context, only: str | None = None) -> dict[str, Any]:
    """Describe a store, as `Store.status` returns it: from one look at the catalog, and at no file.

    With `only`, of its tables this one alone.
    """
    with context.catalog.reading() as tx:
        placement, shards, tables = tx.placement(), tx.shards(), tx.tables()
        fragments, moves, leases = tx.fragments(), tx.moves(), tx.leases()
        tags = {table.id: tx.tags(table.id) for table in tables}
        indexes, streams, scans = tx.indexes(), streams_in(tx), scans_in(tx)
        runs = {table.id: tx.runs(table.id) for table in tables}
        topology, snapshot = tx.newest_topology().number, tx.versions()[1]
        own: dict[int, list[Fragment]] = {}
        for fragment in fragments:
            own.setdefault(fragment.table, []).append(fragment)
        told = [table for table in tables if only in (None, table.name)]
        sized = {table.id: _size(tx, table, snapshot, own.get(table.id, [])) for table in told}
        made = tx.commit_times(lease["snapshot"] for lease in leases)
        names = {shard.id: shard.name for shard in shards}
        sizes, depths = tablet_bytes(placement, fragments), tablet_depths(placement, fragments)
        upkeep, steps = upkeep_of(tx, tables, fragments, runs, Policy()), steps_of(tx, tables, names)
    described = [
        {
            "name": table.name,
            **sized[table.id],
            "retention_seconds": context.retention_of(table),
            "indexes": [_index(index, runs[table.id]) for index in indexes if index.table == table.id],
            "tags": [asdict(tag) for tag in tags[table.id]],
            "primary_key": list(table.primary_key),
            "compression": table.compression,
            "upkeep": upkeep[table.name],
        }
        for table in told
    ]
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
