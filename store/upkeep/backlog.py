"""The state of a store's upkeep as plain values: what is pending, and what runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from elasticscan.catalog import Tx
from elasticscan.metadata import TableInfo
from elasticscan.store.moves.owners import owner_is_gone
from elasticscan.store.upkeep.executor import states_of, steps_in
from elasticscan.store.upkeep.planning import Policy, depth_of, parts_of, plan_merges


def upkeep_of(tx: Tx, tables: Sequence[TableInfo], policy: Policy) -> dict[str, dict[str, Any]]:
    """Describe the upkeep of each table, by its name.

    `bytes` divides the bytes of all files, indexes included: `live` ones are of fragments that the newest
    rows are read from, `old` ones of history or overwritten, which snapshots, tags or leases still keep, and
    `garbage` waits to be collected or merged away: files that were dropped, and rows of slots that live
    elsewhere now.

    No table costs a question of its own.
    """
    described, dropped = {}, Counter[int]()
    for file in tx.state.removed_files():
        dropped[file.table] += file.bytes
    for table in tables:
        states = states_of(tx, table.id).values()
        current = [state.current for state in states]
        live = sum(part.bytes for parts in current for part in parts)
        serving = sum(part.bytes for state in states for part in parts_of(state.fragments, state.runs))
        files = dropped[table.id] + sum(f.bytes for state in states for f in state.fragments)
        files += sum(run.bytes for state in states for run in state.runs)
        merges = [merge for parts in current for merge in plan_merges(parts, policy)]
        described[table.name] = {
            "bytes": {"live": live, "old": serving - live, "garbage": max(files - serving, 0)},
            "merges_due": len(merges),
            "bytes_due": sum(merge.bytes for merge in merges),
            "slot_fragments": max((depth_of(parts, policy) for parts in current), default=0),
        }
    return described


def steps_of(tx: Tx, tables: Sequence[TableInfo], shards: Mapping[int, str]) -> list[dict[str, Any]]:
    """Describe the running steps by their targets."""
    names = {table.id: table.name for table in tables}

    def named(target: str) -> str:
        kind, *site = target.split("/")
        if not site:
            return kind
        table, *shard = (int(part) for part in site)
        of = f"{kind} {names.get(table, 'dropped')}"
        return f"{of} at {shards.get(shard[0], 'removed')}" if shard else of

    running = [asdict(step) for step in steps_in(tx) if not owner_is_gone(step, tx.times.expiry)]
    return [{"step": named(step.pop("target")), **step} for step in running]
