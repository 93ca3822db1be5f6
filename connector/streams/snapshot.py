"""The snapshot with which a stream begins: slots of it as tasks."""

from __future__ import annotations

from collections.abc import Sequence

from elasticscan.connector.options import Options
from elasticscan.connector.partitions import ScanPartition, partitions_of
from elasticscan.connector.splits import cut
from elasticscan.connector.streams.changes import stored_columns, task_limits
from elasticscan.connector.streams.offsets import SnapshotPart
from elasticscan.metadata import Fragment
from elasticscan.store import Store, StreamState, slot_bytes
from elasticscan.topology import SlotSet


def plan_snapshot(
    store: Store, state: StreamState, part: SnapshotPart, columns: Sequence[str], options: Options
) -> list[ScanPartition]:
    """Plan tasks that read some slots of a snapshot once together; a filter may leave slots out.

    Args:
        state: a view of the catalog with the table's fragments.
        columns: what Spark expects.

    Raises:
        SnapshotExpired: the snapshot is no longer kept.
    """
    scan = store.backend.changes.scan_snapshot(
        state,
        part.at,
        SlotSet.span(part.start, part.end),
        stored_columns(state.table, columns),
        options.filter,
        options.feed,
        options.batch_rows,
    )
    weights = slot_bytes(state.fragments, state.placement.slot_count)
    size = float(sum(weights[start:end].sum() for start, end in scan.slots))
    size, most = task_limits(size, _rows(state.fragments, scan.slots), options)
    size = min(size, options.split_bytes)
    parts = cut(state.placement, state.base.placement, weights, size, most, scan.slots)
    return partitions_of(store.backend, scan, parts, state.shard_names)


def _rows(fragments: Sequence[Fragment], slots: SlotSet) -> float:
    """About how many rows some slots hold."""
    return sum(f.rows * len(f.slots & slots) / max(f.slots_written, len(f.slots), 1) for f in fragments)
