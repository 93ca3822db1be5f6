"""Sets of value keys of one column, as intervals of bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import itemgetter

from elasticscan.base.key_encoding import END, VALUES

Interval = tuple[bytes, bytes]  # the keys with low <= key < high


@dataclass(frozen=True, slots=True)
class KeySet:
    """A union of intervals within [b"", END), in ascending order, which do not overlap or touch.

    >>> gap = KeySet.of([(b"\\1\\7", END), (b"\\1\\5", b"\\1\\6")])
    >>> gap.overlaps(b"\\1\\5", b"\\1\\6"), gap.overlaps(b"\\1\\6", b"\\1\\7")
    (True, False)
    """

    intervals: tuple[Interval, ...]

    @classmethod
    def of(cls, intervals: Iterable[Interval]) -> KeySet:
        """Return the union of any intervals, which may be empty."""
        merged: list[Interval] = []
        for low, high in sorted(intervals):
            if merged and low <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], high)
            elif low < high:
                merged.append((low, high))
        return cls(tuple(merged))

    @classmethod
    def union_of(cls, sets: Iterable[KeySet]) -> KeySet:
        return cls.of(chain.from_iterable(keys.intervals for keys in sets))

    @classmethod
    def intersection_of(cls, sets: Iterable[KeySet]) -> KeySet:
        """Return the keys that are in all sets, as the complement of the union of the complements."""
        return cls.union_of(keys.complement() for keys in sets).complement()

    @property
    def is_empty(self) -> bool:
        return not self.intervals

    def overlaps(self, low: bytes, high: bytes) -> bool:
        """Return True if the set contains a key within [low, high)."""
        at = bisect_left(self.intervals, high, key=itemgetter(0)) - 1
        return low < high and at >= 0 and low < self.intervals[at][1]

    def complement(self) -> KeySet:
        edges = [b"", *chain.from_iterable(self.intervals), END]
        return KeySet.of(zip(edges[::2], edges[1::2], strict=True))

    def coarsened(self, most: int) -> KeySet:
        """Return a superset of at most `most` intervals, without some of the gaps."""
        count = len(self.intervals)
        if count <= most:
            return self
        cuts = [count * part // most for part in range(most + 1)]
        return KeySet(
            tuple((self.intervals[first][0], self.intervals[last - 1][1]) for first, last in pairwise(cuts))
        )

    def __or__(self, other: KeySet) -> KeySet:
        return KeySet.union_of((self, other))

    def __and__(self, other: KeySet) -> KeySet:
        return KeySet.intersection_of((self, other))


# By column: a row can meet a condition only if all its values are in these sets.
KeySets = Mapping[str, KeySet]

NOTHING = KeySet(())
EVERYTHING = KeySet(((b"", END),))
NULLS = KeySet(((b"", VALUES),))
NOT_NULL = KeySet(((VALUES, END),))
