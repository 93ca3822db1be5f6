"""Counts, least and greatest values that statistics of fragments tell, without a look at a row.

Statistics have the least and the greatest value of each record batch, exactly as long as these are short:
a longer one is cut, and then is no value of a row. They tell what a scan would give where the fragments hold
nothing but its rows (`_plain_fragments`), and where it follows of each batch that all its rows meet the
condition, or none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from elasticscan.filters import (
    COUNT,
    COUNT_ROWS,
    MAX,
    MIN,
    Aggregate,
    ExactSets,
    Predicate,
    decode_key,
    exact_sets,
)
from elasticscan.metadata import Block, Bounds, Fragment, FragmentStatistics
from elasticscan.protocol import ContinuationKey, Cursor
from elasticscan.store.context import Context
from elasticscan.store.context.lookups import KnownTable
from elasticscan.topology import SlotSet

_Batch: TypeAlias = tuple[FragmentStatistics, int]  # by its number within a fragment
_TEXT_END = b"\0\0"  # of the keys of texts and bytes, which have it nowhere else


def known_values(
    context: Context, key: ContinuationKey, aggregates: Sequence[Aggregate]
) -> list[pa.Array] | None:
    """Return the values of aggregates over all rows of a scan that stands at its beginning, one each.

    None where rows have to be looked at.

    Raises:
        TableChanged, SnapshotExpired: as a scan of it would.
    """
    if not all(
        each.function == COUNT_ROWS or (each.function in (COUNT, MIN, MAX) and each.is_of_column)
        for each in aggregates
    ):
        return None
    plain = _plain_fragments(context, key)
    if plain is None:
        return None
    state, fragments = plain
    if key.filter is None and all(aggregate.function == COUNT_ROWS for aggregate in aggregates):
        return [pa.array([sum(fragment.rows for fragment in fragments)], pa.int64())] * len(aggregates)
    known = _batches(context, state, fragments, key)
    if known is None:
        return None
    values = [value for aggregate in aggregates if (value := _value(aggregate, *known)) is not None]
    return values if len(values) == len(aggregates) else None


def _plain_fragments(context: Context, key: ContinuationKey) -> tuple[KnownTable, list[Fragment]] | None:
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


def _batches(
    context: Context, state: KnownTable, fragments: Sequence[Fragment], key: ContinuationKey
) -> tuple[int, list[_Batch]] | None:
    """Return the record batches all of whose rows the scan gives, and how many rows these are.

    None if it gives some rows of another.
    """
    statistics = context.statistics(state).fragments_of(key.definition)
    sets: ExactSets | None = ()
    if key.filter is not None and state.table.definition == key.definition:
        sets = exact_sets(Predicate.parse(key.filter, state.table.schema).condition, state.table.schema)
    rows, batches = 0, list[_Batch]()
    for fragment in fragments:
        known = statistics.get(fragment.id)
        if known is None or known.rows != fragment.rows or sets is None:
            return None
        for number, size in enumerate(known.block_rows):
            if all(known.matches(number, column, keys) for column, keys in sets):
                rows += size
                batches.append((known, number))
            elif all(known.may_match(number, {column: keys}) for column, keys in sets):
                return None
    return rows, batches


def _value(aggregate: Aggregate, rows: int, batches: Sequence[_Batch]) -> pa.Array | None:
    """Return an aggregate over batches of so many rows; None where statistics do not tell it."""
    if aggregate.function == COUNT_ROWS:
        return pa.array([rows], pa.int64())
    (column,) = aggregate.columns
    if not all(column in known.columns for known, _ in batches):
        return None
    blocks = [known.columns[column][number] for known, number in batches]
    if aggregate.function == COUNT:
        return pa.array([rows - sum(block.nulls for block in blocks)], pa.int64())
    return _extreme(aggregate, [block for block in blocks if block.low < block.high])


def _extreme(aggregate: Aggregate, blocks: Sequence[Block]) -> pa.Array | None:
    """Return the least or greatest value of blocks; None where a bound was cut or is ambiguous."""
    kind = aggregate.type
    if not _is_exact(kind):
        return None
    if not blocks:
        return pa.nulls(1, kind)
    if aggregate.function == MIN:
        key = min(block.low for block in blocks)
    else:
        highest = max(block.high for block in blocks)
        if not highest.endswith(b"\0"):  # above a value that was cut
            return None
        key = highest[:-1]
    if _is_text(kind) and not key.endswith(_TEXT_END):
        return None
    value = decode_key(key, kind)
    if (
        pt.is_floating(kind) and not abs(value.as_py()) > 0
    ):  # -0.0 has the key of 0.0, and NaN has several forms
        return None
    return pa.repeat(value, 1)


def _is_exact(kind: pa.DataType) -> bool:
    """Return True of types whose keys are values again; no other key is so long that it is cut."""
    return bool(
        _is_text(kind)
        or pt.is_boolean(kind)
        or pt.is_signed_integer(kind)
        or pt.is_date32(kind)
        or pt.is_timestamp(kind)
        or pt.is_decimal128(kind)
        or pt.is_float32(kind)
        or pt.is_float64(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind)
    )
