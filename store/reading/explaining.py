"""The explanation of a scan: its path, and where the slots are that it has not read yet."""

from __future__ import annotations

from typing import Any

from elasticscan.catalog import retry_interrupted
from elasticscan.protocol import ContinuationKey, slots_of
from elasticscan.store.context import Context
from elasticscan.topology import Topology


def explain_scan(
    context: Context,
    table: str,
    base: Topology,
    state: ContinuationKey,
    access: dict[str, Any],
    actual: dict[str, int],
) -> dict[str, Any]:
    """Explain a scan that stands at a state, given its access path and what it has read."""
    placement, pending = context.placement(), slots_of(state.cursors)
    names = dict(base.shard_names) | context.shard_names()
    scans = []
    for shard, slots in sorted(placement.split_by_shard(pending).items()):
        home = slots & base.placement.at(shard)
        for kind, part in (("base-shard scan", home), ("virtual scan", slots - home)):
            if part:
                scans.append({"scan": kind, "shard": names.get(shard, str(shard)), "slots": len(part)})
    return {
        "table": table,
        "snapshot": state.snapshot,
        "base_topology": base.number,
        "columns": list(state.columns),
        "filter": state.filter,
        **access,
        "limit": state.limit,
        "kept_by": "lease" if _is_leased(context, state.lease) else "retention",
        "actual": actual,
        "slots": len(state.slots),
        "pending_slots": len(pending),
        "scans": scans,
    }


@retry_interrupted
def _is_leased(context: Context, lease: str) -> bool:
    with context.catalog.reading() as tx:
        return tx.lease_end(lease) > tx.now
