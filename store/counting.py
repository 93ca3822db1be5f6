"""Rows that are counted from what the catalog says of fragments, without a look at one."""

from __future__ import annotations

from elasticscan.metadata import Bounds, Fragment
from elasticscan.protocol import ContinuationKey, Cursor
from elasticscan.store.context import Context
from elasticscan.topology import SlotSet


def count_by_fragments(context: Context, key: ContinuationKey) -> int | None:
    """Count the rows of a scan that stands at its beginning; None where rows have to be looked at.

    Each slot must be in one fragment alone, and each fragment must be nothing but rows of these slots that
    are in the snapshot: no deleted keys, no key twice, no rows of slots that moved away.

    Raises:
        TableChanged, SnapshotExpired: as a scan of it would.
    """
    whole = SlotSet.span(0, context.info.slots)
    chosen = key.filter is not None or key.limit is not None or key.segments or key.index is not None
    if chosen or key.by_key or key.cursors != (Cursor(whole),):
        return None
    state = context.table_state(key.table, key.snapshot)
    bounds, fragments = state.bounds(key.snapshot), {}
    for interval in state.intervals_at(key.snapshot):
        if len(interval.fragments) != 1:
            return None
        fragments[interval.fragments[0].id] = interval.fragments[0]
    slots, counted = SlotSet(), 0
    for fragment in fragments.values():
        if not _is_plain(fragment, bounds) or fragment.slots & slots:
            return None
        slots, counted = slots | fragment.slots, counted + fragment.rows
    return counted


def _is_plain(fragment: Fragment, bounds: Bounds) -> bool:
    return (
        fragment.unique
        and not fragment.tombstones
        and fragment.superseded_at is None
        and bounds.wholly_hold(fragment)
        and len(fragment.slots) == fragment.slots_written
    )
