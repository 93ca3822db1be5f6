"""The state of a store's upkeep as plain values: what is pending, what runs, what was done, amplification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from elasticscan.catalog import Tx
from elasticscan.metadata import TableInfo
from elasticscan.store.moves.owners import owner_is_gone
from elasticscan.store.upkeep.executor import Site, states_of
from elasticscan.store.upkeep.planning import depth_of, mean_depth, parts_of, plan_merges
from elasticscan.store.upkeep.policy import Policy
from elasticscan.store.upkeep.steps import done_in, steps_in


def upkeep_of(tx: Tx, tables: Sequence[TableInfo], policy: Policy) -> dict[str, dict[str, Any]]:
    """Describe the upkeep of each table, by its name.

    Amplification of reads is the number of fragments that a slot is read from, on average; that of writes the
    bytes written for each that was committed; that of space the bytes of all files that are there, for each
    byte of the files from which the newest rows are read.

    `bytes` divides the bytes of all files, indexes included: `live` ones are of fragments that the newest
    rows are read from, `old` ones of history or overwritten, which snapshots, tags or leases still keep, and
    `garbage` waits to be collected or merged away: files that were dropped, and rows of slots that live
    elsewhere now.

    No table costs a question of its own.
    """
    described, dropped, merged = {}, Counter[int](), Counter[int]()
    for file in tx.state.removed_files():
        dropped[file.table] += file.bytes
    for done in done_in(tx):
        if (site := Site.of(done.target)) is not None:
            merged[site.table] += done.bytes_written
    for table in tables:
        states = states_of(tx, table.id).values()
        current = [state.current for state in states]
        live = sum(part.bytes for parts in current for part in parts)
        serving = sum(part.bytes for state in states for part in parts_of(state.fragments, state.runs))
        files = dropped[table.id] + sum(f.bytes for state in states for f in state.fragments)
        files += sum(run.bytes for state in states for run in state.runs)
        merges = [merge for parts in current for merge in plan_merges(parts, policy)]
        count, committed = sum(map(len, current)), tx.state.table(table.id).bytes
        reads = sum(len(parts) * mean_depth(parts) for parts in current) / count if count else 1.0
        writes = (committed + merged[table.id]) / committed if committed else 1.0
        described[table.name] = {
            "bytes": {"live": live, "old": serving - live, "garbage": max(files - serving, 0)},
            "merges_due": len(merges),
            "bytes_due": sum(merge.bytes for merge in merges),
            "slot_fragments": max((depth_of(parts, policy) for parts in current), default=0),
            "amplification": {
                "reads": round(reads, 2),
                "writes": round(writes, 2),
                "space": round(files / live, 2) if live else 1.0,
            },
        }
    return described


def steps_of(
    tx: Tx, tables: Sequence[TableInfo], shards: Mapping[int, str]
) -> dict[str, list[dict[str, Any]]]:
    """Describe the running and the finished steps by their targets."""
    names = {table.id: table.name for table in tables}

    def named(target: str) -> str:
        kind, *site = target.split("/")
        if not site:
            return kind
        table, *shard = (int(part) for part in site)
        of = f"{kind} {names.get(table, 'dropped')}"
        return f"{of} at {shards.get(shard[0], 'removed')}" if shard else of

    running = [asdict(step) for step in steps_in(tx) if not owner_is_gone(step, tx.times.expiry)]
    done = [asdict(step) for step in done_in(tx)]
    for step in (*running, *done):
        step["step"] = named(step.pop("target"))
    return {"running": running, "done": done}
