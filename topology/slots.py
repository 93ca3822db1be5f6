"""Sets of slots, as few ranges as possible.

Small sets are walked range by range. Sets of many ranges, as those of a store with thousands of tablets are,
are combined as arrays: of their *edges*, start and end of one range after the other, which only grow.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

Range = tuple[int, int]
Edges = npt.NDArray[np.int64]

_MANY = 64  # more ranges of two sets are combined as arrays,
_FEW = 8  # and so few of one of them looked for in the other
_RANGES = re.compile("[0-9]+-[0-9]+(?:,[0-9]+-[0-9]+)*")
_end = itemgetter(1)


@dataclass(frozen=True, slots=True)
class SlotSet:
    """An immutable set of slots: sorted, disjoint, non-touching ranges `[start, end)`.

    Build one with `SlotSet.of`, which normalises; equal sets are then equal values. `len` and
    `in` refer to slots, iteration gives ranges: no code should walk slot by slot.
    """

    ranges: tuple[Range, ...] = ()
    _count: int = field(init=False, repr=False, compare=False)
    _edges: Edges | None = field(init=False, repr=False, compare=False)  # computed at first use

    def __post_init__(self) -> None:
        last, count = -1, 0
        for start, end in self.ranges:
            # Touching ranges are joined: else {0-8} and {0-4, 4-8} would be one set and two values.
            assert last < start < end, f"slot ranges must be sorted and apart; use SlotSet.of: {self.ranges}"
            last, count = end, count + end - start
        object.__setattr__(self, "_count", count)
        object.__setattr__(self, "_edges", None)

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> SlotSet:
        """Return the union of any ranges; empty ones are dropped, NumPy integers become plain ones."""
        ranges = ranges if isinstance(ranges, Sequence) else tuple(ranges)
        if len(ranges) > _MANY:
            return cls._of_edges(_joined(_edges_of(ranges)))
        merged: list[Range] = []
        for start, end in sorted((int(start), int(end)) for start, end in ranges if start < end):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((start, end))
        return cls(tuple(merged))

    @classmethod
    def _of_edges(cls, edges: Edges) -> SlotSet:
        """Return the set with these edges, which are in normal form."""
        made: SlotSet = object.__new__(cls)
        starts, ends = edges[::2], edges[1::2]
        object.__setattr__(made, "ranges", tuple(zip(starts.tolist(), ends.tolist(), strict=True)))
        object.__setattr__(made, "_count", int((ends - starts).sum()))
        object.__setattr__(made, "_edges", edges)
        return made

    @property
    def edges(self) -> Edges:
        """Start and end of one range after the other; not to be changed."""
        if self._edges is None:
            object.__setattr__(self, "_edges", _edges_of(self.ranges))
        assert self._edges is not None
        return self._edges

    def mask(self, slots: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
        """Return True for each of these slots that is one of the set."""
        inside: npt.NDArray[np.bool_] = np.searchsorted(self.edges, slots, "right") % 2 == 1
        return inside

    @classmethod
    def span(cls, start: int, end: int) -> SlotSet:
        return cls.of(((start, end),))

    @classmethod
    def union(cls, sets: Iterable[SlotSet]) -> SlotSet:
        """Return the union of any sets; many are often equal, as those of a shard's fragments are."""
        distinct = set(sets)
        return distinct.pop() if len(distinct) == 1 else cls.of(part for some in distinct for part in some)

    @classmethod
    def parse(cls, text: str) -> SlotSet:
        """Return the inverse of `str`: `"0-64,128-192"`, ends excluded.

        Raises `ValueError` on any other text: only the caller knows whether that means a damaged
        file or a mistyped option.
        """
        if not text:
            return cls()
        if _RANGES.fullmatch(text):
            bounds = list(map(int, text.replace("-", ",").split(",")))
            starts, ends = bounds[::2], bounds[1::2]
            if all(map(operator.lt, starts, ends)):
                return cls.of(list(zip(starts, ends, strict=True)))
        wrong = next(part for part in text.split(",") if not _is_range(part))
        raise ValueError(f"{wrong!r} is not a range of slots such as '0-64', in {text!r}")

    def __str__(self) -> str:
        return ",".join(f"{start}-{end}" for start, end in self.ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, slot: object) -> bool:
        # NumPy integers are not `int`, yet they are slots.
        if not isinstance(slot, SupportsIndex):
            return False
        at = slot.__index__()
        return any(start <= at < end for start, end in self.ranges)

    def __or__(self, other: SlotSet) -> SlotSet:
        if not self.ranges or not other.ranges:
            return self if self.ranges else other
        return SlotSet.of(self.ranges + other.ranges)

    def __and__(self, other: SlotSet) -> SlotSet:
        common: list[Range] = []
        left, right = self.ranges, other.ranges
        if left == right or not left:
            return self
        if not right:
            return other
        if len(left) > len(right):
            left, right = right, left
        if len(left) + len(right) > _MANY:
            if len(left) > _FEW:
                return self._combined(other, np.logical_and)
            return SlotSet(tuple(_common_of_few(left, right)))
        i = j = 0
        while i < len(left) and j < len(right):
            start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
            if start < end:
                common.append((start, end))
            if left[i][1] < right[j][1]:
                i += 1
            else:
                j += 1
        return SlotSet(tuple(common))

    def isdisjoint(self, other: SlotSet) -> bool:
        """Return True if no slot is in both."""
        left, right = self.ranges, other.ranges
        if len(left) + len(right) > _MANY:
            return not self & other
        i = j = 0
        while i < len(left) and j < len(right):
            if max(left[i][0], right[j][0]) < min(left[i][1], right[j][1]):
                return False
            if left[i][1] < right[j][1]:
                i += 1
            else:
                j += 1
        return True

    def __sub__(self, other: SlotSet) -> SlotSet:
        left: list[Range] = []
        cuts = other.ranges
        if not cuts:
            return self
        if cuts == self.ranges:
            return SlotSet()
        if len(self.ranges) + len(cuts) > _MANY:
            return self._combined(other, np.greater)  # what is in, and is not in the other
        j = 0
        for at, end in self.ranges:
            start = at
            while j < len(cuts) and cuts[j][1] <= start:
                j += 1
            k = j
            while k < len(cuts) and cuts[k][0] < end:
                if start < cuts[k][0]:
                    left.append((start, cuts[k][0]))
                start = max(start, cuts[k][1])
                k += 1
            if start < end:
                left.append((start, end))
        return SlotSet(tuple(left))

    def __le__(self, other: SlotSet) -> bool:
        return not self - other

    def _combined(self, other: SlotSet, combine: Callable[[Any, Any], Any]) -> SlotSet:
        """Return the slots for which `combine(in_self, in_other)` is true."""
        mine = self.edges
        edges = np.concatenate((mine, other.edges))
        order = edges.argsort(kind="stable")  # two sorted runs, which it merges
        edges, is_mine = edges[order], order < len(mine)
        last = np.append(edges[1:] != edges[:-1], True)  # the last of equal ones, which counts both sets
        # An odd number of a set's edges up to a place says that the place is in the set.
        inside = combine(np.cumsum(is_mine) & 1, np.cumsum(~is_mine) & 1)[last]
        return SlotSet._of_edges(edges[last][np.diff(inside, prepend=False)])


def _edges_of(ranges: Sequence[Range]) -> Edges:
    return np.fromiter(chain.from_iterable(ranges), np.int64, 2 * len(ranges))


def _joined(edges: Edges) -> Edges:
    """Return the edges of the union of any ranges, given by theirs."""
    starts, ends = edges[::2], edges[1::2]
    filled = starts < ends
    starts, ends = starts[filled], ends[filled]
    if not len(starts):
        return edges[:0]
    order = starts.argsort(kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    apart = starts[1:] > ends[:-1]
    firsts, lasts = starts[np.append(True, apart)], ends[np.append(apart, True)]
    return np.column_stack((firsts, lasts)).ravel()


def _common_of_few(few: tuple[Range, ...], many: tuple[Range, ...]) -> Iterator[Range]:
    """Ranges that a few have in common with many; these are looked into only where that may be."""
    at = 0
    for start, end in few:
        at = bisect_right(many, start, at, key=_end)
        for other in range(at, len(many)):
            if many[other][0] >= end:
                break
            yield max(start, many[other][0]), min(end, many[other][1])


def _is_range(text: str) -> bool:
    """Digits only: `int` alone would take "+4", "1_0" and " 7" as well."""
    if not _RANGES.fullmatch(text):
        return False
    start, end = map(int, text.split("-"))
    return start < end
