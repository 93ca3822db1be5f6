"""Estimates of the rows and entries that a scan looks at, from statistics of fragments and index runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile

from elasticscan.filters import KeySet, KeySets
from elasticscan.metadata import HASH, Fragment, FragmentStatistics, KeyHistogram, SlotInterval
from elasticscan.optimizer.binding import IndexCondition
from elasticscan.optimizer.keys import KeyCondition
from elasticscan.protocol import KeyRanges
from elasticscan.topology import Range, SlotSet

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
            matching_per_slot[number] = share * _rows_in_blocks(blocks, key_sets)
    matching = {number for number, rows in matching_per_slot.items() if rows}
    everything = looked_at = 0.0
    for interval in intervals:
        numbers, slots = [fragment.id for fragment in interval.fragments], interval.end - interval.start
        rows = slots * sum(map(rows_per_slot.__getitem__, numbers))
        everything += rows
        if interval.is_plain:
            looked_at += slots * matching_per_slot[numbers[0]]
        elif not matching.isdisjoint(numbers):
            looked_at += rows
    return everything, looked_at


def _share_of_slot(fragment: Fragment) -> float:
    """About how much of a fragment's rows is in one of its slots, 0 to 1."""
    return 1 / max(fragment.slots_written, len(fragment.slots), 1)


def within(intervals: Sequence[SlotInterval], slots: SlotSet) -> Sequence[SlotInterval]:
    """Return the parts of intervals that are in these slots."""
    ends = [end for _, end in slots.ranges]
    if len(ends) == 1 and all(slots.ranges[0][0] <= i.start and i.end <= ends[0] for i in intervals):
        return intervals
    return tuple(
        SlotInterval(max(start, interval.start), min(end, interval.end), interval.fragments)
        for interval in intervals
        for start, end in _from(slots.ranges, bisect_right(ends, interval.start), interval.end)
    )


def _from(ranges: Sequence[Range], first: int, beyond: int) -> Iterator[Range]:
    return takewhile(lambda ends: ends[0] < beyond, islice(ranges, first, None))


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


def _rows_in_blocks(fragment: FragmentStatistics, key_sets: KeySets) -> int:
    """Return the rows of the blocks that may match."""
    return sum(rows for at, rows in enumerate(fragment.block_rows) if fragment.may_match(at, key_sets))


def index_rows(
    condition: IndexCondition,
    keys_of_last: KeySet,
    histograms: Sequence[KeyHistogram],
) -> float:
    """About how many entries an index scan reads.

    `keys_of_last` are the values of the last bound column. Where that is limited to a range and
    columns before it are fixed, a range is often too narrow for the index's histogram; then it is taken
    as a third of what the fixed columns leave.
    """
    if not condition.bound:
        return float(sum(histogram.rows for histogram in histograms))
    if condition.index.kind == HASH:
        return sum(histogram.rows_equal(*ends) for histogram in histograms for ends in condition.ranges)
    if condition.fixed == condition.bound:
        return sum(
            histogram.rows_equal(*ends, condition.bound)
            for histogram in histograms
            for ends in condition.ranges
        )
    if condition.bound == 1:
        single = {ends[:2] for ends in keys_of_last.intervals if ends.single}
        return sum(
            histogram.rows_equal(*ends) if ends in single else histogram.rows_between(*ends)
            for histogram in histograms
            for ends in condition.ranges
        )
    share = UNKNOWN_SELECTIVITY / max(1, len(keys_of_last.intervals))
    total = 0.0
    for histogram in histograms:
        different = histogram.distinct[: condition.fixed] or (1,)
        narrow = share * histogram.rows / max(1, different[-1])
        total += sum(histogram.rows_in(low, high, narrow) for low, high in condition.ranges)
    return total
