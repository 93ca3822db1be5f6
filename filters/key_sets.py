"""Sets of value keys of one column, as intervals of bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from elasticscan.base.key_encoding import END, NULL, VALUES


class Interval(NamedTuple):
    """The keys with low <= key < high; with `single` they are the keys of one value."""

    low: bytes
    high: bytes
    single: bool = False

    @property
    def key(self) -> bytes:
        """Return the one key of a single value."""
        assert self.single
        return self.low or NULL


@dataclass(frozen=True, slots=True)
class KeySet:
    """A union of disjoint intervals within [b"", END), ascending.

    Intervals that touch are one, except for single values alongside each other: an index whose first
    columns are fixed to single values can be entered at each of them.

    >>> ones = KeySet.of([Interval(b"\\1\\5", b"\\1\\6", True), Interval(b"\\1\\7", END)])
    >>> ones.overlaps(b"\\1\\5", b"\\1\\6"), ones.overlaps(b"\\1\\6", b"\\1\\7")
    (True, False)
    """

    intervals: tuple[Interval, ...]

    @classmethod
    def of(cls, intervals: Iterable[Interval]) -> KeySet:
        """Return the union of any intervals, empty ones among them."""
        merged: list[Interval] = []
        for interval in sorted(interval for interval in intervals if interval.low < interval.high):
            last = merged[-1] if merged else None
            if (
                last is None
                or interval.low > last.high
                or (interval.low == last.high and interval.single and last.single)
            ):
                merged.append(interval)
            else:
                low, high = last.low, max(last.high, interval.high)
                single = any(one.single and one[:2] == (low, high) for one in (last, interval))
                merged[-1] = Interval(low, high, single)
        return cls(tuple(merged))

    @classmethod
    def union_of(cls, sets: Iterable[KeySet]) -> KeySet:
        return cls.of(interval for keys in sets for interval in keys.intervals)

    @classmethod
    def intersection_of(cls, sets: Sequence[KeySet]) -> KeySet:
        """Return the keys that are in all sets, by halves: the order of sets hardly changes the time."""
        if len(sets) <= 1:
            return sets[0] if sets else EVERYTHING
        half = len(sets) // 2
        return _intersection(cls.intersection_of(sets[:half]), cls.intersection_of(sets[half:]))

    @property
    def is_empty(self) -> bool:
        return not self.intervals

    @property
    def singles(self) -> bool:
        """Return True if it is a list of single values."""
        return all(interval.single for interval in self.intervals)

    def overlaps(self, low: bytes, high: bytes) -> bool:
        """Return True if some bytes within [low, high) are in the set."""
        at = bisect_left(self.intervals, high, key=itemgetter(0)) - 1
        return low < high and at >= 0 and low < self.intervals[at].high

    def complement(self) -> KeySet:
        lows = [b"", *(interval.high for interval in self.intervals)]
        highs = [*(interval.low for interval in self.intervals), END]
        return KeySet.of(map(Interval, lows, highs))

    def coarsened(self, most: int) -> KeySet:
        """Return a superset of at most so many intervals, which bridges some gaps."""
        count = len(self.intervals)
        if count <= most:
            return self
        cuts = [count * part // most for part in range(most + 1)]
        groups = [self.intervals[first:last] for first, last in pairwise(cuts)]
        return KeySet(
            tuple(group[0] if len(group) == 1 else Interval(group[0].low, group[-1].high) for group in groups)
        )

    def __or__(self, other: KeySet) -> KeySet:
        return KeySet.union_of((self, other))

    def __and__(self, other: KeySet) -> KeySet:
        return _intersection(self, other)


KeySets = Mapping[str, KeySet]  # by column; a row can only meet the condition if all its values are in them


def _intersection(left: KeySet, right: KeySet) -> KeySet:
    if left == EVERYTHING or right == EVERYTHING:
        return right if left == EVERYTHING else left
    common: list[Interval] = []
    one, two = 0, 0
    while one < len(left.intervals) and two < len(right.intervals):
        left_interval, right_interval = left.intervals[one], right.intervals[two]
        low, high = max(left_interval.low, right_interval.low), min(left_interval.high, right_interval.high)
        if low < high:
            # Bounds lie between values, so an intersection holds all of a single value or nothing of it.
            common.append(Interval(low, high, left_interval.single or right_interval.single))
        if left_interval.high <= right_interval.high:
            one += 1
        else:
            two += 1
    return KeySet.of(common)


NOTHING = KeySet(())
EVERYTHING = KeySet((Interval(b"", END),))
NULLS = KeySet((Interval(b"", VALUES, True),))
NOT_NULL = KeySet((Interval(VALUES, END),))
