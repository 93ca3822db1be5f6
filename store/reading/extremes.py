"""Counts, least and greatest values of all rows, which statistics of fragments tell without a look at a row.

They tell them where the fragments hold nothing but rows that a scan would give (`_plain_fragments`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from elasticscan.filters import COUNT, COUNT_ROWS, MAX, MIN, Aggregate, decode_key
from elasticscan.metadata import Block, Bounds, Fragment, FragmentStatistics
from elasticscan.protocol import ContinuationKey, Cursor
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import KnownTable
from elasticscan.topology import SlotSet


def known_values(
    context: Context, key: ContinuationKey, aggregates: Sequence[Aggregate]
) -> list[pa.Array] | None:
    """Return the values of aggregates over all rows of a scan that stands at its beginning, one each.

    None where rows have to be looked at: with a condition, too.

    Raises:
        TableChanged, SnapshotExpired: as a scan of it would.
    """
    if key.filter is not None or any(
        each.function not in (COUNT_ROWS, COUNT, MIN, MAX) for each in aggregates
    ):
        return None
    plain = _plain_fragments(context, key)
    if plain is None:
        return None
    state, fragments = plain
    rows = sum(fragment.rows for fragment in fragments)
    statistics = context.statistics(state).fragments_of(key.definition)
    known = [statistics.get(fragment.id) for fragment in fragments]
    values = [_value(aggregate, rows, known) for aggregate in aggregates]
    return None if None in values else values


def _value(
    aggregate: Aggregate, rows: int, statistics: Sequence[FragmentStatistics | None]
) -> pa.Array | None:
    """Return an aggregate over fragments with so many rows; None where statistics do not tell it."""
    if aggregate.function == COUNT_ROWS:
        return pa.array([rows], pa.int64())
    (column,) = aggregate.columns
    blocks: list[Block] = []
    for known in statistics:
        if known is None or column not in known.columns:
            return None
        blocks += known.columns[column]
    if aggregate.function == COUNT:
        return pa.array([rows - sum(block.nulls for block in blocks)], pa.int64())
    return _extreme(aggregate, [block for block in blocks if block.low < block.high])


def _extreme(aggregate: Aggregate, blocks: Sequence[Block]) -> pa.Array | None:
    """Return the least or greatest value; None of texts, which may be cut, and of ambiguous floats."""
    kind = aggregate.type
    is_float = pt.is_float32(kind) or pt.is_float64(kind)
    if not (is_float or pt.is_signed_integer(kind) or pt.is_date32(kind) or pt.is_timestamp(kind)):
        return None
    if not blocks:
        return pa.nulls(1, kind)
    # The highest key is one above that of the greatest value: with a zero byte behind it.
    least = aggregate.function == MIN
    key = min(block.low for block in blocks) if least else max(block.high for block in blocks)[:-1]
    value = decode_key(key, kind)
    if is_float and not abs(value.as_py()) > 0:  # -0.0 has the key of 0.0, and NaN has several forms
        return None
    return pa.repeat(value, 1)


def _plain_fragments(context: Context, key: ContinuationKey) -> tuple[KnownTable, list[Fragment]] | None:
    """Return the fragments whose rows are just those that a scan which stands at its beginning would give.

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
