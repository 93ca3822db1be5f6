"""The state of a store as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from elasticscan.base.errors import CatalogOutdated
from elasticscan.base.limits import BEAT_SECONDS, GC_GRACE_SECONDS, SILENT_SECONDS
from elasticscan.base.redaction import shown
from elasticscan.catalog import StoreState, newest_topology
from elasticscan.metadata import Bounds, Fragment, IndexInfo, IndexRun
from elasticscan.storage import View, most_rows
from elasticscan.store.context import Context
from elasticscan.store.context.leases import leases_in
from elasticscan.store.context.lookups import by_shard
from elasticscan.store.moves.balancing import tablet_bytes
from elasticscan.store.moves.owners import OwnedMove, moves_in, owner_is_gone
from elasticscan.store.reading.progress import scans_in
from elasticscan.store.reading.streams import streams_in
from elasticscan.store.upkeep.executor import running_steps, upkeep_of
from elasticscan.store.upkeep.planning import Policy


def _size(state: StoreState, table_id: int, fragments: Sequence[Fragment]) -> dict[str, Any]:
    """Return the size of a table by the catalog alone: an upper bound of its rows, and whether it is exact.

    The bound is the smaller one of two sums: of rows in its files and in the log, where a key may count
    several times, as do rows that were flushed in part, and rows of slots that moved away; and of rows that
    its commits wrote since the last overwrite.
    """
    table = state.tables[table_id]
    floor = max(table.overwrites, default=0)
    bounds = Bounds(floor, state.commit, since=state.commit)
    held = [most_rows(View(own), bounds) for own in by_shard(fragments).values()]
    most, exact = sum(rows for rows, _ in held), all(exact for _, exact in held)
    live = [commit for commit in table.memory if commit.number >= floor]
    most += sum(commit.rows - commit.tombstones for commit in live)
    if live:  # the rows of one commit are of different keys; whether files have the same ones is unknown
        alone, number = len(live) == 1 and not live[0].tombstones, live[0].number
        exact &= alone and not any(f.min_commit <= number <= f.max_commit for f in fragments)
        exact &= all(f.slots.isdisjoint(live[0].slots) for f in fragments if bounds.touch(f))
    return {
        "rows": most if exact else min(most, table.rows - table.overwritten),
        "rows_exact": exact,
        "bytes": sum(f.serving_bytes for f in fragments) + sum(commit.bytes for commit in table.memory),
        "fragments": len(fragments),
    }


def _why_outdated(context: Context) -> str | None:
    """Return why the catalog cannot have the newest snapshot, or None."""
    try:
        context.check_newest()
    except CatalogOutdated as error:
        return str(error)
    return None


def _shards(state: StoreState, fragments: Iterable[Fragment]) -> list[dict[str, Any]]:
    tablets, size = Counter(tablet.shard for tablet in state.placement.tablets), Counter[int]()
    for fragment in fragments:
        size[fragment.shard] += fragment.serving_bytes
    return [
        {
            "name": shard.name,
            "root": shown(shard.root),
            "draining": shard.draining,
            "tablets": tablets[shard.id],
            "bytes": size[shard.id],
        }
        for shard in state.shards.values()
    ]


def _removed(state: StoreState) -> list[dict[str, Any]]:
    """Describe the removed shards of which files are known still: such as scans under way may read."""
    until: dict[int, list[float]] = {}
    for file in state.removed_files() if state.removed_shards else ():
        if file.shard in state.removed_shards:
            until.setdefault(file.shard, []).append(file.dropped_at + GC_GRACE_SECONDS)
    gone = state.removed_shards
    return [
        {
            "name": gone[shard].name,
            "root": shown(gone[shard].root),
            "files": len(ends),
            "kept_until": max(ends),
        }
        for shard, ends in sorted(until.items())
    ]


def _indexes(indexes: Iterable[IndexInfo], runs: Iterable[IndexRun]) -> dict[int, list[dict[str, Any]]]:
    """Return the entries of indexes by their tables."""
    size, found = Counter[int](), dict[int, list[dict[str, Any]]]()
    for run in runs:
        size[run.index] += run.bytes
    for index in indexes:
        found.setdefault(index.table, []).append(
            {
                "name": index.name,
                "kind": index.kind,
                "columns": list(index.columns),
                "include": list(index.include),
                "ready": index.ready,
                "bytes": size[index.id],
            }
        )
    return found


def _move(move: OwnedMove, names: Mapping[int, str], now: float) -> dict[str, Any]:
    silent_since, ends = move.heartbeat_at, move.heartbeat_at + SILENT_SECONDS
    is_gone = owner_is_gone(move, now)
    is_silent = is_gone or now - silent_since > 2 * BEAT_SECONDS
    return {
        "tablet": move.tablet,
        "from": names.get(move.source, str(move.source)),
        "to": names.get(move.target, str(move.target)),
        "phase": str(move.phase),
        "started_at": move.started_at,
        "silent_since": silent_since if is_silent else None,
        "taken_over_from": (min(now, ends) if is_gone else ends) if is_silent else None,
    }


def status_of(context: Context) -> dict[str, Any]:
    """Describe a store, as `Store.status` returns it, by one state of the catalog and no file."""
    tx = context.catalog.newest()
    state, tables, fragments = tx.state, tx.state.infos(), tx.state.fragments()
    names = {shard.id: shard.name for shard in state.shards.values()}
    indexes = _indexes(state.indexes(), state.runs())
    sizes, moves = tablet_bytes(state.placement, fragments), moves_in(tx)
    goes = {move.tablet: names.get(move.target) for move in moves}
    own: dict[int, list[Fragment]] = {}
    for fragment in fragments:
        own.setdefault(fragment.table, []).append(fragment)
    return {
        "store_id": context.known.store_id,
        "read_only": context.catalog.read_only,
        "slots": context.known.slots,
        "hash": context.known.hash,
        "topology": newest_topology(tx).number,
        "snapshot": state.commit,
        "outdated": _why_outdated(context),
        "shards": _shards(state, fragments),
        "removed_shards": _removed(state),
        "tablets": [
            {
                "id": tablet.id,
                "slots": [tablet.start, tablet.end],
                "shard": names[tablet.shard],
                "epoch": tablet.epoch,
                "bytes": round(sizes[tablet.id]),
                "moving_to": goes.get(tablet.id),
            }
            for tablet in state.placement.tablets
        ],
        "tables": [
            {
                "name": table.name,
                **_size(state, table.id, own.get(table.id, [])),
                "retention_seconds": context.retention_of(table),
                "indexes": indexes.get(table.id, []),
                "tags": [asdict(tag) for tag in state.tables[table.id].tags],
                "primary_key": list(table.primary_key),
                "compression": table.compression,
                "upkeep": upkeep_of(tx, table.id, Policy()),
            }
            for table in tables
        ],
        "moves": [_move(move, names, tx.times.expiry) for move in moves],
        "upkeep": {
            "mode": context.upkeep.mode,
            "problem": context.upkeep.problem,
            "running": running_steps(tx),
        },
        "leases": [lease | {"snapshot_at": tx.made_at(lease["snapshot"])} for lease in leases_in(tx)],
        "streams": streams_in(tx),
        "scans": scans_in(tx),
    }
