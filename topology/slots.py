"""Sets of slots, as few ranges as possible."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import SupportsIndex

Range = tuple[int, int]

_FEW = 8  # times as many ranges are searched rather than walked
_end = itemgetter(1)


@dataclass(frozen=True, slots=True)
class SlotSet:
    """An immutable set of slots: sorted, disjoint, non-touching ranges `[start, end)`.

    Build one with `SlotSet.of`, which normalises; equal sets are then equal values. `len` and
    `in` speak of slots, iteration gives ranges: nobody should ever walk slot by slot.
    """

    ranges: tuple[Range, ...] = ()
    _count: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        last, count = -1, 0
        for start, end in self.ranges:
            # Touching ranges are joined: else {0-8} and {0-4, 4-8} would be one set and two values.
            assert last < start < end, f"slot ranges must be sorted and apart; use SlotSet.of: {self.ranges}"
            last, count = end, count + end - start
        object.__setattr__(self, "_count", count)

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> SlotSet:
        """The union of any ranges; empty ones are dropped, NumPy integers become plain ones."""
        merged: list[Range] = []
        for start, end in sorted((int(start), int(end)) for start, end in ranges if start < end):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((start, end))
        return cls(tuple(merged))

    @classmethod
    def span(cls, start: int, end: int) -> SlotSet:
        return cls.of(((start, end),))

    @classmethod
    def union(cls, sets: Iterable[SlotSet]) -> SlotSet:
        """The union of any sets; many are often equal, as those of a shard's fragments are."""
        distinct = set(sets)
        return distinct.pop() if len(distinct) == 1 else cls.of(part for some in distinct for part in some)

    @classmethod
    def parse(cls, text: str) -> SlotSet:
        """The inverse of `str`: `"0-64,128-192"`, ends excluded.

        Raises `ValueError` on any other text: only the caller knows whether that means a damaged
        file or a mistyped option.
        """
        if not text:
            return cls()
        ranges: list[Range] = []
        for part in text.split(","):
            start, dash, end = part.partition("-")
            if not (dash and _is_number(start) and _is_number(end) and int(start) < int(end)):
                raise ValueError(f"{part!r} is not a range of slots such as '0-64', in {text!r}")
            ranges.append((int(start), int(end)))
        return cls.of(ranges)

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
        if left == right:
            return self
        if len(left) > len(right):
            left, right = right, left
        if len(left) * _FEW < len(right):
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
        """True if no slot is in both; found at the first one that is."""
        left, right = self.ranges, other.ranges
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
        if cuts == self.ranges:
            return SlotSet()
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


def _common_of_few(few: tuple[Range, ...], many: tuple[Range, ...]) -> Iterator[Range]:
    """Ranges that a few have in common with many; these are looked into only where that may be."""
    at = 0
    for start, end in few:
        at = bisect_right(many, start, at, key=_end)
        for other in range(at, len(many)):
            if many[other][0] >= end:
                break
            yield max(start, many[other][0]), min(end, many[other][1])


def _is_number(text: str) -> bool:
    """Digits only: `int` alone would take "+4", "1_0" and " 7" as well."""
    return text.isascii() and text.isdigit()
