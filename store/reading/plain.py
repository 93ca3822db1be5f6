"""Fragments that hold nothing but rows of a scan: what the catalog says of them is true of it."""

from __future__ import annotations

from elasticscan.metadata import Bounds, Fragment
from elasticscan.protocol import ContinuationKey, Cursor
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import KnownTable
from elasticscan.topology import SlotSet


def plain_fragments(context: Context, key: ContinuationKey) -> tuple[KnownTable, list[Fragment]] | None:
    """Return the fragments whose rows are just those that a scan which stands at its beginning would test.

    Each slot must be in one fragment alone, and each fragment must be nothing but rows of these slots that
    are in the snapshot: no deleted keys, no key twice, no rows of slots that moved away. None where that is
    not so.

    Raises:
        TableChanged, SnapshotExpired: as a scan of it would.
    """
    whole = SlotSet.span(0, context.info.slots)
    if key.limit is not None or key.segments or key.cursors != (Cursor(whole),):
        return None
    state = context.table_state(key.table, key.snapshot)
    bounds, fragments = state.bounds(key.snapshot), {}
    for interval in state.intervals_at(key.snapshot):
        if len(interval.fragments) != 1:
            return None
        fragments[interval.fragments[0].id] = interval.fragments[0]
    slots = SlotSet()
    for fragment in fragments.values():
        if not _is_plain(fragment, bounds) or fragment.slots & slots:
            return None
        slots |= fragment.slots
    return state, list(fragments.values())


def _is_plain(fragment: Fragment, bounds: Bounds) -> bool:
    return (
        fragment.unique
        and not fragment.tombstones
        and fragment.superseded_at is None
        and bounds.wholly_hold(fragment)
        and len(fragment.slots) == fragment.slots_written
    )
