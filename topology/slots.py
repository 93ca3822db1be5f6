"""Sets of slots, as bits of an integer.

Bit `n` is set if slot `n` is in the set. So union, intersection and difference are one operation each,
however many ranges the set has. Ranges are computed when code iterates over them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from elasticscan.base.limits import MAX_SLOTS

Range = tuple[int, int]

_MANY = 64  # ranges from which on NumPy computes the bits


@dataclass(frozen=True, slots=True, repr=False)
class SlotSet:
    """An immutable set of slots.

    `len` and `in` refer to slots. Iteration yields sorted ranges `[start, end)` that do not touch, because
    no code should iterate slot by slot. Create one with `of`, `span` or `union`.
    """

    bits: int = 0
    _ranges: tuple[Range, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> SlotSet:
        """Return the union of ranges, which may overlap or be empty; `ValueError` if beyond `MAX_SLOTS`."""
        ranges, bits = tuple(ranges), 0
        for start, end in ranges:
            if not 0 <= start <= MAX_SLOTS >= end:
                raise ValueError(f"slots [{start}, {end}) are not within [0, {MAX_SLOTS})")
        if len(ranges) > _MANY:
            return cls(_bits_of(ranges))
        for start, end in ranges:
            if start < end:
                bits |= (1 << int(end)) - (1 << int(start))
        return cls(bits)

    @classmethod
    def span(cls, start: int, end: int) -> SlotSet:
        return cls.of(((start, end),))

    @classmethod
    def union(cls, sets: Iterable[SlotSet]) -> SlotSet:
        """Return the union of the sets."""
        return cls(reduce(operator.or_, (each.bits for each in sets), 0))

    @classmethod
    def parse(cls, text: str) -> SlotSet:
        """Parse a text that `str` made, such as `"0-64,128-192"` (ends excluded), or raise `ValueError`."""
        pairs = (pair.split("-") for pair in text.split(",") if text)
        return cls.of((int(start), int(end)) for start, end in pairs)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The slots as sorted ranges `[start, end)` that do not touch."""
        if self._ranges is None:
            object.__setattr__(self, "_ranges", _ranges_of(self.bits))
        assert self._ranges is not None
        return self._ranges

    @property
    def edges(self) -> npt.NDArray[np.int64]:
        """The bounds of all ranges in one array: start, end, start, end, ..."""
        return np.array(self.ranges, np.int64).ravel()

    def mask(self, slots: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
        """Return for each of these slots whether the set contains it."""
        size = self.bits.bit_length() + 1  # the last bit is 0; `clip` maps all higher slots to it
        packed = np.frombuffer(self.bits.to_bytes(size // 8 + 1, "little"), np.uint8)
        is_member = np.unpackbits(packed, count=size, bitorder="little").view(np.bool_)
        return is_member.take(slots, mode="clip")

    def __str__(self) -> str:
        return ",".join(f"{start}-{end}" for start, end in self.ranges)

    def __repr__(self) -> str:
        return f"SlotSet.parse({str(self)!r})"

    def __reduce__(self) -> tuple[type[SlotSet], tuple[int]]:
        return SlotSet, (self.bits,)

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges)

    def __bool__(self) -> bool:
        return self.bits != 0

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __contains__(self, slot: object) -> bool:
        # Slots may be NumPy integers, which are not `int`.
        return isinstance(slot, SupportsIndex) and bool(self.bits >> slot.__index__() & 1)

    def __or__(self, other: SlotSet) -> SlotSet:
        return SlotSet(self.bits | other.bits)

    def __and__(self, other: SlotSet) -> SlotSet:
        return SlotSet(self.bits & other.bits)

    def __sub__(self, other: SlotSet) -> SlotSet:
        return SlotSet(self.bits & ~other.bits)

    def __le__(self, other: SlotSet) -> bool:
        return not self.bits & ~other.bits

    def isdisjoint(self, other: SlotSet) -> bool:
        """Return True if the sets have no slot in common."""
        return not self.bits & other.bits


def _bits_of(ranges: tuple[Range, ...]) -> int:
    """Return the bits of many ranges in one pass: range by range, each would cost as much as all slots."""
    edges = np.array(ranges, np.int64)
    steps = np.zeros(MAX_SLOTS + 1, np.int64)
    filled = edges[:, 0] < edges[:, 1]
    np.add.at(steps, edges[filled, 0], 1)
    np.subtract.at(steps, edges[filled, 1], 1)
    return int.from_bytes(np.packbits(steps.cumsum() > 0, bitorder="little").tobytes(), "little")


def _ranges_of(bits: int) -> tuple[Range, ...]:
    if not bits:
        return ()
    start, end = (bits & -bits).bit_length() - 1, bits.bit_length()
    if bits.bit_count() == end - start:
        return ((start, end),)
    edges = bits ^ bits << 1  # a bit for each slot that differs in membership from the slot before it
    packed = np.frombuffer(edges.to_bytes(end // 8 + 1, "little"), np.uint8)
    places = np.unpackbits(packed, bitorder="little").nonzero()[0].tolist()
    return tuple(zip(places[::2], places[1::2], strict=True))
