"""The state of a store's upkeep as plain values: what is due, what runs, what was done, and amplification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from elasticscan.catalog import Tx
from elasticscan.metadata import Fragment, IndexRun, TableInfo
from elasticscan.store.moves.owners import owner_is_gone
from elasticscan.store.upkeep.steps import written_of
from elasticscan.upkeep import Part, Policy, debt_of, parts_of


def upkeep_of(
    tx: Tx,
    tables: Sequence[TableInfo],
    fragments: Sequence[Fragment],
    runs: Mapping[int, Sequence[IndexRun]],
    policy: Policy,
) -> dict[str, dict[str, Any]]:
    """Describe the upkeep of each table, by its name.

    Amplification of reads is the number of fragments that a slot is read from, on average; that of writes the
    bytes written for each that was committed; that of space the bytes of all files that are there, for each
    byte of those that the newest rows are read from.

    `bytes` divides the bytes of all files, indexes included: `live` ones are of fragments that the newest
    rows are read from, `old` ones of history, which snapshots, tags or leases still keep, and `garbage` waits
    to be collected or merged away: files that were dropped, and rows of slots that live elsewhere now.
    """
    described = {}
    for table in tables:
        own = [fragment for fragment in fragments if fragment.table == table.id]
        by_shard: dict[int, list[Fragment]] = {}
        for fragment in own:
            if fragment.superseded_at is None:  # history costs space alone
                by_shard.setdefault(fragment.shard, []).append(fragment)
        parts: list[Sequence[Part]] = [parts_of(here, runs[table.id]) for here in by_shard.values()]
        debt, written = debt_of(parts, policy), written_of(tx, table.id)
        read = sum(part.bytes for here in parts for part in here)
        serving = sum(fragment.bytes for fragment in own) + sum(run.bytes for run in runs[table.id])
        files = serving + tx.dropped_bytes(table.id)
        history = [fragment for fragment in own if fragment.superseded_at is not None]
        old = sum(part.bytes for part in parts_of(history, runs[table.id]))
        described[table.name] = {
            "bytes": {"live": read, "old": old, "garbage": max(files - read - old, 0)},
            "merges_due": debt.merges,
            "bytes_due": debt.bytes,
            "slot_fragments": debt.slot_fragments,
            "amplification": {
                "reads": round(debt.reads, 2),
                "writes": round(written.amplification, 2),
                "space": round(files / read, 2) if read else 1.0,
            },
        }
    return described


def steps_of(
    tx: Tx, tables: Sequence[TableInfo], shards: Mapping[int, str]
) -> dict[str, list[dict[str, Any]]]:
    """Describe the steps that are under way, and those that were done, by what they worked at."""
    names = {table.id: table.name for table in tables}

    def named(target: str) -> str:
        kind, *site = target.split("/")
        if not site:
            return kind
        table, shard = (int(part) for part in site)
        return f"{kind} {names.get(table, 'dropped')} at {shards.get(shard, 'removed')}"

    running = [asdict(step) for step in tx.steps() if not owner_is_gone(step, tx.times.expiry)]
    done = [asdict(step) for step in tx.done()]
    for step in (*running, *done):
        step["step"] = named(step.pop("target"))
    return {"running": running, "done": done}
