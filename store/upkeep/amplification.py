"""The state of a store's upkeep as plain values: what is due, what runs, what was done, and amplification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from elasticscan.catalog import Tx
from elasticscan.metadata import Fragment, IndexRun, TableInfo
from elasticscan.store.moves.owners import owner_is_gone
from elasticscan.store.upkeep.steps import merged_by_table
from elasticscan.upkeep import Part, Policy, Written, debt_of, parts_of


def upkeep_of(
    tx: Tx,
    tables: Sequence[TableInfo],
    fragments: Sequence[Fragment],
    runs: Sequence[IndexRun],
    written: Mapping[int, tuple[int, int]],
    floors: Mapping[int, tuple[int, int]],
    policy: Policy,
) -> dict[str, dict[str, Any]]:
    """Describe the upkeep of each table, by its name.

    Amplification of reads is the number of fragments that a slot is read from, on average; that of writes the
    bytes written for each that was committed; that of space the bytes of all files that are there, for each
    byte of the files from which the newest rows are read.

    `bytes` divides the bytes of all files, indexes included: `live` ones are of fragments that the newest
    rows are read from, `old` ones of history or overwritten, which snapshots, tags or leases still keep, and
    `garbage` waits to be collected or merged away: files that were dropped, and rows of slots that live
    elsewhere now.

    `written` and `floors` are what the transaction tells of commits. No table costs a question of its own.
    """
    described, dropped = {}, tx.dropped_bytes()
    merged, of_table = merged_by_table(tx), dict[int, list[Fragment]]()
    for fragment in fragments:
        of_table.setdefault(fragment.table, []).append(fragment)
    runs_of: dict[int, list[IndexRun]] = {}
    for run in runs:
        runs_of.setdefault(run.fragment, []).append(run)
    for table in tables:
        own = of_table.get(table.id, [])
        with_runs = [(fragment, runs_of.get(fragment.id, [])) for fragment in own]
        by_shard, current = dict[int, list[Part]](), dict[int, list[Part]]()
        floor, old = floors.get(table.id, (0, 0))[0], 0
        for fragment, own_runs in with_runs:
            (part,) = parts_of([fragment], own_runs)
            if fragment.superseded_at is None:  # merges take overwritten ones along
                current.setdefault(fragment.shard, []).append(part)
            if fragment.superseded_at is None and fragment.max_commit >= floor:
                by_shard.setdefault(fragment.shard, []).append(part)
            else:  # it costs space alone
                old += part.bytes
        debt = debt_of(current.values(), policy)
        depth = debt if by_shard == current else debt_of(by_shard.values(), policy)
        wrote = Written(written.get(table.id, (0, 0))[1], merged[table.id])
        read = sum(part.bytes for here in by_shard.values() for part in here)
        serving = sum(fragment.bytes + sum(run.bytes for run in some) for fragment, some in with_runs)
        files = serving + dropped[table.id]
        described[table.name] = {
            "bytes": {"live": read, "old": old, "garbage": max(files - read - old, 0)},
            "merges_due": debt.merges,
            "bytes_due": debt.bytes,
            "slot_fragments": depth.slot_fragments,
            "amplification": {
                "reads": round(depth.reads, 2),
                "writes": round(wrote.amplification, 2),
                "space": round(files / read, 2) if read else 1.0,
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

    running = [asdict(step) for step in tx.steps() if not owner_is_gone(step, tx.times.expiry)]
    done = [asdict(step) for step in tx.done()]
    for step in (*running, *done):
        step["step"] = named(step.pop("target"))
    return {"running": running, "done": done}
