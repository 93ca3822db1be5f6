"""The state of a store as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from elasticscan.base.errors import ShardMismatch
from elasticscan.base.limits import BEAT_SECONDS, GC_GRACE_SECONDS, SILENT_SECONDS
from elasticscan.base.redaction import shown
from elasticscan.catalog import StoreState, Tx, newest_topology
from elasticscan.metadata import Bounds, Fragment, IndexInfo
from elasticscan.storage import most_rows
from elasticscan.store.context import Context
from elasticscan.store.context.leases import leases_in
from elasticscan.store.moves.balancing import tablet_bytes
from elasticscan.store.moves.owners import OwnedMove, moves_in, owner_is_gone, steps_in
from elasticscan.store.reading.streams import streams_in
from elasticscan.store.upkeep.executor import states_of
from elasticscan.store.upkeep.planning import Policy, depth_of, plan_merges
from elasticscan.topology import Shard


def _size(state: StoreState, table_id: int, fragments: Sequence[Fragment]) -> dict[str, Any]:
    """Return the size of a table, from the catalog alone: an upper bound of its rows, and if it is exact.

    The bound is the smaller of two sums: (1) the rows in its files and in the log, which count a key several
    times if it was written several times, flushed in part, or left behind by a move; (2) the rows that
    commits wrote since the last overwrite.
    """
    table = state.tables[table_id]
    floor = max(table.overwrites, default=0)
    bounds = Bounds(floor, state.commit, since=state.commit)
    most, exact = most_rows(fragments, bounds)
    live = [commit for commit in table.memory if commit.number >= floor]
    most += sum(commit.rows - commit.tombstones for commit in live)
    if live:  # one commit has no key twice, but two commits, or a commit and a file, may share keys
        exact = len(live) == 1 and not live[0].tombstones and not any(map(bounds.touch, fragments))
    return {
        "rows": most if exact else min(most, table.rows - table.overwritten),
        "rows_exact": exact,
        "bytes": sum(f.serving_bytes for f in fragments) + sum(commit.bytes for commit in table.memory),
        "fragments": len(fragments),
    }


def _why_outdated(context: Context) -> str | None:
    """Return why the catalog is not the newest one; None if shards have seen nothing newer."""
    try:
        context.check_newest()
    except ShardMismatch as error:
        return str(error)
    return None


def _removed(state: StoreState) -> list[dict[str, Any]]:
    """Describe the removed shards whose files are still kept, because running scans may read them."""
    shards, until = state.removed_shards, dict[int, list[float]]()
    for file in state.removed_files() if shards else ():
        if file.shard in shards:
            until.setdefault(file.shard, []).append(file.dropped_at + GC_GRACE_SECONDS)
    return [
        _shard(shards[shard]) | {"files": len(ends), "kept_until": max(ends)}
        for shard, ends in sorted(until.items())
    ]


def _shard(shard: Shard) -> dict[str, Any]:
    return {"name": shard.name, "root": shown(shard.root)}


def _index(index: IndexInfo, size: int) -> dict[str, Any]:
    columns = {"columns": list(index.columns), "include": list(index.include)}
    return {"name": index.name, "kind": index.kind, **columns, "ready": index.ready, "bytes": size}


def _upkeep(tx: Tx, table: int) -> dict[str, Any]:
    """Describe the pending merges of a table, and the largest number of fragments per slot."""
    current, policy = [state.current for state in states_of(tx.state, table).values()], Policy()
    merges = [merge for parts in current for merge in plan_merges(parts, policy)]
    return {
        "merges_due": len(merges),
        "bytes_due": sum(merge.bytes for merge in merges),
        "slot_fragments": max((depth_of(parts, policy) for parts in current), default=0),
    }


def _running(tx: Tx) -> list[dict[str, Any]]:
    """Describe the steps whose owners are alive."""
    live = (step for step in steps_in(tx) if not owner_is_gone(step, tx.times.expiry))
    return [{"step": step.pop("target"), **step} for step in map(asdict, live)]


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
    """Return the result of `Store.status`, from one state of the catalog and without reading files."""
    tx = context.catalog.newest()
    state, fragments = tx.state, tx.state.fragments()
    names = {shard.id: shard.name for shard in state.shards.values()}
    tablets, moves = tablet_bytes(state.placement, fragments), moves_in(tx)
    goes = {move.tablet: names.get(move.target) for move in moves}
    at_shard, of_index, of_table = Counter[int](), Counter[int](), dict[int, list[Fragment]]()
    for fragment in fragments:
        at_shard[fragment.shard] += fragment.serving_bytes
        of_table.setdefault(fragment.table, []).append(fragment)
    for run in state.runs():
        of_index[run.index] += run.bytes
    return {
        "store_id": state.store_id,
        "read_only": context.catalog.read_only,
        "slots": state.slots,
        "hash": state.hash,
        "topology": newest_topology(tx).number,
        "snapshot": state.commit,
        "outdated": _why_outdated(context),
        "shards": [
            _shard(shard)
            | {
                "draining": shard.draining,
                "tablets": sum(tablet.shard == shard.id for tablet in state.placement.tablets),
                "bytes": at_shard[shard.id],
            }
            for shard in state.shards.values()
        ],
        "removed_shards": _removed(state),
        "tablets": [
            {
                "id": tablet.id,
                "slots": [tablet.start, tablet.end],
                "shard": names[tablet.shard],
                "epoch": tablet.epoch,
                "bytes": round(tablets[tablet.id]),
                "moving_to": goes.get(tablet.id),
            }
            for tablet in state.placement.tablets
        ],
        "tables": [
            {
                "name": table.name,
                **_size(state, table.id, of_table.get(table.id, [])),
                "retention_seconds": context.retention_of(table),
                "indexes": [_index(index, of_index[index.id]) for index in state.indexes(table.id)],
                "tags": [asdict(tag) for tag in state.tables[table.id].tags],
                "primary_key": list(table.primary_key),
                "compression": table.compression,
                "upkeep": _upkeep(tx, table.id),
            }
            for table in state.infos()
        ],
        "moves": [_move(move, names, tx.times.expiry) for move in moves],
        "upkeep": {
            "mode": context.upkeep.mode,
            "problem": context.upkeep.problem,
            "running": _running(tx),
        },
        "leases": [lease | {"snapshot_at": tx.made_at(lease["snapshot"])} for lease in leases_in(tx)],
        "streams": streams_in(tx),
    }
