"""Estimates of the rows that a scan looks at, from statistics of fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticscan.filters import KeySet, KeySets
from elasticscan.metadata import Fragment, FragmentStatistics, SlotInterval
from elasticscan.optimizer.keys import KeyCondition
from elasticscan.protocol import KeyRanges
from elasticscan.topology import SlotSet

# Of the entries with the same first columns, so many are taken to be in a range of the next one.
UNKNOWN_SELECTIVITY = 1 / 3


def rows_to_read(
    intervals: Sequence[SlotInterval], statistics: Mapping[int, FragmentStatistics], key_sets: KeySets
) -> tuple[float, float]:
    """About how many rows there are, and how many a direct scan looks at: those not ruled out by statistics.

    Where several versions of a row may meet, all are read as soon as one of them may match.
    """
    rows_per_slot: dict[int, float] = {}
    matching_per_slot: dict[int, float] = {}
    fragments = {fragment.id: fragment for interval in intervals for fragment in interval.fragments}
    for number, fragment in fragments.items():
        blocks, share = statistics.get(number), _share_of_slot(fragment)  # None where damage hides them
        rows_per_slot[number] = share * (fragment.rows if blocks is None else blocks.rows)
        matching_per_slot[number] = rows_per_slot[number]
        if blocks is not None and key_sets:
            matching = (rows for at, rows in enumerate(blocks.block_rows) if blocks.may_match(at, key_sets))
            matching_per_slot[number] = share * sum(matching)
    are_read = {number for number, rows in matching_per_slot.items() if rows}
    everything = looked_at = 0.0
    for interval in intervals:
        numbers, slots = [fragment.id for fragment in interval.fragments], interval.end - interval.start
        rows = slots * sum(map(rows_per_slot.__getitem__, numbers))
        everything += rows
        if interval.is_plain:
            looked_at += slots * matching_per_slot[numbers[0]]
        elif not are_read.isdisjoint(numbers):
            looked_at += rows
    return everything, looked_at


def _share_of_slot(fragment: Fragment) -> float:
    """About how much of a fragment's rows is in one of its slots, 0 to 1."""
    return 1 / max(fragment.slots_written, len(fragment.slots), 1)


def within(intervals: Sequence[SlotInterval], slots: SlotSet) -> Sequence[SlotInterval]:
    """Return the parts of intervals that are in these slots."""
    return tuple(
        SlotInterval(start, end, interval.fragments)
        for interval in intervals
        for start, end in slots & SlotSet.span(interval.start, interval.end)
    )


def rows_by_key(
    condition: KeyCondition,
    columns: int,
    keys_of_limited: KeySet,
    intervals: Sequence[SlotInterval],
    statistics: Mapping[int, FragmentStatistics],
) -> tuple[float, float]:
    """About how many rows are in the ranges of a condition, and how many seeks find them.

    `columns` are those of the primary key; `keys_of_limited` the values of the last bound one, and
    `intervals` those within the slots of the condition.
    """
    keys = condition.keys
    assert keys is not None, "a condition that limits no keys reads none by key"
    in_all_slots = isinstance(keys, KeyRanges) and keys.by_slot is None
    each = keys.count / (1 if in_all_slots else len(condition.slots) or 1)
    seeks = rows = 0.0
    for interval in intervals:
        here = each * (interval.end - interval.start) * len(interval.fragments)
        seeks += here
        if condition.fixed == columns:
            rows += here
            continue
        for fragment in interval.fragments:
            known = statistics.get(fragment.id)
            share = UNKNOWN_SELECTIVITY if condition.fixed else 1.0
            if condition.limited is not None and known is not None:
                share *= known.share_of(condition.limited, keys_of_limited)
            rows += share * fragment.rows * _share_of_slot(fragment) * (interval.end - interval.start)
    return rows, seeks
