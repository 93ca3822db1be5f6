"""The state of a store's upkeep as plain values: what is due, what runs, what was done, and amplification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from elasticscan.catalog import Tx
from elasticscan.metadata import Fragment, IndexRun, TableInfo
from elasticscan.store.moves.owners import owner_is_gone
from elasticscan.store.upkeep.executor import Site
from elasticscan.store.upkeep.planning import (
    Merge,
    Part,
    depth_of,
    is_current,
    mean_depth,
    parts_of,
    plan_merges,
)
from elasticscan.store.upkeep.policy import Policy


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
    merged, of_table = _merged_by_table(tx), dict[int, list[Fragment]]()
    for fragment in fragments:
        of_table.setdefault(fragment.table, []).append(fragment)
    runs_of: dict[int, list[IndexRun]] = {}
    for run in runs:
        runs_of.setdefault(run.fragment, []).append(run)
    for table in tables:
        by_shard, old, files = dict[int, list[Part]](), 0, dropped[table.id]
        floor = floors.get(table.id, (0, 0))[0]
        for fragment in of_table.get(table.id, []):
            own_runs = runs_of.get(fragment.id, [])
            (part,) = parts_of([fragment], own_runs)
            files += fragment.bytes + sum(run.bytes for run in own_runs)
            if is_current(fragment, floor):
                by_shard.setdefault(fragment.shard, []).append(part)
            else:  # it costs space alone
                old += part.bytes
        committed = written.get(table.id, (0, 0))[1]
        writes = (committed + merged[table.id]) / committed if committed else 1.0
        described[table.name] = _described(list(by_shard.values()), old, files, writes, policy)
    return described


def _merged_by_table(tx: Tx) -> Counter[int]:
    """Return the bytes that the merges of each table wrote."""
    size = Counter[int]()
    for done in tx.done():
        if (site := Site.of(done.target)) is not None:
            size[site.table] += done.bytes_written
    return size


def _described(
    by_shard: Sequence[Sequence[Part]], old: int, files: int, writes: float, policy: Policy
) -> dict[str, Any]:
    """Describe a table by the parts that its newest rows are read from, the bytes of history and of files."""
    merges: list[Merge] = [merge for parts in by_shard for merge in plan_merges(parts, policy)]
    read = sum(part.bytes for parts in by_shard for part in parts)
    count = sum(map(len, by_shard))
    reads = sum(len(parts) * mean_depth(parts) for parts in by_shard) / count if count else 1.0
    return {
        "bytes": {"live": read, "old": old, "garbage": max(files - read - old, 0)},
        "merges_due": len(merges),
        "bytes_due": sum(merge.bytes for merge in merges),
        "slot_fragments": max((depth_of(parts, policy) for parts in by_shard), default=0),
        "amplification": {
            "reads": round(reads, 2),
            "writes": round(writes, 2),
            "space": round(files / read, 2) if read else 1.0,
        },
    }


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
